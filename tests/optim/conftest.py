"""What the tests of the optimisers share: small problems of every order, and all methods."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.optim import ConjugateGradient, LimitedMemory, TrustRegion

SHAPES = {2: (8, 7), 3: (6, 5, 4), 4: (4, 4, 3, 3)}


@pytest.fixture(params=[2, 3, 4], ids=lambda order: f"order{order}")
def shape(request):
    return SHAPES[request.param]


METHODS = {"lbfgs": LimitedMemory(), "rcg": ConjugateGradient(), "rtr": TrustRegion()}


@pytest.fixture(params=METHODS.values(), ids=METHODS.keys())
def method(request):
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(20)
