"""Linear constraints in the words of the caller: rows of coefficients, and what they must come to.

A constraint may have millions of rows, so what is not in a store yet is put into one before a fit
begins: of order K + 1, the first index being the row's number. From then on it is known by path.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slrt_dask.constraints import check_places
from slrt_dask.data import from_coo, open_store
from slrt_dask.data.location import normal_path
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import CheckpointMismatch, InvalidConfig, InvalidInput
from slrt_dask.row_patterns import Coefficients, rising_rows, total_rows, twin_rows

KINDS = (">=", "==", "<=")
LINEAR_KEYS = ("rows", "bound", "kind", "digests")


@dataclass(frozen=True, eq=False)
class Linear:
    """A(W) ≥ b, A(W) = b or A(W) ≤ b, row by row.

    A : one row for every condition and one column for every entry: a scipy sparse matrix or array
        (m, n_1⋯n_K) over the flattened tensor in C order, or a `sparse.COO` of that shape or of
        shape (m, n_1, …, n_K); small ones may be numpy arrays. Or a store (or its path) of order
        K + 1 whose first index is the row's number, for what does not fit in memory
    b : a number, one for every row, or the path of a store of shape (m, 1)
    kind : ">=", "==" or "<="

    In the units of the data, also with `center=True`. `Linear.totals`, `Linear.rising` and
    `Linear.symmetric` make the rows that are wanted most.
    """

    A: Any
    b: Any = 0.0
    kind: str = ">="
    digests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"kind is {self.kind!r}; give one of '>=', '==' and '<='")
        object.__setattr__(self, "A", _checked_rows(self.A))
        count = self.A.count if isinstance(self.A, Coefficients) else None
        object.__setattr__(self, "b", _checked_bound(self.b, count))
        object.__setattr__(self, "digests", tuple(self.digests))

    @classmethod
    def totals(cls, values: ArrayLike, mode: int, length: int, kind: str = "==") -> Linear:
        """Sums over a mode are known.

        values : the sums, an array of the tensor's shape without the mode; NaN where unknown
        length : of the mode
        """
        return cls(*total_rows(values, mode, length), kind)

    @classmethod
    def rising(cls, shape: tuple[int, ...], mode: int, least: float = 0.0) -> Linear:
        """Along a mode every entry is larger than the one before it, by `least` or more."""
        return cls(rising_rows(shape, mode), least)

    @classmethod
    def symmetric(cls, shape: tuple[int, ...], modes: tuple[int, int] = (0, 1)) -> Linear:
        """Two modes may be exchanged: W[i, j, …] = W[j, i, …]."""
        return cls(twin_rows(shape, modes), 0.0, "==")

    @property
    def is_stored(self) -> bool:
        return isinstance(self.A, str) and isinstance(self.b, (str, float))

    @property
    def store(self) -> ObservationStore:
        """The rows; they have to be stored."""
        return self._opened(str(self.A), 0)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.A.count if isinstance(self.A, Coefficients) else self.store.shape[0]

    def bound(self) -> NDArray[np.float64]:
        """b, one number for every row."""
        count = self.count
        if not isinstance(self.b, str):
            return np.full(count, self.b, dtype=np.float64)
        store, bound = self._opened(self.b, 1), np.full(count, np.nan)
        if store.shape != (count, 1):
            raise InvalidInput(
                f"b has shape {store.shape}, A has {count:,} rows; give one number for every row"
            )
        for number in range(len(store.partitions)):
            columns, values = store.read_partition(number)
            bound[columns[0]] = values
        if np.isnan(bound).any():
            raise InvalidInput(f"b has no number for row {int(np.argmax(np.isnan(bound)))}")
        return bound

    def limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """lower and upper, so that lower ≤ A(W) ≤ upper."""
        bound = self.bound()
        none = np.full(len(bound), np.inf)
        lower = -none if self.kind == "<=" else bound
        return lower, none if self.kind == ">=" else bound

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse what cannot be a condition on a tensor of this shape."""
        if isinstance(self.A, Coefficients):
            _check_coefficients(self.A, shape)
        elif self.store.shape[1:] != tuple(shape):
            raise InvalidInput(
                f"the rows in {self.A} are for tensors of shape {self.store.shape[1:]}, not of "
                f"shape {shape}"
            )

    def stored(self, path: str, shape: tuple[int, ...], slab_mode: int) -> Linear:
        """The same with everything in stores below a path."""
        rows, bound = self.A, self.b
        if isinstance(rows, Coefficients):
            indices = np.vstack([rows.rows[None], _places(rows, shape)])
            lengths = (rows.count, *shape)
            from_coo(f"{path}-A", indices, rows.values, lengths, slab_mode=slab_mode + 1)
            rows = f"{path}-A"
        if isinstance(bound, np.ndarray):
            numbers = np.arange(len(bound))
            from_coo(f"{path}-b", [numbers, 0 * numbers], bound, (len(bound), 1), slab_mode=0)
            bound = f"{path}-b"
        paths = [place for place in (rows, bound) if isinstance(place, str)]
        return replace(
            self, A=rows, b=bound, digests=tuple(open_store(path).digest for path in paths)
        )

    def to_dict(self) -> dict[str, Any]:
        """A table of it; it has to be stored."""
        return {"rows": self.A, "bound": self.b, "kind": self.kind, "digests": list(self.digests)}

    def _opened(self, path: str, number: int) -> ObservationStore:
        store = open_store(path)
        if self.digests and self.digests[number] != store.digest:
            raise CheckpointMismatch(
                f"{path} holds other numbers (digest {store.digest[:12]}) than the run was made "
                f"for ({self.digests[number][:12]}); start a new run"
            )
        return store


