"""The walk through candidates, on errors that are known in advance."""

from __future__ import annotations

import math

import pytest

from slrt_dask.tuning.candidate import Candidate, Freedom
from slrt_dask.tuning.search import Search, Tried

LENGTHS = (40, 30, 3)


@pytest.fixture(scope="module", autouse=True)
def few_ranks():
    """All of them here: nothing is compiled."""


def walk(error, freedom=None, most_trials=200, refuse=lambda candidate: False, sweeps=0):
    """Search with an error that depends on the candidate alone; the search, and its best."""
    batches = []

    def attempts(batch):
        batches.append(batch)
        return [
            None if refuse(candidate) else Tried(candidate, error(candidate), 0, sweeps, 0.0, ())
            for candidate, _ in batch
        ]

    search = Search(freedom or Freedom(LENGTHS), attempts, most_trials)
    best = search.run(Candidate.first(LENGTHS, (40.0, 30.0, 3.0), rank=5))
    search.batches = batches
    return search, best


def bowl(ranks, strengths):
    """An error that is least at some ranks and strengths."""

    def error(candidate):
        far = sum(math.log(a / b) ** 2 for a, b in zip(candidate.ranks, ranks, strict=True))
        far += sum(
            math.log(a / b) ** 2 for a, b in zip(candidate.strengths, strengths, strict=True)
        )
        return 1.0 + far

    return error


@pytest.mark.parametrize("ranks", [(5, 5, 3), (18, 2, 1), (1, 1, 1), (40, 30, 3)])
@pytest.mark.parametrize("strengths", [(100.0, 75.0, 7.5), (3.0, 300.0, 30.0)])
def test_the_least_error_is_found_to_a_step(ranks, strengths):
    _, best = walk(bowl(ranks, strengths))
    for found, wanted in zip(best.candidate.ranks, ranks, strict=True):
        assert abs(math.log(found / wanted)) <= math.log(2.0) + 1e-9
    for found, wanted in zip(best.candidate.strengths, strengths, strict=True):
        assert abs(math.log(found / wanted)) <= math.log(3.0)


def test_no_candidate_is_tried_twice_and_all_have_possible_ranks():
    search, _ = walk(bowl((40, 1, 3), (1e4, 1e-2, 10.0)))
    keys = [tried.candidate.key for tried in search.history]
    assert len(keys) == len(set(keys))
    for tried in search.history:
        pairs = zip(tried.candidate.ranks, LENGTHS, strict=True)
        assert all(1 <= rank <= length for rank, length in pairs)


def test_a_path_that_meets_what_was_tried_before_neither_counts_it_nor_starts_from_it():
    error, asked = bowl((5, 5, 3), (2.5, 7.5, 0.75)), []

    def attempts(batch):
        found = []
        for candidate, warm in batch:
            assert warm is None or warm.point
            factors = () if candidate.key in asked else ("kept for what comes next",)
            asked.append(candidate.key)
            found.append(Tried(candidate, error(candidate), 0, 0, 0.0, factors))
        return found

    search = Search(Freedom(LENGTHS), attempts, 200)
    search.run(Candidate.first(LENGTHS, (40.0, 30.0, 3.0), rank=5))
    assert len(asked) > len(set(asked))  # the path with the shares that were found crosses others
    assert [tried.candidate.key for tried in search.history] == list(dict.fromkeys(asked))


def test_every_batch_but_the_first_of_a_path_starts_warm_and_changes_start_from_the_best():
    search, _ = walk(bowl((8, 8, 3), (500.0, 500.0, 5.0)))
    assert all(len({id(warm) for _, warm in batch}) == 1 for batch in search.batches)
    cold = [number for number, batch in enumerate(search.batches) if batch[0][1] is None]
    assert (len(cold), cold[0]) == (2, 0)  # the path, and once more with the shares found
    changes = [one for batch in search.batches[1 : cold[1]] for one in batch]
    errors = [tried.error for tried in search.history]
    # The best known does not get worse from one change to the next.
    starts = [warm.error for candidate, warm in changes if candidate.ranks != (5, 5, 3)]
    assert starts == sorted(starts, reverse=True)
    assert len(starts) > 9
    assert search.best.error == min(errors)


