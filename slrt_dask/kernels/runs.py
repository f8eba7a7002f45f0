"""Entries one after the other that share a row: it stays in registers until their run is over.

Where a block's entries are sorted, those of a fibre of the last mode follow each other, and so
their sum is made without a look at memory, and sampled without one (`sweeps.apply_runs`). A run are
the entries from `first` to before `stop`; vectors may be float32, sums are float64.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from slrt_dask.kernels.emitting import (
    entry_pointer,
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
from slrt_dask.kernels.rows import add_to_row


def _entries(builder: Any, first: Any, stop: Any) -> Any:
    """A loop over the entries of a run."""
    return cgutils.for_range_slice(builder, first, stop, ir.Constant(ir.IntType(64), 1))


def _number(context: Any, builder: Any, kind: Any, array: Any, entry: Any) -> Any:
    """One number of a vector, as a float64."""
    value = builder.load(entry_pointer(context, builder, kind, array, entry))
    return value if kind.dtype == types.float64 else builder.fpext(value, ir.DoubleType())


def _row_of(context: Any, builder: Any, kinds: Any, arrays: Any, entry: Any) -> Any:
    """Address of matrix[indices[entry]], indices and matrix being given."""
    index = builder.load(entry_pointer(context, builder, kinds[0], arrays[0], entry))
    row = row_index(builder, index, kinds[0].dtype)
    return row_pointer(context, builder, kinds[1], arrays[1], row)


@intrinsic
def gather_run(typing_context, x, indices, matrix, first, stop, target, lanes):
    """target[0] = Σ_e x[e] * matrix[indices[e]] over a run."""
    signature = types.void(x, indices, matrix, types.int64, types.int64, target, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        sums = []
        for _, length in pieces_of(lanes):
            zeros = zero_vector(length)
            sums.append(cgutils.alloca_once_value(builder, zeros))
        with _entries(builder, arguments[3], arguments[4]) as (entry, _):
            scale = _number(context, builder, kinds[0], arguments[0], entry)
            row = _row_of(context, builder, kinds[1:3], arguments[1:3], entry)
            for held, vector in zip(sums, load_row(builder, row, lanes), strict=True):
                factor = splat(builder, scale, vector.type.count)
                total = fused_multiply_add(builder, factor, vector, builder.load(held))
                builder.store(total, held)
        zero = ir.Constant(ir.IntType(64), 0)
        pointer = row_pointer(context, builder, kinds[5], arguments[5], zero)
        for held, (offset, _) in zip(sums, pieces_of(lanes), strict=True):
            store(builder, builder.load(held), pointer, offset)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def scatter_run(typing_context, x, indices, matrix, first, stop, source, lanes):
    """matrix[indices[e]] += x[e] * source[0] for every entry of a run."""
    signature = types.void(x, indices, matrix, types.int64, types.int64, source, lanes)

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        zero = ir.Constant(ir.IntType(64), 0)
        shared = row_pointer(context, builder, kinds[5], arguments[5], zero)
        vectors = load_row(builder, shared, lanes)
        with _entries(builder, arguments[3], arguments[4]) as (entry, _):
            scale = _number(context, builder, kinds[0], arguments[0], entry)
            row = _row_of(context, builder, kinds[1:3], arguments[1:3], entry)
            add_to_row(builder, row, scale, vectors, lanes)
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
        zero = ir.Constant(ir.IntType(64), 0)
        shared = row_pointer(context, builder, kinds[5], arguments[5], zero)
        vectors = load_row(builder, shared, lanes)
        energy = cgutils.alloca_once_value(builder, ir.Constant(ir.DoubleType(), 0.0))
        with _entries(builder, arguments[3], arguments[4]) as (entry, _):
            row = _row_of(context, builder, kinds[1:3], arguments[1:3], entry)
            product = product_of_rows(builder, load_row(builder, row, lanes), vectors)
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
            builder.store(total, entry_pointer(context, builder, kinds[8], arguments[8], entry))
            builder.store(fused_multiply_add(builder, part, value, builder.load(energy)), energy)
        return builder.load(energy)

    return signature, codegen
