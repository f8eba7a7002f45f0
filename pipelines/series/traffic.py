"""Fill whole days of counts that are missing, the last one being a forecast, by Hankel structure.

    python pipelines/series/traffic.py                        a month of counts made here
    python pipelines/series/traffic.py counts.npz --missing 0 --hide 9,17,24 --output pictures

The array is (places, days, times of day). The days to hide are scored, beside two simple forecasts
and low rank without the structure.
"""

from __future__ import annotations

import sys
import warnings
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
from slrt_dask.errors import InvalidInput
from slrt_dask.plot import series_figure

HERE = Path(__file__).parent
DEVIATION, WEEK = 1e-2, 7
PLAIN = {"ranks": (10, 10, 10), "C": 1e3, "max_iterations": 20}


def counts_of_a_month(places: int, seed: int) -> np.ndarray:
    """Counts with two peaks a day, quieter at weekends, over four weeks."""
    generator = np.random.default_rng(seed)
    time = np.linspace(0.0, 24.0, 48)
    peaks = [np.exp(-0.5 * ((time - hour) / 1.5) ** 2) for hour in (8.0, 18.0)]
    sizes = generator.uniform(50.0, 300.0, (places, 2))
    weekday = np.where(np.arange(28) % WEEK < 5, 1.0, 0.45)
    mean = np.einsum("pk,kt,d->pdt", sizes, np.stack(peaks), weekday) + 5.0
    return generator.poisson(mean).astype(np.float64)


def means(known: np.ndarray) -> dict[str, np.ndarray]:
    """What one would forecast by hand, for every day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of places without any count
        week = [np.nanmean(known[:, day % WEEK :: WEEK], axis=1) for day in range(known.shape[1])]
        mean = np.nanmean(known, axis=1, keepdims=True) * np.ones((1, known.shape[1], 1))
    return {
        "mean of the weekday": np.nan_to_num(np.stack(week, axis=1)),
        "mean of all days": np.nan_to_num(mean),
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = command.parser(__doc__)
    parser.add_argument(
        "--hide", type=command.whole_numbers, help="days, as 9,17,24 [one, and the last]"
    )
    arguments = parser.parse_args(given)
    counts = shared.data(
        arguments, lambda: counts_of_a_month(8 if arguments.small else 30, arguments.seed)
    ).compute()
    if counts.ndim != 3:
        raise InvalidInput(f"the data have shape {counts.shape}; give places, days, times")
    counts = counts.astype(np.float64)
    days = counts.shape[1]
    hide = list(arguments.hide or (days // 3, days - 1))
    if max(hide) >= days:
        raise InvalidInput(f"--hide has day {max(hide)}; the last one is {days - 1}")
    known = counts.copy()
    known[:, hide] = np.nan
    hidden = np.isnan(known) & ~np.isnan(counts)
    with shared.workspace(arguments) as directory:
        train = slrt.from_array(directory / "train", known)
        options = command.settings(arguments, HERE / "traffic.toml", counts.shape)
        options["constraint"] = slrt.Hankel((1, days - 2 * WEEK + 1, 1), DEVIATION)
        fitted = shared.fit(train, None, options, arguments, what="the fit with Hankel")
        completed = fitted.done.to_dask().compute()
        answers = {"with Hankel": completed, **means(known)}
        if not fitted.interrupted:
            ranks = tuple(min(pair) for pair in zip(PLAIN["ranks"], counts.shape, strict=True))
            options = {**PLAIN, "ranks": ranks}
            plain = shared.fit(train, None, options, arguments, what="low rank only")
            answers["low rank only"] = plain.done.to_dask().compute()
        scores.report(fitted)
        scores.compare(fitted, counts, hidden, answers)
        place = int(np.argmax(np.nanstd(counts, axis=(1, 2))))
        lines = (array[place].reshape(-1) for array in (known, completed, counts))
        figure = series_figure(*lines, title=f"Place {place}, whole days missing")
        shared.draw(fitted, arguments.output, "traffic", {"filled": figure})


if __name__ == "__main__":
    shared.run(main)
