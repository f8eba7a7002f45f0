"""A run that was stopped anywhere and resumed is the run that was never disturbed."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.errors import CheckpointMismatch, RunInUse, StoreExists, StoreNotFound
from slrt_dask.optim import StopReason
from slrt_dask.request import plan_of
from tests.oracles.dense import random_problem

SHAPES = {2: (9, 8), 3: (8, 6, 5), 4: (6, 4, 3, 4)}
RANKS = {2: (3, 2), 3: (3, 2, 1), 4: (2, 2, 1, 2)}
TIRELESS = {"gap_tolerance": 0.0, "gradient_tolerance": 0.0}
ON_A_CLUSTER = {"C": 0.3, "max_iterations": 2}


class Crash(Exception):
    """What ends a process without a word."""


def stopping(kind, when):
    """An observer that ends the run at an iteration."""

    def stop(record, state):
        if record.iteration == when:
            raise kind

    return SimpleNamespace(on_record=stop)


@pytest.fixture
def store(store_of):
    def make(order=3, parts=1, seed=6):
        dense = random_problem(SHAPES[order], RANKS[order], C=5.0, fraction=0.4, seed=seed)
        return store_of(dense.mask, dense.values, parts=parts)

    return make


@pytest.fixture(scope="module")
def undisturbed_run():
    """What a fit gives when nothing stops it, made once for each set of arguments."""
    known = {}

    def run(store, **options):
        options = completed_options(store, options)
        key = (store.digest, len(store.partitions), repr(sorted(options.items())))
        if key not in known:
            known[key] = slrt.complete(store, **options)
        return known[key]

    return run


def completed_options(store, options):
    options = {"C": 5.0, "threads": 1, "max_iterations": 8, **TIRELESS, **options}
    return {"ranks": RANKS.get(store.order), **options}


@pytest.fixture
def stop_and_resume(undisturbed_run, tmp_path):
    """A run that is stopped and resumed, and the same one undisturbed."""

    def both(store, when, kind=Crash, *, resuming=None, then=None, **options):
        options = completed_options(store, options)
        every = {"checkpoint_every": options.pop("checkpoint_every", 1)}
        undisturbed = undisturbed_run(store, **options)
        run = stop_run(tmp_path / "run", store, when, kind, **every, **options)
        if then is not None:
            then(run)
        where = {name: options[name] for name in ("threads", "memory_limit") if name in options}
        resumed = slrt.resume(run, **(where if resuming is None else resuming), **every)
        return undisturbed, resumed

    return both


def stop_run(run, store, when, kind=Crash, **options):
    options = completed_options(store, options)
    try:
        slrt.complete(store, **options, run_directory=run, observers=[stopping(kind, when)])
    except Crash:
        assert not (run / "completion").exists()
    else:
        done = slrt.load_completion(run / "completion")
        assert done.stop_reason is StopReason.INTERRUPTED
    return run


def untimed(records):
    """Without what tells of the disturbance itself: the time, and that there was one."""
    return [dataclasses.replace(record, seconds=0.0, event="") for record in records]


def assert_same_course(resumed, undisturbed):
    """Every iteration equal to the last bit; certificates may begin from other directions."""
    for one, other in zip(resumed.factors, undisturbed.factors, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(everything(resumed), everything(undisturbed))
    exact = ("iteration", "ranks", "cost", "gradient_norm", "step", "inner_residual",
             "validation_rmse")  # fmt: skip
    for one, other in zip(resumed.records, undisturbed.records, strict=True):
        for column in exact:
            assert getattr(one, column) == getattr(other, column)
        assert (one.relative_gap is None) == (other.relative_gap is None)
        assert (one.relative_gap or 0.0) == pytest.approx(other.relative_gap or 0.0, rel=1e-6)
    assert resumed.certificate.primal == pytest.approx(undisturbed.certificate.primal, rel=1e-9)
    assert resumed.stop_reason is undisturbed.stop_reason


def assert_same(resumed, undisturbed):
    """Equal in everything except the time it took, up to the last digits."""
    for one, other in zip(resumed.factors, undisturbed.factors, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    for one, other in zip(untimed(resumed.records), untimed(undisturbed.records), strict=True):
        for column, value in dataclasses.asdict(other).items():
            known = pytest.approx(value, rel=1e-11, abs=1e-13) if type(value) is float else value
            assert getattr(one, column) == known, column
    assert resumed.certificate == undisturbed.certificate
    assert resumed.stop_reason is undisturbed.stop_reason
    np.testing.assert_array_equal(everything(resumed), everything(undisturbed))
    seconds = [record.seconds for record in resumed.records]
    assert seconds == sorted(seconds)


def everything(done):
    return done.predict(np.indices(done.shape).reshape(len(done.shape), -1))


def written_records(run):
    return [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]


# ---- the same answer ------------------------------------------------------------------------


def sums_along_mode_1():
    """Conditions that are given in memory and kept in the run."""
    places = np.arange(240).reshape(8, 6, 5).transpose(0, 2, 1).reshape(40, 6)
    A = np.zeros((40, 240))
    np.put_along_axis(A, places, 1.0, axis=1)
    return slrt.Linear(A, 1.0, "==")


def held_out(store_of):
    mask = np.random.default_rng(5).random(SHAPES[3]) < 0.1
    return store_of(mask, np.ones(mask.shape))


ROWS = slrt.Linear.rising(SHAPES[3], 0)
KINDS = {
    "order 2": {"order": 2, "method": "rtr"},
    "order 3": {"method": "rcg"},
    "order 4": {"order": 4, "method": "lbfgs"},
    "order 4, trust region": {"order": 4, "method": "rtr"},
    "centred": {"center": True, "validation": held_out},
    "offsets of modes": {"center": "modes"},
    "float32": {"precision": "float32", "method": "rtr"},
    "two threads": {"threads": 2, "lambdas": (1.0, 2.0, 0.5)},
    "Huber's loss": {"loss": slrt.Huber(0.2)},
    "bounds": {"constraint": slrt.Bounds(0.0, 0.5)},
    "bounds where observed": {"constraint": slrt.Bounds(0.0, 0.5, where="observed")},
    "bounds at places": {"constraint": slrt.Nonnegative([[0, 1, 2], [1, 2, 3], [2, 3, 4]])},
    "rows and bounds": {"constraint": [sums_along_mode_1(), slrt.Nonnegative(), ROWS]},
    "Hankel": {"constraint": slrt.Hankel((3, 1, 1)), "method": "rcg"},
    "Hankel, trust region": {"constraint": slrt.Hankel((3, 1, 1)), "method": "rtr"},
    "Hankel with bounds": {"constraint": [slrt.Hankel((3, 1, 1)), slrt.Nonnegative()]},
    "certified ranks": {"ranks": "certified", "max_iterations": 7},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_equals_the_undisturbed_one(kind, store, store_of, stop_and_resume, tmp_path):
    options = {"max_iterations": 5, "order": 3, **KINDS[kind]}
    if "validation" in options:
        options["validation"] = options["validation"](store_of)
    ending = KeyboardInterrupt if "order" in kind else Crash
    observed = store(options.pop("order"), parts=2)
    undisturbed, resumed = stop_and_resume(observed, 3, ending, **options)
    assert len(undisturbed.records) > 4
    assert_same_course(resumed, undisturbed)
    lines = written_records(tmp_path / "run")
    assert [line["cost"] for line in lines] == [record.cost for record in resumed.records]


@pytest.mark.parametrize("method", ["rcg", "rtr"])
@pytest.mark.parametrize("when", [0, 9, 10, 12])
def test_it_does_so_wherever_it_was_stopped(when, method, store, stop_and_resume):
    undisturbed, resumed = stop_and_resume(store(), when, method=method, max_iterations=12)
    assert len(undisturbed.records) == 13
    assert_same_course(resumed, undisturbed)
    # A certificate that is made again is not counted with the next iteration.
    assert when == 12 or [record.sweeps for record in resumed.records] == [
        record.sweeps for record in undisturbed.records
    ]


def test_certificates_after_the_first_are_the_same_to_the_last_bit(store, stop_and_resume):
    undisturbed, resumed = stop_and_resume(store(), 11, method="rtr", max_iterations=12)
    assert_same(resumed, undisturbed)


def test_a_streamed_fit_goes_on(store_of, stop_and_resume, monkeypatch, caplog):
    monkeypatch.setattr("slrt_dask.engine.plan.SMALLEST_STREAMED_BLOCK", 500)
    monkeypatch.setattr("slrt_dask.engine.plan.LARGEST_STREAMED_BLOCK", 2000)
    mask = np.random.default_rng(3).random((40, 30, 25)) < 0.3
    big = store_of(mask, np.sin(np.indices(mask.shape).sum(axis=0) / 9.0))
    ranks = (4, 3, 3)
    needed = plan_of(big, FitSettings(ranks=ranks, C=1.0), threads=2).largest.total
    with caplog.at_level("INFO", logger="slrt_dask"):
        undisturbed, resumed = stop_and_resume(
            big, 1, ranks=ranks, C=0.1, max_iterations=3, threads=2, memory_limit=needed - 1,
        )  # fmt: skip
    assert caplog.text.count("streamed from disk") == 3
    assert_same(resumed, undisturbed)


def test_a_run_may_go_on_in_worker_processes(store, stop_and_resume, process_client):
    undisturbed, resumed = stop_and_resume(
        store(parts=4), 1, resuming={"client": process_client}, **ON_A_CLUSTER
    )
    assert len(resumed.records) == len(undisturbed.records)
    for one, other in zip(resumed.records, undisturbed.records, strict=True):
        assert one.cost == pytest.approx(other.cost, rel=1e-10)


def test_a_run_of_a_cluster_may_go_on_in_this_process(
    store, thread_client, undisturbed_run, tmp_path
):
    undisturbed = undisturbed_run(store(parts=4), **ON_A_CLUSTER)
    run = stop_run(tmp_path / "run", store(parts=4), 1, client=thread_client, **ON_A_CLUSTER)
    resumed = slrt.resume(run, threads=1)
    assert resumed.records[-1].cost == pytest.approx(undisturbed.records[-1].cost, rel=1e-10)
    assert len(resumed.records) == len(undisturbed.records)


def test_a_run_may_be_stopped_again_and_again(store, undisturbed_run, tmp_path):
    undisturbed = undisturbed_run(store())
    run = stop_run(tmp_path / "run", store(), 2)
    for when in (3, 4, 7):
        with pytest.raises(Crash):
            slrt.resume(run, threads=1, observers=[stopping(Crash, when)])
    slrt.resume(run, threads=1, observers=[stopping(KeyboardInterrupt, 8)])
    assert_same(slrt.resume(run, threads=1), undisturbed)


# ---- what the checkpoints leave -------------------------------------------------------------


@pytest.mark.parametrize("when", [0, 5, 8])
def test_iterations_after_the_last_checkpoint_are_made_again(
    when, store, stop_and_resume, tmp_path
):
    undisturbed, resumed = stop_and_resume(store(), when, checkpoint_every=3)
    assert_same(resumed, undisturbed)
    assert [line["iteration"] for line in written_records(tmp_path / "run")] == list(range(9))


def tear_the_newest_dual(run):
    file = min((run / "checkpoints" / "000004" / "dual").iterdir())
    file.write_bytes(file.read_bytes()[:-8])
    assert (run / "checkpoints" / "000003").exists()


def lose_all_states(run):
    for checkpoint in (run / "checkpoints").iterdir():
        (checkpoint / "state.json").unlink()


def tear_the_last_record(run):
    text = (run / "records.jsonl").read_text()
    shutil.rmtree(run / "checkpoints" / "000004")  # a record comes before its checkpoint
    (run / "records.jsonl").write_text(text[:-20])


def leave_half_a_checkpoint(run):
    shutil.copytree(run / "checkpoints" / "000004", run / "checkpoints" / "000005.part")
    (run / "checkpoints" / "000005.part" / "state.json").unlink()


@pytest.mark.parametrize(
    "tear",
    [tear_the_newest_dual, lose_all_states, tear_the_last_record, leave_half_a_checkpoint],
)
def test_what_is_torn_is_made_again(tear, store, stop_and_resume, tmp_path):
    undisturbed, resumed = stop_and_resume(store(parts=2), 4, then=tear)
    assert_same(resumed, undisturbed)
    assert [line["iteration"] for line in written_records(tmp_path / "run")] == list(range(9))


def test_a_lost_dual_on_a_worker_process_falls_back_too(
    store, process_client, undisturbed_run, tmp_path
):
    observed = store(parts=4)
    undisturbed = undisturbed_run(observed, **ON_A_CLUSTER)
    run = stop_run(tmp_path / "run", observed, 2, **ON_A_CLUSTER)
    max((run / "checkpoints" / "000002" / "dual").iterdir()).unlink()
    resumed = slrt.resume(run, client=process_client)
    assert resumed.records[-1].cost == pytest.approx(undisturbed.records[-1].cost, rel=1e-10)


@pytest.mark.parametrize("every", ["1h", "1us"])
def test_checkpoints_may_be_some_time_apart(every, store, stop_and_resume, tmp_path):
    def count(run):
        assert (run / "checkpoints").exists() == (every == "1us")

    undisturbed, resumed = stop_and_resume(store(), 4, checkpoint_every=every, then=count)
    assert_same(resumed, undisturbed)
    # However far apart they are, the last state is kept.
    assert (tmp_path / "run" / "checkpoints" / "000008" / "state.json").exists()


def test_events_of_iterations_that_are_made_again_stay_in_the_history(store, tmp_path):
    run = stop_run(tmp_path / "run", store(), 2, checkpoint_every=4)
    with pytest.raises(Crash):
        slrt.resume(run, threads=1, checkpoint_every=4, observers=[stopping(Crash, 3)])
    resumed = slrt.resume(run, threads=1)
    events = ["", "resumed; resumed", *[""] * 7]
    assert [record.event for record in resumed.records] == events
    assert [line["event"] for line in written_records(run)] == events


# ---- two at once ----------------------------------------------------------------------------


def test_a_run_that_is_being_worked_on_is_refused(store, tmp_path):
    refused = []

    def try_too(record, state):
        for attempt in (
            lambda: slrt.resume(tmp_path / "run"),
            lambda: slrt.complete(store(), RANKS[3], C=5.0, run_directory=tmp_path / "run"),
        ):
            with pytest.raises((RunInUse, StoreExists)) as error:
                attempt()
            refused.append(str(error.value))
        if record.iteration == 2:
            raise Crash

    options = {"C": 5.0, "threads": 1, "max_iterations": 3, **TIRELESS}
    undisturbed = slrt.complete(store(), RANKS[3], **options)
    observer = SimpleNamespace(on_record=try_too)
    with pytest.raises(Crash):
        slrt.complete(
            store(), RANKS[3], **options, run_directory=tmp_path / "run", observers=[observer]
        )
    resumed = slrt.resume(tmp_path / "run", threads=1, observers=[observer])
    assert_same(resumed, undisturbed)
    assert len(refused) == 2 * 4
    assert all("another process is at work on the run" in text for text in refused[::2])
    assert all("already exists" in text for text in refused[1::2])


def test_a_directory_in_which_a_run_was_only_begun_can_be_used(store, tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("lock", "settings.json.part"):
        (tmp_path / "run" / name).write_text("")
    slrt.complete(store(), RANKS[3], C=5.0, max_iterations=1, run_directory=tmp_path / "run")
    assert slrt.load_completion(tmp_path / "run" / "completion").records


def test_a_file_system_without_locks_is_used_with_a_warning(store, tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    slrt.complete(store(), RANKS[3], C=5.0, max_iterations=1, run_directory=tmp_path / "run")
    assert "use it from one process only" in caplog.text


# ---- runs that ended, and what is no run ----------------------------------------------------


def test_a_run_that_had_ended_is_returned_without_computing(store, tmp_path, monkeypatch):
    done = slrt.complete(store(), RANKS[3], C=5.0, max_iterations=2, run_directory=tmp_path / "run")
    monkeypatch.delattr("slrt_dask.request.LocalEngine")
    again = slrt.resume(tmp_path / "run")
    assert again.path == done.path
    assert again.records == done.records


def test_an_interrupted_runs_result_is_replaced_when_it_goes_on(store, tmp_path):
    run = stop_run(tmp_path / "run", store(), 2, KeyboardInterrupt)
    before = slrt.load_completion(run / "completion")
    resumed = slrt.resume(run, threads=1)
    after = slrt.load_completion(run / "completion")
    assert (len(before.records), len(after.records)) == (3, 9)
    assert after.records == resumed.records
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints", "completion", "lock", "records.jsonl", "settings.json", "usage.json",
    ]  # fmt: skip


def test_a_torn_result_is_written_again(store, tmp_path):
    done = slrt.complete(
        store(), RANKS[3], C=5.0, threads=1, max_iterations=3, run_directory=tmp_path / "run"
    )
    wanted = done.predict([[1], [1], [1]])
    for file in (tmp_path / "run" / "completion").iterdir():
        if file.is_file():
            file.unlink()
    again = slrt.resume(tmp_path / "run", threads=1)
    assert [record.event for record in again.records] == ["", "", "", "resumed"]
    assert untimed(again.records) == untimed(done.records)
    np.testing.assert_array_equal(again.predict([[1], [1], [1]]), wanted)


def test_other_observations_at_the_stores_path_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    indices = np.array(np.nonzero(rng.random(SHAPES[3]) < 0.4))
    values = rng.standard_normal(indices.shape[1])
    mine = slrt.from_coo(tmp_path / "mine", indices, values, SHAPES[3])
    run = stop_run(tmp_path / "run", mine, 2)
    shutil.rmtree(mine.path)
    slrt.from_coo(tmp_path / "mine", indices, 2 * values, SHAPES[3])
    with pytest.raises(CheckpointMismatch, match=r"mine holds other observations"):
        slrt.resume(run)
    shutil.rmtree(mine.path)
    with pytest.raises(StoreNotFound, match="mine"):
        slrt.resume(run)


def test_a_checkpoint_of_another_run_is_refused(store, tmp_path):
    one = stop_run(tmp_path / "one", store(), 2)
    other = stop_run(tmp_path / "other", store(), 2, C=1.0)
    shutil.rmtree(one / "checkpoints")
    shutil.copytree(other / "checkpoints", one / "checkpoints")
    with pytest.raises(CheckpointMismatch, match="other observations or settings"):
        slrt.resume(one)


def test_what_is_no_run_is_refused(store, tmp_path):
    (tmp_path / "file").write_text("nothing")
    for place in (tmp_path / "nowhere", tmp_path, tmp_path / "file", store().path):
        with pytest.raises(StoreNotFound, match="holds no run"):
            slrt.resume(place)


@pytest.mark.parametrize("text", ["", "{}", "[1]"])
def test_settings_that_cannot_be_read_are_named(text, store, tmp_path):
    run = stop_run(tmp_path / "run", store(), 0)
    (run / "settings.json").write_text(text)
    with pytest.raises(CheckpointMismatch, match=r"settings\.json cannot be read"):
        slrt.resume(run)
