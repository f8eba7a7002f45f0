"""Turns that threads take from inside a kernel, and memory that is known by its address.

A thread that asks the interpreter for every piece of work waits for other threads there, and for
the interpreter itself, which the kernels have just driven out of the caches. So work that threads
share is one call of a kernel for each of them: it takes one turn after the other from a counter
until there are none, and waits, if it must, without sleeping; only for other processes it naps.

Counters are int64 in a (kinds, 8) array: each has a cache line to itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

TAKEN, DONE, TAKEN_AFTER, GIVEN_UP = range(4)
"""Rows of counters: turns of the first half that were taken and done, turns of the second half that
were taken, and whether the work was given up."""
WORD = ir.IntType(64)
LOOKS = 200
"""Looks at a counter before the core is offered to whoever else wants it: some 0.1 µs."""

_offer_core = types.ExternalFunction("sched_yield", types.int32())
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))
NAP = 100
"""Microseconds of sleep between looks at what may take a while."""


def new_counters(kinds: int = 4) -> NDArray[np.int64]:
    return np.zeros((kinds, 8), dtype=np.int64)


def _counter(context: Any, builder: Any, kind: Any, array: Any, row: Any) -> Any:
    view = context.make_array(kind)(context, builder, array)
    stride = builder.extract_value(view.shape, 1)
    return builder.gep(view.data, [builder.mul(row, stride)])


@intrinsic
def count_up(typing_context, counters, row):
    """Add one to a counter; what it was before. No two threads are told the same."""
    signature = types.int64(counters, types.intp)

    def codegen(context, builder, signature, arguments):
        place = _counter(context, builder, signature.args[0], *arguments)
        return builder.atomic_rmw("add", place, ir.Constant(WORD, 1), "seq_cst")

    return signature, codegen


@intrinsic
def count_of(typing_context, counters, row):
    """A counter as other threads have left it; all that they wrote before is seen after this."""
    signature = types.int64(counters, types.intp)

    def codegen(context, builder, signature, arguments):
        place = _counter(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(place, "acquire", 8)

    return signature, codegen


@intrinsic
def set_count(typing_context, counters, row, count):
    """Set a counter; whoever sees that sees all that was written before."""
    signature = types.void(counters, types.intp, types.int64)

    def codegen(context, builder, signature, arguments):
        place = _counter(context, builder, signature.args[0], *arguments[:2])
        builder.store_atomic(arguments[2], place, "release", 8)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _pointer(typing_context, address, like):
    signature = types.CPointer(like.dtype)(types.int64, like)

    def codegen(context, builder, signature, arguments):
        kind = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], kind)

    return signature, codegen


@njit(nogil=True, cache=True)
def wait_for(counters, row, count, offers):
    """Wait until a counter has come to `count`, or the work was given up; whether it has.

    offers : how often to offer the core to others before this one gives up; -1 for always
    """
    while True:
        for _ in range(LOOKS):
            if count_of(counters, row) >= count:
                return True
        if count_of(counters, GIVEN_UP) or offers == 0:
            return False
        _offer_core()
        offers -= 1


@njit(nogil=True, cache=True)
def doze_until(counters, row, count, naps):
    """As `wait_for`, where it may take milliseconds: sleeping, so many times at most."""
    while count_of(counters, row) < count:
        if count_of(counters, GIVEN_UP) or naps == 0:
            return False
        _sleep(NAP)
        naps -= 1
    return True


@njit(nogil=True, cache=True, inline="always")
def vector_at(address, length, like):
    """The numbers at an address, of the kind that the array `like` has; its owner keeps them."""
    return carray(_pointer(address, like), length)
