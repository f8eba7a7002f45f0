"""Ratings in files: MovieLens in all its formats, and archives of columns.

Whatever users and items are called, they are numbered in the order of their names; time is counted
in weeks from the first rating. This changes when ratings come in another format.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slrt_dask.errors import InvalidInput, UnsupportedFormat

WEEK = 7 * 24 * 3600
COLUMNS = ("user", "item", "time", "rating")
SEPARATORS = {"u.data": "\t", ".tsv": "\t", ".csv": ",", ".dat": "::"}
FIELDS = (0, 1, 2, 3)
"""Of a line: user, item, rating and second; there may be more."""
SHOWN = 60
"""Characters of a bad line that an error shows."""


@dataclass(frozen=True)
class Ratings:
    """indices : (3, m), users, items and weeks;  values : (m,);  shape : how many there are"""

    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]


def read_ratings(path: Path) -> Ratings:
    """Ratings from u.data, ratings.csv, ratings.dat, or an .npz of user, item, time and rating."""
    if not path.exists():
        raise InvalidInput(f"there is nothing at {path}; check the path.")
    if path.suffix == ".npz":
        return _archive(path)
    separator = SEPARATORS.get(path.name, SEPARATORS.get(path.suffix))
    if separator is None:
        raise UnsupportedFormat(
            f"{path} is of an unknown kind; give u.data, ratings.csv, ratings.dat or an .npz with "
            f"{', '.join(COLUMNS)}."
        )
    user, item, value, second = _columns(path, separator)
    users, user_index = np.unique(user, return_inverse=True)
    items, item_index = np.unique(item, return_inverse=True)
    week = ((second - second.min()) // WEEK).astype(np.int64)
    shape = (len(users), len(items), int(week.max()) + 1)
    return Ratings(np.stack([user_index, item_index, week]), value, shape)


def _columns(path: Path, separator: str) -> np.ndarray:
    """User, item, rating and second of every line but the header of a .csv."""
    with open(path, encoding="utf-8", errors="replace") as file:
        first = file.readline()
    if not first.strip():
        raise InvalidInput(f"{path} has no ratings in its first line; check the file.")
    header = int(path.suffix == ".csv" and _is_header(first.split(separator)))
    try:
        with open(path, encoding="utf-8", errors="replace") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a header and nothing else
            found = np.loadtxt(
                (line.replace("::", "\t") for line in file) if separator == "::" else file,
                comments=None,
                delimiter="\t" if separator == "::" else separator,
                skiprows=header,
                usecols=FIELDS,
                ndmin=2,
            ).T
    except (ValueError, IndexError):
        found = None
    if found is None or not np.isfinite(found).all():
        raise _bad_line(path, separator, header)
    if found.size == 0:
        raise InvalidInput(f"{path} has no ratings after its header; check the file.")
    return found


def _is_header(fields: list[str]) -> bool:
    """Whether these are names of columns: as many as a rating has, and none of them a number."""
    return len(fields) >= len(FIELDS) and not any(_is_number(fields[k]) for k in FIELDS)


def _bad_line(path: Path, separator: str, header: int) -> InvalidInput:
    """What to say of the first line that is no rating; looked for only once there is one."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            fields = line.split(separator)
            good = len(fields) >= len(FIELDS) and all(_is_number(fields[k]) for k in FIELDS)
            if number > header and line.strip() and not good:
                shown = repr(line.rstrip("\n")[:SHOWN])
                return InvalidInput(
                    f"line {number} of {path} is {shown}; give a user, an item, a rating and a "
                    f"time there, all numbers, separated by {separator!r}."
                )
    return InvalidInput(f"{path} cannot be read as ratings; check the file.")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _archive(path: Path) -> Ratings:
    with np.load(path, allow_pickle=False) as content:
        lacking = [name for name in COLUMNS if name not in content]
        if lacking:
            raise InvalidInput(f"{path} has no array {lacking[0]!r}; it has {list(content)}.")
        indices = np.stack([content[name].astype(np.int64) for name in COLUMNS[:3]])
        values = content["rating"].astype(np.float64)
        shape = content["shape"] if "shape" in content else indices.max(axis=1) + 1
        return Ratings(indices, values, tuple(int(length) for length in shape))
