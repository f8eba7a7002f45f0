"""Text files of coordinates: FROSTT `.tns` and `.csv`, one observation a line.

Lines are parsed in blocks by numpy, and only when a block fails is the offending line looked for.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data import location
from slrt_dask.data.ingest import Source
from slrt_dask.data.sorting import Batch
from slrt_dask.errors import InvalidInput

# Text takes some ten times the memory of the numbers in it.
LINES_TOGETHER = 100_000
OTHER_DELIMITERS = {";": "';'", "\t": "a tab", "|": "'|'", " ": "a space"}
"""That a file may have where a comma was expected, the likeliest first."""


@dataclass(frozen=True)
class TextFormat:
    """How lines are written; delimiter None is any white space."""

    delimiter: str | None
    index_base: int
    may_have_header: bool

    def fields(self, line: str) -> list[str]:
        fields = line.split("#", 1)[0].strip().split(self.delimiter)
        return [field.strip().strip('"') if self.delimiter else field for field in fields]


def text_source(
    path: str, form: TextFormat, shape: tuple[int, ...] | None, weights: str | None = None
) -> Source:
    """The observations in a text file, which may be compressed (`.gz`).

    weights : the name of the column that has them, in the header; the value is the last of the rest
    """
    with _opened(path) as file:
        numbered = enumerate(iter(lambda: _next_lines(file, path, 1), []), start=1)
        number, line = next(((n, found) for n, (found,) in numbered if _is_data(found)), (0, ""))
    if not number:
        raise InvalidInput(f"there are no observations in {path}: it has only comments or nothing.")
    fields = form.fields(line)
    is_header = form.may_have_header and not any(_is_number(field) for field in fields)
    if len(fields) < 2:
        raise InvalidInput(
            f"line {number} of {path} has one column, {fields[0]!r}; give at least one index and a "
            "value, or another `delimiter`."
        )
    columns = list(range(len(fields)))
    if weights is not None:
        if not is_header or fields.count(weights) != 1 or len(fields) < 3:
            held = f"its columns are {', '.join(fields)}" if is_header else "it has no header"
            raise InvalidInput(
                f"there is no one column {weights!r} of weights in {path} besides an index and the "
                f"value: {held}."
            )
        columns.append(columns.pop(fields.index(weights)))
    modes = len(fields) - 1 - (weights is not None)
    found = [fields[column] for column in columns[:modes]]
    names = tuple(found) if is_header and len({*found}) == modes else None
    return Source(
        batches=lambda limit: _batches(path, form, number * is_header, columns, modes, limit),
        dtype=np.dtype(np.float64),
        shape=shape,
        row_word="line",
        index_base=form.index_base,
        dimension_names=names,
    )


def _batches(
    path: str, form: TextFormat, skip: int, columns: list[int], modes: int, limit: int
) -> Iterator[Batch]:
    """columns : the places of the indices, the value and perhaps the weight"""
    with _opened(path) as file:
        number = 1
        while lines := _next_lines(file, path, min(limit, LINES_TOGETHER)):
            kept = {
                row: line
                for row, line in enumerate(lines, start=number)
                if row > skip and _is_data(line)
            }
            number += len(lines)
            if kept:
                table = _parsed(path, form, kept, len(columns)).T[columns]
                rows = np.array(list(kept), dtype=np.int64)
                weights = table[modes + 1] if len(table) > modes + 1 else None
                indices = table[:modes] - form.index_base
                yield Batch(indices, table[modes], rows, weights=weights)


def _parsed(path: str, form: TextFormat, kept: dict[int, str], columns: int) -> NDArray[np.float64]:
    try:
        table = np.loadtxt(
            list(kept.values()),
            delimiter=form.delimiter,
            comments="#",
            ndmin=2,
            quotechar='"' if form.delimiter else None,
        )
    except ValueError as error:
        raise _bad_line(path, form, kept, columns) from error
    if table.shape != (len(kept), columns):
        raise _bad_line(path, form, kept, columns)
    return table


def _bad_line(path: str, form: TextFormat, kept: dict[int, str], columns: int) -> InvalidInput:
    for row, line in kept.items():
        fields = form.fields(line)
        if len(fields) != columns or not all(_is_number(field) for field in fields):
            indices = "an index" if columns == 2 else f"{columns - 1} indices"
            return InvalidInput(
                f"line {row} of {path} is {line.strip()!r}; {indices} and a value were expected, "
                f"all of them numbers. {_remedy(line, fields, form)}"
            )
    rows = list(kept)
    return InvalidInput(f"lines {rows[0]} to {rows[-1]} of {path} cannot be read as numbers.")


def _remedy(line: str, fields: list[str], form: TextFormat) -> str:
    """What to do about a line that cannot be read."""
    other = next((word for mark, word in OTHER_DELIMITERS.items() if mark in line.strip()), None)
    if form.delimiter == "," and other is not None:
        return f"If it is {other} that separates its columns, give that as `delimiter`."
    if form.delimiter != "," and any(_is_number(field.replace(",", ".", 1)) for field in fields):
        return "Write decimal points where it has commas."
    return "Correct or remove the line."


def _next_lines(file: IO[str], path: str, count: int) -> list[str]:
    try:
        return list(islice(file, count))
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise InvalidInput(f"{path} is not a text file ({error}); check its name.") from error


@contextmanager
def _opened(path: str) -> Iterator[IO[str]]:
    with location.open_file(path) as stored:
        plain = gzip.GzipFile(fileobj=stored) if path.lower().endswith(".gz") else stored
        with io.TextIOWrapper(cast("IO[bytes]", plain), encoding="utf-8-sig") as text:
            yield text


def _is_data(line: str) -> bool:
    text = line.lstrip()
    return bool(text) and not text.startswith("#")


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
