"""What predictions rest on, as commands tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import InvalidInput
from slrt_dask.support import check_support

if TYPE_CHECKING:
    from slrt_dask.completion import Completion
    from slrt_dask.data.store import ObservationStore


def resting_on_nothing(unsupported: int, count: int, completion: Completion) -> str:
    """A sentence about predictions that no observation has a part in."""
    return (
        f"{unsupported:,} of {count:,} predictions rest on nothing: no observation has a part "
        f"in them, and they are {completion.header.offset:.6g}, as all such entries"
    )


def unsupported_in(completion: Completion, store: ObservationStore) -> int:
    """How many of a store's entries the model knows nothing of."""
    count = 0
    for number in range(len(store.partitions)):
        places = np.stack(store.read_partition(number)[0])
        count += count_unsupported(completion, places, completion.predict(places))
    return count


def count_unsupported(
    completion: Completion, places: NDArray[Any], values: NDArray[np.float64]
) -> int:
    """How many predictions rest on nothing; 0 for models that cannot tell."""
    try:
        check_support(completion.header)
    except InvalidInput:
        return 0
    if completion.header.constraint is None:
        # Nothing was added to the offset; but for rounding where a slice was never observed.
        offset = completion.header.offset
        places = places[:, np.abs(values - offset) <= 1e-9 * max(1.0, abs(offset))]
    return int(np.count_nonzero(completion.rests_on_nothing(places)))
