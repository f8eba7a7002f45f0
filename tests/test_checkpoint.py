"""Checkpoints are whole or not taken, say what they belong to, and only the newest are kept."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import shutil
import sys

import numpy as np
import pytest

from slrt_dask.checkpoint import Cadence, CheckpointObserver, read_checkpoint, write_checkpoint
from slrt_dask.errors import CheckpointMismatch, InvalidInput
from slrt_dask.optim import ConjugateGradient, StopRules, TrustRegion, minimise
from tests.oracles.dense import random_problem

BINDING = {"observations": "abc", "settings": {"ranks": [2, 2]}}
CHECKSUMS = {0: 17, 11: 4}


def write_dual(directory, state):
    """As a share does it: files in the directory, checksums by partition."""
    with open(f"{directory}/p00000.bin", "wb") as file:
        file.write(np.ascontiguousarray(state.evaluation.dual).tobytes())
    return CHECKSUMS


def short_run(method, **options):
    problem = random_problem((6, 5), (2, 2))
    point = problem.manifold.random_point(np.random.default_rng(0))
    rules = StopRules(gap_tolerance=0.0, gradient_tolerance=0.0, max_iterations=3)
    return minimise(problem, method, point, rules, **options).state


@pytest.fixture(scope="module", params=[ConjugateGradient(), TrustRegion()], ids=["rcg", "rtr"])
def state(request):
    """The state of a short run of each method."""
    return short_run(request.param)


@pytest.fixture
def write(state, tmp_path):
    """Write a checkpoint of some iteration."""

    def at(iteration, binding=BINDING, **changes):
        changed = dataclasses.replace(state, iteration=iteration, **changes)
        return write_checkpoint(tmp_path, changed, binding, write_dual)

    return at


def numbered(directory):
    return sorted(path.name for path in directory.iterdir() if path.name.isdigit())


def assert_same(found, wanted):
    """Equal to the last bit, and of the same kinds."""
    assert type(found) is type(wanted)
    for field in dataclasses.fields(wanted):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if field.name == "evaluation":
            assert one is other
        elif isinstance(other, tuple):
            assert len(one) == len(other)
            for left, right in zip(one, other, strict=True):
                assert left.dtype == right.dtype
                np.testing.assert_array_equal(left, right)
        else:
            assert one == other
            assert isinstance(one, bool) == isinstance(other, bool)


def test_a_state_comes_back_to_the_last_bit(state, tmp_path):
    target = write_checkpoint(tmp_path, state, BINDING, write_dual)
    found = read_checkpoint(tmp_path, BINDING)
    assert found.path == target
    assert found.iteration == state.iteration
    assert_same(found.state(state.evaluation), state)
    for read, factor in zip(found.matrices("point"), state.evaluation.point, strict=True):
        np.testing.assert_array_equal(read, factor)
    assert found.scalars["cost"] == state.evaluation.cost
    assert found.scalars["inner"] == dataclasses.asdict(state.evaluation.inner)
    assert found.dual_checksums == CHECKSUMS
    np.testing.assert_array_equal(
        np.fromfile(found.dual / "p00000.bin").reshape(state.evaluation.dual.shape),
        state.evaluation.dual,
    )


def test_the_newest_two_are_kept_and_the_newest_is_taken(write, tmp_path):
    assert read_checkpoint(tmp_path / "nowhere", BINDING) is None
    for iteration in (1, 2, 7, 12):
        write(iteration)
        assert read_checkpoint(tmp_path, BINDING).iteration == iteration
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000007", "000012"]


def truncate(name):
    def tear(checkpoint):
        content = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(content[: len(content) // 2])

    return tear


def delete(name):
    return lambda checkpoint: (checkpoint / name).unlink()


def flip_a_bit(checkpoint):
    content = bytearray((checkpoint / "state.bin").read_bytes())
    content[len(content) // 2] ^= 1
    (checkpoint / "state.bin").write_bytes(content)


def alter(*path):
    """Another number in state.json, which is no less likely than the one that was written."""

    def altered(checkpoint):
        file = checkpoint / "state.json"
        content = json.loads(file.read_text())
        *names, last = path
        inner = content
        for name in names:
            inner = inner[name]
        inner[last] += 1
        file.write_text(json.dumps(content))

    return altered


def empty(checkpoint):
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


TEARS = {
    "half of state.bin": truncate("state.bin"),
    "half of state.json": truncate("state.json"),
    "no state.bin": delete("state.bin"),
    "no state.json": delete("state.json"),
    "a bit of state.bin": flip_a_bit,
    "the iteration": alter("state", "iteration"),
    "the cost": alter("state", "cost"),
    "a checksum": alter("checksum"),
    "nothing": empty,
}


@pytest.mark.parametrize("tear", TEARS.values(), ids=TEARS.keys())
def test_a_torn_one_is_skipped_for_the_one_before_with_a_warning(tear, write, tmp_path, caplog):
    write(3)
    tear(write(4))
    with caplog.at_level("WARNING", logger="slrt_dask"):
        assert read_checkpoint(tmp_path, BINDING).iteration == 3
    assert "000004 is torn" in caplog.text
    tear(tmp_path / "000003")
    assert read_checkpoint(tmp_path, BINDING) is None


@pytest.mark.parametrize(
    "other",
    [{**BINDING, "observations": "abd"}, {**BINDING, "settings": {"ranks": [2, 3]}}],
    ids=["observations", "settings"],
)
def test_one_of_another_fit_is_refused_and_not_skipped(other, write, tmp_path):
    write(3)
    write(4, binding=other)
    with pytest.raises(CheckpointMismatch, match=r"000004 belongs to other observations or sett"):
        read_checkpoint(tmp_path, BINDING)


def test_another_format_version_is_refused_by_number(write, tmp_path):
    file = write(4) / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format_version": 99}))
    with pytest.raises(CheckpointMismatch, match="version 99"):
        read_checkpoint(tmp_path, BINDING)


@pytest.mark.parametrize(
    "what", ["slrt_dask.checkpoint.np.ascontiguousarray", "json.dump", "os.fsync", "os.replace"]
)
def test_a_write_that_was_cut_short_leaves_the_older_checkpoint(what, write, tmp_path, monkeypatch):
    write(1)

    def fail(*arguments, **options):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(what, fail)
        with pytest.raises(OSError, match="disk is full"):
            write(2)
    assert numbered(tmp_path) == ["000001"]
    assert read_checkpoint(tmp_path, BINDING).iteration == 1
    write(2)  # and again
    assert read_checkpoint(tmp_path, BINDING).iteration == 2


def interrupted_at_call(number, action):
    """Do something, with an interrupt when the number-th function is called; whether it came."""
    left = number

    def count(frame, event, argument):
        nonlocal left
        left -= event == "call"
        if left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    before = sys.getprofile()
    gc.disable()  # an interrupt in a callback of the collector is lost
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
        gc.enable()
    return left <= 0


def test_an_interrupt_amid_a_write_is_still_an_interrupt(write, tmp_path):
    write(1)
    others = set()
    number = 2  # the first call would be that of the action itself
    while True:
        try:
            if not interrupted_at_call(number, lambda: write(2)):
                break
        except KeyboardInterrupt:
            pass
        except Exception as error:
            others.add(str(error))
        assert read_checkpoint(tmp_path, BINDING).iteration in (1, 2)
        shutil.rmtree(tmp_path / "000002", ignore_errors=True)
        number += 1
    assert number > 50
    assert others == set()
    assert read_checkpoint(tmp_path, BINDING).iteration == 2


@pytest.mark.parametrize(
    ("every", "kept"),
    [
        (1, ["000002", "000003"]),
        (2, ["000000", "000002"]),
        ("2", ["000000", "000002"]),
        ("5s", ["000001", "000003"]),
        ("1h", []),
    ],
)
def test_the_observer_writes_as_often_as_it_was_told(every, kept, tmp_path):
    times = itertools.count(step=3)  # asked for at the start, every iteration and every writing
    observer = CheckpointObserver(
        tmp_path, BINDING, write_dual, Cadence.of(every), clock=times.__next__
    )
    short_run(ConjugateGradient(), observers=[observer])
    assert numbered(tmp_path) == kept


def test_a_state_that_is_kept_already_is_not_written_again(state, tmp_path):
    observer = CheckpointObserver(tmp_path, BINDING, write_dual, Cadence.of(1), newest=3)
    observer.save(dataclasses.replace(state, iteration=3))
    assert numbered(tmp_path) == []
    observer.save(dataclasses.replace(state, iteration=4))
    assert numbered(tmp_path) == ["000004"]


@pytest.mark.parametrize(
    "every", [0, -1, 1.5, True, None, "0", "-3", "0s", "-3s", "soon", "", "1e3"]
)
def test_what_is_no_distance_between_checkpoints_is_refused(every):
    with pytest.raises(InvalidInput, match=r"checkpoint_every is .*30s"):
        Cadence.of(every)
