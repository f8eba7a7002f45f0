"""What was asked: the tensor and its observations, the problem as a formula, and the settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from slrt_dask.constraints import Bounds
from slrt_dask.curves import search_chart
from slrt_dask.data.html import Markup, joined, tag
from slrt_dask.reporting.facts import Facts, taken
from slrt_dask.reporting.markup import facts_table, folded, number, table
from slrt_dask.reporting.wording import counted, duration, lengths, listed, percent, plain
from slrt_dask.runs import Start

SIGNS = {">=": "≥", "<=": "≤", "==": "="}
PENALTY = Markup("Σ<sub>k</sub> 1/(2λ<sub>k</sub>) ‖unfold<sub>k</sub>({})‖<sub>*</sub>²")
MISFIT = Markup("C ‖W<sub>Ω</sub> − Y<sub>Ω</sub>‖²")
ROBUST = Markup("C Σ<sub>Ω</sub> h(W − Y)")


def solved_section(facts: Facts) -> Markup:
    """The tensor, and the formula."""
    return joined(
        [
            tag("p", _formula(facts), class_="formula"),
            tag("p", _explained(facts), class_="soft"),
            facts_table("What was solved", _tensor_rows(facts)),
        ]
    )


def _formula(facts: Facts) -> Markup:
    hankel = facts.model.constraints.hankel
    if hankel is None:
        misfit = MISFIT if facts.model.huber is None else ROBUST
        parts = [misfit, Markup(" + "), Markup(PENALTY.format("W<sup>k</sup>"))]
        conditions = [Markup("W = W<sup>1</sup> + … + W<sup>K</sup>")]
        if facts.shape is not None:
            terms = " + ".join(f"W<sup>{k + 1}</sup>" for k in range(len(facts.shape)))
            conditions = [Markup(f"W = {terms}")]
    else:
        miss = Markup(" + 1/(2δ) ‖H(W) − Σ<sub>k</sub> V<sup>k</sup>‖²")
        exact = facts.model.deviation == 0.0
        parts = [MISFIT, Markup("") if exact else miss, Markup(" + ")]
        parts.append(Markup(PENALTY.format("V<sup>k</sup>")))
        conditions = [Markup("Σ<sub>k</sub> V<sup>k</sup> = H(W)")] if exact else []
    conditions += [Markup(tag("span", line)) for line in _conditions(facts)]
    subject = joined(conditions, ",&ensp; ")
    lines = [tag("span", Markup("minimise&ensp; "), *parts, class_="line")]
    if conditions:
        lines.append(tag("span", Markup("subject to&ensp; "), subject, class_="line"))
    return joined(lines)


def _explained(facts: Facts) -> str:
    shared = (
        "Y are the observed values, Ω where they are, W is the answer, and ‖·‖* the nuclear norm, "
        "which favours low rank"
    )
    if facts.model.constraints.hankel is None:
        text = f"{shared}: each part Wᵏ in the unfolding of its own mode."
        if facts.model.huber is None:
            return text
        return (
            f"{text} h is Huber's loss: h(t) = t² where |t| ≤ δ, and 2δ|t| − δ² beyond, so that an "
            f"absurd observation pulls no harder than one that is missed by δ. Errors on held-out "
            f"observations are the root of its mean."
        )
    return f"{shared}: here of the windows of W, of which H(W) is made, in parts Vᵏ."


def _conditions(facts: Facts) -> Iterator[str]:
    """Constraints as they stand in the formula."""
    constraints = facts.model.constraints
    if constraints.bounds is not None:
        yield _bounds(constraints.bounds, facts)
    for linear in constraints.linear:
        yield f"A(W) {SIGNS[linear.kind]} b"


def _bounds(bounds: Bounds, facts: Facts) -> str:
    names = []
    for side, symbol in ((bounds.lower, "l"), (bounds.upper, "u")):
        names.append("" if side is None else plain(side) if isinstance(side, float) else symbol)
    low, high = names
    return f"{low} ≤ W ≤ {high}" if low and high else f"W ≥ {low}" if low else f"W ≤ {high}"


def constraint_words(facts: Facts) -> str:
    """The constraints in words."""
    constraints, words = facts.model.constraints, []
    bounds, hankel = constraints.bounds, constraints.hankel
    if bounds is not None:
        along = "" if bounds.mode is None else f", along {facts.mode_name(bounds.mode)}"
        words.append(f"{_bounds(bounds, facts)} {_where(bounds)}{along}")
    if hankel is not None:
        offsets = lengths(hankel.tau)
        price = "" if facts.model.deviation is None else f", δ = {plain(facts.model.deviation)}"
        words.append(f"Hankel structure with {offsets} offsets{price}")
    words += [
        f"linear rows A(W) {SIGNS[linear.kind]} b, from {linear.A}" for linear in constraints.linear
    ]
    return "; ".join(words) or "none"


def _where(bounds: Bounds) -> str:
    if bounds.everywhere:
        return "at every entry"
    if bounds.where == "observed":
        return "at observed entries"
    if bounds.where_store is not None:
        return f"where {bounds.where_store} has entries"
    places = bounds.where_places
    return f"at {counted(0 if places is None else places.shape[1], 'entry')}"


def _tensor_rows(facts: Facts) -> Iterator[tuple[object, object]]:
    if facts.shape is not None:
        named = "" if facts.names is None else f" ({' × '.join(facts.names)})"
        kind = (
            "series" if len(facts.shape) == 1 else "matrix" if len(facts.shape) == 2 else "tensor"
        )
        yield kind, f"{lengths(facts.shape)}{named}"
    store, model = facts.store, facts.model
    if store is not None and facts.density is not None:
        yield "observations", joined(
            [
                number(store.nnz, f"{store.nnz:,}", "observations"), ", which is ",
                number(facts.density, percent(facts.density), "density"), " of the entries",
            ]
        )  # fmt: skip
        if facts.observed is not None:
            span = f"{plain(facts.observed.lowest)} to {plain(facts.observed.highest)}"
            yield "values", f"{span}, mean {plain(store.mean)}, {store.dtype}"
        where = f"{store.path}, {counted(len(store.partitions), 'partition')}"
        yield "store", f"{where} along {facts.mode_name(store.slab_mode)}"
    yield "constraint", constraint_words(facts)
    if model.huber is not None:
        yield "loss", joined(["Huber's, δ = ", number(model.huber, plain(model.huber), "huber")])
    yield "C", number(model.C, plain(model.C), "C")
    if model.lambdas is not None:
        yield "λ", listed(model.lambdas)
    if model.has_effects:
        offset = "" if model.offset is None else f" {plain(model.offset)}"
        what = f"the {facts.center_name}{offset} and an offset per index of every mode"
        yield "centred", f"{what} were subtracted, and are added to answers"
    elif model.offset:
        what = f"the {facts.center_name} {plain(model.offset)}"
        yield "centred", f"{what} was subtracted, and is added to answers"
    if facts.ranks is not None:
        yield "ranks", tag("data", lengths(facts.ranks), value=facts.ranks, data_name="ranks")


# ---- settings --------------------------------------------------------------------------------


def settings_section(facts: Facts) -> Markup:
    """What was given, and what was searched for."""
    parts: list[object] = []
    if facts.search is not None:
        parts.append(_search(facts.search, facts.error_name))
    if facts.settings is None:
        parts.append(tag("p", "The settings were not kept: the fit had no run directory."))
    else:
        rows = [
            (field.name.replace("_", " "), _shown(getattr(facts.settings, field.name)))
            for field in fields(facts.settings)
            if field.name not in ("constraint", "chosen", "certified", "ranks")
        ]
        label = "largest ranks allowed" if facts.settings.certified else "ranks"
        parts.append(
            facts_table("Settings", [(label, listed(facts.settings.ranks)), *rows, *_kind(facts)])
        )
    return joined(parts)


def _kind(facts: Facts) -> Iterator[tuple[str, str]]:
    settings = facts.settings
    if settings is not None and settings.certified:
        yield "ranks were", "grown until the certified gap closes"
    if settings is not None and settings.chosen:
        yield "factors were", "chosen on held-out observations"


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return listed(value)
    return plain(value) if isinstance(value, (int, float)) else str(value)


def _search(search: Start, error_name: str) -> Markup:
    """What was tried, and what was best."""
    curves, drawing = search_chart([float(row["error"]) for row in search.tried])
    caption = joined([f"{error_name} on held-out observations ", curves])
    tried = counted(len(search.tried), "setting")
    sentence = search.chosen[:1].upper() + search.chosen[1:] + "."
    return joined(
        [
            tag("p", f"{sentence} The search took {duration(search.took)}."),
            tag(
                "div", tag("figure", tag("figcaption", caption), drawing, class_="plot"),
                class_="charts",
            ),
            folded(f"All {tried} tried", _tried(search, error_name)),
        ]
    )  # fmt: skip


def _tried(search: Start, error_name: str) -> Markup:
    best = min(taken(search.tried), key=lambda row: float(row["error"]))
    words = {"mean": "the mean", "modes": "offsets per mode"}
    some_centred = any("center" in row for row in search.tried)
    rows = [
        (
            f"{place:,}{' (best)' if row is best else ''}",
            lengths(tuple(row["ranks"])),
            listed(tuple(row["strengths"])),
            number(row["error"], plain(row["error"])),
            f"{row['iterations']:,}",
            duration(row["seconds"]),
            *([words[row["center"]]] if some_centred else []),
        )
        for place, row in enumerate(search.tried, start=1)
    ]
    more = ("subtracted",) if some_centred else ()
    headers = ("setting", "ranks", "C·λ", error_name, "iterations", "time", *more)
    return table("Settings tried", headers, rows, numeric=(3, 4, 5))
