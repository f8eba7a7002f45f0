"""What every pipeline does: read one path, hide entries, plan, fit, print a table, draw.

A script tells the story of its job; how a step is done is told here. It changes when all of them
are to do something in another way.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from packaged import PACKAGED, packaged_array

import slrt_dask as slrt
from slrt_dask.dask_settings import SETTINGS
from slrt_dask.data.ingest import PARTITION_ENTRIES
from slrt_dask.data.libraries import load
from slrt_dask.errors import SlrtError
from slrt_dask.plot import convergence_figure, save_figure

SMALL = 48
"""Of data of one's own, what --small keeps of each mode; it also means few iterations."""
SMALL_SHARE = 3
"""Little data have less structure, so more of them is observed."""


@dataclass(frozen=True)
class Fitted:
    """A fit, what it saw, what it is judged by, and how long it took."""

    done: slrt.Completion
    train: slrt.ObservationStore
    test: slrt.ObservationStore | None
    seconds: float


def run(main: Callable[[], None]) -> None:
    """Run a script; what its user can mend is told in one sentence."""
    try:
        main()
    except SlrtError as error:
        raise SystemExit(f"error: {error}") from None


def data(arguments: argparse.Namespace, made: Callable[[], Any]) -> Any:
    """The array at the path that was given, lazily, NaN where missing; or what is made here."""
    if arguments.path is None:
        return lazy(made())
    name = str(arguments.path)
    found = (
        lazy(packaged_array(name)) if name in PACKAGED else slrt.open_array(name, key=arguments.key)
    )
    array = found.data if hasattr(found, "dims") else found  # of xarray, the dask array
    if arguments.missing is not None:
        array = da.where(array == arguments.missing, np.nan, array)
    return array[(slice(SMALL),) * array.ndim] if arguments.small else array


def title(arguments: argparse.Namespace, made: str) -> str:
    """What to call the data."""
    return made if arguments.path is None else arguments.key or Path(arguments.path).stem


def lazy(array: Any) -> Any:
    return da.from_array(np.asarray(array), name=False)


def is_full(array: Any) -> bool:
    """Whether nothing is missing."""
    return array.dtype.kind != "f" or not bool(da.isnan(array).any().compute())


def peak(array: Any) -> float:
    """The largest value that there can be, or is."""
    return 255.0 if array.dtype == np.uint8 else float(da.nanmax(abs(array)).compute())


