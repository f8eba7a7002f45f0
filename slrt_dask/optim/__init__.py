"""Minimisation of g over a product of spectrahedra: geometry, methods, loop.

Knows numpy and a Problem protocol; nothing of observations, workers or files.
"""

from slrt_dask.optim.accuracy import Accuracy
from slrt_dask.optim.checks import check_gradient, check_hessian
from slrt_dask.optim.lbfgs import LimitedMemory, LimitedMemoryState
from slrt_dask.optim.line_search import LineSearch
from slrt_dask.optim.loop import Outcome, minimise
from slrt_dask.optim.manifold import Point, SpectrahedronProduct
from slrt_dask.optim.method import Method, MethodState
from slrt_dask.optim.problem import Certificate, Evaluation, InnerReport, Problem
from slrt_dask.optim.radius import RadiusPolicy
from slrt_dask.optim.rcg import ConjugateGradient, ConjugateGradientState
from slrt_dask.optim.records import IterationRecord, Observer
from slrt_dask.optim.rtr import TrustRegion, TrustRegionState
from slrt_dask.optim.stopping import StopReason, StopRules

__all__ = [
    "Accuracy",
    "Certificate",
    "ConjugateGradient",
    "ConjugateGradientState",
    "Evaluation",
    "InnerReport",
    "IterationRecord",
    "LimitedMemory",
    "LimitedMemoryState",
    "LineSearch",
    "Method",
    "MethodState",
    "Observer",
    "Outcome",
    "Point",
    "Problem",
    "RadiusPolicy",
    "SpectrahedronProduct",
    "StopReason",
    "StopRules",
    "TrustRegion",
    "TrustRegionState",
    "check_gradient",
    "check_hessian",
    "minimise",
]
