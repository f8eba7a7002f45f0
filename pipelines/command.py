"""What a pipeline is asked for: its arguments, and the settings that they and a TOML file make.

A value that cannot be is refused before anything is computed. This changes when all pipelines are
to take another argument.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slrt_dask.config import read_settings
from slrt_dask.errors import InvalidConfig
from slrt_dask.losses import Huber

SMALL_ITERATIONS = 15
USUAL_ITERATIONS = 200
MADE_HERE = ("store", "run", "validation")
"""What a file may name for the command line, and a pipeline makes itself."""


def parser(
    about: str, *, observed: float | None = None, path: bool = True, arrays: bool = True
) -> argparse.ArgumentParser:
    """The arguments that all scripts have.

    about : the docstring, shown as it is;  observed : the share of full data, if one is hidden;
    path : whether data may be given;  arrays : whether they are arrays, with gaps perhaps
    """
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if path:
        made.add_argument("path", nargs="?", help="data of your own; without it, some are made")
    if path and arrays:
        made.add_argument("--key", help="which array or variable, where a file has several")
        made.add_argument("--missing", type=float, metavar="VALUE", help="missing, besides NaN")
    if observed is not None:
        made.add_argument(
            "--observed", type=_share, help=f"share of full data that is not hidden [{observed}]"
        )
    made.add_argument("--config", type=Path, metavar="TOML", help="settings other than ours")
    made.add_argument("--ranks", type=_ranks, metavar="R,R,…", help="one per mode, or certified")
    made.add_argument("--C", type=_positive, help="weight of the misfit")
    made.add_argument("--auto", action="store_true", help="search for ranks and weights")
    made.add_argument("--max-iterations", type=whole_number(0))
    made.add_argument("--workers", type=whole_number(1), help="worker processes; else this process")
    made.add_argument(
        "--seed", type=whole_number(0), default=0, help="of what is made, and of what is hidden"
    )
    made.add_argument("--small", action="store_true", help="little data, few iterations: seconds")
    made.add_argument(
        "--output", type=_directory, default=Path("."), help="directory of the pictures"
    )
    made.add_argument(
        "--keep", type=_directory, metavar="DIR", help="keep the stores there, for slrt-dask fit"
    )
    made.add_argument("--quiet", action="store_true", help="show no progress")
    return made


def settings(arguments: argparse.Namespace, config: Path, shape: Sequence[int]) -> dict[str, Any]:
    """Those of a TOML file for a tensor of this shape; what was given in the command wins."""
    found = _from_file(arguments.config or config)
    if arguments.auto:
        found = {key: found[key] for key in ("constraint",) if key in found} | {"ranks": "auto"}
    elif arguments.ranks is not None:
        found["ranks"] = arguments.ranks
    elif arguments.config is None and len(found["ranks"]) == len(shape):
        # Ours are for data of any size; those that somebody chose are never changed in silence.
        found["ranks"] = tuple(min(pair) for pair in zip(found["ranks"], shape, strict=True))
    if arguments.C is not None:
        found["C"] = arguments.C
    most = found.get("max_iterations", USUAL_ITERATIONS)
    if arguments.small and isinstance(most, int):  # anything else is refused by the fit
        found["max_iterations"] = min(SMALL_ITERATIONS, most)
    if arguments.max_iterations is not None:
        found["max_iterations"] = arguments.max_iterations
    return found


def whole_number(least: int) -> Callable[[str], int]:
    """A type of arguments: whole numbers from the least on."""

    def read(text: str) -> int:
        if not (text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, at least {least}")
        return int(text)

    return read


def whole_numbers(text: str, least: int = 0) -> tuple[int, ...]:
    """A type of arguments: whole numbers with commas between them."""
    return tuple(whole_number(least)(part.strip()) for part in text.split(","))


def _from_file(path: Path) -> dict[str, Any]:
    """What a file says, as arguments of `complete`."""
    found = {"ranks": "auto", **read_settings(path)}
    for key in MADE_HERE:
        if key in found:
            raise InvalidConfig(
                f"{path} sets fit.{key}, which a pipeline makes itself; leave it out, or use "
                "slrt-dask fit --config"
            )
    if "huber" in found:
        found["loss"] = Huber(found.pop("huber"))
    return found


def _ranks(text: str) -> tuple[int, ...] | str:
    try:
        return text if text == "certified" else whole_numbers(text, least=1)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give whole numbers, at least 1, as in 5,5,3, or certified"
        ) from None


def _share(text: str) -> float:
    if not 0.0 < _number(text) < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a share between 0 and 1")
    return float(text)


def _positive(text: str) -> float:
    if not 0.0 < _number(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a positive number")
    return float(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _directory(text: str) -> Path:
    """A directory that is there or can be made; it is made when there is something to put in it."""
    path = Path(text).absolute()
    there = next(place for place in (path, *path.parents) if os.path.exists(place))
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there} is a file; give a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{there} cannot be written to; give another directory")
    return Path(text)
