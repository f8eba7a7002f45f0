"""Files of indices to predict at, and files of predictions: read and written block by block."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.archives import npy_array
from slrt_dask.errors import InvalidInput, StoreExists, UnsupportedFormat

BLOCK_ENTRIES = 200_000
"""Indices predicted together: few enough to travel to workers inside their tasks."""

Indices = NDArray[np.int64]
Block = tuple[Indices, NDArray[np.float64], NDArray[np.int64] | None]
"""Places (K, m), values (m,), and how many observations there are behind each, (K, m), or None."""
READABLE = (".csv", ".tns", ".npy", ".npz")
WRITABLE = (".csv", ".npy", ".npz")


def read_indices(path: str, shape: tuple[int, ...]) -> Iterator[Indices]:
    """Blocks (K, m) of the indices in a file, counting from 0.

    shape : of the tensor; an index that is not one of it is refused by its place in the file
    A fourth column of a third-order tensor's text file, the value, is not looked at.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix not in READABLE:
        raise UnsupportedFormat(f"{path} is no file of indices; known are {', '.join(READABLE)}")
    if not file.is_file():
        raise InvalidInput(f"there is no file {path}; check its name")
    if suffix in (".csv", ".tns"):
        return _text_blocks(file, shape, "," if suffix == ".csv" else None)
    return _array_blocks(file, shape)


def write_predictions(
    path: str, blocks: Iterator[Block], names: Sequence[str], *, overwrite: bool
) -> int:
    """Write predictions to a new file, which appears when it is whole; returns how many.

    `.csv` has the indices and the value, `.npz` arrays indices (K, m) and values (m,), `.npy` the
    values only. Where blocks have it, the support follows: `support_` and the mode's name
    or number, or an array (K, m).
    """
    target = Path(path)
    writers = {".csv": _write_csv, ".npy": _write_npy, ".npz": _write_npz}
    writer = writers.get(target.suffix.lower())
    if writer is None:
        raise UnsupportedFormat(f"{path} has an unknown ending; choose {', '.join(WRITABLE)}")
    if target.exists() and not overwrite:
        raise StoreExists(f"{path} already exists; choose another name, or give --overwrite")
    unfinished = target.with_name(target.name + ".part")
    try:
        count = writer(unfinished, blocks, names)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _text_blocks(file: Path, shape: tuple[int, ...], delimiter: str | None) -> Iterator[Indices]:
    base = 0 if delimiter else 1
    with file.open(encoding="utf-8-sig") as lines:
        first = 1
        while block := list(islice(lines, BLOCK_ENTRIES)):
            rows = [(number, line) for number, line in enumerate(block, first) if _has_data(line)]
            if first == 1 and delimiter and rows and not _is_numeric(rows[0][1], delimiter):
                rows = rows[1:]
            first += len(block)
            if rows:
                places = _parsed(file, rows, len(shape), delimiter) - base
                _check_range(file, "line {}", [row for row, _ in rows], places, shape, base)
                yield places


def _check_range(
    file: Path,
    form: str,
    numbers: Sequence[int],
    places: Indices,
    shape: tuple[int, ...],
    base: int,
) -> None:
    """Refuse indices that a tensor of this shape has not.

    form, numbers : what the m places, (K, m), are called;  base : of the file's indices
    """
    wrong = (places < 0) | (places >= np.array(shape)[:, None])
    if not wrong.any():
        return
    column = int(np.flatnonzero(wrong.any(axis=0))[0])
    mode = int(np.flatnonzero(wrong[:, column])[0])
    raise InvalidInput(
        f"{form.format(numbers[column])} of {file} has the index {places[mode, column] + base} in "
        f"mode {mode}, which is out of range for the shape {shape}; give one from {base} to "
        f"{shape[mode] - 1 + base}"
    )


