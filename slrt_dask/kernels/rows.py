"""Short vectors of known length: the rows of factors and of fibre sums.

Every hot loop adds a multiple of one row to another, or takes the product of two. The intrinsics
here do so with vector instructions (`emitting.py`), for which rows are padded with zeros to an even
length (`pad_columns`); that changes no sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from slrt_dask.kernels.emitting import (
    LANE,
    fused_multiply_add,
    load_row,
    pieces_of,
    product_of_rows,
    row_index,
    row_pointer,
    splat,
    store,
    zero_vector,
)

CACHE_LINE = 8
"""Numbers that memory brings at once."""

# Reassociation lets sums run in vector registers. Flags that assume there are no NaN or infinite
# values are left out: a NaN in must be a NaN out.
FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}


def padded_width(columns: int) -> int:
    """Number of columns after padding: the next multiple of LANE."""
    return -(-columns // LANE) * LANE


def lanes_for(width: int) -> tuple[int, ...]:
    """The tuple whose length tells the kernels that rows have `width` numbers."""
    return (0,) * (width // LANE)


def pad_columns(matrix: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Copy of an (n, r) matrix as float64 (n, padded_width(r)), rows contiguous."""
    rows, columns = matrix.shape
    padded = np.zeros((rows, padded_width(columns)))
    padded[:, :columns] = matrix
    return padded


@intrinsic
def add_scaled_row(typing_context, target, target_row, scale, source, source_row, lanes):
    """target[target_row] += scale * source[source_row]."""
    signature = types.void(target, target_row, types.float64, source, source_row, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        to_row = row_index(builder, arguments[1], kinds[1])
        from_row = row_index(builder, arguments[4], kinds[4])
        to_pointer = row_pointer(context, builder, kinds[0], arguments[0], to_row)
        from_pointer = row_pointer(context, builder, kinds[3], arguments[3], from_row)
        add_to_row(builder, to_pointer, arguments[2], load_row(builder, from_pointer, lanes), lanes)
        return context.get_dummy_value()

    return signature, codegen


def add_to_row(builder: Any, pointer: Any, scale: Any, vectors: list[Any], lanes: Any) -> None:
    """Emit: the row at the pointer += scale * vectors."""
    before = load_row(builder, pointer, lanes)
    for (offset, length), vector, addend in zip(pieces_of(lanes), vectors, before, strict=True):
        factor = splat(builder, scale, length)
        store(builder, fused_multiply_add(builder, factor, vector, addend), pointer, offset)


@intrinsic
def clear_row(typing_context, target, target_row, lanes):
    """target[target_row] = 0."""
    signature = types.void(target, target_row, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        row = row_index(builder, arguments[1], kinds[1])
        pointer = row_pointer(context, builder, kinds[0], arguments[0], row)
        for offset, length in pieces_of(lanes):
            store(builder, zero_vector(length), pointer, offset)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def prefetch_row(typing_context, source, source_row, lanes):
    """Ask for a row that will be needed soon; changes nothing."""
    signature = types.void(source, source_row, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        row = row_index(builder, arguments[1], kinds[1])
        pointer = row_pointer(context, builder, kinds[0], arguments[0], row)
        bytes_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [bytes_pointer, flag, flag, flag]),
            "llvm.prefetch.p0i8",
        )
        to_read, into_every_cache, of_data = flag(0), flag(3), flag(1)
        for offset in range(0, LANE * kinds[2].count, CACHE_LINE):
            place = builder.gep(pointer, [ir.Constant(ir.IntType(64), offset)])
            place = builder.bitcast(place, bytes_pointer)
            builder.call(function, [place, to_read, into_every_cache, of_data])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def row_product(typing_context, left, left_row, right, right_row, lanes):
    """Inner product of left[left_row] and right[right_row]."""
    signature = types.float64(left, left_row, right, right_row, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        rows = []
        for position in (0, 2):
            number = row_index(builder, arguments[position + 1], kinds[position + 1])
            pointer = row_pointer(context, builder, kinds[position], arguments[position], number)
            rows.append(load_row(builder, pointer, lanes))
        return product_of_rows(builder, *rows)

    return signature, codegen


__all__ = [
    "FAST_MATH",
    "LANE",
    "add_scaled_row",
    "clear_row",
    "lanes_for",
    "pad_columns",
    "padded_width",
    "prefetch_row",
    "row_product",
]
