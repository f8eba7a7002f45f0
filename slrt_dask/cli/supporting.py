"""What predictions rest on, as commands tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slrt_dask.completion import Completion


def resting_on_nothing(unsupported: int, count: int, completion: Completion) -> str:
    """A sentence about predictions that nothing was observed about."""
    which = f"{unsupported:,} of {count:,} predictions"
    if completion.header.constraint is not None:
        # Multipliers may be near them, so that they are not all alike.
        return (
            f"{which} are of entries that nothing was observed about: no observation is in their "
            "fibres, or none in a whole slice of theirs"
        )
    if completion.header.has_effects:
        return (
            f"{which} rest on nothing but the offset of their modes: no observation is in their "
            "fibres, or none in a whole slice of theirs"
        )
    return (
        f"{which} rest on nothing: no observation has a part in them, and they are "
        f"{completion.header.offset:.6g}, as all such entries"
    )
