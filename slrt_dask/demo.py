"""A demonstration on made-up data: a small hyperspectral scene, nine tenths of it missing.

It goes the usual way (store, fit, evaluation) and changes when that way, or the scene, does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.completion import Completion
from slrt_dask.data.arrays import from_coo
from slrt_dask.data.store import ObservationStore
from slrt_dask.fit import complete
from slrt_dask.optim.records import Observer
from slrt_dask.scoring import evaluate

if TYPE_CHECKING:
    from slrt_dask.scoring import Scores

SHAPE = (64, 64, 96)
OBSERVED = 0.10
TESTED = 0.02
NOISE = 0.01
SHOWN_BAND = 68
RANKS = (20, 20, 10)
# Chosen by trying: a spectrum is a mixture of few materials, so the bands' mode counts most. C is
# as large as it can be with ranks at which the gap still closes.
LAMBDAS = (0.1, 0.1, 1.0)
MISFIT_WEIGHT = 300.0


@dataclass(frozen=True)
class Demonstration:
    """What came of it.

    truth : the scene without noise;  test : scores on entries that the fit did not see
    mean_rmse : the error of predicting the observed mean everywhere
    """

    truth: NDArray[np.float64]
    store: ObservationStore
    completion: Completion
    test: Scores
    mean_rmse: float
    seconds: float


def demonstrate(
    directory: Path, *, seed: int = 0, observers: Sequence[Observer[Any]] = ()
) -> Demonstration:
    """Make the data in a directory, complete it, and evaluate the result."""
    began = time.monotonic()
    truth = scene()
    random = np.random.default_rng(seed)
    noisy = truth + NOISE * random.standard_normal(truth.shape)
    seen, tested = round(OBSERVED * truth.size), round(TESTED * truth.size)
    order = random.permutation(truth.size)
    store = _stored(directory / "observations", noisy, order[:seen])
    test = _stored(directory / "test", noisy, order[seen : seen + tested])
    completion = complete(
        store,
        RANKS,
        C=MISFIT_WEIGHT,
        lambdas=LAMBDAS,
        center=True,
        run_directory=directory / "run",
        seed=seed,
        observers=observers or None,  # who wants to see it says so
    )
    scores = evaluate(completion, test)
    held_out = np.asarray(test.values().compute())
    mean_rmse = float(np.sqrt(np.mean((held_out - store.mean) ** 2)))
    return Demonstration(truth, store, completion, scores, mean_rmse, time.monotonic() - began)


def scene() -> NDArray[np.float64]:
    """A landscape (rows, columns, bands): water, crops, trees and soil, with values in 0…1."""
    row = np.linspace(0.0, 1.0, SHAPE[0])[:, None]
    column = np.linspace(0.0, 1.0, SHAPE[1])[None, :]
    river = np.exp(-(((column - 0.45 - 0.18 * np.sin(4.5 * row + 0.5)) / 0.06) ** 2) / 2)
    lake = _inside(1 - ((row - 0.25) / 0.16) ** 2 - ((column - 0.22) / 0.13) ** 2, 0.1)
    water = np.clip(river + lake, 0.0, 1.0)
    striped = 0.5 + 0.5 * np.sign(np.sin(14.0 * (row + 0.35 * column)))
    crops = (1 - water) * _inside(column - 0.55 - 0.1 * row, 0.02) * striped
    wooded = 0.55 + 0.45 * np.sin(9.0 * row + 2.0) * np.sin(7.0 * column)
    trees = (1 - water - crops) * wooded
    soil = (1 - water - crops - trees) * (0.6 + 0.4 * row)
    shares = np.stack([water, crops, trees, soil], axis=-1)
    spectra = np.stack(
        [
            _spectrum((0.5, 0.1, 0.12)),
            _spectrum((0.4, 0.25, 0.06), (0.9, 0.75, 0.2)),
            _spectrum((0.25, 0.25, 0.05), (0.6, 0.65, 0.12), (0.4, 0.9, 0.1)),
            _spectrum((0.8, 1.0, 0.45)),
        ]
    )
    cube = np.asarray(shares @ spectra, dtype=np.float64)
    cube /= cube.max()
    return cube


def describe(result: Demonstration) -> str:
    """A short table, and what its certificate means."""
    done, store = result.completion, result.store
    gap = 100 * done.certificate.relative_gap
    rows = (
        ("tensor", f"{' × '.join(map(str, store.shape))}, a made-up landscape in 96 colours"),
        ("observed", f"{100 * store.nnz / result.truth.size:.0f} % ({store.nnz:,} entries)"),
        ("ranks", ", ".join(map(str, done.ranks))),
        ("iterations", str(len(done.records) - 1)),
        ("certificate", f"gap {gap:.2g} %"),
        ("test RMSE", f"{result.test.rmse:.4f} (predicting the mean: {result.mean_rmse:.4f})"),
        ("seconds", f"{result.seconds:.1f}"),
    )
    table = "\n".join(f"  {name:<13}{text}" for name, text in rows)
    return (
        f"{table}\n\nThe certificate is a proof: no other answer, of whatever ranks, has an "
        f"objective (misfit plus\npenalty) that is lower than this one's by more than {gap:.2g} %."
    )


def draw(result: Demonstration, path: Path) -> None:
    """Write the picture of one band: truth, what was observed, what was made of it, the error."""
    from slrt_dask.plot import completion_figure, save_figure

    band = np.full(SHAPE[:2], np.nan)
    rows, columns, bands = np.asarray(result.store.indices().compute())
    shown = bands == SHOWN_BAND
    band[rows[shown], columns[shown]] = np.asarray(result.store.values().compute())[shown]
    completed = np.asarray(result.completion.to_dask()[:, :, SHOWN_BAND].compute())
    figure = completion_figure(
        result.truth[:, :, SHOWN_BAND],
        band,
        completed,
        title=(
            f"Band {SHOWN_BAND} of a {' × '.join(map(str, SHAPE))} scene completed from "
            f"{100 * OBSERVED:.0f} % of its entries: certified within "
            f"{100 * result.completion.certificate.relative_gap:.2g} % of the optimum"
        ),
    )
    save_figure(figure, path)


def _stored(path: Path, tensor: NDArray[np.float64], cells: NDArray[np.int64]) -> ObservationStore:
    indices = np.array(np.unravel_index(cells, tensor.shape))
    return from_coo(path, indices, tensor.reshape(-1)[cells], tensor.shape)


def _inside(distance: NDArray[np.float64], softness: float) -> NDArray[np.float64]:
    """1 where the distance is positive, 0 where it is negative, with a soft edge."""
    edge: NDArray[np.float64] = 0.5 * (1.0 + np.tanh(0.5 * distance / softness))
    return edge


def _spectrum(*peaks: tuple[float, float, float]) -> NDArray[np.float64]:
    """A sum of bell curves over the bands, each (height, centre, width)."""
    band = np.linspace(0.0, 1.0, SHAPE[2])
    curves = [height * np.exp(-(((band - at) / width) ** 2) / 2) for height, at, width in peaks]
    return np.asarray(np.sum(curves, axis=0))
