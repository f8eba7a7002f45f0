"""Settings of a fit: checked where they enter, readable from TOML, writable to JSON.

An unknown key is an error, because a misspelt setting that is silently ignored costs a night.
"""

from __future__ import annotations

import dataclasses
import math
import os
import tomllib
from dataclasses import dataclass
from typing import Any

from slrt_dask.errors import InvalidConfig, InvalidInput

METHODS = ("auto", "lbfgs", "rcg", "rtr")
PRECISIONS = ("float64", "float32")
MODES = "modes"
"""The `center` that subtracts an offset per index of every mode."""
WITHOUT_CONSTRAINTS = (
    "center='modes' takes no constraint: with an offset per mode a bound or a row would differ "
    "from entry to entry, and a window would not be one of the data; use center=True, or none"
)


@dataclass(frozen=True)
class FitSettings:
    """Everything that decides the answer of a fit, besides the data.

    ranks : one per mode
    C : weight of the misfit; only the product C·λ matters
    lambdas : one per mode; the mode lengths if None
    method : "lbfgs" (quasi-Newton), "rcg" (conjugate gradients), "rtr" (trust region), or "auto"
    center : what to subtract before the fit: the observed mean (True), "modes" for that and an
        offset per index of every mode, or nothing (False)
    precision : of the solver's vectors; sums are float64 always
    inner : how constraints are solved for: "joint", or "alternating" as in the paper
    constraint : the table of a constraint, several such tables, or None
    certified : whether the ranks are only the highest allowed: they begin at one, or at those of
        the start, and grow until the certified gap closes
    huber : δ of Huber's loss; None for the squared misfit
    patience : iterations without a smaller error on held-out observations that end the fit, which
        then goes back to its best point; None for as many as the tolerances ask for
    chosen : whether the factors that it starts from were chosen on held-out observations, where
        more iterations predicted worse: it then only solves for what they leave open
    """

    ranks: tuple[int, ...]
    C: float
    lambdas: tuple[float, ...] | None = None
    method: str = "auto"
    center: bool | str = False
    gap_tolerance: float = 1e-3
    gradient_tolerance: float = 1e-6
    max_iterations: int = 200
    max_seconds: float | None = None
    precision: str = "float64"
    seed: int = 0
    inner: str = "joint"
    constraint: dict[str, Any] | tuple[dict[str, Any], ...] | None = None
    chosen: bool = False
    certified: bool = False
    patience: int | None = None
    huber: float | None = None

    def __post_init__(self) -> None:
        if not self.ranks or any(not _is_whole(rank) or rank < 1 for rank in self.ranks):
            raise InvalidConfig(f"ranks must be positive whole numbers, not {self.ranks!r}")
        _require_positive("C", self.C)
        for weight in self.lambdas or ():
            _require_positive("every lambda", weight)
        if self.method not in METHODS:
            raise InvalidConfig(f"method is {self.method!r}; choose one of {', '.join(METHODS)}")
        if self.precision not in PRECISIONS:
            raise InvalidConfig(
                f"precision is {self.precision!r}; choose one of {', '.join(PRECISIONS)}"
            )
        if not isinstance(self.center, bool) and self.center != MODES:
            raise InvalidConfig(f"center is {self.center!r}; give true, false, 'modes' or 'auto'")
        if self.center == MODES and self.constraint:
            raise InvalidConfig(WITHOUT_CONSTRAINTS)
        for name in ("gap_tolerance", "gradient_tolerance"):
            value = getattr(self, name)
            if not (_is_finite(value) and value >= 0.0):
                raise InvalidConfig(f"{name} is {value!r}; give a number that is not negative")
        if not _is_whole(self.max_iterations) or self.max_iterations < 0:
            raise InvalidConfig(
                f"max_iterations is {self.max_iterations!r}; give a whole number, at least 0"
            )
        if self.patience is not None and (not _is_whole(self.patience) or self.patience < 1):
            raise InvalidConfig(
                f"patience is {self.patience!r}; give a whole number of iterations, at least 1"
            )
        if self.max_seconds is not None:
            _require_positive("max_seconds", self.max_seconds)
        tables = self.constraint if isinstance(self.constraint, tuple) else (self.constraint,)
        if self.constraint is not None and not all(isinstance(table, dict) for table in tables):
            raise InvalidConfig(
                f"constraint is {self.constraint!r}; give a table, such as lower = 0, or several"
            )
        if self.inner not in ("joint", "alternating"):
            raise InvalidConfig(f"inner is {self.inner!r}; give 'joint' or 'alternating'")
        if self.huber is not None:
            check_huber(self.huber)
        linear = any(isinstance(table, dict) and "rows" in table for table in tables)
        check_combination(self.method, self.huber, self.tau is not None, linear)
        if not _is_whole(self.seed) or self.seed < 0:
            raise InvalidConfig(f"seed is {self.seed!r}; give a whole number, at least 0")

    @property
    def tau(self) -> tuple[int, ...] | None:
        """The offsets of a Hankel constraint, if there is one."""
        tables = self.constraint if isinstance(self.constraint, tuple) else (self.constraint,)
        for table in tables:
            if isinstance(table, dict) and "tau" in table:
                return tuple(table["tau"])
        return None

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse ranks and weights that cannot be those of a tensor of this shape."""
        for name in ("ranks", "lambdas"):
            given = getattr(self, name)
            if given is not None and len(given) != len(shape):
                raise InvalidInput(
                    f"{name} must be {len(shape)} numbers for a tensor of shape {shape}, not the "
                    f"{len(given)} numbers {given}"
                )
        if len(shape) == 1 and self.tau is None:
            raise InvalidInput(
                f"a series of {shape[0]} samples has no other modes that could tell of those that "
                f"are missing; give a structure: constraint=Hankel({shape[0] // 2})"
            )
        tau = self.tau or (1,) * len(shape)
        for mode, (rank, length, offsets) in enumerate(zip(self.ranks, shape, tau, strict=True)):
            most = length - offsets + 1
            if rank > most:
                what = (
                    f"is more than the mode's length {length}"
                    if offsets == 1
                    else f"is more than the length of its windows, {length} − {offsets} + 1"
                )
                raise InvalidInput(f"rank {rank} of mode {mode} {what}; give at most {most}")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def read_settings(path: str | os.PathLike[str], section: str = "fit") -> dict[str, Any]:
    """The table [fit] of a TOML file as a dictionary of known keys; others are an error."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError as error:
        raise InvalidConfig(f"there is no configuration file {path}; check the path") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path} is not valid TOML: {error}") from error
    table = content.get(section)
    if not isinstance(table, dict):
        raise InvalidConfig(f"{path} has no table [{section}]; put the settings of the fit there")
    known = {field.name for field in dataclasses.fields(FitSettings)} - {"chosen", "certified"}
    known |= {"max_ranks", "held_out", "store", "run", "validation"}
    for key in table:
        if key not in known:
            raise InvalidConfig(
                f"{path} sets {section}.{key}, which is unknown; known keys are "
                f"{', '.join(sorted(known))}"
            )
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def check_huber(delta: Any) -> None:
    """Refuse what cannot be δ of Huber's loss."""
    if not (_is_finite(delta) and delta > 0.0):
        raise InvalidConfig(
            f"delta of Huber's loss is {delta!r}; give a positive number in the units of the data, "
            "or 'auto'"
        )


def check_combination(method: Any, huber: float | None, hankel: bool, linear: bool) -> None:
    """Refuse what there is no solver for.

    hankel, linear : whether there is a Hankel structure, or rows of linear constraints
    """
    if huber is not None and hankel:
        raise InvalidConfig(
            "Huber's loss and Hankel structure do not go together yet; leave out one of them"
        )
    if method == "rtr" and linear:
        raise InvalidConfig(
            "method 'rtr' takes no linear rows, which have no Hessian; use 'rcg', 'lbfgs' or 'auto'"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _require_positive(name: str, value: Any) -> None:
    if not (_is_finite(value) and value > 0.0):
        raise InvalidConfig(f"{name} must be a positive number, not {value!r}")
