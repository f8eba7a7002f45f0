"""A plan as a notebook shows it: what the fullest worker holds and why, and a row per worker."""

from __future__ import annotations

from dataclasses import fields

from slrt_dask.data import html
from slrt_dask.engine.amounts import WorkerBytes
from slrt_dask.engine.plan import Plan, WorkerPlan, readable

CAUSES = {"fibre_sums": "sums", "rows": "linear rows", "state": "solver state"}
ON_DISK = "scratch"
MOST_WORKERS = 12


def plan_html(plan: Plan) -> str:
    """The whole plan in two tables."""
    fits = "fits" if all(worker.fits for worker in plan.workers) else "does not fit"
    shown = list(enumerate(plan.workers))[:MOST_WORKERS]
    left_out = len(plan.workers) - len(shown)
    return html.panel(
        "Plan",
        f"partitions {plan.partitions}, workers {len(plan.workers)} of {plan.available}: {fits}",
        html.table(("on the fullest worker", "bytes"), _causes(plan.largest)),
        html.table(
            ("worker", "threads", "partitions", "observations", "needs", "may use", "blocks"),
            [_worker(number, worker) for number, worker in shown],
        ),
        html.note(f"and {left_out} more", faint=True) if left_out else "",
        html.note(f"{readable(plan.exchange_bytes)} cross in an inner iteration", faint=True),
        html.note(f"fibre sums in {plan.sections} sections", faint=True)
        if plan.sections > 1
        else "",
        html.note(f"products {plan.tiling}", faint=True) if plan.tiling is not None else "",
    )


def _causes(needed: WorkerBytes) -> list[tuple[str, str]]:
    amounts = {field.name: getattr(needed, field.name) for field in fields(needed)}
    rows = [
        (CAUSES.get(name, name.replace("_", " ")), readable(amount))
        for name, amount in amounts.items()
        if name != ON_DISK and amount
    ]
    return [*rows, ("in all", readable(needed.total))]


def _worker(number: int, worker: WorkerPlan) -> tuple[object, ...]:
    limit, place = worker.place.memory_limit, worker.place
    return (
        place.address or ("this process" if number == 0 else number),
        place.threads,
        len(worker.partitions),
        f"{worker.entries:,}",
        readable(worker.needed.total),
        "no limit" if limit is None else readable(limit),
        "in memory" if worker.block_entries is None else "streamed from disk",
    )
