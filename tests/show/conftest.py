"""A run with everything on its page, made once for all tests of what is shown."""

from __future__ import annotations

import io
from html.parser import HTMLParser

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.optim.records import IterationRecord

SHAPE, RANKS = (24, 20, 9), (3, 3, 2)
HOSTILE = "</div><script>alert('&\x00\x1b')</script>"


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Reader(HTMLParser):
    """The numbers of a page by name, its text, its tags, and that elements are closed in order."""

    def __init__(self, path):
        super().__init__()
        self.numbers, self.tags, self._words, self._open = {}, [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append((tag, given))
        if tag not in ("meta", "link", "img"):
            self._open.append(tag)
        if "data-name" in given:
            self.numbers.setdefault(given["data-name"], set()).add(float(given["value"]))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, text):
        if "style" not in self._open:
            self._words.append(text)

    @property
    def text(self):
        return " ".join("".join(self._words).split())


@pytest.fixture(scope="session")
def record():
    """Make rows of a history."""

    def make(iteration, gap=None, rmse=None, ranks=(2, 2), **given):
        values = {
            "cost": 8.0 / (iteration + 1), "gradient_norm": 0.25, "paper_gap": gap, "primal": gap,
            "dual": gap, "violation": None, "inner_iterations": 1, "inner_residual": 0.1,
            "inner_converged": True, "sweeps": 3, "step": 1.0, "seconds": 2.0,
        }  # fmt: skip
        return IterationRecord(
            iteration=iteration, relative_gap=gap, validation_rmse=rmse, ranks=ranks,
            **{**values, **given},
        )  # fmt: skip

    return make


@pytest.fixture(scope="session")
def cube():
    """A tensor with a third observed, one of its slices empty, and some values below 0."""
    random = np.random.default_rng(0)
    tensor = np.abs(slrt.low_rank_tensor(SHAPE, (2, 2, 2), seed=1)) + 0.1
    tensor += 0.1 * random.standard_normal(SHAPE)
    tensor[random.random(SHAPE) > 0.35] = np.nan
    tensor[5] = np.nan
    return tensor


@pytest.fixture(scope="session")
def stores(cube, tmp_path_factory):
    """Observations, and some that are held out."""
    path = tmp_path_factory.mktemp("shown") / "cube"
    store = slrt.from_array(path, cube, dimension_names=("row", "column", HOSTILE))
    return store.split(test=0.15)


@pytest.fixture(scope="session")
def fitted(stores, tmp_path_factory):
    """A nonnegative fit with validation: its run directory and its completion."""
    run = tmp_path_factory.mktemp("runs") / "run"
    done = slrt.complete(
        stores[0], RANKS, C=1.0, constraint=slrt.Nonnegative(), validation=stores[1],
        run_directory=run, max_iterations=12, threads=1,
    )  # fmt: skip
    return run, done


@pytest.fixture(scope="session")
def searched(stores, tmp_path_factory):
    """A fit whose C was searched for."""
    run = tmp_path_factory.mktemp("runs") / "searched"
    done = slrt.complete(
        stores[0], (2, 2, 2), C="auto", lambdas=(1.0, 1.0, 1.0), threads=1, run_directory=run,
        max_iterations=5,
    )  # fmt: skip
    return run, done


@pytest.fixture(scope="session")
def shown(tmp_path_factory):
    """Make the report of a run, and read it."""

    def make(run, **options):
        return Reader(slrt.report(run, tmp_path_factory.mktemp("pages") / "page.html", **options))

    return make


@pytest.fixture(scope="session")
def page(fitted, shown):
    return shown(fitted[0])
