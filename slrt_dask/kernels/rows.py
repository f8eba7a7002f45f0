"""Short vectors of known length: the rows of factors and of fibre sums.

Every hot loop adds a multiple of one row to another, or takes the product of two. Compiled from
plain loops these stay scalar, because the compiler cannot know that two rows do not overlap. The
intrinsics here emit vector loads and stores for a length that is part of the type: `lanes` is a
tuple whose length, not content, says how many pairs of numbers a row has. Rows are therefore
padded with zeros to an even length (`pad_columns`), which changes no sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

LANE = 2
"""Numbers per element of `lanes`; every row length is a multiple of it."""
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


def _pieces(lanes: types.UniTuple) -> list[tuple[int, int]]:
    """Cut a row into (offset, length) vectors of 8, then 4, then 2 numbers."""
    width, offset, pieces = LANE * lanes.count, 0, []
    for length in (8, 4, 2):
        while width - offset >= length:
            pieces.append((offset, length))
            offset += length
    return pieces


def _row_pointer(context: Any, builder: Any, array_type: Any, array: Any, row: Any) -> Any:
    """Address of the first number of a row of a C-contiguous matrix."""
    view = context.make_array(array_type)(context, builder, array)
    stride = builder.extract_value(view.shape, 1)
    return builder.gep(view.data, [builder.mul(row, stride)])


def _vector_pointer(builder: Any, pointer: Any, offset: int, length: int) -> tuple[Any, Any]:
    vector = ir.VectorType(ir.DoubleType(), length)
    place = builder.gep(pointer, [ir.Constant(ir.IntType(64), offset)])
    return builder.bitcast(place, vector.as_pointer()), vector


def _load(builder: Any, pointer: Any, offset: int, length: int) -> Any:
    place, _ = _vector_pointer(builder, pointer, offset, length)
    loaded = builder.load(place)
    loaded.align = 8
    return loaded


def _splat(builder: Any, scalar: Any, length: int) -> Any:
    vector = ir.Constant(ir.VectorType(ir.DoubleType(), length), ir.Undefined)
    for lane in range(length):
        vector = builder.insert_element(vector, scalar, ir.Constant(ir.IntType(32), lane))
    return vector


def _fused_multiply_add(builder: Any, left: Any, right: Any, addend: Any) -> Any:
    """left * right + addend, marked so that the two become one instruction."""
    product = builder.fmul(left, right, flags=("contract",))
    return builder.fadd(product, addend, flags=("contract",))


def _row_index(builder: Any, value: Any, numba_type: Any) -> Any:
    """A row number as a 64-bit integer, sign-extended if it came as a shorter one."""
    if value.type.width == 64:
        return value
    extend = builder.sext if numba_type.signed else builder.zext
    return extend(value, ir.IntType(64))


@intrinsic
def add_scaled_row(typing_context, target, target_row, scale, source, source_row, lanes):
    """target[target_row] += scale * source[source_row]."""
    signature = types.void(target, target_row, types.float64, source, source_row, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        to_row = _row_index(builder, arguments[1], kinds[1])
        from_row = _row_index(builder, arguments[4], kinds[4])
        to_pointer = _row_pointer(context, builder, kinds[0], arguments[0], to_row)
        from_pointer = _row_pointer(context, builder, kinds[3], arguments[3], from_row)
        for offset, length in _pieces(kinds[5]):
            place, _ = _vector_pointer(builder, to_pointer, offset, length)
            total = _fused_multiply_add(
                builder,
                _splat(builder, arguments[2], length),
                _load(builder, from_pointer, offset, length),
                _load(builder, to_pointer, offset, length),
            )
            builder.store(total, place).align = 8
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def clear_row(typing_context, target, target_row, lanes):
    """target[target_row] = 0."""
    signature = types.void(target, target_row, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        row = _row_index(builder, arguments[1], kinds[1])
        pointer = _row_pointer(context, builder, kinds[0], arguments[0], row)
        for offset, length in _pieces(kinds[2]):
            place, vector = _vector_pointer(builder, pointer, offset, length)
            builder.store(ir.Constant(vector, [0.0] * length), place).align = 8
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def prefetch_row(typing_context, source, source_row, lanes):
    """Ask for a row that will be needed soon; changes nothing."""
    signature = types.void(source, source_row, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        row = _row_index(builder, arguments[1], kinds[1])
        pointer = _row_pointer(context, builder, kinds[0], arguments[0], row)
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
        pointers = []
        for position in (0, 2):
            row = _row_index(builder, arguments[position + 1], kinds[position + 1])
            pointers.append(
                _row_pointer(context, builder, kinds[position], arguments[position], row)
            )
        total = ir.Constant(ir.DoubleType(), 0.0)
        for length, offsets in _by_length(_pieces(kinds[4])).items():
            sums = ir.Constant(ir.VectorType(ir.DoubleType(), length), [0.0] * length)
            for offset in offsets:
                loaded = [_load(builder, pointer, offset, length) for pointer in pointers]
                sums = _fused_multiply_add(builder, loaded[0], loaded[1], sums)
            total = builder.fadd(total, _sum_lanes(builder, sums))
        return total

    return signature, codegen


def _by_length(pieces: list[tuple[int, int]]) -> dict[int, list[int]]:
    grouped: dict[int, list[int]] = {}
    for offset, length in pieces:
        grouped.setdefault(length, []).append(offset)
    return grouped


def _sum_lanes(builder: Any, vector: Any) -> Any:
    """Sum of a vector's numbers by halving, which maps to a few shuffles."""
    undefined = ir.Constant(vector.type, ir.Undefined)
    length = vector.type.count
    while length > 1:
        length //= 2
        masks = [
            ir.Constant(
                ir.VectorType(ir.IntType(32), length), [start + lane for lane in range(length)]
            )
            for start in (0, length)
        ]
        halves = [builder.shuffle_vector(vector, undefined, mask) for mask in masks]
        vector = builder.fadd(halves[0], halves[1])
        undefined = ir.Constant(vector.type, ir.Undefined)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


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
