"""Workers that offer each other pieces of problems so small that these would not be worth it."""

from __future__ import annotations

import time

from slrt_dask.dual import layout, offer_memory
from slrt_dask.dual.iteration import SharedIteration
from slrt_dask.dual.offers import Offer
from slrt_dask.kernels import crossing, local
from tests.waiting import PATIENCE

FOLLOW, FETCH = SharedIteration.follow, Offer.fetch


def offer_small_pieces(dask_worker=None):
    """Have this process offer small pieces, and note how many of them others do in each round."""
    layout.PIECE_ENTRIES, offer_memory.FEWEST, offer_memory.OFFERED_PART = 2, 1, 2
    # Or several threads could not share such small problems.
    crossing.SHORTEST = 0
    crossing.strip_borders.cache_clear()
    if dask_worker is None:
        return
    noted = dask_worker.slrt_done_by_others = []

    def fetch(self, energies):
        noted.append(int(self.away.sum()))
        return FETCH(self, energies)

    Offer.fetch = fetch


def leave_all_to_others(dask_worker=None):
    """Have this process begin with its pieces only when others have done all that it offers.

    Not in the first round of a solve, in which others may not have heard of the offer.
    """

    def patient(self, thread):
        own = self._mutual.own
        if own is not None and self._round > 1:
            if thread == self._opener:
                own.open(self._round)
            pieces, until = len(own.away), time.monotonic() + PATIENCE
            while own.laid.claims[local.FIRST_CLAIM + pieces :, 0].sum() < pieces:
                assert time.monotonic() < until, "nobody has helped"
                time.sleep(0.0005)
        FOLLOW(self, thread)

    SharedIteration.follow = patient


def offer_nothing(dask_worker=None):
    """What is on its way is not offered any more; new problems are not offered at all."""
    offer_memory.FEWEST = 10**9
    SharedIteration.follow, Offer.fetch = FOLLOW, FETCH


def done_by_others(dask_worker=None):
    """How many pieces others have done here, by round."""
    return list(dask_worker.slrt_done_by_others)
