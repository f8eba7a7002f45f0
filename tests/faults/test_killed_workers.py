"""Worker processes are killed at random moments of a run, and replaced: the answer is the same."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import zarr

from slrt_dask.config import FitSettings
from slrt_dask.request import plan_of
from tests.faults.conftest import events_of
from tests.faults.killing import Killer, one_of

KEPT = ["load", "solve", "line search", "checkpoint"]
"""In any order: with the first certificate they are as many losses in a row as a run forgives."""
ANEW = ["load", "solve", "line search"]
"""Of a fit without a run directory, which begins at its start again."""
LAST = ["certificate", "result", "export", "export"]


@pytest.mark.parametrize(
    ("order", "kept", "seed"), [(2, True, 0), (3, True, 1), (4, True, 2), (3, False, 3)]
)
def test_workers_killed_at_random_moments_leave_answer_and_export_unchanged(
    order, kept, seed, problems, client, cluster, tmp_path
):
    problem, random = problems[order], np.random.default_rng(seed)
    where = {"run_directory": tmp_path / "run"} if kept else {}
    if order == 2:  # blocks are in files
        settings = FitSettings(ranks=problem.ranks, C=0.05)
        largest = plan_of(problem.store, settings, client=client).largest
        where["memory_limit"] = largest.total - 500_000
        plan = plan_of(problem.store, settings, client=client, memory_limit=where["memory_limit"])
        assert not plan.in_memory
    gc.collect()  # what earlier tests left is not counted
    neighbours = set(Path(problem.store.path).parent.iterdir())
    phases = [*random.permutation(KEPT if kept else ANEW).tolist(), *LAST]
    chunks = tuple(-(-length // 3) for length in problem.store.shape)
    exports = [tmp_path / f"export{number}" for number in range(LAST.count("export"))]
    with Killer(phases, seed, one_of(cluster)) as killer, client.as_current():
        done = problem.fit(client=client, **where)
        for path in exports:
            done.to_zarr(path, chunks=chunks)
    assert killer.killed == phases
    problem.assert_answer(done)
    # A worker may have ended its part just before it was killed, and be missed by nobody.
    assert ";".join(events_of(done)).count("began again") >= len(phases) - len(LAST) - 1
    whole = problem.undisturbed.to_dask(done.shape).compute(scheduler="synchronous")
    for path in exports:
        np.testing.assert_allclose(
            zarr.open_array(path, mode="r")[...], whole, rtol=1e-8, atol=1e-8 * abs(whole).max()
        )
    del done
    gc.collect()
    assert set(Path(problem.store.path).parent.iterdir()) == neighbours


def test_a_worker_that_is_replaced_does_not_change_the_last_bit(problem, client, cluster, tmp_path):
    undisturbed = problem.fit(client=client)
    with Killer(["solve", "line search"], 4, one_of(cluster)) as killer:
        done = problem.fit(client=client, run_directory=tmp_path / "run")
    assert len(killer.killed) == 2
    assert [one.cost for one in done.records] == [one.cost for one in undisturbed.records]
