"""The shape in which observations are missing is recognised, whatever the store's partitions."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.data import from_coo
from slrt_dask.data import split as pattern
from slrt_dask.data.holding_out import Kind
from slrt_dask.data.split import observe, shape_of_gaps

SHAPE = (30, 24, 16)


@pytest.fixture
def seen(tmp_path):
    """What a store of a mask shows of itself."""

    def of(mask, **options):
        indices = np.array(np.nonzero(mask))
        store = from_coo(tmp_path / "store", indices, np.ones(mask.sum()), mask.shape, **options)
        return observe(store.path, store.header)

    return of


def random(fraction, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random(shape) < fraction


def without_fibres(mode, kept, shape=SHAPE):
    others = [1 if k == mode else length for k, length in enumerate(shape)]
    return np.broadcast_to(random(kept, others), shape)


@pytest.mark.parametrize("shape", [SHAPE, (60, 50, 3), (40, 30), (12, 10, 8, 2), (300,)])
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.95])
def test_entries_that_are_missing_at_random_are_entries(shape, fraction, seen):
    found = shape_of_gaps(seen(random(fraction, shape)))
    assert found.kind == Kind()
    assert found.why.startswith("single entries")


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("kept", [0.3, 0.9])
@pytest.mark.parametrize("partition_entries", [500, 10**6])
def test_whole_fibres_are_fibres_even_if_a_few_entries_are_missing_too(
    mode, kept, partition_entries, seen
):
    mask = without_fibres(mode, kept) & random(0.97)
    found = shape_of_gaps(seen(mask, partition_entries=partition_entries))
    assert found.kind == Kind("fibres", mode)
    assert f"whole fibres of mode {mode}" in found.why


def test_pixels_without_any_of_their_three_colours_are_fibres(seen):
    assert shape_of_gaps(seen(without_fibres(2, 0.1, (60, 50, 3)))).kind == Kind("fibres", 2)


def test_half_of_the_entries_of_the_fibres_that_there_are_leave_them_entries(seen):
    assert shape_of_gaps(seen(without_fibres(1, 0.9) & random(0.4))).kind == Kind()


def test_whole_slices_are_slices_only_where_they_can_be_predicted(seen):
    mask = np.ones(SHAPE, dtype=bool)
    mask[[3, 4, 11]] = False
    pattern = seen(mask)
    assert shape_of_gaps(pattern, (True, False, False)).kind == Kind("slices", 0)
    for foreseen in (None, (False, True, True)):
        found = shape_of_gaps(pattern, foreseen)
        assert found.kind == Kind()
        assert "3 slices without observations cannot be predicted by low rank" in found.why


def test_what_else_is_missing_counts_where_slices_cannot_be_predicted(seen):
    mask = np.array(without_fibres(2, 0.8))
    mask[[3, 4, 11]] = False
    assert shape_of_gaps(seen(mask)).kind == Kind("fibres", 2)


@pytest.mark.parametrize(
    ("gaps", "words"),
    [
        ([(40, 70)], "although a run of samples is missing, up to 30 in a row"),
        ([(40, 70), (250, 300)], "although 2 runs of samples are missing, up to 50 in a row"),
    ],
)
def test_runs_that_a_series_misses_are_not_said_to_be_single_entries(gaps, words, seen):
    mask = np.ones(300, dtype=bool)
    for begin, end in gaps:
        mask[begin:end] = False
    found = shape_of_gaps(seen(mask), (True,))
    assert found.kind == Kind()
    assert words in found.why
    assert "single entries" not in found.why


@pytest.mark.parametrize("shape", [SHAPE, (300,)])
def test_nothing_missing_is_no_trouble(shape, seen):
    found = shape_of_gaps(seen(np.ones(shape, dtype=bool)), (True,) * len(shape))
    assert found.kind == Kind()


def test_of_many_fibres_a_drawn_part_is_kept_and_tells_how_many_there_are(seen, monkeypatch):
    mask = random(0.2, (50, 40, 30))
    whole = seen(mask)
    monkeypatch.setattr(pattern, "MOST_FIBRES", 300)
    samples = [pattern.FibreSample(mode) for mode in range(3)]
    for part in np.array_split(np.array(np.nonzero(mask)), 7, axis=1):
        for sample in samples:
            sample.see(tuple(part))
    for mode, sample in enumerate(samples):
        exact = np.count_nonzero(mask.any(axis=mode))
        assert whole.fibres[mode] == exact
        assert 0 < len(sample._keys) <= 300
        assert sample.fibres == pytest.approx(exact, rel=0.25)
