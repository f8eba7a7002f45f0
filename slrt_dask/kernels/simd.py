"""Short vectors of known length: the rows of factors and of fibre sums, in vector registers.

Every hot loop adds a multiple of one row to another, or takes the product of two. Compiled from
plain loops these stay scalar, because the compiler cannot know that two rows do not overlap; the
intrinsics here emit vector loads and stores, which is 3 to 7 times as fast. How long rows are is
part of a type: that of a tuple `lanes` whose length, not content, says how many pairs of numbers
there are. So rows are padded with zeros to an even length (`pad_columns`); that changes no sum.
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
LENGTHS = (8, 4, 2)
"""Numbers in the vectors that a row is cut into, the longest first."""
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


# ---- emitting -----------------------------------------------------------------------------------


def _word(value: int) -> Any:
    return ir.Constant(ir.IntType(64), value)


def _pieces_of(lanes: types.UniTuple) -> list[tuple[int, int]]:
    """Cut a row into (offset, length) vectors."""
    width, offset, pieces = LANE * lanes.count, 0, []
    for length in LENGTHS:
        while width - offset >= length:
            pieces.append((offset, length))
            offset += length
    return pieces


def _row_pointer(context: Any, builder: Any, kind: Any, matrix: Any, row: Any, signed: Any) -> Any:
    """Address of the first number of a row of a C-contiguous matrix."""
    if row.type.width != 64:
        row = (builder.sext if signed.signed else builder.zext)(row, ir.IntType(64))
    view = context.make_array(kind)(context, builder, matrix)
    return builder.gep(view.data, [builder.mul(row, builder.extract_value(view.shape, 1))])


def _entry_pointer(context: Any, builder: Any, kind: Any, vector: Any, entry: Any) -> Any:
    """Address of one number of a contiguous vector."""
    view = context.make_array(kind)(context, builder, vector)
    return builder.gep(view.data, [entry])


def _vector_pointer(builder: Any, pointer: Any, offset: int, length: int) -> Any:
    kind = ir.VectorType(ir.DoubleType(), length).as_pointer()
    return builder.bitcast(builder.gep(pointer, [_word(offset)]), kind)


def _store(builder: Any, vector: Any, pointer: Any, offset: int) -> None:
    place = _vector_pointer(builder, pointer, offset, vector.type.count)
    builder.store(vector, place).align = 8


def _load_row(builder: Any, pointer: Any, lanes: types.UniTuple) -> list[Any]:
    """The vectors of a row."""
    vectors = []
    for offset, length in _pieces_of(lanes):
        vectors.append(builder.load(_vector_pointer(builder, pointer, offset, length)))
        vectors[-1].align = 8
    return vectors


def _zero(length: int) -> Any:
    return ir.Constant(ir.VectorType(ir.DoubleType(), length), [0.0] * length)


def _splat(builder: Any, scalar: Any, length: int) -> Any:
    vector = ir.Constant(ir.VectorType(ir.DoubleType(), length), ir.Undefined)
    for lane in range(length):
        vector = builder.insert_element(vector, scalar, ir.Constant(ir.IntType(32), lane))
    return vector


def _multiply_add(builder: Any, left: Any, right: Any, addend: Any) -> Any:
    """left * right + addend, marked so that the two become one instruction."""
    product = builder.fmul(left, right, flags=("contract",))
    return builder.fadd(product, addend, flags=("contract",))


def _add_to_row(builder: Any, pointer: Any, scale: Any, vectors: list[Any], lanes: Any) -> None:
    """The row at the pointer += scale * vectors."""
    before = _load_row(builder, pointer, lanes)
    for (offset, length), vector, addend in zip(_pieces_of(lanes), vectors, before, strict=True):
        total = _multiply_add(builder, _splat(builder, scale, length), vector, addend)
        _store(builder, total, pointer, offset)


def _product_of_rows(builder: Any, left: list[Any], right: list[Any]) -> Any:
    """Inner product of two rows, each given as its vectors, the longest first.

    Long vectors are halved until they are as short as the next ones, which are then added to what
    has come together: one chain of halvings for the whole row.
    """
    total = builder.fmul(left[0], right[0], flags=("contract",))
    for one, other in zip(left[1:], right[1:], strict=True):
        while total.type.count > one.type.count:
            total = _halved(builder, total)
        total = _multiply_add(builder, one, other, total)
    while total.type.count > 1:
        total = _halved(builder, total)
    return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))


def _halved(builder: Any, vector: Any) -> Any:
    """The sum of a vector's two halves."""
    length = vector.type.count // 2
    undefined, mask = ir.Constant(vector.type, ir.Undefined), ir.VectorType(ir.IntType(32), length)
    halves = [
        builder.shuffle_vector(
            vector, undefined, ir.Constant(mask, [start + lane for lane in range(length)])
        )
        for start in (0, length)
    ]
    return builder.fadd(*halves)


# ---- single rows --------------------------------------------------------------------------------


