"""What an array says besides its numbers, as JSON: coordinates, its name, and its attributes.

Small coordinates are kept with a store: numbers are lists of numbers, dates are integers with
their unit, text is text. Anything else, and anything long, is left out rather than kept half, and
the log says so. This changes when more kinds are to be kept.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger("slrt_dask")

LONGEST = 20_000
"""Labels of a coordinate, or characters of an attribute."""
Kept = dict[str, Any]
Variable = tuple[tuple[str, ...], NDArray[Any], Kept]


def encode(labels: Mapping[str, Any]) -> Kept | None:
    """Coordinates by name as JSON, without the ones that cannot be kept; None if none can.

    labels : xarray's coordinates: `dims`, `size`, `dtype`, `values`, `attrs` are used
    """
    kept = {}
    for name, label in labels.items():
        # Their number is asked first: lazy labels would have to be computed.
        if label.size <= LONGEST and _can_keep(np.asarray(label.values)):
            kept[str(name)] = _encoded(label)
        else:
            logger.warning(
                "the coordinate %r is not kept: it has %d labels of type %s, and only plain "
                "numbers, dates and text are, at most %d", name, label.size, label.dtype, LONGEST,
            )  # fmt: skip
    return kept or None


def encode_about(name: object, attributes: Mapping[Any, Any]) -> Kept | None:
    """An array's name and attributes as JSON; None if there is nothing to say."""
    about = {"name": None if name is None else str(name), "attributes": _plain(attributes)}
    return about if any(about.values()) else None


def decode(coordinates: Mapping[str, Kept] | None) -> dict[str, NDArray[Any]] | None:
    """The labels (n,) of the dimensions that have some, as arrays of their own types."""
    if coordinates is None:
        return None
    variables = decode_all(coordinates).items()
    labels = {name: values for name, (dims, values, _) in variables if dims == (name,)}
    return labels or None


def decode_all(coordinates: Mapping[str, Kept] | None) -> dict[str, Variable]:
    """All coordinates by name: (dimensions, values, attributes), as xarray takes them."""
    return {
        name: (
            tuple(kept.get("dims", [name])),
            _decoded(kept),
            dict(kept.get("attributes", {})),
        )
        for name, kept in (coordinates or {}).items()
    }


def renamed(coordinates: Kept | None, old: Sequence[str], new: Sequence[str]) -> Kept | None:
    """The coordinates after their dimensions were given other names."""
    if coordinates is None:
        return None
    names = dict(zip(old, new, strict=True))
    return {
        names.get(name, name): {**kept, "dims": [names[dim] for dim in kept.get("dims", [name])]}
        for name, kept in coordinates.items()
    }


def _can_keep(values: NDArray[Any]) -> bool:
    if values.dtype.kind == "f":
        return bool(np.isfinite(values).all()) and values.dtype.itemsize <= 8
    if values.dtype.kind == "O":
        return all(isinstance(value, str) for value in values.flat)
    return values.dtype.kind in "biuMmU"


def _encoded(label: Any) -> Kept:
    values = np.asarray(label.values)
    if values.dtype.kind in "OU":
        dtype, plain = "str", values.astype(str)
    else:
        dtype = values.dtype.newbyteorder("=").str[1:]
        plain = values.astype(np.int64) if values.dtype.kind in "Mm" else values
    kept = {"dtype": dtype, "values": plain.tolist(), "dims": [str(dim) for dim in label.dims]}
    attributes = _plain(label.attrs)
    return {**kept, "attributes": attributes} if attributes else kept


def _decoded(kept: Kept) -> NDArray[Any]:
    dtype = np.dtype(kept["dtype"])
    if dtype.kind in "Mm":
        return np.array(kept["values"], dtype=np.int64).astype(dtype)
    return np.array(kept["values"], dtype=dtype)


def _plain(attributes: Mapping[Any, Any]) -> Kept:
    """The attributes that are text, numbers, or lists of them."""
    plain = {}
    for name, value in attributes.items():
        shown = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
        try:
            text = json.dumps(shown, allow_nan=False)
        except (TypeError, ValueError):
            continue
        if len(text) <= LONGEST:
            plain[str(name)] = json.loads(text)
    return plain
