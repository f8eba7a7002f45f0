"""Fill the gaps of a series and forecast what comes next, by Hankel structure.

    python pipelines/series/series.py                     four waves, a gap of 50, 50 to forecast
    python pipelines/series/series.py samples.npy --rank 12 --forecast 24 --output pictures

A file (.npy, or text with a number a line) has NaN where samples are missing. The picture shows
what was known, what was filled in, and the forecast.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import slrt_dask as slrt
from slrt_dask.config import read_settings
from slrt_dask.plot import save_figure, series_figure

HERE = Path(__file__).parent
GAP = 50


def four_waves(length: int, seed: int) -> np.ndarray:
    """A sum of four sinusoids of random frequencies, sizes and phases."""
    generator, time = np.random.default_rng(seed), np.arange(length)
    frequencies = 0.1 + 1.5 * generator.random(4)
    sizes, phases = generator.uniform(0.3, 1.5, 4), 2 * np.pi * generator.random(4)
    waves = sizes[:, None] * np.sin(frequencies[:, None] * time + phases[:, None])
    return waves.sum(axis=0)


def read_samples(path: Path) -> np.ndarray:
    samples = np.load(path) if path.suffix == ".npy" else np.loadtxt(path)
    return np.asarray(samples, dtype=np.float64).reshape(-1)


def complete(known: np.ndarray, settings: dict, rank: int | None) -> slrt.Completion:
    """Fit the samples that are known; windows keep the proportion that the settings have."""
    tau = max(2, round(0.4 * len(known)))
    settings = {**settings, "constraint": slrt.Hankel(tau)}
    ranks = (rank,) if rank else settings["ranks"]
    settings.pop("ranks")
    with tempfile.TemporaryDirectory() as directory:
        store = slrt.from_array(Path(directory) / "series", known)
        return slrt.complete(store, ranks, **settings)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path, nargs="?", help="a file of your own")
    parser.add_argument("--length", type=int, default=1000, help="of the series made here")
    parser.add_argument("--forecast", type=int, default=GAP, help="samples to add at the end")
    parser.add_argument("--rank", type=int, help="columns for the waves, two for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("."), help="directory of the picture")
    arguments = parser.parse_args(given)

    if arguments.samples:
        truth, known = None, read_samples(arguments.samples)
        known = np.concatenate([known, np.full(arguments.forecast, np.nan)])
    else:
        truth = four_waves(arguments.length + arguments.forecast, arguments.seed)
        known = truth.copy()
        known[len(known) // 2 : len(known) // 2 + GAP] = np.nan
        known[arguments.length :] = np.nan
    done = complete(known, read_settings(HERE / "series.toml"), arguments.rank)
    completed = done.to_dask().compute()
    print(done)
    if truth is not None:
        for name, part in (
            ("gap", slice(len(known) // 2, len(known) // 2 + GAP)),
            ("forecast", slice(arguments.length, None)),
        ):
            error = np.linalg.norm((completed - truth)[part]) / np.linalg.norm(truth[part])
            print(f"{name:12} relative error {error:.2%}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    picture = arguments.output / "series.png"
    save_figure(series_figure(known, completed, truth, title="Gap and forecast"), picture)
    print(f"picture      {picture}")


if __name__ == "__main__":
    main()
