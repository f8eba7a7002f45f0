"""Predict ratings that were not given: users × items × weeks.

    python pipelines/ratings/run.py                  ratings made here
    python pipelines/ratings/run.py ml-100k/u.data   MovieLens; also ratings.csv and ratings.dat
    python pipelines/ratings/run.py ratings.npz      arrays user, item, time, rating, perhaps shape

A fifth of the ratings scores the predictions, beside two that know only means.
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
from rating_files import Ratings, read_ratings

import slrt_dask as slrt
from slrt_dask.plot import prediction_figure

HERE = Path(__file__).parent
HELD_OUT = 0.2


def made_ratings(users: int, items: int, weeks: int, seed: int) -> Ratings:
    """Few users rate much and few items are rated much; each user comes in a week or two."""
    generator = np.random.default_rng(seed)
    count = 80 * users
    activity, fame = (generator.pareto(1.5, length) + 0.2 for length in (users, items))
    user = generator.choice(users, count, p=activity / activity.sum())
    item = generator.choice(items, count, p=fame / fame.sum())
    user, item = np.unique(np.stack([user, item]), axis=1)  # nobody rates an item twice
    count = len(user)
    visits = generator.integers(0, weeks, (users, 2))
    week = visits[user, (generator.random(count) < 0.2).astype(int)]
    tastes, traits = (generator.standard_normal((length, 3)) for length in (users, items))
    liking = 0.45 * np.sum(tastes[user] * traits[item], axis=1)
    kind = 0.4 * generator.standard_normal(users)[user]
    good = 0.5 * generator.standard_normal(items)[item] + 0.1 * np.log(fame / fame.mean())[item]
    value = 3.6 + liking + kind + good + 0.5 * generator.standard_normal(count)
    rounded = np.clip(np.rint(value), 1, 5)
    return Ratings(np.stack([user, item, week]), rounded, (users, items, weeks))


def mean_errors(train: slrt.ObservationStore, test: slrt.ObservationStore) -> dict[str, float]:
    """RMSE of the mean of each item, and of that with how kind each user is."""
    seen, asked = (np.asarray(store.indices().compute()) for store in (train, test))
    rated, true = (np.asarray(store.values().compute()) for store in (train, test))
    sums = np.bincount(seen[1], rated - train.mean, train.shape[1])
    good = sums / (5.0 + np.bincount(seen[1], minlength=train.shape[1]))
    rest = rated - train.mean - good[seen[1]]
    kind = np.bincount(seen[0], rest, train.shape[0])
    kind = kind / (5.0 + np.bincount(seen[0], minlength=train.shape[0]))
    items = train.mean + good[asked[1]]
    guesses = {"mean of the item": items, "mean of item and user": items + kind[asked[0]]}
    return {name: float(np.sqrt(np.mean((it - true) ** 2))) for name, it in guesses.items()}


def main(given: Sequence[str] | None = None) -> None:
    arguments = command.parser(__doc__, arrays=False).parse_args(given)
    size = (150, 250, 6) if arguments.small else (600, 800, 20)
    ratings = (
        made_ratings(*size, arguments.seed)
        if arguments.path is None
        else read_ratings(Path(arguments.path))
    )
    with shared.workspace(arguments) as directory:
        store = slrt.from_coo(
            directory / "ratings", ratings.indices, ratings.values, ratings.shape,
            duplicates="mean", dimension_names=("user", "item", "week"),
        )  # fmt: skip
        train, test = store.split(HELD_OUT, arguments.seed)
        options = command.settings(arguments, HERE / "ratings.toml", store.shape)
        fitted = shared.fit(train, test, options, arguments)
        scores.report(fitted, guesses=mean_errors(train, test))
        predicted = fitted.done.predict(test.indices().compute())
        figure = prediction_figure(
            test.values().compute(), predicted, unit="rating", title="Ratings held out"
        )
        shared.draw(fitted, arguments.output, "ratings", {"predictions": figure})


if __name__ == "__main__":
    shared.run(main)
