"""The LLVM code that rows and runs of them are made of: vectors of two, four or eight numbers.

Compiled from plain loops, sums of rows stay scalar, because the compiler cannot know that two rows
do not overlap. What is here emits vector loads and stores for a length that is part of the type: a
tuple `lanes` whose length, not content, says how many pairs of numbers a row has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

LANE = 2
"""Numbers per element of `lanes`; every row length is a multiple of it."""
LENGTHS = (8, 4, 2)
"""Numbers in the vectors that a row is cut into, the longest first."""


def pieces_of(lanes: types.UniTuple) -> list[tuple[int, int]]:
    """Cut a row into (offset, length) vectors."""
    width, offset, pieces = LANE * lanes.count, 0, []
    for length in LENGTHS:
        while width - offset >= length:
            pieces.append((offset, length))
            offset += length
    return pieces


def row_pointer(context: Any, builder: Any, array_type: Any, array: Any, row: Any) -> Any:
    """Address of the first number of a row of a C-contiguous matrix."""
    view = context.make_array(array_type)(context, builder, array)
    stride = builder.extract_value(view.shape, 1)
    return builder.gep(view.data, [builder.mul(row, stride)])


def entry_pointer(context: Any, builder: Any, array_type: Any, array: Any, entry: Any) -> Any:
    """Address of one number of a contiguous vector."""
    view = context.make_array(array_type)(context, builder, array)
    return builder.gep(view.data, [entry])


def vector_pointer(builder: Any, pointer: Any, offset: int, length: int) -> Any:
    vector = ir.VectorType(ir.DoubleType(), length)
    place = builder.gep(pointer, [ir.Constant(ir.IntType(64), offset)])
    return builder.bitcast(place, vector.as_pointer())


def load(builder: Any, pointer: Any, offset: int, length: int) -> Any:
    loaded = builder.load(vector_pointer(builder, pointer, offset, length))
    loaded.align = 8
    return loaded


def store(builder: Any, vector: Any, pointer: Any, offset: int) -> None:
    place = vector_pointer(builder, pointer, offset, vector.type.count)
    builder.store(vector, place).align = 8


def load_row(builder: Any, pointer: Any, lanes: types.UniTuple) -> list[Any]:
    return [load(builder, pointer, offset, length) for offset, length in pieces_of(lanes)]


def zero_vector(length: int) -> Any:
    return ir.Constant(ir.VectorType(ir.DoubleType(), length), [0.0] * length)


def splat(builder: Any, scalar: Any, length: int) -> Any:
    vector = ir.Constant(ir.VectorType(ir.DoubleType(), length), ir.Undefined)
    for lane in range(length):
        vector = builder.insert_element(vector, scalar, ir.Constant(ir.IntType(32), lane))
    return vector


def fused_multiply_add(builder: Any, left: Any, right: Any, addend: Any) -> Any:
    """left * right + addend, marked so that the two become one instruction."""
    product = builder.fmul(left, right, flags=("contract",))
    return builder.fadd(product, addend, flags=("contract",))


def row_index(builder: Any, value: Any, numba_type: Any) -> Any:
    """A row number as a 64-bit integer, sign-extended if it came as a shorter one."""
    if value.type.width == 64:
        return value
    extend = builder.sext if numba_type.signed else builder.zext
    return extend(value, ir.IntType(64))


def product_of_rows(builder: Any, left: list[Any], right: list[Any]) -> Any:
    """Inner product of two rows, each given as its vectors, the longest first.

    Long vectors are halved until they are as short as the next ones, which are then added to what
    has come together: one chain of halvings for the whole row.
    """
    total = None
    for one, other in zip(left, right, strict=True):
        if total is None:
            total = builder.fmul(one, other, flags=("contract",))
            continue
        while total.type.count > one.type.count:
            total = _halved(builder, total)
        total = fused_multiply_add(builder, one, other, total)
    assert total is not None
    while total.type.count > 1:
        total = _halved(builder, total)
    return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))


def _halved(builder: Any, vector: Any) -> Any:
    """The sum of a vector's two halves."""
    length = vector.type.count // 2
    undefined = ir.Constant(vector.type, ir.Undefined)
    masks = [
        ir.Constant(ir.VectorType(ir.IntType(32), length), [start + lane for lane in range(length)])
        for start in (0, length)
    ]
    halves = [builder.shuffle_vector(vector, undefined, mask) for mask in masks]
    return builder.fadd(halves[0], halves[1])
