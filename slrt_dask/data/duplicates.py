"""What happens when one index is observed more than once.

The entries are already in lexicographic order and, among equals, in the order of their source.
This changes when another rule is offered.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import InvalidInput

DuplicateRule = Literal["error", "mean", "sum", "last"]


def check_rule(rule: str) -> None:
    known = get_args(DuplicateRule)
    if rule not in known:
        raise InvalidInput(f"duplicates={rule!r} is not a rule; choose one of {', '.join(known)}.")


def merge(
    values: NDArray[Any], repeated: NDArray[np.bool_], rule: DuplicateRule
) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Which entries to keep, and their values, under a rule other than "error".

    repeated : (m,), True where an entry has the same index as the one before it.
    Returns (kept, values): positions (q,) and the q merged values, summed in float64.
    """
    firsts = np.flatnonzero(~repeated)
    stops = np.append(firsts[1:], values.shape[0])
    if rule == "last":
        return firsts, values[stops - 1]
    # What overflows becomes infinite, and the caller names it.
    with np.errstate(over="ignore"):
        sums = np.add.reduceat(values, firsts, dtype=np.float64)
        if rule == "mean":
            sums /= stops - firsts
        return firsts, sums.astype(values.dtype)