def test_a_path_goes_on_from_what_it_made_itself():
    """Others that were tried at its strengths before may have no factors any more."""
    search, best = walk(bowl((8, 8, 3), (500.0, 500.0, 5.0)))
    again = max(number for number, batch in enumerate(search.batches) if batch[0][1] is None)
    made, repeated = [], []
    for ((candidate, warm),) in search.batches[again:]:
        assert warm is None or warm.candidate.key == made[-1].key
        is_repeated = any(
            candidate.key == other.key for batch in search.batches[:again] for other, _ in batch
        )
        (repeated if is_repeated else made).append(candidate)
    assert best.candidate.key in [candidate.key for candidate in repeated]
    assert made[-1].strengths > best.candidate.strengths


def test_batches_are_single_steps_or_both_directions_of_one_change():
    search, _ = walk(bowl((8, 8, 3), (500.0, 500.0, 5.0)))
    assert {len(batch) for batch in search.batches} == {1, 2}
    for batch in search.batches:
        if len(batch) == 2:
            (one, start), (other, _) = batch
            assert len({one.key, other.key, start.candidate.key}) == 3
            pairs = zip((*one.ranks, *one.strengths), (*other.ranks, *other.strengths), strict=True)
            assert sum(a != b for a, b in pairs) in (1, len(LENGTHS))


def test_what_is_fixed_stays_as_it_is():
    free = Freedom(LENGTHS, ranks=False)
    search, _ = walk(bowl((40, 30, 3), (50.0, 5.0, 5.0)), free)
    assert {tried.candidate.ranks for tried in search.history} == {(5, 5, 3)}
    free = Freedom(LENGTHS, strength=False, shares=False)
    search, _ = walk(bowl((40, 30, 3), (50.0, 5.0, 5.0)), free)
    assert {tried.candidate.strengths for tried in search.history} == {(1.0, 0.75, 0.075)}
    free = Freedom(LENGTHS, shares=False)
    search, _ = walk(bowl((40, 30, 3), (50.0, 5.0, 5.0)), free)
    for tried in search.history:
        one, other, last = tried.candidate.strengths
        assert one / other == pytest.approx(4 / 3)
        assert one / last == pytest.approx(40 / 3)


def test_a_path_that_is_flat_at_first_is_followed_until_something_is_fitted():
    def error(candidate):
        return 1.0 if candidate.strengths[0] < 1e4 else 0.5

    _, best = walk(error, Freedom(LENGTHS, ranks=False, shares=False))
    assert best.error == 0.5


def test_small_gains_are_not_worth_a_change():
    search, best = walk(lambda candidate: 1.0 - 1e-4 * sum(candidate.ranks))
    # All ranks up once, and each by itself: none of it is gone on with.
    assert max(sum(tried.candidate.ranks) for tried in search.history) < 45
    assert sum(best.candidate.ranks) < 45


def test_candidates_without_room_are_passed_over():
    _, best = walk(
        bowl((40, 30, 3), (100.0, 75.0, 7.5)), refuse=lambda candidate: candidate.ranks[0] > 10
    )
    assert best.candidate.ranks[0] <= 10
    assert best.candidate.ranks[1] > 20


def test_a_search_ends_at_its_limit():
    search, _ = walk(bowl((40, 30, 3), (1e9, 1e9, 1e9)), most_trials=7)
    assert len(search.history) == 7


def test_all_changes_together_take_a_few_times_the_effort_of_the_path():
    search, _ = walk(bowl((40, 30, 3), (1e4, 1e-4, 1e4)), sweeps=10)
    efforts = [tried.effort for tried in search.history]
    path = [e for e, tried in zip(efforts, search.history, strict=True)
            if tried.candidate.ranks == (5, 5, 3)]  # fmt: skip
    assert efforts[0] == 10 * 13
    assert sum(efforts) <= 7 * sum(path) + max(efforts)
