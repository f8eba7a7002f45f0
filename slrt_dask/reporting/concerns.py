"""What the reader of a page should be warned of, each in a sentence or two."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from slrt_dask.engine.plan import RUNTIME_BYTES, readable
from slrt_dask.optim.stopping import StopReason
from slrt_dask.reporting.facts import DRAWN, Facts, Standing
from slrt_dask.reporting.wording import counted, percent, plain

CONVERGED = (StopReason.GAP, StopReason.GRADIENT, StopReason.CHOSEN)
RISEN, SURELY = 0.05, 3.0
"""By what part of itself the lowest error on held-out observations has to have risen to be worth a
word, and by how many of its standard errors."""


def concerns(facts: Facts) -> tuple[str, ...]:
    """Sentences; none where all is well."""
    return tuple(sentence for found in LOOKED_FOR for sentence in found(facts))


def _unfinished(facts: Facts) -> Iterator[str]:
    if facts.standing is Standing.UNDER_WAY:
        yield "The run is under way: this page shows it as it was when the page was made."
    elif facts.standing is Standing.STOPPED:
        reached = (
            f"after iteration {facts.iterations}" if facts.records else "before its first iteration"
        )
        yield (
            f"The run did not end by itself: it was stopped {reached}. "
            f"slrt-dask resume {facts.path} goes on from its newest checkpoint."
        )


def _not_converged(facts: Facts) -> Iterator[str]:
    reason = facts.stop_reason
    if reason is not None and reason not in CONVERGED:
        on = (
            ""
            if reason is not StopReason.INTERRUPTED
            else f" slrt-dask resume {facts.path} goes on."
        )
        yield f"The fit did not converge. {reason.value}{on}"


def _open_gap(facts: Facts) -> Iterator[str]:
    certificate, settings = facts.certificate, facts.settings
    if certificate is None or settings is None or facts.standing is not Standing.ENDED:
        return
    if certificate.relative_gap <= settings.gap_tolerance:
        return
    gap, asked = percent(certificate.relative_gap), percent(settings.gap_tolerance)
    if facts.stop_reason is StopReason.CHOSEN:
        yield (
            f"The gap of {gap} is open by choice: the factors are those that predicted held-out "
            f"observations best, not those of the optimum."
        )
    else:
        yield (
            f"The gap is open: {gap}, where {asked} was asked for. Either the fit was stopped "
            f"early, or its ranks are too small for the optimum of the convex problem."
        )


def _inner_limits(facts: Facts) -> Iterator[str]:
    capped = sum(not record.inner_converged for record in facts.records)
    if capped:
        yield (
            f"In {counted(capped, 'iteration')} of {len(facts.records):,} an inner solve ended at "
            f"its limit, before its tolerance. The certificate holds all the same."
        )


def _observations_gone(facts: Facts) -> Iterator[str]:
    if facts.store is None:
        yield f"The observations are not shown: {facts.missing}."


def _outside_bounds(facts: Facts) -> Iterator[str]:
    if facts.observed is not None and facts.store is not None and facts.observed.outside:
        part = percent(facts.observed.outside / facts.store.nnz)
        yield (
            f"{counted(facts.observed.outside, 'observation')} ({part}) "
            f"{'lies' if facts.observed.outside == 1 else 'lie'} outside the bounds of the fit, "
            f"which hold for the answer: there it cannot follow them."
        )


def _missed_constraints(facts: Facts) -> Iterator[str]:
    certificate, observed = facts.certificate, facts.observed
    if certificate is None or observed is None or facts.model.constraints.hankel is not None:
        return
    spread = observed.highest - observed.lowest
    if certificate.violation > 1e-4 * spread > 0.0:
        yield (
            f"Constraints are missed by up to {plain(certificate.violation)}, where observed "
            f"values span {plain(spread)}. Exporting with --enforce makes them hold."
        )


def _rests_on_nothing(facts: Facts) -> Iterator[str]:
    what = f"the {facts.center_name}" if facts.model.offset else "0"
    if facts.model.has_effects:
        what = "the offset of their modes"
    # With a constraint, what nothing was observed about may be predicted as something else.
    constraints = facts.model.constraints
    is_free = constraints.bounds is None and not constraints.linear
    end = "" if not is_free else f" They are predicted as {what}."
    if facts.unseen:
        yield (
            f"About {percent(facts.unseen / DRAWN)} of the predictions rest on no observation: "
            f"of {DRAWN:,} entries drawn at random, {facts.unseen:,} have none on any of their "
            f"fibres, or none in a whole slice of theirs.{end}"
        )
    if facts.observed is not None and constraints.hankel is None:
        for mode, empty in enumerate(facts.observed.empty):
            if empty:
                length = facts.store.shape[mode] if facts.store else 0
                yield (
                    f"{empty:,} of the {length:,} slices of {facts.mode_name(mode)} have no "
                    f"observation: low rank alone knows nothing of them."
                )


def _overfitting(facts: Facts) -> Iterator[str]:
    errors = [
        (record.validation_rmse, record.iteration)
        for record in facts.records
        if record.validation_rmse is not None
    ]
    if not errors:
        return
    lowest, at = min(errors)
    # The standard error of the root mean square of so many errors, relative to it.
    spread = 1.0 / math.sqrt(2.0 * facts.held_out) if facts.held_out else 0.0
    if errors[-1][0] > (1.0 + max(RISEN, SURELY * spread)) * lowest:
        yield (
            f"Held-out observations were predicted best at iteration {at} "
            f"({facts.error_name} {plain(lowest)}), and clearly less well since (now "
            f"{plain(errors[-1][0])}). With --patience 5 (patience=5) a fit ends at its best "
            f"iteration; and ranks and C that are left out are searched for."
        )


def _memory(facts: Facts) -> Iterator[str]:
    if facts.usage is None:
        return
    for use in facts.usage.places:
        # What a process held before the fit, such as data of its own, is not the fit's.
        others = max(use.before - RUNTIME_BYTES, 0)
        if use.peak > use.planned + others:
            yield (
                f"{use.place[0].upper()}{use.place[1:]} took more memory than planned: "
                f"{readable(use.peak)} of {readable(use.planned)}."
            )


LOOKED_FOR: tuple[Callable[[Facts], Iterator[str]], ...] = (
    _unfinished,
    _not_converged,
    _open_gap,
    _inner_limits,
    _missed_constraints,
    _outside_bounds,
    _rests_on_nothing,
    _overfitting,
    _memory,
    _observations_gone,
)
