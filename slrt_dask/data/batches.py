"""A batch of observations on its way in, and the checks every batch must pass.

A source hands over batches of bounded size; nothing here knows where they came from or where they
go. A bad entry is reported by its row, its index as the source wrote it, and its value. This
changes when the rules for what may be stored change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import InvalidInput

LARGEST_INT64 = 2**63 - 1


@dataclass(frozen=True)
class Batch:
    """Some observations: indices (K, m) of any real type, values (m,), rows (m,) or None.

    `rows` says where each entry stands in its source; None where the index itself says so.
    `visited` is how far this batch takes its reader, in the unit of `Source.total`; None means
    as many as it has entries.
    """

    indices: NDArray[Any]
    values: NDArray[Any]
    rows: NDArray[np.int64] | None = None
    visited: int | None = None


@dataclass(frozen=True)
class Source:
    """Something that yields batches.

    `batches(limit)` yields batches of about `limit` entries; it is called once. `row_word` and
    `index_base` make messages speak as the source does ("line 7", indices from 1). `total` is
    the number of rows or cells, for progress. `coordinates` and `about` are as in the header.
    """

    batches: Callable[[int], Iterator[Batch]]
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None
    row_word: str = "row"
    index_base: int = 0
    total: int | None = None
    dimension_names: tuple[str, ...] | None = None
    coordinates: dict[str, Any] | None = None
    about: dict[str, Any] | None = None


def of_shape(source: Source, shape: tuple[int, ...] | None) -> Source:
    """The source, if it has the shape that was given, or none was."""
    if shape is not None and source.shape != shape:
        raise InvalidInput(
            f"the array has shape {source.shape}, but shape={shape} was given; leave it out."
        )
    return source


def rebatch(batches: Iterable[Batch], limit: int) -> Iterator[Batch]:
    """The same entries in the same order, in batches of at most `limit` and rarely much less."""
    waiting: list[Batch] = []
    count = 0
    for batch in batches:
        for start in range(0, batch.values.shape[0], limit):
            piece = _piece(batch, start, start + limit)
            size = piece.values.shape[0]
            if waiting and count + size > limit:
                yield _joined(waiting)
                waiting, count = [], 0
            waiting.append(piece)
            count += size
    if waiting:
        yield _joined(waiting)


def checked(
    batch: Batch, source: Source, shape: tuple[int, ...] | None, dtype: np.dtype[Any]
) -> Batch:
    """The batch with int64 indices and values of the store's type, or InvalidInput."""
    indices = _whole_numbers(batch, source)
    _check_range(batch, indices, source, shape)
    return Batch(indices, _finite(batch, source, dtype), batch.rows)


def describe(source: Source, row: int | None, index: Sequence[int | float]) -> str:
    """`row 7, index (3, 0, 2)`, with the index as the source writes it."""
    written = ", ".join(_number(position + source.index_base) for position in index)
    base = f" (counting from {source.index_base})" if source.index_base else ""
    place = f"{source.row_word} {row}, " if row is not None else ""
    return f"{place}index ({written}){base}"


