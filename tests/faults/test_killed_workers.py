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
    where = {}
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
    whole = problem.undisturbed.to_dask(chunks).compute(scheduler="synchronous")
    runs, exports, began_again = 0, 0, 0
    with Killer(phases, seed, one_of(cluster)) as killer, client.as_current():
        # A kill may come too late for its phase, or for the whole run: then there is another run.
        while runs == 0 or set(killer.left) - {"export"}:
            assert runs < 10, killer.left
            runs += 1
            if kept:
                where["run_directory"] = tmp_path / f"run{runs}"
            done = problem.fit(client=client, **where)
            problem.assert_answer(done)
            began_again += ";".join(events_of(done)).count("began again")
        while exports == 0 or killer.left:
            assert exports < 30
            exports += 1
            done.to_zarr(tmp_path / f"export{exports}", chunks=chunks)
            found = zarr.open_array(tmp_path / f"export{exports}", mode="r")[...]
            np.testing.assert_allclose(found, whole, rtol=1e-8, atol=1e-8 * abs(whole).max())
    assert killer.killed == phases
    assert began_again >= 3
    del done
    gc.collect()
    assert set(Path(problem.store.path).parent.iterdir()) == neighbours


def test_a_worker_that_is_replaced_does_not_change_the_last_bit(problem, client, cluster, tmp_path):
    undisturbed = problem.fit(client=client)
    with Killer(["solve", "line search"], 4, one_of(cluster)) as killer:
        done = problem.fit(client=client, run_directory=tmp_path / "run")
    assert len(killer.killed) == 2
    assert [one.cost for one in done.records] == [one.cost for one in undisturbed.records]
