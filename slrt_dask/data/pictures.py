"""Pictures as arrays: an image, a folder of images, the frames of a video; lazily, as dask.

An image is (rows, columns) or (rows, columns, colours). Several of them, as files of a folder in
the order of their names, as pages of a file or as frames of a video, have one more mode, the last.
This changes when other kinds of pictures are to be read.
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

from slrt_dask.data.libraries import load
from slrt_dask.data.mapped import lazy_array
from slrt_dask.data.videos import decode
from slrt_dask.errors import InvalidInput

IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
VIDEOS = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".mpg", ".mpeg", ".m4v", ".gif")
# What pillow calls pictures whose numbers are what was measured; others are turned into colours.
PLAIN_MODES = ("L", "RGB", "I", "F")
SIXTEEN_BITS = "I;16"  # of either order of bytes
BLOCK_CELLS = 2**21
"""Cells that are looked at together: each becomes eight bytes, with a mask beside it."""


def is_image_folder(path: str) -> bool:
    return os.path.isdir(path) and bool(_images_in(path))


def image_array(path: str) -> Any:
    """One image file as a dask array; the pages of one that has several are its last mode."""
    da, first, count = load("dask.array"), _read_image(path), _pages(path)
    if count == 1:
        return da.from_array(first, name=False)
    read = load("dask").delayed(_read_page)
    pages = [
        da.from_delayed(read(path, page, first.shape), first.shape, first.dtype)
        for page in range(count)
    ]
    return da.stack(pages, axis=-1)


def folder_array(path: str) -> Any:
    """The images of a folder, all of one size, by their names; each is read when it is needed."""
    dask, da = load("dask"), load("dask.array")
    names = _images_in(path)
    if not names:
        raise InvalidInput(f"there are no images in {path}; known are {', '.join(IMAGES)}.")
    first = _read_single(names[0])
    read = dask.delayed(_read_single)
    frames = [
        da.from_delayed(read(name, first.shape, names[0]), first.shape, first.dtype)
        for name in names
    ]
    return da.stack(frames, axis=-1)


def video_array(path: str) -> Any:
    """The frames of a video.

    A video can only be decoded from its beginning, so that is done once, frame by frame into a
    file without a name which the array is then read from. It needs room for the plain frames.
    """
    da = load("dask.array")
    with tempfile.TemporaryFile() as file:
        count, shape = decode(path, file)
        frames = np.memmap(file, np.uint8, "r", 0, (count, *shape))
    together = max(1, BLOCK_CELLS // int(np.prod(shape)))
    return da.moveaxis(lazy_array(frames, (together, *shape)), 0, -1)


def _images_in(path: str) -> list[str]:
    found = (entry for entry in Path(path).iterdir() if entry.suffix.lower() in IMAGES)
    return sorted(str(entry) for entry in found if not entry.name.startswith("."))


def _read_single(path: str, shape: tuple[int, ...] | None = None, first: str = "") -> NDArray[Any]:
    """An image of a folder, like the first of it."""
    pages = _pages(path)
    if pages > 1:
        raise InvalidInput(
            f"{path} has {pages} pages, and images of a folder must have one; give such a file by "
            "itself."
        )
    image = _read_image(path)
    if shape not in (None, image.shape):
        raise InvalidInput(
            f"{path} has shape {image.shape}, unlike {first} with {shape}; images of a folder "
            "must have one size and all be grey, or all in colour."
        )
    return image


def _read_page(path: str, page: int, shape: tuple[int, ...]) -> NDArray[Any]:
    image = _read_image(path, page)
    if image.shape != shape:
        raise InvalidInput(
            f"page {page + 1} of {path} has shape {image.shape}, unlike the first with {shape}; "
            "pages must have one size and all be grey, or all in colour."
        )
    return image


def _pages(path: str) -> int:
    with _opened(path) as image:
        # What a camera adds to a photograph, such as a preview, is no page of it.
        return 1 if image.format == "MPO" else getattr(image, "n_frames", 1)


def _read_image(path: str, page: int = 0) -> NDArray[Any]:
    with _opened(path) as image:
        if page:
            image.seek(page)
        is_plain = image.mode in PLAIN_MODES or image.mode.startswith(SIXTEEN_BITS)
        values = np.asarray(image if is_plain else image.convert(_plain_mode(image.mode)))
    return values.astype(values.dtype.newbyteorder("="), copy=False)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    pillow = load("PIL.Image", extra="plot")
    try:
        with pillow.open(path) as image:
            yield image
    except (OSError, SyntaxError, EOFError) as error:
        raise InvalidInput(f"{path} cannot be read as an image ({error}); check it.") from error


def _plain_mode(mode: str) -> str:
    return "L" if mode in ("1", "LA") else "RGB"
