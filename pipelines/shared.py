"""What every pipeline does: read one path, hide entries, plan, fit, draw.

A script tells the story of its job; how a step is done is told here, and in `scores` how good the
answer is. It changes when all of them are to do something in another way.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from packaged import PACKAGED, packaged_array
from scores import table

import slrt_dask as slrt
from slrt_dask.cli.application import EXIT_INTERRUPTED
from slrt_dask.cli.computing import Computing
from slrt_dask.data.ingest import PARTITION_ENTRIES
from slrt_dask.data.libraries import load
from slrt_dask.errors import SlrtError
from slrt_dask.plot import convergence_figure, save_figure, tuning_figure
from slrt_dask.tuning.search import Tried

SMALL = 48
"""Of data of one's own, what --small keeps of each mode; it also means few iterations."""
ENDED_EARLY: list[slrt.Completion] = []
"""Completions of fits that Ctrl-C has ended."""
SMALL_SHARE = 3
"""Little data have less structure, so more of them is observed."""


@dataclass(frozen=True)
class Fitted:
    """A fit, what it saw, what it is judged by, and how long it took.

    trials : of the search before it, if there was one
    """

    done: slrt.Completion
    train: slrt.ObservationStore
    test: slrt.ObservationStore | None
    seconds: float
    trials: list[Tried]

    @property
    def interrupted(self) -> bool:
        return self.done.stop_reason.name == "INTERRUPTED"


@dataclass
class Trials:
    """Keeps what a search tries, as an observer."""

    seen: list[Tried] = field(default_factory=list)

    def on_record(self, record: Any, state: Any) -> None:
        """Iterations are kept by the completion."""

    def on_trial(self, tried: Tried) -> None:
        self.seen.append(tried)


def run(main: Callable[[], None]) -> None:
    """Run a script; what its user can mend is told in one sentence.

    A fit that was interrupted still has a table and pictures, and the exit code of an interrupt.
    """
    try:
        main()
    except SlrtError as error:
        raise SystemExit(f"error: {error}") from None
    if ENDED_EARLY:
        sys.exit(EXIT_INTERRUPTED)


def progress(arguments: argparse.Namespace) -> slrt.LiveProgress | None:
    """What shows how far work is, unless it is to be quiet."""
    return None if arguments.quiet else slrt.LiveProgress()


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
    shown = progress(arguments)
    train = slrt.from_array(
        directory / "train", array, mask=draw < share, partition_entries=max(1, most),
        progress=shown,
    )  # fmt: skip
    return train, slrt.from_array(directory / "test", array, mask=held_out, progress=shown)


def fit(
    train: slrt.ObservationStore,
    test: slrt.ObservationStore | None,
    options: dict[str, Any],
    arguments: argparse.Namespace,
    *,
    what: str = "the fit",
) -> Fitted:
    """Say what it will need, and complete.  what : is fitted, where there are several fits"""
    load("matplotlib.figure", extra="plot")  # for the pictures, which come last
    given = dict(options)
    ranks, constraint = given.pop("ranks"), given.pop("constraint", None)
    trials, shown = Trials(), progress(arguments)
    with Computing(None, arguments.workers, None, None).connected() as client:
        if isinstance(ranks, str):
            print(f"Searching for the settings of {what}\n", flush=True)
        else:
            plan = slrt.plan(train, ranks, constraint=constraint, client=client)
            print(f"What {what} will need\n\n{plan}\n", flush=True)
        began = time.perf_counter()
        observers = [trials, *([] if shown is None else [shown])]
        try:
            done = slrt.complete(
                train, ranks, constraint=constraint, client=client, observers=observers, **given
            )
        except KeyboardInterrupt:  # before there was anything to keep
            sys.stderr.write("interrupted\n")
            sys.exit(EXIT_INTERRUPTED)
        found = Fitted(done, train, test, time.perf_counter() - began, trials.seen)
        ENDED_EARLY.extend([done] * found.interrupted)
        return found


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
    """Save figures as NAME-KIND.png, what a search tried, and how the fit converged."""
    output.mkdir(parents=True, exist_ok=True)
    for kind, figure in {**figures, **histories(fitted, name)}.items():
        path = output / f"{name}-{kind}.png"
        save_figure(figure, path)
        table([("picture", str(path))])


def histories(fitted: Fitted, name: str, only: Sequence[str] | None = None) -> dict[str, Any]:
    """Figures of what a search tried, and of how the fit converged.  only : some of its curves

    A search keeps the factors that it found, and then there are no iterations to draw.
    """
    figures, records = {}, fitted.done.records
    if fitted.trials:
        figures["search"] = tuning_figure(fitted.trials, title=f"{name}: what the search tried")
    if len(records) > 1 or not fitted.trials:
        title = f"{name}: how the fit converged"
        figures["convergence"] = convergence_figure(records, title=title, only=only)
    return figures


@contextlib.contextmanager
def workspace(arguments: argparse.Namespace) -> Iterator[Path]:
    """Where stores are: a directory that goes when the script ends, or the one that is to stay."""
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        yield arguments.keep
        table([("stores", str(arguments.keep))])
        return
    with tempfile.TemporaryDirectory(prefix="slrt-") as directory:
        yield Path(directory)
