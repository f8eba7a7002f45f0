"""Ratings in files: MovieLens in all its formats, and archives of columns.

Whatever users and items are called, they are numbered in the order of their names; time is counted
in weeks from the first rating. This changes when ratings come in another format.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slrt_dask.errors import InvalidInput, UnsupportedFormat

WEEK = 7 * 24 * 3600
COLUMNS = ("user", "item", "time", "rating")
SEPARATORS = {"u.data": "\t", ".tsv": "\t", ".csv": ",", ".dat": "::"}


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
    """User, item, rating and second of every line but a header."""
    with open(path, encoding="utf-8") as file:
        first = file.readline().split(separator)[0].strip()
    if not first:
        raise InvalidInput(f"{path} has no ratings in its first line; check the file.")
    try:
        with open(path, encoding="utf-8") as file:
            lines = (line.replace("::", "\t") for line in file)
            return np.loadtxt(
                lines,
                delimiter="\t" if separator == "::" else separator,
                skiprows=0 if first.isdigit() else 1,
                usecols=(0, 1, 2, 3),
                ndmin=2,
            ).T
    except (ValueError, IndexError) as error:
        raise InvalidInput(
            f"{path} does not have a user, an item, a rating and a time in every line ({error})."
        ) from error


def _archive(path: Path) -> Ratings:
    with np.load(path, allow_pickle=False) as content:
        lacking = [name for name in COLUMNS if name not in content]
        if lacking:
            raise InvalidInput(f"{path} has no array {lacking[0]!r}; it has {list(content)}.")
        indices = np.stack([content[name].astype(np.int64) for name in COLUMNS[:3]])
        values = content["rating"].astype(np.float64)
        shape = content["shape"] if "shape" in content else indices.max(axis=1) + 1
        return Ratings(indices, values, tuple(int(length) for length in shape))
