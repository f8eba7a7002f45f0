"""Products with all modes that do not cross slabs, piece by piece, by threads that share pieces.

A piece is some slices that a core's own cache can hold: one mode after the other goes over it
there, instead of over a whole block. Each mode has a kernel for its rank (`sweeps.py`), and one
for all modes of a fit would have to be compiled for every combination of ranks. So kernels are
called by their addresses, from one loop that serves all of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import carray, cfunc, from_dtype, njit, types
from numba.extending import intrinsic

from slrt_dask.kernels.rows import FAST_MATH, LANE, lanes_for
from slrt_dask.kernels.sweeps import apply_runs, apply_slices
from slrt_dask.kernels.turns import (
    DONE,
    GIVEN_UP,
    TAKEN_AFTER,
    count_of,
    count_up,
    doze_until,
    set_count,
    vector_at,
    wait_for,
)

ENTRIES, STARTS, X, OUT = range(4)
"""What `local_turns` is told of a block: how many entries, and addresses."""
KERNEL, ROWS, FIBRES = range(3)
"""What it is told of a mode of a block: addresses of its kernel, its rows and its fibres."""
FACTOR, LENGTH, BUFFER_ROWS = range(3)
"""What it is told of a mode: the address of its factor, and how many rows that and buffers have."""


def _signature(rows: Any, fibres: Any, numbers: Any) -> Any:
    """Of a mode's kernel: as `apply_slices`, with addresses and lengths in the place of arrays."""
    row, fibre, number = (types.CPointer(from_dtype(kind)) for kind in (rows, fibres, numbers))
    matrix, word, real = types.CPointer(types.float64), types.int64, types.float64
    return real(
        types.CPointer(word), word, row, fibre, word, number, matrix, word, matrix, word, real,
        number, word, real,
    )  # fmt: skip


@cache
def mode_kernel(width: int, in_runs: bool, rows: Any, fibres: Any, numbers: Any) -> Any:
    """A mode's kernel, as numba's callback; its address is good for as long as the process lives.

    width : of the mode's factor;  in_runs : whether entries of a fibre follow each other
    rows, fibres, numbers : kinds of numbers that they and vectors have
    """
    kernel = _kernel(lanes_for(width), in_runs)
    # Compiled code is kept, and found in memory, by this name.
    form = "runs" if in_runs else "slices"
    kernel.__name__ = kernel.__qualname__ = f"{form}_{width}_{rows}_{fibres}_{numbers}"
    return cfunc(_signature(rows, fibres, numbers), cache=True)(kernel)


def _kernel(lanes: tuple[int, ...], in_runs: bool) -> Any:
    def kernel(
        starts, slices, rows, fibres, entries, x, factor, length, buffer, buffer_rows, weight, out,
        fresh, shift,
    ):  # fmt: skip
        shape, room = (length, LANE * len(lanes)), (buffer_rows, LANE * len(lanes))
        matrix = carray(factor, shape)
        apply = apply_runs if in_runs else apply_slices
        return apply(
            carray(starts, slices + 1), carray(rows, entries), carray(fibres, entries),
            carray(x, entries), matrix, matrix, lanes, carray(buffer, room), weight,
            carray(out, entries), fresh != 0, shift,
        )  # fmt: skip

    return kernel