def hide(
    array: Any, arguments: argparse.Namespace, directory: Path, observed: float
) -> tuple[slrt.ObservationStore, slrt.ObservationStore]:
    """Stores of what the fit may see, and of what it is judged by; a block of the array at a time.

    Of full data a share is observed and as much held out; of others, all that is known but a tenth.
    """
    of_full = SMALL_SHARE * observed if arguments.small else observed
    share = arguments.observed or (of_full if is_full(array) else 0.9)
    draw = da.random.default_rng(arguments.seed).random(array.shape, chunks=array.chunks)
    held_out = (draw >= share) & (draw < share + min(share, 1.0 - share))
    # A worker without a partition of its own would have nothing to do.
    most = PARTITION_ENTRIES
    if arguments.workers is not None:
        most = min(most, -(-int(share * array.size) // arguments.workers))
    train = slrt.from_array(
        directory / "train", array, mask=draw < share, partition_entries=max(1, most)
    )
    return train, slrt.from_array(directory / "test", array, mask=held_out)


def fit(
    train: slrt.ObservationStore,
    test: slrt.ObservationStore | None,
    options: dict[str, Any],
    workers: int | None = None,
) -> Fitted:
    """Say what it will need, and complete."""
    load("matplotlib.figure", extra="plot")  # for the pictures, which come last
    given = dict(options)
    ranks, constraint = given.pop("ranks"), given.pop("constraint", None)
    with _computing(workers) as client:
        if not isinstance(ranks, str):
            print(f"{slrt.plan(train, ranks, constraint=constraint, client=client)}\n")
        began = time.perf_counter()
        done = slrt.complete(train, ranks, constraint=constraint, client=client, **given)
        return Fitted(done, train, test, time.perf_counter() - began)


def report(
    fitted: Fitted, *, top: float | None = None, more: Sequence[tuple[str, str]] = ()
) -> None:
    """Print how good the answer is, and what it took.  top : the peak, for the PSNR"""
    done, train = fitted.done, fitted.train
    weights = ", ".join(f"{weight:.4g}" for weight in done.lambdas)
    rows = [
        ("tensor", " × ".join(map(str, train.shape))),
        ("observed", f"{train.nnz:,} entries, {100 * train.nnz / np.prod(train.shape):.3g} %"),
        ("settings", f"ranks {done.ranks}, C = {done.C:.4g}, λ = ({weights})"),
        *(() if fitted.test is None else _scores(fitted, top)),
        *more,
        ("certificate", f"relative gap {done.certificate.relative_gap:.2g}"),
        ("stop", done.stop_reason.value),
        ("effort", f"{done.records[-1].iteration} iterations, "
                   f"{sum(row.sweeps for row in done.records)} sweeps, {fitted.seconds:.1f} s"),
    ]  # fmt: skip
    table(rows)


def table(rows: Sequence[tuple[str, str]]) -> None:
    for name, text in rows:
        print(f"{name:20}{text}")


def compare(
    truth: np.ndarray,
    hidden: np.ndarray,
    mean: float,
    answers: dict[str, np.ndarray],
    top: float | None = None,
) -> None:
    """Print how far answers are from the truth where it was hidden; the first one is ours."""
    wanted = truth[hidden]

    def error(answer: Any) -> float:
        return float(np.sqrt(np.mean((answer - wanted) ** 2)))

    ours = error(next(iter(answers.values()))[hidden])
    print()
    table([("test RMSE", _judged(ours, error(mean)))])
    for name, answer in answers.items():
        found = error(answer[hidden])
        quality = "" if top is None else f", PSNR {20 * np.log10(top / found):.2f} dB"
        relative = found / error(np.zeros(())) if wanted.any() else np.inf
        table([(name, f"RMSE {found:.5g}, relative error {relative:.4f}{quality}")])


def observed_at(store: slrt.ObservationStore, mode: int, places: Sequence[int]) -> np.ndarray:
    """Some slices of what was observed, dense, NaN elsewhere; that mode has one index for each."""
    shape = [len(places) if axis == mode else n for axis, n in enumerate(store.shape)]
    slices = np.full(shape, np.nan)
    for number in range(len(store.partitions)):
        columns, values = store.read_partition(number)
        for position, place in enumerate(places):
            chosen = columns[mode] == place
            index = [column[chosen] for column in columns]
            index[mode] = np.full_like(index[mode], position)
            slices[tuple(index)] = values[chosen]
    return slices


def draw(fitted: Fitted, output: Path, name: str, figures: dict[str, Any]) -> None:
    """Save figures as NAME-KIND.png, and how the fit converged."""
    converged = convergence_figure(fitted.done.records, title=f"{name}: how the fit converged")
    output.mkdir(parents=True, exist_ok=True)
    for kind, figure in {**figures, "convergence": converged}.items():
        path = output / f"{name}-{kind}.png"
        save_figure(figure, path)
        table([("picture", str(path))])


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="slrt-") as directory:
        yield Path(directory)


def _judged(error: float, of_the_mean: float) -> str:
    return f"{error:.5g} (predicting the mean: {of_the_mean:.5g})"


def _scores(fitted: Fitted, top: float | None) -> Iterator[tuple[str, str]]:
    scores = slrt.evaluate(fitted.done, fitted.test, peak=top)
    mean = float(da.sqrt(da.mean((fitted.test.values() - fitted.train.mean) ** 2)).compute())
    part = "" if top is None else f", {scores.rmse / top:.5f} of the peak {top:g}"
    yield "held out", f"{scores.count:,} entries"
    yield "test RMSE", _judged(scores.rmse, mean) + part
    if top is not None:
        yield "PSNR", f"{scores.psnr:.2f} dB"
    yield "relative error", f"{scores.relative_error:.4f}"


@contextlib.contextmanager
def _computing(workers: int | None) -> Iterator[Any]:
    """A client to workers that are started for it, or None for this process."""
    if workers is None:
        yield None
        return
    from distributed import Client, LocalCluster

    with dask.config.set(SETTINGS):
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.ERROR,
        )
        with cluster, Client(cluster) as client:
            yield client