def check_batch(batch: Batch, order: int | None) -> int:
    """The number of modes of a batch whose parts fit together, and `order` if that is known."""
    if batch.indices.ndim != 2 or batch.values.ndim != 1:
        raise InvalidInput(
            f"indices have shape {batch.indices.shape} and values {batch.values.shape}; "
            "give indices of shape (modes, entries) and values of shape (entries,)."
        )
    modes, entries = (int(length) for length in batch.indices.shape)
    if entries != batch.values.shape[0]:
        raise InvalidInput(
            f"there are {entries} indices and {batch.values.shape[0]} values; "
            "give one value per index."
        )
    if order is not None and modes != order:
        raise InvalidInput(
            f"indices have {modes} modes, but the shape or an earlier batch has {order}; "
            "give one row of indices per mode."
        )
    return modes


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape as a tuple of Python integers; at least one mode, none empty."""
    try:
        lengths = tuple(_length(length) for length in shape)
    except TypeError as error:
        raise InvalidInput(
            f"shape {shape!r} is not a sequence of whole numbers; give one length per mode."
        ) from error
    if len(lengths) < 1:
        raise InvalidInput("the shape has no modes; give at least one length.")
    if min(lengths) < 1:
        raise InvalidInput(f"shape {lengths} has an empty mode; every length must be at least 1.")
    return lengths


def _length(length: object) -> int:
    if isinstance(length, bool) or not isinstance(length, int | np.integer):
        raise TypeError(length)
    return int(length)


def _whole_numbers(batch: Batch, source: Source) -> NDArray[np.int64]:
    indices = batch.indices
    if indices.dtype.kind not in "iuf":
        raise InvalidInput(
            f"indices have type {indices.dtype}, for example {indices.flat[0]!r}; "
            "give whole numbers."
        )
    if indices.dtype.kind == "f":
        # A comparison with NaN is false, so missing indices are caught here too.
        with np.errstate(invalid="ignore"):
            whole = (np.floor(indices) == indices) & (np.abs(indices) < 2.0**63)
        _refuse(~whole, batch, source, "is not a whole number; give integer positions")
    elif indices.dtype == np.uint64:
        _refuse(indices > LARGEST_INT64, batch, source, "is beyond any mode length")
    return np.ascontiguousarray(indices, dtype=np.int64)


def _check_range(
    batch: Batch, indices: NDArray[np.int64], source: Source, shape: tuple[int, ...] | None
) -> None:
    if indices.size == 0:
        return
    if int(indices.min()) < 0:
        _refuse(indices < 0, batch, source, f"is below {source.index_base}")
    if shape is None:
        return
    lengths = np.array(shape, dtype=np.int64)[:, None]
    if (indices.max(axis=1, keepdims=True) >= lengths).any():
        _refuse(
            indices >= lengths,
            batch,
            source,
            f"is outside the shape {shape}; give a larger shape or correct the index",
        )


def _refuse(bad: NDArray[np.bool_], batch: Batch, source: Source, complaint: str) -> None:
    """Raise for the first entry (in source order) with a bad index, if there is one."""
    entries = bad.any(axis=0)
    if not entries.any():
        return
    entry = int(np.argmax(entries))
    mode = int(np.argmax(bad[:, entry]))
    index = batch.indices[:, entry].tolist()
    written = _number(index[mode] + source.index_base)
    raise InvalidInput(
        f"{describe(source, _row(batch, entry), index)}, value {_value(batch, entry)}: "
        f"position {written} in mode {mode} {complaint}."
    )


def _finite(batch: Batch, source: Source, dtype: np.dtype[Any]) -> NDArray[Any]:
    if batch.values.dtype.kind not in "biuf":
        shown = _value(batch, 0) if batch.values.size else "none"
        raise InvalidInput(
            f"values have type {batch.values.dtype}, for example {shown}; give real numbers."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.ascontiguousarray(batch.values, dtype=dtype)
    finite = np.isfinite(values)
    if finite.all():
        return values
    entry = int(np.argmin(finite))
    given = batch.values[entry]
    remedy = (
        f"it does not fit in {dtype}; use float64"
        if np.isfinite(given)
        else "leave missing entries out, and correct infinite ones"
    )
    raise InvalidInput(
        f"{describe(source, _row(batch, entry), batch.indices[:, entry].tolist())}, value "
        f"{_value(batch, entry)}: not a finite number in the store; {remedy}."
    )


def _piece(batch: Batch, start: int, stop: int) -> Batch:
    rows = None if batch.rows is None else batch.rows[start:stop]
    return Batch(batch.indices[:, start:stop], batch.values[start:stop], rows)


def _joined(pieces: list[Batch]) -> Batch:
    if len(pieces) == 1:
        return pieces[0]
    rows = [piece.rows for piece in pieces if piece.rows is not None]
    return Batch(
        np.concatenate([piece.indices for piece in pieces], axis=1),
        np.concatenate([piece.values for piece in pieces]),
        np.concatenate(rows) if len(rows) == len(pieces) else None,
    )


def _row(batch: Batch, entry: int) -> int | None:
    return None if batch.rows is None else int(batch.rows[entry])


def _value(batch: Batch, entry: int) -> str:
    value = batch.values[entry]
    return repr(value.item() if isinstance(value, np.generic) else value)


def _number(value: int | float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)
