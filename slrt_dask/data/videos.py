"""Videos decoded from their beginning to the end that they state; one that stops before is refused.

A file that was cut off, by a full disk or a broken download, still decodes as far as it goes. What
it was meant to hold is told by its container: a number of frames, a duration, or a mark at its end.
This changes when other containers tell it in other ways.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.data.libraries import load
from slrt_dask.errors import InvalidInput

REMEDY = (
    "fetch or copy it again; to use what there is of it, write that to a new file first "
    "(ffmpeg -i OLD NEW.mkv)"
)
# Durations are rounded, and some writers count the last frame twice; a number of frames is exact.
LOOSE, TIGHT = 1.5, 0.5
USUAL_RATE = 25.0
GIF_END = b";"


@dataclass
class Decoded:
    """How far decoding has come.

    count, shape : of the frames;  pictures_end, end : seconds at which the last of them ends, and
    the last of anything;  damaged : whether a part of a frame is missing
    """

    count: int = 0
    shape: tuple[int, ...] = ()
    pictures_end: float = 0.0
    end: float = 0.0
    damaged: bool = False


def decode(path: str, file: Any) -> tuple[int, tuple[int, ...]]:
    """Write a video's frames to a file; their number, and the shape of each."""
    av = load("av", extra="video")
    reached = Decoded()
    try:
        with av.open(path) as container:
            if not container.streams.video:
                raise InvalidInput(f"{path} has no pictures in it. If it should have, {REMEDY}.")
            _decode_all(container, file, reached)
            lacking = _lacking(path, container, reached)
    except av.FFmpegError as error:
        where = f" after {reached.count} frames" if reached.count else ""
        raise InvalidInput(
            f"{path} cannot be read as a video{where}: {error.strerror}. If it should be one, "
            f"{REMEDY}."
        ) from error
    if reached.count == 0:
        raise InvalidInput(f"{path} has no frames. If it should have some, {REMEDY}.")
    if lacking:
        raise InvalidInput(f"{path} is not whole: {lacking}; {REMEDY}.")
    file.flush()
    return reached.count, reached.shape


def _decode_all(container: Any, file: Any, reached: Decoded) -> None:
    stream = container.streams.video[0]
    grey = (stream.codec_context.pix_fmt or "").startswith("gray")
    for packet in container.demux():
        end = _end(packet)
        reached.end = max(reached.end, end)
        if packet.stream.index != stream.index:
            continue
        reached.pictures_end = max(reached.pictures_end, end)
        reached.damaged |= packet.is_corrupt
        for frame in packet.decode():
            height, width = reached.shape[:2] if reached.shape else (None, None)
            image = frame.reformat(width, height, "gray" if grey else "rgb24").to_ndarray()
            reached.shape = image.shape
            reached.damaged |= frame.is_corrupt
            file.write(np.ascontiguousarray(image).data)
            reached.count += 1


def _end(packet: Any) -> float:
    if packet.pts is None:
        return 0.0
    return float((packet.pts + (packet.duration or 0)) * packet.time_base)


def _lacking(path: str, container: Any, reached: Decoded) -> str | None:
    """What a video has not, of what its container says that it has."""
    if reached.damaged:
        return f"after {reached.count} frames there is one of which a part is missing"
    if container.format.name == "gif":
        return None if _ends_as_gif(path) else "the mark at the end of a GIF is missing"
    stream = container.streams.video[0]
    rate = float(stream.average_rate or stream.guessed_rate or USUAL_RATE)
    stated, end = _stated_end(container, rate), reached.end
    if stream.duration is not None:
        end = reached.pictures_end
    if end < stated - LOOSE / rate:
        return f"it says that it lasts {stated:.2f} s, and ends after {end:.2f} s"
    # Fewer frames than stated are all there are where a cut list leaves some out.
    if reached.count < stream.frames and end < stated - TIGHT / rate:
        return f"it says that it has {stream.frames} frames, and has {reached.count}"
    return None


def _stated_end(container: Any, rate: float) -> float:
    """The second at which a video says that it ends; zero if it does not say so.

    For other containers the library only estimates a duration, from what there is in the file.
    """
    stream, kind = container.streams.video[0], container.format.name
    if kind == "avi":
        return float(stream.frames) / rate
    if "mp4" in kind and stream.duration is not None:
        return float((stream.duration + (stream.start_time or 0)) * stream.time_base)
    if "matroska" in kind and container.duration is not None:
        return float(container.duration) / 1e6
    return 0.0


def _ends_as_gif(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 1024))
        return file.read().rstrip(b"\0\r\n").endswith(GIF_END)
