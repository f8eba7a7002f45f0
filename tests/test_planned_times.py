"""A plan tells how long a sweep takes, as measured, and when a cluster does not pay."""

from __future__ import annotations

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.errors import MemoryBudgetExceeded


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    tensor = rng.standard_normal((40, 30, 20))
    tensor[rng.random(tensor.shape) > 0.5] = np.nan
    filled = np.array(np.nonzero(~np.isnan(tensor)))
    path = tmp_path_factory.mktemp("planned") / "store"
    return slrt.from_coo(path, filled, tensor[tuple(filled)], tensor.shape, partition_entries=4000)


def test_rates_are_measured_where_the_fit_would_run(store, process_client):
    here, there = slrt.plan(store, (3, 3, 3)), slrt.plan(store, (3, 3, 3), client=process_client)
    assert 1e-10 < here.rates.entry < 1e-4
    assert here.rates.round == 0.0
    assert 1e-4 < there.rates.round < 10.0
    assert "a sweep" in str(here)


def test_a_plan_says_when_one_process_is_faster(store, process_client):
    plan = slrt.plan(store, (3, 3, 3), client=process_client)
    assert len(plan.workers) == 2
    assert "one process" in str(plan)
    assert "one process" in plan._repr_html_()
    assert "one process" not in str(slrt.plan(store, (3, 3, 3)))


def test_a_series_is_timed_too(tmp_path):
    series = np.sin(0.3 * np.arange(200))
    series[50:70] = np.nan
    plan = slrt.plan(slrt.from_array(tmp_path / "series", series), (4,), constraint=slrt.Hankel(60))
    assert plan.rates.entry > 0.0


def test_what_does_not_fit_is_not_timed(store):
    plan = slrt.plan(store, (3, 3, 3), memory_limit="1MB")
    assert plan.rates is None
    with pytest.raises(MemoryBudgetExceeded, match="1 MB"):
        plan.check()
