"""A scan of the whole tensor finds the entries that miss their bounds."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.dual.scan import BOX_ENTRIES, Scan, boxes
from tests.dual.cases import KINDS, Case, Kind, dual_of


@pytest.mark.parametrize("shape", [(6, 5, 4), (100, 90, 80), (3, 2000, 400)])
@pytest.mark.parametrize("slab_mode", [0, 1, 2])
def test_boxes_cover_some_slices_once_and_are_not_too_large(shape, slab_mode):
    seen, wanted = np.zeros(shape, dtype=np.int8), np.zeros(shape, dtype=np.int8)
    slices = 1, shape[slab_mode] - 1
    for box in boxes(shape, slab_mode, slices):
        assert np.prod([len(part) for part in box]) <= BOX_ENTRIES
        seen[tuple(slice(part.start, part.stop) for part in box)] += 1
    np.moveaxis(wanted, slab_mode, 0)[slices[0] : slices[1]] = 1
    np.testing.assert_array_equal(seen, wanted)


@pytest.mark.parametrize(
    "kind", [KINDS["nonnegative"], KINDS["upper"], Kind(lower=0.0, upper=0.8, where="everywhere")]
)
@pytest.mark.parametrize(
    ("shape", "slab_mode", "threads"),
    [((9, 8), 0, 1), ((12, 5, 4), 0, 2), ((5, 6, 4, 3), 1, 1), ((90, 80, 75), 2, 2)],
)
def test_a_scan_finds_the_entries_that_miss_their_bounds(kind, shape, slab_mode, threads, held):
    case = Case.of(len(shape), kind, shape=shape)
    rng = np.random.default_rng(2)
    case.dense.mask[:] = rng.random(shape) < 60 / np.prod(shape)
    case.dense.values[:] = rng.standard_normal(shape)
    engine = held(case.dense, slab_mode=slab_mode, threads=threads)
    problem = case.problem(engine)
    evaluation = problem.evaluate(case.point, rtol=1e-9, warm=None)
    X, _ = dual_of(engine, problem, evaluation)
    W, (lower, upper) = sum(case.parts(X)), case.bounds
    missed = np.maximum(lower - W, W - upper)
    operator = problem.operator(case.point)
    outcome = engine.run(Scan(operator, evaluation.dual.name, case.bound_vectors(), 1e-8))
    assert outcome.violation == pytest.approx(missed.max(), rel=1e-9)
    assert outcome.found == np.count_nonzero((missed > 1e-8) & ~case.dense.mask)
    assert np.isinf(kind.lower) or outcome.found > 0