@intrinsic
def _call_kernel(
    typing_context, kernel, starts, slices, rows, fibres, entries, x, factor, length, buffer,
    buffer_rows, weight, out, fresh, shift,
):  # fmt: skip
    word, real = types.int64, types.float64
    signature = real(
        word, word, word, word, word, word, word, word, word, word, word, real, word, word, real
    )

    def codegen(context, builder, signature, arguments):
        kinds = [argument.type for argument in arguments[1:]]
        function = ir.FunctionType(ir.DoubleType(), kinds)
        return builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])

    return signature, codegen


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def _product(piece, pieces, blocks, numbering, modes, buffers, weights, shift):
    number, first, stop = pieces[piece]
    block, energy = blocks[number], 0.0
    for place in range(modes.shape[0]):
        mode, numbered = modes[place], numbering[number, place]
        energy += _call_kernel(
            numbered[KERNEL], block[STARTS] + 8 * first, stop - first, numbered[ROWS],
            numbered[FIBRES], block[ENTRIES], block[X], mode[FACTOR], mode[LENGTH],
            buffers[place], mode[BUFFER_ROWS], weights[place], block[OUT], int(place == 0),
            shift,
        )  # fmt: skip
    return energy


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def local_turns(
    counters, turns_before, pieces, blocks, numbering, modes, buffers, weights, shift, energies,
    claims, away,
):  # fmt: skip
    """out = shift · x + Σ_{k local} λ_k X ×_k U_k U_kᵀ at the entries, as this thread gets turns.

    Begins when all turns of what came before have been done, by whichever threads.

    counters : see `turns`
    pieces : (pieces, 3) block, first slice, and the one after the last
    blocks : (blocks, 4);  numbering : (blocks, modes, 3);  modes : (modes, 3)
    buffers : (modes,) addresses of this thread's room for fibre sums
    energies : (pieces,) for ⟨x, what was added⟩
    claims : counters of what is offered to others, the last pieces: see `help_turns`
    away : (offered,) set to 1 where another process has taken a piece
    """
    if not wait_for(counters, DONE, turns_before, -1):
        return
    while True:
        piece = count_up(counters, TAKEN_AFTER)
        if piece >= pieces.shape[0] or count_of(counters, GIVEN_UP):
            return
        offered = piece - (pieces.shape[0] - away.size)
        if offered >= 0 and count_up(claims, FIRST_CLAIM + offered) > 0:
            away[offered] = 1
        else:
            energies[piece] = _product(
                piece, pieces, blocks, numbering, modes, buffers, weights, shift
            )


OPENED = GIVEN_UP + 1
"""The counter of an offer that says which round it is open for."""
FIRST_CLAIM = OPENED + 1
"""The first of the counters of who has asked for each piece, the first of whom gets it; then come
those of pieces that others have done."""


def claims_for(offered: int) -> int:
    """How many counters an offer of so many pieces has."""
    return FIRST_CLAIM + 2 * offered


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def open_offer(claims, opening, lengths, sources, targets, like):
    """Copy what is needed of every piece to where other processes see it, and let them begin.

    lengths, sources, targets : (offered,) numbers of each, and addresses
    like : an array of the kind of these numbers
    """
    for piece in range(lengths.size):
        target = vector_at(targets[piece], lengths[piece], like)
        target[:] = vector_at(sources[piece], lengths[piece], like)
    set_count(claims, OPENED, opening)


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def help_turns(
    claims, opening, naps, pieces, blocks, numbering, modes, buffers, weights, shift, energies
):
    """`local_turns` for what another process offers, the last piece first; whether it is over.

    It is not if the offer has not been opened yet, for which this waits a moment.
    """
    if not doze_until(claims, OPENED, opening, naps):
        return count_of(claims, GIVEN_UP) > 0
    for piece in range(pieces.shape[0] - 1, -1, -1):
        if count_of(claims, GIVEN_UP):
            return True
        if count_up(claims, FIRST_CLAIM + piece) == 0:
            energies[piece] = _product(
                piece, pieces, blocks, numbering, modes, buffers, weights, shift
            )
            count_up(claims, FIRST_CLAIM + pieces.shape[0] + piece)
    return True


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def fetch_pieces(claims, away, naps, lengths, sources, targets, like, energies, own_energies):
    """Take over what others have done; whether all is there, for which this waits a moment.

    lengths, sources, targets : see `open_offer`
    energies, own_energies : of the offer, and of all pieces
    """
    first = own_energies.size - away.size
    for piece in range(away.size):
        if away[piece] == 0:
            continue
        if not doze_until(claims, FIRST_CLAIM + away.size + piece, 1, naps):
            return False
        target = vector_at(targets[piece], lengths[piece], like)
        target[:] = vector_at(sources[piece], lengths[piece], like)
        own_energies[first + piece] = energies[piece]
        away[piece] = 0
    return True
