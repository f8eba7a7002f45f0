"""Workers that are killed, at moments drawn from fixed seeds, do not change the answer."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.engine import plan
from slrt_dask.request import plan_of
from tests.faults.conftest import OPTIONS, RANKS
from tests.faults.phases import Phases

# What a worker is killed in: the first ones in any order, the others as they come.
FIRST = ["loading", "inner solve", "line search", "gradient", "checkpoint"]
LAST = ["certificate", "result"]


@pytest.fixture
def killing(cluster, monkeypatch):
    """Kill a drawn worker, and start another, at drawn moments of the phases given."""

    def draw(generator, phases):
        def kill_one(engine):
            cluster.kill_worker(engine._workers[generator.integers(len(engine._workers))])
            cluster.start_worker()

        plan = [(phase, int(generator.integers(1, 5 if phase in FIRST else 3))) for phase in phases]
        return Phases(monkeypatch, plan, kill_one)

    return draw


def test_workers_killed_in_every_phase_leave_the_answer_unchanged(
    store, client, killing, assert_same_answer, tmp_path
):
    generator = np.random.default_rng(0)
    phases = [*generator.permutation(FIRST), *LAST]
    killed = killing(generator, phases)
    done = slrt.complete(store, RANKS, **OPTIONS, client=client, run_directory=tmp_path / "run")
    assert killed.happened == phases
    assert_same_answer(done)
    events = "; ".join(record.event for record in done.records)
    assert events.count("began again from iteration") >= len(phases) - 1


def test_a_fit_without_a_run_directory_begins_again_and_leaves_nothing_beside_the_store(
    store, client, killing, assert_same_answer
):
    gc.collect()  # what earlier tests left is not counted
    beside = set(Path(store.path).parent.iterdir())
    phases = ["inner solve", "line search", "result"]
    killed = killing(np.random.default_rng(3), phases)
    done = slrt.complete(store, RANKS, **OPTIONS, client=client)
    assert killed.happened == phases
    assert_same_answer(done)
    del done
    gc.collect()
    assert set(Path(store.path).parent.iterdir()) == beside


def test_workers_killed_while_sums_are_made_in_sections_leave_the_answer_unchanged(
    store, client, killing, assert_same_answer, tmp_path, monkeypatch
):
    monkeypatch.setattr(plan, "SMALLEST_STREAMED_BLOCK", 100)
    monkeypatch.setattr(plan, "_sections", lambda costs, places: 3)
    generator = np.random.default_rng(5)
    phases = [*generator.permutation(["inner solve", "line search", "gradient"]), "result"]
    limit = plan_of(store, FitSettings(ranks=RANKS, C=1.0), client=client).largest.total - 1
    killed = killing(generator, phases)
    done = slrt.complete(
        store, RANKS, **OPTIONS, client=client, run_directory=tmp_path / "run", memory_limit=limit
    )
    assert killed.happened == phases
    assert_same_answer(done)
    events = "; ".join(record.event for record in done.records)
    assert events.count("began again from iteration") >= len(phases) - 1


def test_a_lost_worker_that_is_replaced_does_not_change_the_last_bit(
    store, client, killing, tmp_path
):
    # Another order of sums would change the thirteenth digit.
    options = {**OPTIONS, "C": 10.0, "max_iterations": 0}
    undisturbed = slrt.complete(store, RANKS, **options, client=client)
    killed = killing(np.random.default_rng(4), ["gradient", "inner solve"])
    done = slrt.complete(store, RANKS, **options, client=client, run_directory=tmp_path / "run")
    assert len(killed.happened) == 2
    assert done.records[0].cost == undisturbed.records[0].cost
