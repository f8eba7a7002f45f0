"""Growth promises what the cost then does, and leaves points alone that have nothing to gain."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.dual.rank_growth import RankGrowth
from slrt_dask.optim.manifold import ranks_of

ORDERS = [2, 3, 4]


def certified(made):
    evaluation = made.problem.evaluate(made.point, rtol=1e-12, warm=None)
    made.problem.certify(evaluation)
    return evaluation


@pytest.mark.parametrize("order", ORDERS)
def test_the_cost_falls_at_the_rate_of_a_modes_share(order, pair):
    made = pair(order)
    evaluation = certified(made)
    for mode, (weight, seen) in enumerate(
        zip(made.problem.weights, made.problem.spectra, strict=True)
    ):
        share = 0.5 * weight * (seen.values[0] - seen.caught)
        errors = []
        for portion in (1e-3, 1e-4):
            factor = made.point[mode]
            wide = np.hstack(
                [np.sqrt(1 - portion) * factor, np.sqrt(portion) * seen.vectors[:, :1]]
            )
            point = (*made.point[:mode], wide / np.linalg.norm(wide), *made.point[mode + 1 :])
            cost = made.problem.evaluate(point, rtol=1e-13, warm=evaluation).cost
            errors.append(abs((evaluation.cost - cost) / portion - share))
        assert errors[1] <= 0.2 * errors[0] + 1e-6 * abs(share)


@pytest.mark.parametrize("order", ORDERS)
def test_growth_lowers_the_cost_and_widens_only_what_may(order, pair):
    made = pair(order)
    evaluation = certified(made)
    ranks = ranks_of(made.point)
    most = (ranks[0], *(length for length, _ in made.problem.manifold.shapes[1:]))
    wider = RankGrowth(made.problem, most)(evaluation, 0.0)
    assert wider is not None
    assert wider.cost < evaluation.cost
    assert ranks_of(wider.point)[0] == ranks[0]
    assert sum(ranks_of(wider.point)) > sum(ranks)
    for factor in wider.point:
        assert np.linalg.norm(factor) == pytest.approx(1.0)


def test_nothing_grows_before_its_time_or_beyond_its_cap(pair):
    made = pair(3)
    evaluation = certified(made)
    assert RankGrowth(made.problem, ranks_of(made.point))(evaluation, 0.0) is None
    lengths = tuple(length for length, _ in made.problem.manifold.shapes)
    assert RankGrowth(made.problem, lengths)(evaluation, 1e30) is None


def test_columns_that_a_factor_has_lost_are_dropped(pair):
    made = pair(3)
    first = made.point[0]
    made.point = (np.hstack([first, 1e-8 * np.eye(len(first))[:, :1]]), *made.point[1:])
    made.point = tuple(factor / np.linalg.norm(factor) for factor in made.point)
    evaluation = certified(made)
    most = (first.shape[1], *(length for length, _ in made.problem.manifold.shapes[1:]))
    wider = RankGrowth(made.problem, most)(evaluation, 0.0)
    assert wider is not None
    assert wider.point[0].shape == first.shape
