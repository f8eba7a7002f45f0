"""Synthetic tensors have the ranks and the spread they promise, and distinct observations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slrt_dask.data import from_batches, low_rank_observations, low_rank_tensor, sample_entries
from slrt_dask.data.holding_out import scattered
from slrt_dask.errors import InvalidInput


def ranks_of(tensor):
    return tuple(
        np.linalg.matrix_rank(np.moveaxis(tensor, mode, 0).reshape(length, -1), rtol=1e-8)
        for mode, length in enumerate(tensor.shape)
    )


@pytest.mark.parametrize(
    ("shape", "ranks"),
    [((20, 15), (3, 3)), ((20, 15, 12), (3, 2, 4)), ((9, 8, 7, 6), (2, 3, 2, 2))],
)
def test_a_tensor_has_its_ranks_and_unit_deviation(shape, ranks):
    tensor = low_rank_tensor(shape, ranks, seed=0)
    assert tensor.std() == pytest.approx(1.0)
    assert ranks_of(tensor) == ranks
    noisy = low_rank_tensor(shape, ranks, seed=0, noise=0.1)
    assert (noisy - tensor).std() == pytest.approx(0.1, rel=0.1)


def test_sampled_entries_are_distinct_and_true():
    tensor = low_rank_tensor((12, 11, 10), (2, 2, 2), seed=2)
    indices, values = sample_entries(tensor, 0.2, seed=0)
    assert indices.shape == (3, round(0.2 * tensor.size))
    assert len({tuple(index) for index in indices.T.tolist()}) == values.size
    np.testing.assert_array_equal(values, tensor[tuple(indices)])


def test_observations_are_distinct_and_of_low_rank(tmp_path):
    shape, ranks = (30, 20, 10), (2, 3, 2)
    everything = list(low_rank_observations(shape, ranks, 6000, seed=5, batch_entries=1700))
    assert [values.size for _, values in everything] == [1700, 1700, 1700, 900]
    store = from_batches(tmp_path / "store", everything, shape)
    tensor = store.to_array()
    assert not np.isnan(tensor).any()
    assert tensor.std() == pytest.approx(1.0, rel=0.05)
    assert ranks_of(tensor) == ranks


def test_observations_do_not_depend_on_batch_size():
    def joined(batch_entries):
        parts = list(
            low_rank_observations(
                (50, 60, 70), (2, 2, 2), 1000, seed=1, noise=0.1, batch_entries=batch_entries
            )
        )
        return np.hstack([i for i, _ in parts]), np.hstack([v for _, v in parts])

    for one, other in zip(joined(77), joined(5000), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64))
def test_scattering_is_a_permutation(size, seed):
    found = scattered(np.arange(size), size, seed)
    assert sorted(found.tolist()) == list(range(size))


@pytest.mark.parametrize(
    "call",
    [
        lambda: low_rank_tensor((5, 6), (2, 2, 2), seed=0),
        lambda: low_rank_tensor((5, 6), (2, 7), seed=0),
        lambda: low_rank_tensor((), (), seed=0),
        lambda: sample_entries(np.ones((3, 3)), 0.0, 0),
        lambda: low_rank_observations((5, 6), (2, 2), 31, seed=0),
        lambda: low_rank_observations((5, 6), (2, 2), 0, seed=0),
    ],
)
def test_impossible_requests_are_refused(call):
    with pytest.raises(InvalidInput, match="give"):
        call()
