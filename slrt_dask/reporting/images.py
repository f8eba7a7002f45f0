"""Arrays as PNG pictures with a palette, without any library: a cell is a pixel."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

VIRIDIS = (
    "#440154", "#482878", "#3e4989", "#31688e", "#26828e",
    "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725",
)  # fmt: skip
"""Of dark to light; legible with all common kinds of colour blindness, and in grey."""
SHADES = 255
MISSING = 255
"""The palette's number for what is missing, which is transparent."""
OUTLIERS = 0.002
"""The part of values at either end that does not decide the range of colours."""


def data_url(values: NDArray[np.float64], low: float, high: float) -> str:
    """A picture of an array (rows, columns) as an address; NaN is transparent."""
    return "data:image/png;base64," + base64.b64encode(png(values, low, high)).decode("ascii")


def png(values: NDArray[np.float64], low: float, high: float) -> bytes:
    """The bytes of the picture."""
    known = np.isfinite(values)
    parts = np.clip((np.where(known, values, low) - low) / (high - low), 0.0, 1.0)
    shades = np.where(known, np.rint(parts * (SHADES - 1)), MISSING).astype(np.uint8)
    rows, columns = shades.shape
    # Every row begins with the number of its filter: none.
    lines = np.concatenate([np.zeros((rows, 1), dtype=np.uint8), shades], axis=1)
    opacity = bytes([255] * SHADES + [0])
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", palette().tobytes()),
        (b"tRNS", opacity),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def palette() -> NDArray[np.uint8]:
    """(256, 3) the colours, the last for what is missing."""
    stops = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in VIRIDIS])
    places = np.linspace(0, len(stops) - 1, SHADES)
    channels = [np.interp(places, range(len(stops)), stops[:, channel]) for channel in range(3)]
    colours = np.zeros((SHADES + 1, 3), dtype=np.uint8)
    colours[:SHADES] = np.rint(np.stack(channels, axis=1))
    return colours


def colour_range(*arrays: NDArray[np.float64] | None) -> tuple[float, float]:
    """From where to where colours go for some arrays together; a few outliers do not decide it."""
    known = np.concatenate(
        [array[np.isfinite(array)] for array in arrays if array is not None] or [np.zeros(0)]
    )
    if not known.size:
        return 0.0, 1.0
    low, high = (float(edge) for edge in np.quantile(known, (OUTLIERS, 1.0 - OUTLIERS)))
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