def _check_coefficients(coefficients: Coefficients, shape: tuple[int, ...]) -> None:
    if coefficients.columns.ndim == 1:
        entries = math.prod(shape)
        if coefficients.shape[0] != entries:
            raise InvalidInput(
                f"A has {coefficients.shape[0]:,} columns, a tensor of shape {shape} has "
                f"{entries:,} entries; give one column for every entry"
            )
        return
    if coefficients.shape and coefficients.shape != tuple(shape):
        raise InvalidInput(f"A is for tensors of shape {coefficients.shape}, not of shape {shape}")
    check_places(coefficients.columns, shape)


def _places(coefficients: Coefficients, shape: tuple[int, ...]) -> NDArray[np.int64]:
    if coefficients.columns.ndim == 2:
        return coefficients.columns
    return np.stack(np.unravel_index(coefficients.columns, shape)).astype(np.int64)


def linear_of(table: dict[str, Any]) -> Linear:
    """A linear constraint from a table of a file."""
    unknown = sorted(set(table) - set(LINEAR_KEYS))
    if unknown:
        raise InvalidConfig(
            f"a linear constraint has no key {unknown[0]!r}; known keys are rows, bound, kind"
        )
    given = {"A": table["rows"], "b": table.get("bound", 0.0), "kind": table.get("kind", ">=")}
    return Linear(**given, digests=tuple(table.get("digests", ())))


def _checked_rows(given: Any) -> str | Coefficients:
    if isinstance(given, Coefficients):
        return given
    if isinstance(given, ObservationStore):
        return given.path
    if isinstance(given, (str, os.PathLike)):
        return normal_path(given)
    shape, columns, values = _coordinates(given)
    if len(shape) < 2:
        raise InvalidInput(f"A has shape {shape}; give one row for every condition")
    used = values != 0.0
    if not np.isfinite(values).all():
        raise InvalidInput(f"A has the coefficient {values[~np.isfinite(values)][0]}")
    if not used.any():
        raise InvalidInput("A has no coefficients; leave the constraint out")
    rows, places = columns[0, used], columns[1:, used]
    return Coefficients(
        int(shape[0]), rows, places[0] if len(shape) == 2 else places, values[used], shape[1:]
    )


def _coordinates(given: Any) -> tuple[tuple[int, ...], NDArray[np.int64], NDArray[np.float64]]:
    """Shape, index columns and values of a sparse matrix, a sparse tensor or an array."""
    if getattr(getattr(given, "dtype", None), "kind", "f") == "c":
        raise InvalidInput(f"A has coefficients of type {given.dtype}; give real numbers")
    if hasattr(given, "fill_value") and hasattr(given, "asformat"):
        given = given.asformat("coo")
    elif hasattr(given, "tocoo"):
        matrix = given.tocoo(copy=True)
        matrix.sum_duplicates()
        columns = np.stack(getattr(matrix, "coords", None) or [matrix.row, matrix.col])
        return matrix.shape, columns.astype(np.int64), np.asarray(matrix.data, dtype=np.float64)
    if hasattr(given, "coords") and hasattr(given, "fill_value"):
        if given.fill_value != 0:
            raise InvalidInput(f"A is {given.fill_value} where nothing is stored; it must be 0")
        values = np.asarray(given.data, dtype=np.float64)
        return tuple(given.shape), np.asarray(given.coords, dtype=np.int64), values
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"A is {type(given).__name__}; give a scipy sparse matrix, a sparse.COO, an array, or "
            f"a store of coefficients"
        ) from error
    if array.ndim < 2:
        raise InvalidInput(f"A has shape {array.shape}; give one row for every condition")
    return array.shape, np.stack(np.nonzero(array)), array[np.nonzero(array)]


def _checked_bound(given: Any, count: int | None) -> str | float | NDArray[np.float64]:
    if isinstance(given, ObservationStore):
        return given.path
    if isinstance(given, (str, os.PathLike)):
        return normal_path(given)
    try:
        bound = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"b must be a number, or one for every row: {error}") from error
    if not np.isfinite(bound).all():
        raise InvalidInput(f"b has the value {bound[~np.isfinite(bound)][0]}; give finite numbers")
    if bound.ndim == 0:
        return float(bound)
    if bound.ndim > 1 or (count is not None and len(bound) != count):
        raise InvalidInput(
            f"b has shape {bound.shape}, A has {count:,} rows; give one number for every row"
            if count is not None
            else f"b has shape {bound.shape}; give one number for every row"
        )
    return bound
