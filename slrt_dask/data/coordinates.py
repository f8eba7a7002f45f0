"""What an array says besides its numbers, as JSON: coordinates, its name, and its attributes.

Coordinates are kept with a store: short ones as lists that can be read (numbers, dates as integers
with their unit, text), long ones and what JSON has no numbers for packed as bytes. What is neither
numbers, dates nor text, and what stays large when packed, is left out rather than kept half, and
the log says so.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger("slrt_dask")

LONGEST = 20_000
"""Labels of a coordinate that are kept as a list, or characters of an attribute."""
MOST_LABELS = 2_000_000
"""Of a coordinate that is packed; more are not even computed."""
MOST_PACKED = 2**20
"""Characters that the labels of a coordinate may take: they travel with every task."""
NUMERIC = "biufMm"
Kept = dict[str, Any]
Variable = tuple[tuple[str, ...], NDArray[Any], Kept]


def encode(labels: Mapping[str, Any]) -> Kept | None:
    """Coordinates by name as JSON, without the ones that cannot be kept; None if none can.

    labels : xarray's coordinates: `dims`, `size`, `dtype`, `values`, `attrs` are used
    """
    kept = {}
    for name, label in labels.items():
        # Their number is asked first: lazy labels would have to be computed.
        encoded = _encoded(label) if label.size <= MOST_LABELS else None
        if encoded is not None:
            kept[str(name)] = encoded
        else:
            logger.warning(
                "the coordinate %r is not kept: it has %d labels of type %s, and only plain "
                "numbers, dates and text are that take at most %d bytes when packed",
                name, label.size, label.dtype, MOST_PACKED,
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


def _encoded(label: Any) -> Kept | None:
    """A coordinate as JSON; None if it cannot be kept."""
    values = np.asarray(label.values)
    if values.dtype.kind in "OT":
        values = values.astype(object)  # in which a missing text is no text
        if not all(isinstance(one, str) for one in values.flat):
            return None
        values = values.astype(str)
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind not in NUMERIC + "US" or (kind == "f" and size > 8):
        return None
    dtype = "str" if kind == "U" else values.dtype.newbyteorder("=").str[1:]
    kept: Kept = {"dtype": dtype, "dims": [str(dim) for dim in label.dims]}
    is_json = kind in "biuMmU" or (kind == "f" and bool(np.isfinite(values).all()))
    if values.size <= LONGEST and is_json:
        kept["values"] = (values.astype(np.int64) if kind in "Mm" else values).tolist()
    else:
        kept |= {"shape": list(values.shape), "packed": _packed(values)}
        if len(kept["packed"]) > MOST_PACKED:
            return None
    attributes = _plain(label.attrs)
    return {**kept, "attributes": attributes} if attributes else kept


def _packed(values: NDArray[Any]) -> str:
    if values.dtype.kind == "U":
        raw = json.dumps(values.ravel().tolist()).encode()
    elif values.dtype.kind == "S":
        raw = values.tobytes()
    else:
        # Neighbours are alike, so that most of the bits of their differences are zero. They are
        # those of unsigned integers of the same size, which wrap around.
        native = values.astype(values.dtype.newbyteorder("=")).ravel()
        words = native.view(f"u{values.dtype.itemsize}")
        raw = np.diff(words, prepend=words.dtype.type(0)).tobytes()
    return base64.b85encode(zlib.compress(raw, 9)).decode()


def _decoded(kept: Kept) -> NDArray[Any]:
    dtype = np.dtype(kept["dtype"])
    if "packed" not in kept:
        plain = np.int64 if dtype.kind in "Mm" else dtype
        return np.array(kept["values"], dtype=plain).astype(dtype)
    raw = zlib.decompress(base64.b85decode(kept["packed"]))
    if dtype.kind == "U":
        values = np.array(json.loads(raw), dtype=dtype)
    elif dtype.kind == "S":
        values = np.frombuffer(raw, dtype)
    else:
        word = np.dtype(f"u{dtype.itemsize}")
        values = np.cumsum(np.frombuffer(raw, word), dtype=word).view(dtype)
    return values.reshape(kept["shape"])


def _plain(attributes: Mapping[Any, Any]) -> Kept:
    """The attributes that are text, numbers, or lists of them."""
    plain = {}
    for name, value in attributes.items():
        shown = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
        with contextlib.suppress(TypeError, ValueError):
            text = json.dumps(shown, allow_nan=False)
            if len(text) <= LONGEST:
                plain[str(name)] = json.loads(text)
    return plain