def _parsed(file: Path, rows: list[tuple[int, str]], order: int, delimiter: str | None) -> Indices:
    places = np.empty((order, len(rows)), dtype=np.int64)
    for column, (number, line) in enumerate(rows):
        fields = line.split("#", 1)[0].split(delimiter)[:order]
        try:
            for mode in range(order):
                places[mode, column] = int(fields[mode])
        except (ValueError, IndexError, OverflowError):
            raise InvalidInput(
                f"line {number} of {file} is {line.strip()!r}; {order} whole numbers were expected"
            ) from None
    return places


def _has_data(line: str) -> bool:
    text = line.strip()
    return bool(text) and not text.startswith("#")


def _is_numeric(line: str, delimiter: str) -> bool:
    try:
        float(line.split(delimiter)[0])
    except ValueError:
        return False
    return True


def _array_blocks(file: Path, shape: tuple[int, ...]) -> Iterator[Indices]:
    array, order = _loaded(file), len(shape)
    if array.ndim != 2 or order not in array.shape:
        raise InvalidInput(
            f"{file} holds an array of shape {array.shape}; give indices ({order}, m) or (m, "
            f"{order})"
        )
    columns = array if array.shape[0] == order else array.T
    if columns.dtype.kind not in "iu":
        raise InvalidInput(f"{file} holds {columns.dtype}; indices must be whole numbers")
    for start in range(0, columns.shape[1], BLOCK_ENTRIES):
        places = np.asarray(columns[:, start : start + BLOCK_ENTRIES], dtype=np.int64)
        numbers = range(start, start + places.shape[1])
        _check_range(file, "entry {} (from 0)", numbers, places, shape, 0)
        yield places


def _loaded(file: Path) -> NDArray[Any]:
    if file.suffix.lower() == ".npy":
        return npy_array(str(file))
    if not zipfile.is_zipfile(file):
        raise InvalidInput(f"{file} is not an .npz archive; check it, and its name")
    try:
        with np.load(file, allow_pickle=False) as archive:
            names = archive.files
            for name in ("indices", "coords", *(names if len(names) == 1 else ())):
                if name in names:
                    member: NDArray[Any] = archive[name]
                    return member
    except (ValueError, EOFError) as error:
        raise InvalidInput(f"{file} cannot be read as arrays ({error})") from error
    raise InvalidInput(f"{file} holds {', '.join(names)}; name the array of indices 'indices'")


def _write_csv(target: Path, blocks: Iterator[Block], names: Sequence[str]) -> int:
    count, more = 0, []
    with target.open("w", encoding="utf-8") as file:
        for indices, values, support in blocks:
            if count == 0:
                # Modes without a name are called index_0 and so on, which is too much here.
                named = [f"support_{name.removeprefix('index_')}" for name in names]
                more = [] if support is None else named
                file.write(",".join([*names, "value", *more]) + "\n")
            columns = [*indices.tolist(), [repr(value) for value in values.tolist()]]
            columns += [] if support is None else support.tolist()
            file.writelines(",".join(map(str, row)) + "\n" for row in zip(*columns, strict=True))
            count += len(values)
        if count == 0:
            file.write(",".join([*names, "value"]) + "\n")
    return count


def _write_npy(target: Path, blocks: Iterator[Block], _: Sequence[str]) -> int:
    found = np.concatenate([np.empty(0), *(values for _, values, _ in blocks)])
    with target.open("wb") as file:
        np.save(file, found)
    return len(found)


def _write_npz(target: Path, blocks: Iterator[Block], names: Sequence[str]) -> int:
    """Arrays of one archive cannot grow side by side, so this one is put together in memory."""
    found = list(blocks)
    empty = np.empty((len(names), 0), np.int64)
    arrays: dict[str, NDArray[Any]] = {
        "indices": np.concatenate([empty, *(indices for indices, _, _ in found)], axis=1),
        "values": np.concatenate([np.empty(0), *(values for _, values, _ in found)]),
    }
    support = [counts for _, _, counts in found if counts is not None]
    if support:
        arrays["support"] = np.concatenate([empty, *support], axis=1)
    with target.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return len(arrays["values"])
