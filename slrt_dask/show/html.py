"""What notebooks show, and the templates that all HTML is made of.

Fragments for notebooks are plain HTML that is XML too: no scripts, no style sheets, any colours.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from slrt_dask.data.libraries import load
from slrt_dask.errors import MissingDependency
from slrt_dask.losses import error_name
from slrt_dask.show import figures, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from slrt_dask.completion import Completion
    from slrt_dask.data.store import ObservationStore
    from slrt_dask.engine.plan import Plan
    from slrt_dask.optim.records import IterationRecord
    from slrt_dask.tuning.search import Tried
    from slrt_dask.tuning.tuning import Tuning

CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""What XML has no place for, escaped or not."""
MOST_TRIALS = MOST_WORKERS = 12


def render(template: str, **values: Any) -> str:
    """A template with values, which are escaped."""
    return str(_environment().get_template(f"{template}.html.j2").render(**values)).lstrip()


@functools.cache
def _environment() -> Any:
    from slrt_dask.spending import readable

    jinja2 = load("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("slrt_dask.show"), autoescape=True, finalize=_printable,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    formats = (
        *(text.plain, text.percent, text.duration, text.lengths, text.listed),
        *(text.counted, text.label, readable),
    )
    environment.filters |= {one.__name__: one for one in formats}
    environment.filters["error_name"] = error_name
    return environment


def _printable(value: Any) -> Any:
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", value) if is_text else value


def image(draw: Callable[[], Figure]) -> str:
    """The address of a chart; empty where matplotlib is not installed."""
    try:
        return figures.data_uri(draw())
    except MissingDependency:
        return ""


def _fit_chart(records: Sequence[IterationRecord], error: str = "RMSE") -> str:
    if len(records) < 2:
        return ""
    return image(lambda: figures.convergence_figure(records, error_name=error))


def store_html(store: ObservationStore) -> str:
    """Dimensions and observations of a store."""
    return render(
        "store",
        store=store,
        density=store.nnz / math.prod(store.shape),
        labels=store.coordinates or {},
    )


def completion_html(done: Completion) -> str:
    """What was fitted, how good it is, and how it got there."""
    found = text.searched(done)
    return render(
        "completion",
        done=done,
        found=found,
        chosen=text.OPEN_BY_CHOICE if text.is_chosen(done) else "",
        errors=[row.validation_rmse for row in done.records if row.validation_rmse is not None],
        capped=sum(not row.inner_converged for row in done.records),
        events=[row for row in done.records if row.event and row.event != found],
        chart=_fit_chart(done.records, error_name(done.header.huber)),
    )


def tuning_html(found: Tuning) -> str:
    """What a search found, and the best of what it tried."""
    best = sorted(found.history, key=lambda tried: tried.error)
    chart = image(lambda: figures.tuning_figure(found.history)) if found.history else ""
    return render("tuning", found=found, best=best, most=MOST_TRIALS, chart=chart)


def plan_html(plan: Plan) -> str:
    """The whole plan in two tables."""
    causes = {field.name: getattr(plan.largest, field.name) for field in fields(plan.largest)}
    return render(
        "plan", plan=plan, causes=causes, timing=text.timing(plan), most=MOST_WORKERS,
        fits=all(worker.fits for worker in plan.workers),
    )  # fmt: skip


def progress_html(trials: Sequence[Tried], records: Sequence[IterationRecord]) -> str:
    """How far a search and a fit are."""
    return render(
        "progress",
        trials=len(trials),
        last_trial=text.describe_trial(trials[-1]) if trials else "",
        search_chart=image(lambda: figures.tuning_figure(trials)) if trials else "",
        line=text.describe(records[-1]) if records else "",
        chart=_fit_chart(records),
        events=[row for row in records if row.event],
    )
