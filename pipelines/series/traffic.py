"""Fill whole days of counts that are missing, the last one being a forecast, by Hankel structure.

    python pipelines/series/traffic.py                        a month of counts made here
    python pipelines/series/traffic.py counts.npz --hide 9,17,24 --output pictures

The array is (places, days, times of day); zeros and NaN are missing. The days to hide are scored,
beside two simple forecasts and low rank without the structure.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import slrt_dask as slrt
from slrt_dask.config import read_settings
from slrt_dask.plot import save_figure, series_figure

HERE = Path(__file__).parent
DEVIATION, WEEK = 1e-2, 7


def counts_of_a_month(seed: int) -> np.ndarray:
    """Counts with two peaks a day, quieter at weekends, of 30 places over four weeks."""
    generator = np.random.default_rng(seed)
    time = np.linspace(0.0, 24.0, 48)
    peaks = [np.exp(-0.5 * ((time - hour) / 1.5) ** 2) for hour in (8.0, 18.0)]
    sizes = generator.uniform(50.0, 300.0, (30, 2))
    weekday = np.where(np.arange(28) % WEEK < 5, 1.0, 0.45)
    mean = np.einsum("pk,kt,d->pdt", sizes, np.stack(peaks), weekday) + 5.0
    return generator.poisson(mean).astype(np.float64)


def read_counts(path: Path, key: str | None) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False).astype(np.float64)
    with np.load(path, allow_pickle=False) as content:
        return content[key or content.files[0]].astype(np.float64)


def fitted(known: np.ndarray, settings: dict) -> np.ndarray:
    size = float(np.nanmax(known))
    options = {name: value for name, value in settings.items() if name != "ranks"}
    with tempfile.TemporaryDirectory() as directory:
        store = slrt.from_array(Path(directory) / "counts", known / size)
        return slrt.complete(store, settings["ranks"], **options).to_dask().compute() * size


def forecasts(known: np.ndarray) -> dict[str, np.ndarray]:
    """For every day, structured and not, and what one would do by hand."""
    days = known.shape[1]
    hankel = slrt.Hankel((1, days - 2 * WEEK + 1, 1), DEVIATION)
    settings = read_settings(HERE / "traffic.toml")
    plain = {"ranks": tuple(min(10, n) for n in known.shape), "C": 1e3, "max_iterations": 20}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of places without any count
        mean = np.nan_to_num(np.nanmean(known, axis=1, keepdims=True)) * np.ones((1, days, 1))
        week = [np.nanmean(known[:, day % WEEK :: WEEK], axis=1) for day in range(days)]
    return {
        "with Hankel": fitted(known, {**settings, "constraint": hankel}),
        "mean of the weekday": np.nan_to_num(np.stack(week, axis=1)),
        "mean of all days": mean,
        "low rank only": fitted(known, plain),
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("counts", type=Path, nargs="?", help=".npy or .npz of your own")
    parser.add_argument("--key", help="which array of an .npz")
    parser.add_argument("--hide", default="", help="days, as 9,17,24 [some, and the last]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("."), help="directory of the picture")
    arguments = parser.parse_args(given)

    path = arguments.counts
    counts = read_counts(path, arguments.key) if path else counts_of_a_month(arguments.seed)
    counts = np.where(counts == 0.0, np.nan, counts)
    days = counts.shape[1]
    hide = [int(day) for day in arguments.hide.split(",") if day] or [days // 3, days - 1]
    known = counts.copy()
    known[:, hide] = np.nan
    answers = forecasts(known)
    print("RMSE on the days hidden  " + "".join(f"{'day ' + str(day):>10}" for day in hide))
    for name, answer in answers.items():
        errors = [np.sqrt(np.nanmean((answer - counts)[:, day] ** 2)) for day in hide]
        print(f"{name:25}" + "".join(f"{error:10.1f}" for error in errors))
    arguments.output.mkdir(parents=True, exist_ok=True)
    picture = arguments.output / "traffic.png"
    place = int(np.argmax(np.nanstd(counts, axis=(1, 2))))
    lines = (array[place].reshape(-1) for array in (known, answers["with Hankel"], counts))
    save_figure(series_figure(*lines, title=f"Place {place}, whole days missing"), picture)
    print(f"picture  {picture}")


if __name__ == "__main__":
    main()
