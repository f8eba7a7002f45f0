"""Minimisation of g over a product of spectrahedra: geometry, methods, loop.

Knows numpy and a Problem protocol; nothing of observations, workers or files.
"""

from slrt_dask.optim.checks import check_gradient, check_hessian
from slrt_dask.optim.loop import Method, Outcome, minimise
from slrt_dask.optim.manifold import Point, SpectrahedronProduct
from slrt_dask.optim.methods import ConjugateGradient, LimitedMemory, TrustRegion
from slrt_dask.optim.problem import Accuracy, Problem
from slrt_dask.optim.records import IterationRecord, MethodState, Observer
from slrt_dask.optim.stopping import Patience, StopReason, StopRules

__all__ = [
    "Accuracy",
    "ConjugateGradient",
    "IterationRecord",
    "LimitedMemory",
    "Method",
    "MethodState",
    "Observer",
    "Outcome",
    "Patience",
    "Point",
    "Problem",
    "SpectrahedronProduct",
    "StopReason",
    "StopRules",
    "TrustRegion",
    "check_gradient",
    "check_hessian",
    "minimise",
]
