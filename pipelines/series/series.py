"""Fill the gaps of a series and forecast what comes next, by Hankel structure.

    python pipelines/series/series.py                     four waves, a gap of 50, 50 to forecast
    python pipelines/series/series.py samples.npy --ranks 12 --forecast 24 --output pictures

A file (.npy, .npz, zarr, .nc, or .txt with a number a line) has NaN where samples are missing. In
one without any, a gap is made in its middle, to score the answer there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import interrupts

interrupts.tell_in_a_line()

import command
import numpy as np
import scores
import shared

import slrt_dask as slrt
from slrt_dask.plot import series_figure

HERE = Path(__file__).parent
OFFSETS = 0.4
"""Of the windows, as a part of the samples."""


def four_waves(length: int, seed: int) -> np.ndarray:
    """A sum of four sinusoids of random frequencies, sizes and phases."""
    generator, time = np.random.default_rng(seed), np.arange(length)
    frequencies = 0.1 + 1.5 * generator.random(4)
    sizes, phases = generator.uniform(0.3, 1.5, 4), 2 * np.pi * generator.random(4)
    waves = sizes[:, None] * np.sin(frequencies[:, None] * time + phases[:, None])
    return waves.sum(axis=0)


def samples(arguments) -> np.ndarray:
    """What is known, and what comes after it: NaN, but for the series that is made here."""
    length = 300 if arguments.small else 1000
    if arguments.path is None:
        return four_waves(length + arguments.forecast, arguments.seed)
    if arguments.path.endswith(".txt"):
        known = np.loadtxt(arguments.path, dtype=np.float64)
    else:
        known = shared.data(arguments, lambda: None).compute()
    return np.concatenate([known.reshape(-1), np.full(arguments.forecast, np.nan)])


def main(given: Sequence[str] | None = None) -> None:
    parser = command.parser(__doc__)
    parser.add_argument(
        "--forecast", type=command.whole_number(0), default=50, help="samples to add at the end"
    )
    arguments = parser.parse_args(given)
    truth = samples(arguments)
    count, known = len(truth) - arguments.forecast, truth.copy()
    known[count:] = np.nan
    if not np.isnan(known[:count]).any():
        known[count // 2 : count // 2 + count // 20] = np.nan
    hidden = np.isnan(known) & ~np.isnan(truth)
    with shared.workspace(arguments) as directory:
        train = slrt.from_array(directory / "train", known)
        held_out = np.where(hidden, truth, np.nan)
        test = slrt.from_array(directory / "test", held_out) if hidden.any() else None
        options = command.settings(arguments, HERE / "series.toml", truth.shape)
        options["constraint"] = slrt.Hankel(max(2, round(OFFSETS * len(truth))))
        fitted = shared.fit(train, test, options, arguments)
        scores.report(fitted)
        figure = series_figure(
            known,
            fitted.done.to_dask().compute(),
            truth if arguments.path is None else None,
            title="A gap, and a forecast",
        )
        shared.draw(fitted, arguments.output, "series", {"filled": figure})


if __name__ == "__main__":
    shared.run(main)
