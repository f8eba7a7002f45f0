"""The mathematical problem that settings pose, for observations that an engine holds."""

from __future__ import annotations

import math

import numpy as np

from slrt_dask.combining import constraints_of
from slrt_dask.config import FitSettings
from slrt_dask.constraints import Bounds
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.coupling import LinearRows, RowStore
from slrt_dask.dual.entries import BoundVectors
from slrt_dask.dual.hankel.embedded import EmbeddedStore
from slrt_dask.dual.hankel.embedding import Embedding
from slrt_dask.dual.hankel.observed import Box
from slrt_dask.dual.hankel.problem import HankelProblem
from slrt_dask.dual.multipliers import Constrained
from slrt_dask.dual.problem import MOST_INNER_ITERATIONS, DualProblem
from slrt_dask.dual.working_set import Places
from slrt_dask.engine.base import Engine
from slrt_dask.errors import NotYetAvailable
from slrt_dask.linear import Linear

MOST_PARTS, PART_ENTRIES = 256, 2**19
"""Into how many runs the offsets of an embedding are cut at most, and how large these are."""
BOUND_TOLERANCE = 1e-8
"""By how much of the data's size an entry may miss its bound unseen."""


AnyProblem = DualProblem | HankelProblem


def problem_of(
    engine: Engine,
    settings: FitSettings,
    offset: float,
    most_extra: int | None = None,
    max_inner_iterations: int = MOST_INNER_ITERATIONS,
) -> AnyProblem:
    """The problem, with or without constraints.

    offset : the number subtracted from the observations; bounds move with it
    most_extra : entries beside the observed ones that there is room for
    """
    if isinstance(engine.store, EmbeddedStore):
        return _hankel_problem(engine, engine.store, settings, offset)
    weights = weights_of(settings, engine.store.shape)
    # Blocks have weights in units of their mean.
    cost_weight = settings.C * engine.store.mean_weight
    certificate_rtol = _certificate_rtol(settings)
    constraints = constraints_of(settings.constraint)
    constrained = None
    if constraints:
        bounds = constraints.bounds
        constrained = Constrained(
            bound_vectors(bounds, engine.store.shape, offset, cost_weight),
            None if bounds is None else places_of(bounds),
            bounds is not None and bounds.everywhere,
            _linear_rows(constraints.linear, offset),
            BOUND_TOLERANCE,
            most_extra,
        )
    return DualProblem(
        engine,
        first_ranks(settings),
        cost_weight=cost_weight,
        weighted=engine.store.weighted,
        weights=weights,
        delta=math.inf if settings.huber is None else settings.huber,
        constrained=constrained,
        alternating=settings.inner == "alternating",
        certificate_rtol=certificate_rtol,
        max_inner_iterations=max_inner_iterations,
    )


def weights_of(settings: FitSettings, shape: tuple[int, ...]) -> tuple[float, ...]:
    """λ as given, or else the lengths of the modes, or of their windows."""
    lengths = shape if settings.tau is None else Embedding(shape, settings.tau).window
    return settings.lambdas or tuple(float(length) for length in lengths)


def first_ranks(settings: FitSettings) -> tuple[int, ...]:
    """The ranks that a fit begins with."""
    return (1,) * len(settings.ranks) if settings.certified else settings.ranks


def embedded(store: ObservationStore, settings: FitSettings) -> ObservationStore:
    """The store as an engine has to hold it: through its embedding, where there is one."""
    if settings.tau is None:
        return store
    if store.weighted:
        raise NotYetAvailable(
            f"{store.path} has weights, which Hankel fits do not take yet; make a store without "
            "them, or fit without the Hankel structure"
        )
    embedding = Embedding(store.shape, settings.tau)
    # Whatever the workers are: checkpoints are written by partition, and read by other workers.
    parts = min(MOST_PARTS, 1 + embedding.offsets * math.prod(embedding.window) // PART_ENTRIES)
    return EmbeddedStore(store.path, store.header, settings.tau, parts)


def _hankel_problem(
    engine: Engine, store: EmbeddedStore, settings: FitSettings, offset: float
) -> HankelProblem:
    constraints = constraints_of(settings.constraint)
    hankel = constraints.hankel
    assert hankel is not None
    weights = weights_of(settings, store.shape)
    *stages, last = hankel.stages(weights)
    return HankelProblem(
        engine,
        first_ranks(settings),
        cost_weight=settings.C,
        weights=weights,
        deviation=last,
        stages=tuple(stages),
        offset=offset,
        box=None if constraints.bounds is None else box_of(constraints.bounds, store.shape),
        certificate_rtol=_certificate_rtol(settings),
    )


def box_of(constraint: Bounds, shape: tuple[int, ...]) -> Box:
    """Bounds as the Hankel problem takes them."""
    mode, lower, upper = constraint.vectors(shape)
    store = constraint.open_where()
    sides = tuple(lower.tolist()), tuple(upper.tolist())
    return Box(mode, *sides, constraint.where, "" if store is None else store.digest)


def _certificate_rtol(settings: FitSettings) -> float:
    return min(1e-3, max(0.1 * settings.gap_tolerance, 1e-10))


def _linear_rows(constraints: tuple[Linear, ...], offset: float) -> LinearRows | None:
    if not constraints:
        return None
    stores, first = [], 0
    for constraint in constraints:
        stores.append(RowStore(constraint.store, first))
        first += constraint.count
    lower, upper = zip(*(constraint.limits() for constraint in constraints), strict=True)
    return LinearRows(tuple(stores), np.concatenate(lower), np.concatenate(upper), offset)


def bound_vectors(
    constraint: Bounds | None, shape: tuple[int, ...], offset: float, cost_weight: float
) -> BoundVectors:
    if constraint is None:
        mode, lower, upper = 0, np.full(shape[0], -np.inf), np.full(shape[0], np.inf)
    else:
        mode, lower, upper = constraint.vectors(shape)
    # With this penalty a bound is about as stiff as an observation.
    return BoundVectors(mode, lower - offset, upper - offset, penalty=0.5 / cost_weight)


def places_of(constraint: Bounds) -> Places | None:
    """Where a constraint holds, if that is neither everywhere nor where there are observations."""
    if constraint.where_store is not None:
        return Places(store=constraint.where_store)
    array = constraint.where_places
    return None if array is None else Places(array=np.ascontiguousarray(array))
