"""A plan as text and as a notebook shows it: bytes by cause, how the fit will run, and how long."""

from __future__ import annotations

from dataclasses import fields

from slrt_dask.data import html
from slrt_dask.engine.plan import Plan, WorkerBytes, WorkerPlan, readable

CAUSES = {"fibre_sums": "sums", "rows": "linear rows", "state": "solver state"}
ON_DISK = "scratch"
MOST_WORKERS = 12
STREAMED = 1.5
"""How much longer a sweep takes over blocks in files."""
SWEEPS = 25
"""Of an outer iteration, about: the line search's solves, the gradient, part of a certificate."""


def plan_text(plan: Plan) -> str:
    """The whole plan, an amount or a decision in each line."""
    needed = plan.largest
    threads = sum(worker.place.threads for worker in plan.workers)
    rows = [
        ("workers", f"{_occupied(plan)}, threads {threads}"),
        _cut(plan),
        ("observations", f"{readable(needed.observations)} on the fullest worker"),
        ("solver state", readable(needed.state)),
        ("working set", _working_set(plan)),
        ("tensor sums" if plan.slab_mode is None else "fibre sums", readable(needed.fibre_sums)),
        ("linear rows", f"{readable(needed.rows)}, {plan.rows:,} rows" * bool(plan.rows)),
        ("buffers", readable(needed.buffers)),
        ("runtime", readable(needed.runtime)),
        ("total per worker", readable(needed.total)),
        ("driver", readable(plan.driver) * (plan.workers[0].place.address is not None)),
        ("network", f"{readable(plan.exchange_bytes)} a round"),
        ("blocks", _where(plan)),
        *timing(plan),
    ]
    return "\n".join(f"{name:<18}{value}" for name, value in rows if value)


def timing(plan: Plan) -> list[tuple[str, str]]:
    """How long a sweep and an outer iteration will take, and whether a cluster pays."""
    rates, workers = plan.rates, plan.workers
    if rates is None:
        return []
    slowest = max(
        worker.entries / worker.place.threads * (STREAMED if worker.block_entries else 1.0)
        for worker in workers
    )
    sweep = slowest * rates.entry + rates.round + rates.byte * plan.exchange_bytes
    iteration = _duration(SWEEPS * sweep)
    rows = [("time", f"about {_duration(sweep)} a sweep, {iteration} an outer iteration")]
    alone = sum(worker.entries for worker in workers) / max(1, rates.threads) * rates.entry
    if rates.threads and alone < sweep:
        threads = f"{rates.threads} thread{'s' * (rates.threads != 1)}"
        advice = f"one process with {threads} will be faster: {_duration(alone)} a sweep"
        rows.append(("advice", advice))
    return rows


def _duration(seconds: float) -> str:
    units = ((3600.0, "hours"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
    size, unit = next((one for one in units if seconds >= one[0]), units[-1])
    count = seconds / size
    return f"{count:.0f} {unit}" if count >= 10.0 else f"{count:.1f} {unit}"


def _cut(plan: Plan) -> tuple[str, str]:
    if plan.slab_mode is None:
        return "chunks", f"{plan.partitions} of offsets"
    why = "the least crosses along it"
    if plan.better_slab_mode is not None:
        why = f"stored so; along mode {plan.better_slab_mode} less would cross"
    return "slab mode", f"{plan.slab_mode} ({why})"


def _working_set(plan: Plan) -> str:
    return "" if plan.extra is None else f"up to {plan.extra:,} entries beside the observed ones"


def _occupied(plan: Plan) -> str:
    small = f"; {plan.left_out} more too small for a share" if plan.left_out else ""
    if len(plan.workers) == plan.available:
        return f"{plan.available}{small}"
    some = f"{len(plan.workers)} of {plan.available}{small}"
    if plan.slab_mode is None:
        return f"{some} (there is one for each chunk of offsets)"
    several = "s" * (plan.partitions != 1)
    return (
        f"{some} (the store has {plan.partitions} partition{several}; ingest with smaller ones "
        "to occupy more)"
    )


def _where(plan: Plan) -> str:
    streamed = [worker for worker in plan.workers if worker.block_entries is not None]
    if not streamed:
        return "in memory"
    scratch = max(worker.needed.scratch for worker in streamed)
    entries = min(worker.block_entries or 0 for worker in streamed)
    resident = max(worker.resident for worker in streamed)
    return (
        f"streamed from disk on {len(streamed)} of {len(plan.workers)} workers: "
        f"{readable(scratch)} of scratch a worker, blocks of {entries:,} entries; in memory "
        f"they would need {readable(resident)} a worker, and be faster"
    )


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
        html.note(f"{readable(plan.exchange_bytes)} cross in a round", faint=True),
        *(html.note(f"{name}: {value}", faint=True) for name, value in timing(plan)),
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
