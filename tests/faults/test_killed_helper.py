"""Workers that die while they do pieces of each other's rounds do not change the answer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from distributed.diagnostics.plugin import WorkerPlugin

import slrt_dask as slrt
from slrt_dask.dual.offers import Offer, Received
from slrt_dask.engine.watch import known_workers
from slrt_dask.kernels import local
from tests.engine.small_offers import offer_small_pieces
from tests.faults.conftest import OPTIONS, RANKS, events_of
from tests.faults.killing import die

MOMENTS = ("with a piece in hand", "before it opens its offer", "when its offer is open")


class DiesHelping(WorkerPlugin):
    """Has its worker offer small pieces, and die at the n-th such moment; only one worker does.

    mark : a file that is made by the one that dies
    """

    def __init__(self, moment, number, mark):
        self.moment, self.number, self.mark = moment, number, str(mark)

    def setup(self, worker):
        offer_small_pieces()
        count = itertools.count()

        def come():
            if next(count) == self.number:
                try:
                    open(self.mark, "x").close()
                except FileExistsError:
                    return False
                return True
            return False

        take, opened = Received.take, Offer.open

        def taken(received, *rest):
            if self.moment == MOMENTS[0] and come():
                claims = received._laid.claims
                claims[local.FIRST_CLAIM : local.FIRST_CLAIM + len(received._laid.pieces)] += 1
                die()
            return take(received, *rest)

        def open_(offer, opening):
            if self.moment == MOMENTS[1] and come():
                die()
            opened(offer, opening)
            if self.moment == MOMENTS[2] and come():
                die()

        Received.take, Offer.open = taken, open_


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_worker_that_dies_leaves_the_answer_unchanged(
    moment, seed, store, client, assert_same_answer, tmp_path
):
    number = int(np.random.default_rng([seed, MOMENTS.index(moment)]).integers(1, 6))
    client.register_plugin(DiesHelping(moment, number, tmp_path / "died"), name="dies")
    done = slrt.complete(store, RANKS, **OPTIONS, client=client, run_directory=tmp_path / "run")
    assert (tmp_path / "died").exists()
    assert len(known_workers(client)) == 1
    assert_same_answer(done)
    assert any("began again" in event for event in events_of(done))
