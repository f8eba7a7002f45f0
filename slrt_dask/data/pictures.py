"""Pictures as arrays: an image, a folder of images, the frames of a video; lazily, as dask.

An image is (rows, columns) or (rows, columns, colours). Several of them, as files of a folder in
the order of their names, as pages of a file or as frames of a video, have one more mode, the last.
A video that was cut off, by a full disk or a broken download, still decodes as far as it goes: one
that stops before the end that its container states is refused.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.arrays import lazy_array
from slrt_dask.data.libraries import load
from slrt_dask.errors import InvalidInput

IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
VIDEOS = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".mpg", ".mpeg", ".m4v", ".gif")
# What pillow calls pictures whose numbers are what was measured; others are turned into colours.
PLAIN_MODES = ("L", "RGB", "I", "F")
SIXTEEN_BITS = "I;16"  # of either order of bytes
BLOCK_CELLS = 2**21
"""Cells that are looked at together: each becomes eight bytes, and has a mask."""
REMEDY = (
    "fetch or copy it again; to use what there is of it, write that to a new file first "
    "(ffmpeg -i OLD NEW.mkv)"
)
# Durations are rounded, and some writers count the last frame twice; a number of frames is exact.
LOOSE, TIGHT = 1.5, 0.5
USUAL_RATE = 25.0
GIF_END = b";"


def images_in(path: str) -> list[str]:
    """The images in a folder, by their names."""
    found = (entry for entry in Path(path).iterdir() if entry.suffix.lower() in IMAGES)
    return sorted(str(entry) for entry in found if not entry.name.startswith("."))


def image_array(path: str) -> Any:
    """An image, the pages of one, or the images of a folder; each is read when it is needed."""
    dask, da = load("dask"), load("dask.array")
    is_folder = os.path.isdir(path)
    parts = [(name, 0) for name in images_in(path)] if is_folder else _pages(path)
    first = _image(*parts[0], is_folder)
    if len(parts) == 1 and not is_folder:
        return da.from_array(first, name=False)
    read = dask.delayed(_image)
    images = [
        da.from_delayed(read(*part, is_folder, first.shape), first.shape, first.dtype)
        for part in parts
    ]
    return da.stack(images, axis=-1)


def video_array(path: str) -> Any:
    """The frames of a video.

    A video can only be decoded from its beginning, so that is done once, frame by frame into a
    file without a name which the array is then read from. It needs room for the plain frames.
    """
    with tempfile.TemporaryFile() as file:
        count, shape = _decode(path, file)
        file.flush()
        frames = np.memmap(file, np.uint8, "r", 0, (count, *shape))
    together = max(1, BLOCK_CELLS // int(np.prod(shape)))
    return load("dask.array").moveaxis(lazy_array(frames, (together, *shape)), 0, -1)


def _image(
    path: str, page: int, is_folder: bool, shape: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """A page of an image, of the shape of the first one."""
    if is_folder and (pages := len(_pages(path))) > 1:
        raise InvalidInput(
            f"{path} has {pages} pages, and images of a folder must have one; give such a file by "
            "itself."
        )
    with _opened(path) as image:
        if page:
            image.seek(page)
        if not (image.mode in PLAIN_MODES or image.mode.startswith(SIXTEEN_BITS)):
            image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
        values = np.asarray(image)
    if shape not in (None, values.shape):
        which = path if is_folder else f"page {page + 1} of {path}"
        raise InvalidInput(
            f"{which} has shape {values.shape}, unlike the first with {shape}; all must have one "
            "size and be grey, or all in colour."
        )
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _pages(path: str) -> list[tuple[str, int]]:
    with _opened(path) as image:
        # What a camera adds to a photograph, such as a preview, is no page of it.
        count = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    return [(path, page) for page in range(count)]


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    pillow = load("PIL.Image", extra="plot")
    try:
        with pillow.open(path) as image:
            yield image
    except (OSError, SyntaxError, EOFError) as error:
        raise InvalidInput(f"{path} cannot be read as an image ({error}); check it.") from error


def _decode(path: str, file: Any) -> tuple[int, tuple[int, ...]]:
    """Write a video's frames to a file; their number, and the shape of each."""
    av = load("av", extra="video")
    count, lacking = 0, None
    shape: tuple[int, ...] = ()
    try:
        with av.open(path) as container:
            if not container.streams.video:
                raise InvalidInput(f"{path} has no pictures in it. If it should have, {REMEDY}.")
            stream = container.streams.video[0]
            grey = (stream.codec_context.pix_fmt or "").startswith("gray")
            is_damaged, ends = False, [0.0]
            for packet in container.demux():
                is_picture = packet.stream.index == stream.index
                if packet.pts is not None and (is_picture or stream.duration is None):
                    ends.append(float((packet.pts + (packet.duration or 0)) * packet.time_base))
                is_damaged |= is_picture and packet.is_corrupt
                for frame in packet.decode() if is_picture else ():
                    height, width = shape[:2] if shape else (None, None)
                    image = frame.reformat(width, height, "gray" if grey else "rgb24").to_ndarray()
                    shape, count = image.shape, count + 1
                    is_damaged |= frame.is_corrupt
                    file.write(np.ascontiguousarray(image).data)
            if is_damaged:
                lacking = f"after {count} frames there is one of which a part is missing"
            else:
                lacking = _lacking(path, container, count, max(ends))
    except av.FFmpegError as error:
        where = f" after {count} frames" if count else ""
        raise InvalidInput(
            f"{path} cannot be read as a video{where}: {error.strerror}. If it should be one, "
            f"{REMEDY}."
        ) from error
    if count == 0:
        raise InvalidInput(f"{path} has no frames. If it should have some, {REMEDY}.")
    if lacking:
        raise InvalidInput(f"{path} is not whole: {lacking}; {REMEDY}.")
    return count, shape


def _lacking(path: str, container: Any, count: int, end: float) -> str | None:
    """What a video that ends after `end` seconds lacks of what its container states."""
    stream, kind = container.streams.video[0], container.format.name
    if kind == "gif":
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 1024))
            is_whole = file.read().rstrip(b"\0\r\n").endswith(GIF_END)
        return None if is_whole else "the mark at the end of a GIF is missing"
    rate = float(stream.average_rate or stream.guessed_rate or USUAL_RATE)
    stated = 0.0  # for other containers the library only estimates a duration from what there is
    if kind == "avi":
        stated = float(stream.frames) / rate
    elif "mp4" in kind and stream.duration is not None:
        stated = float((stream.duration + (stream.start_time or 0)) * stream.time_base)
    elif "matroska" in kind and container.duration is not None:
        stated = float(container.duration) / 1e6
    if end < stated - LOOSE / rate:
        return f"it says that it lasts {stated:.2f} s, and ends after {end:.2f} s"
    # Fewer frames than stated are all there are where a cut list leaves some out.
    if count < stream.frames and end < stated - TIGHT / rate:
        return f"it says that it has {stream.frames} frames, and has {count}"
    return None
