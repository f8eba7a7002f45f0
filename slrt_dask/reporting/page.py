"""The page: a headline, the numbers that matter most, warnings, and a section for each question."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from importlib import resources

from slrt_dask.data.html import Markup, joined, tag
from slrt_dask.optim.stopping import StopReason
from slrt_dask.reporting.concerns import concerns
from slrt_dask.reporting.effort import (
    events_section,
    places_section,
    software_section,
    sweeps_made,
    time_section,
    time_taken,
)
from slrt_dask.reporting.facts import Facts, Standing
from slrt_dask.reporting.markup import number
from slrt_dask.reporting.outcome import answer_section, certificate_section, convergence_section
from slrt_dask.reporting.problem import settings_section, solved_section
from slrt_dask.reporting.wording import counted, duration, lengths, percent, plain

SECTIONS = (
    ("What was solved", solved_section),
    ("The certificate", certificate_section),
    ("The answer", answer_section),
    ("Convergence", convergence_section),
    ("Time", time_section),
    ("Workers and memory", places_section),
    ("Events", events_section),
    ("Settings", settings_section),
    ("Software", software_section),
)
# Nothing is ever fetched, and nothing is run.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page_of(facts: Facts, made: datetime) -> str:
    """The whole page; made : when that was"""
    title = headline(facts)
    *sections, settings, software = [
        tag(
            "section",
            tag("h2", name, id=_anchor(name)),
            section(facts),
            aria_labelledby=_anchor(name),
        )
        for name, section in SECTIONS
    ]
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            Markup('<link rel="icon" href="data:,">'),
            tag("title", title),
            tag("style", Markup(_style())),
        ]
    )
    body = joined(
        [
            tag("header", tag("h1", title), _subtitle(facts), _tiles(facts), _concerns(facts)),
            tag("main", *sections, tag("div", settings, software, class_="pair")),
            tag("footer", f"Made by slrt-dask report on {made:%Y-%m-%d at %H:%M %Z}".strip() + "."),
        ]
    )
    content = tag("head", head) + "\n" + tag("body", body)
    return f'<!DOCTYPE html>\n<html lang="en">\n{content}\n</html>\n'


def headline(facts: Facts) -> str:
    """The run in a sentence."""
    what = "A tensor" if facts.shape is None else _described(facts.shape)
    density = "" if facts.density is None else f" from {percent(facts.density)} of its entries"
    gap = "" if facts.certificate is None else percent(facts.certificate.relative_gap)
    error = facts.held_out_error
    if facts.stop_reason is StopReason.CHOSEN and error is not None:
        return (
            f"{what}, completed{density}: the {facts.error_name} on held-out ones is {plain(error)}"
        )
    if facts.standing is Standing.ENDED:
        return f"{what}, completed{density}: the optimum is at most {gap} lower"
    doing = "being completed" if facts.standing is Standing.UNDER_WAY else "not yet completed"
    reached = f": at iteration {facts.certified_at} the optimum is at most {gap} lower"
    return f"{what}, {doing}{density}{reached if gap else ''}"


def _described(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"A series of {shape[0]:,} samples"
    return f"A {'matrix' if len(shape) == 2 else 'tensor'} of {lengths(shape)}"


def _subtitle(facts: Facts) -> Markup:
    kind = "standing" if facts.standing is Standing.ENDED else "standing open"
    return tag(
        "p", tag("span", facts.standing.value, class_=kind), tag("span", facts.path, class_="path"),
        class_="soft",
    )  # fmt: skip


def _tiles(facts: Facts) -> Markup:
    tiles = [
        tag("div", tag("dt", name), tag("dd", value, tag("small", note) if note else ""))
        for name, value, note in _most_important(facts)
    ]
    return tag("dl", *tiles, class_="tiles")


def _most_important(facts: Facts) -> Iterator[tuple[str, object, str]]:
    if facts.certificate is not None:
        yield "certified gap", percent(facts.certificate.relative_gap), "of the objective"
    error = facts.held_out_error
    if error is not None:
        shown = number(error, plain(error), "validation_rmse")
        yield f"held-out {facts.error_name}", shown, "at the last look"
    if facts.store is not None and facts.density is not None:
        yield "observed", percent(facts.density), counted(facts.store.nnz, "entry")
    if facts.ranks is not None:
        yield "ranks", lengths(facts.ranks), "grown" if _have_grown(facts) else ""
    done = number(facts.iterations, f"{facts.iterations:,}", "iterations")
    yield "iterations", done, sweeps_made(facts)
    if facts.seconds is not None:
        yield "time", time_taken(facts), _time_note(facts)
    elif facts.records:
        yield "time", duration(facts.records[-1].seconds), "of its iterations"


def _time_note(facts: Facts) -> str:
    if facts.search is None:
        return "with loading and writing"
    return f"{duration(facts.search.took)} of it for the search"


def _have_grown(facts: Facts) -> bool:
    return facts.settings is not None and facts.settings.certified


def _concerns(facts: Facts) -> Markup:
    found = concerns(facts)
    if not found:
        return Markup("")
    items = tag("ul", *(tag("li", sentence) for sentence in found))
    return tag("div", tag("h2", "To be aware of"), items, class_="concerns", role="note")


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _style() -> str:
    return resources.files("slrt_dask.reporting").joinpath("page.css").read_text(encoding="utf-8")
