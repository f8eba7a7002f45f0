"""What came over a wire, made fit for the kernels.

Arrays that another process has sent lie where the message put them, often not aligned. Kernels
would be compiled anew for such arrays, and be slower; so each is copied once, on arrival.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


def aligned(value: Any) -> Any:
    """The same value with every array in it aligned; what is so already is not copied.

    Looks into tuples and dataclasses, of which programs and their messages are made.
    """
    if isinstance(value, np.ndarray):
        return value if value.flags.aligned else value.copy()
    if isinstance(value, tuple):
        parts = tuple(aligned(part) for part in value)
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for field in dataclasses.fields(value):
            held = getattr(value, field.name)
            fit = aligned(held)
            if fit is not held:
                changes[field.name] = fit
        return dataclasses.replace(value, **changes) if changes else value
    return value
