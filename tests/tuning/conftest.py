"""Searches that stay among ranks for which other tests have kernels compiled already."""

from __future__ import annotations

import pytest

from slrt_dask.tuning import candidate, tuning


@pytest.fixture(scope="module", autouse=True)
def few_ranks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate, "LADDER", (1, 2, 3, 5))
        patch.setattr(tuning, "FIRST_RANKS", (5,))
        yield