@intrinsic
def add_scaled_row(typing_context, target, target_row, scale, source, source_row, lanes):
    """target[target_row] += scale * source[source_row]."""
    signature = types.void(target, target_row, types.float64, source, source_row, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        to_row, from_row = (
            _row_pointer(context, builder, kinds[n], arguments[n], arguments[n + 1], kinds[n + 1])
            for n in (0, 3)
        )
        _add_to_row(builder, to_row, arguments[2], _load_row(builder, from_row, lanes), lanes)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def clear_row(typing_context, target, target_row, lanes):
    """target[target_row] = 0."""
    signature = types.void(target, target_row, lanes)

    def codegen(context, builder, signature, arguments):
        pointer = _row_pointer(context, builder, target, arguments[0], arguments[1], target_row)
        for offset, length in _pieces_of(lanes):
            _store(builder, _zero(length), pointer, offset)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def prefetch_row(typing_context, source, source_row, lanes):
    """Ask for a row that will be needed soon; changes nothing."""
    signature = types.void(source, source_row, lanes)

    def codegen(context, builder, signature, arguments):
        pointer = _row_pointer(context, builder, source, arguments[0], arguments[1], source_row)
        address, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [address, flag, flag, flag]),
            "llvm.prefetch.p0i8",
        )
        to_read, into_every_cache, of_data = flag(0), flag(3), flag(1)
        for offset in range(0, LANE * lanes.count, CACHE_LINE):
            place = builder.bitcast(builder.gep(pointer, [_word(offset)]), address)
            builder.call(function, [place, to_read, into_every_cache, of_data])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def row_product(typing_context, left, left_row, right, right_row, lanes):
    """Inner product of left[left_row] and right[right_row]."""
    signature = types.float64(left, left_row, right, right_row, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        rows = [
            _row_pointer(context, builder, kinds[n], arguments[n], arguments[n + 1], kinds[n + 1])
            for n in (0, 2)
        ]
        return _product_of_rows(builder, *(_load_row(builder, row, lanes) for row in rows))

    return signature, codegen


# ---- runs: entries one after the other that share a row, which stays in registers ---------------


def _entries(builder: Any, first: Any, stop: Any) -> Any:
    """A loop over the entries from `first` to before `stop`."""
    return cgutils.for_range_slice(builder, first, stop, _word(1))


def _number(context: Any, builder: Any, kind: Any, array: Any, entry: Any) -> Any:
    """One number of a vector, as a float64."""
    value = builder.load(_entry_pointer(context, builder, kind, array, entry))
    return value if kind.dtype == types.float64 else builder.fpext(value, ir.DoubleType())


def _row_of(context: Any, builder: Any, kinds: Any, arrays: Any, entry: Any) -> Any:
    """Address of matrix[indices[entry]], indices and matrix being given."""
    index = builder.load(_entry_pointer(context, builder, kinds[0], arrays[0], entry))
    return _row_pointer(context, builder, kinds[1], arrays[1], index, kinds[0].dtype)


@intrinsic
def gather_run(typing_context, x, indices, matrix, first, stop, target, lanes):
    """target[0] = Σ_e x[e] * matrix[indices[e]] over a run."""
    signature = types.void(x, indices, matrix, types.int64, types.int64, target, lanes)

    def codegen(context, builder, signature, arguments):
        kinds, pieces = signature.args, _pieces_of(lanes)
        sums = [cgutils.alloca_once_value(builder, _zero(length)) for _, length in pieces]
        with _entries(builder, arguments[3], arguments[4]) as (entry, _):
            scale = _number(context, builder, kinds[0], arguments[0], entry)
            row = _row_of(context, builder, kinds[1:3], arguments[1:3], entry)
            for held, vector in zip(sums, _load_row(builder, row, lanes), strict=True):
                factor = _splat(builder, scale, vector.type.count)
                builder.store(_multiply_add(builder, factor, vector, builder.load(held)), held)
        pointer = _row_pointer(context, builder, target, arguments[5], _word(0), None)
        for held, (offset, _) in zip(sums, pieces, strict=True):
            _store(builder, builder.load(held), pointer, offset)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def scatter_run(typing_context, x, indices, matrix, first, stop, source, lanes):
    """matrix[indices[e]] += x[e] * source[0] for every entry of a run."""
    signature = types.void(x, indices, matrix, types.int64, types.int64, source, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        shared = _row_pointer(context, builder, source, arguments[5], _word(0), None)
        vectors = _load_row(builder, shared, lanes)
        with _entries(builder, arguments[3], arguments[4]) as (entry, _):
            scale = _number(context, builder, kinds[0], arguments[0], entry)
            row = _row_of(context, builder, kinds[1:3], arguments[1:3], entry)
            _add_to_row(builder, row, scale, vectors, lanes)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def sample_run(
    typing_context, x, indices, matrix, first, stop, source, lanes, weight, out, fresh, shift
):
    """out[e] += weight * <matrix[indices[e]], source[0]> over a run; <x, what was added>.

    fresh : whether out is shift · x before, whatever it was
    """
    signature = types.float64(
        x, indices, matrix, types.int64, types.int64, source, lanes, types.float64, out,
        types.boolean, types.float64,
    )  # fmt: skip

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        shared = _row_pointer(context, builder, source, arguments[5], _word(0), None)
        vectors = _load_row(builder, shared, lanes)
        energy = cgutils.alloca_once_value(builder, ir.Constant(ir.DoubleType(), 0.0))
        with _entries(builder, arguments[3], arguments[4]) as (entry, _):
            row = _row_of(context, builder, kinds[1:3], arguments[1:3], entry)
            product = _product_of_rows(builder, _load_row(builder, row, lanes), vectors)
            part = builder.fmul(arguments[7], product)
            value = _number(context, builder, kinds[0], arguments[0], entry)
            with builder.if_else(arguments[9]) as (is_fresh, is_not):
                with is_fresh:
                    scaled, fresh_end = builder.fmul(arguments[10], value), builder.block
                with is_not:
                    held = _number(context, builder, kinds[8], arguments[8], entry)
                    held_end = builder.block
            before = builder.phi(ir.DoubleType())
            before.add_incoming(scaled, fresh_end)
            before.add_incoming(held, held_end)
            total = builder.fadd(before, part)
            if kinds[8].dtype == types.float32:
                total = builder.fptrunc(total, ir.FloatType())
            builder.store(total, _entry_pointer(context, builder, kinds[8], arguments[8], entry))
            builder.store(_multiply_add(builder, part, value, builder.load(energy)), energy)
        return builder.load(energy)

    return signature, codegen
