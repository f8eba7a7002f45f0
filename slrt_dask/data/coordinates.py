"""Coordinates of dimensions as JSON: small one-dimensional labels kept with a store.

Numbers are lists of numbers, dates are integers with their unit, text is text; anything else, and
anything long, is left out rather than kept half. This changes when more kinds are to be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = 20_000


def encode(labels: Mapping[str, NDArray[Any]]) -> dict[str, Any] | None:
    """{dimension: labels (n,)} as JSON, without the ones that cannot be kept; None if none can."""
    kept = {name: _encoded(values) for name, values in labels.items() if _can_keep(values)}
    return kept or None


def decode(coordinates: Mapping[str, Any] | None) -> dict[str, NDArray[Any]] | None:
    """The labels again, as arrays (n,) of their own types."""
    if coordinates is None:
        return None
    return {name: _decoded(kept) for name, kept in coordinates.items()}


def _can_keep(values: NDArray[Any]) -> bool:
    if values.ndim != 1 or values.shape[0] > LONGEST:
        return False
    if values.dtype.kind == "f":
        return bool(np.isfinite(values).all()) and values.dtype.itemsize <= 8
    if values.dtype.kind == "O":
        return all(isinstance(value, str) for value in values)
    return values.dtype.kind in "biuMmU"


def _encoded(values: NDArray[Any]) -> dict[str, Any]:
    if values.dtype.kind in "OU":
        return {"dtype": "str", "values": [str(value) for value in values]}
    plain = values.astype(np.int64) if values.dtype.kind in "Mm" else values
    return {"dtype": values.dtype.newbyteorder("=").str[1:], "values": plain.tolist()}


def _decoded(kept: Mapping[str, Any]) -> NDArray[Any]:
    dtype = np.dtype(kept["dtype"])
    if dtype.kind in "Mm":
        return np.array(kept["values"], dtype=np.int64).astype(dtype)
    return np.array(kept["values"], dtype=dtype)
