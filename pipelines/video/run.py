"""Complete a video from a tenth of its pixels.

    python pipelines/video/run.py                     a moving scene made here
    python pipelines/video/run.py clip.mp4            your own, with pip install 'slrt-dask[video]'
    python pipelines/video/run.py frames/             a folder of images, by their names
    python pipelines/video/run.py frames.npz --key X  (rows, columns, frames); also .npy, zarr, .nc

Colours are turned to grey. Frames go to the store a few at a time, so a video may be larger than
memory. Nine tenths of the pixels are hidden, a tenth scores the answer; where some are missing
already (NaN, a mask, or --missing 0), all that are known but a tenth are used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import interrupts

interrupts.tell_in_a_line()

import command
import dask.array as da
import numpy as np
import scores
import shared

from slrt_dask.errors import InvalidInput
from slrt_dask.plot import frames_figure

HERE = Path(__file__).parent
OBSERVED = 0.1
LUMINANCE = np.array([0.299, 0.587, 0.114])
SHOWN = 4


def moving_scene(rows: int, columns: int, frames: int) -> np.ndarray:
    """Two people on a street, going opposite ways, while a cloud darkens it; values 0 to 255."""
    y = np.linspace(0.0, 1.0, rows)[:, None, None]
    x = np.linspace(0.0, 1.0, columns)[None, :, None]
    t = np.linspace(0.0, 1.0, frames)[None, None, :]
    walls = 110 + 50 * np.sign(np.sin(25.0 * x)) * (y < 0.45) + 60 * y
    scene = walls * (1.0 - 0.25 * np.sin(3.0 * t) ** 2)
    for start, speed, width, shade in ((0.1, 0.8, 0.05, 235.0), (0.85, -0.6, 0.08, 25.0)):
        across = ((x - start - speed * t) / width) ** 2
        body = 0.5 - 0.5 * np.tanh(6.0 * (across + ((y - 0.65) / 0.2) ** 2 - 1.0))
        scene = scene + (shade - scene) * body
    return np.clip(scene, 0.0, 255.0).astype(np.uint8)


def grey(video):
    """(rows, columns, frames), without the colours; what is missing in one of them is missing."""
    if video.ndim == 4 and video.shape[2] == 3:
        video = da.tensordot(video.astype(np.float64), LUMINANCE, axes=([2], [0]))
        return video.rechunk({0: -1, 1: -1})
    if video.ndim != 3:
        raise InvalidInput(
            f"the data have shape {video.shape}; give rows, columns, frames, perhaps with colours"
        )
    return video


def main(given: Sequence[str] | None = None) -> None:
    arguments = command.parser(__doc__, observed=OBSERVED).parse_args(given)
    size = (36, 48, 24) if arguments.small else (72, 96, 60)
    video = grey(shared.data(arguments, lambda: moving_scene(*size)))
    name = shared.title(arguments, "a street")
    with shared.workspace(arguments) as directory:
        train, test = shared.hide(video, arguments, directory, OBSERVED)
        options = command.settings(arguments, HERE / "video.toml", video.shape)
        fitted = shared.fit(train, test, options, arguments)
        top = 255.0 if shared.peak(video) <= 255.0 else shared.peak(video)
        scores.report(fitted, top=top)
        shown = np.linspace(0, video.shape[2] - 1, min(SHOWN, video.shape[2])).astype(int).tolist()
        frames = frames_figure(
            video[:, :, shown].compute() if shared.is_full(video) else None,
            shared.observed_at(train, 2, shown),
            fitted.done.to_dask()[:, :, shown].compute(),
            names=[f"frame {number}" for number in shown],
            peak=top,
            title=f"Four of the {video.shape[2]} frames of {name}",
        )
        shared.draw(fitted, arguments.output, "video", {"frames": frames})


if __name__ == "__main__":
    shared.run(main)
