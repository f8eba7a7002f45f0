"""Compare what `complete(store, "auto")` finds by itself with settings that were chosen by hand.

    python pipelines/bench/auto.py DIRECTORY [--only baboon,suzie]      about ten minutes for all

DIRECTORY holds the public data sets, as arrays in .npz files:

    indian_pines.npz  X 145×145×200        suzie_qcif.npz  X 144×176×150, grey video
    color_images.npz  baboon 256×256×3     hangzhou.npz    X 80×25×108, 0 where missing
    ml100k.npz        user, item, time, rating, shape

For each: the test RMSE of the settings chosen by hand, of those found, and how many times as long
the search and its fit took as one fit, with its usual limits, at the settings that were found.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import slrt_dask as slrt

SHARE = 0.1
"""Of the entries, what is observed, and what is scored."""
Stores = tuple[slrt.ObservationStore, slrt.ObservationStore]


@dataclass(frozen=True)
class Case:
    """A data set and the settings chosen for it by hand.

    load : makes the stores of what is observed and what is scored, from DIRECTORY, in another
    """

    load: Callable[[Path, Path], Stores]
    ranks: tuple[int, ...]
    C: float
    lambdas: tuple[float, ...] | None = None
    iterations: int = 40


def stores_of(place: Path, tensor: np.ndarray, seen: np.ndarray, scored: np.ndarray) -> Stores:
    train, test = (
        slrt.from_coo(place / name, np.array(np.nonzero(mask)), tensor[mask], tensor.shape)
        for name, mask in (("train", seen), ("test", scored))
    )
    return train, test


def at_random(file: str, name: str, peak: float | None, seed: int = 0) -> Callable[..., Stores]:
    """A tenth of an array's entries, and another tenth to be scored."""

    def load(directory: Path, place: Path) -> Stores:
        tensor = np.load(directory / file)[name].astype(float)
        tensor /= tensor.max() if peak is None else peak
        drawn = np.random.default_rng(seed).random(tensor.shape)
        return stores_of(place, tensor, drawn < SHARE, (drawn >= SHARE) & (drawn < 2 * SHARE))

    return load


def traffic(missing: float) -> Callable[..., Stores]:
    """Hangzhou's metro with some of its entries missing at random, as in the literature."""

    def load(directory: Path, place: Path) -> Stores:
        tensor = np.load(directory / "hangzhou.npz")["X"].astype(float)
        drawn = np.random.RandomState(1000).rand(*tensor.shape)
        seen = np.round(drawn + 0.5 - missing).astype(bool)
        return stores_of(place, tensor, seen & (tensor != 0), ~seen & (tensor != 0))

    return load


def ratings(directory: Path, place: Path) -> Stores:
    """MovieLens, four fifths observed and one scored."""
    held = np.load(directory / "ml100k.npz")
    places = np.array([held["user"], held["item"], held["time"]])
    drawn = np.random.default_rng(0).random(places.shape[1])
    values, shape = held["rating"].astype(float), tuple(held["shape"])
    train, test = (
        slrt.from_coo(place / name, places[:, mask], values[mask], shape, duplicates="mean")
        for name, mask in (("train", drawn < 0.8), ("test", drawn >= 0.8))
    )
    return train, test


CASES = {
    "indian pines": Case(
        at_random("indian_pines.npz", "X", None), (30, 30, 10), 300.0, (1.0, 1.0, 30.0)
    ),
    "suzie": Case(at_random("suzie_qcif.npz", "X", 255.0), (15, 15, 15), 100.0, (1.0, 1.0, 5.0)),
    **{
        f"baboon, draw {seed}": Case(
            at_random("color_images.npz", "baboon", 255.0, seed), (5, 5, 3), 1.0
        )
        for seed in (1, 2, 3)
    },
    "hangzhou, 30 % missing": Case(traffic(0.3), (10, 10, 10), 300.0, (0.001, 0.01, 1.0)),
    "hangzhou, 70 % missing": Case(traffic(0.7), (10, 10, 10), 1000.0, (0.001, 0.01, 1.0)),
    "movielens": Case(ratings, (2, 3, 1), 30.0, (0.3, 10.0, 1e-3), iterations=25),
}


def compared(case: Case, directory: Path, place: Path) -> str:
    """A row's cells: errors by hand and found, their ratio, what was found, and the times."""
    train, test = case.load(directory, place)
    by_hand = slrt.complete(
        train, case.ranks, C=case.C, lambdas=case.lambdas, center=True,
        max_iterations=case.iterations,
    )  # fmt: skip
    began = time.perf_counter()
    found = slrt.complete(train, "auto")
    searched = time.perf_counter() - began
    center: bool | str = "modes" if found.effects else True
    began = time.perf_counter()
    slrt.complete(train, found.ranks, C=found.C, lambdas=found.lambdas, center=center)
    single = time.perf_counter() - began
    hand, auto = slrt.evaluate(by_hand, test).rmse, slrt.evaluate(found, test).rmse
    gap = found.certificate.relative_gap
    cells = (
        f"{hand:.4g}", f"{auto:.4g}", f"{auto / hand:.3f}", str(found.ranks), f"{100 * gap:.0f} %",
        f"{searched:.0f} s", f"{searched / single:.1f} ×",
    )  # fmt: skip
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", default="", help="the beginnings of names, with commas between")
    given = parser.parse_args()
    chosen = tuple(given.only.split(","))
    print("| data | by hand | found | found / by hand | ranks found | gap | time | of one fit |")
    print("|---|---|---|---|---|---|---|---|")
    for name, case in CASES.items():
        if name.startswith(chosen):
            with tempfile.TemporaryDirectory() as place:
                print(f"| {name} | {compared(case, given.directory, Path(place))} |", flush=True)


if __name__ == "__main__":
    main()
