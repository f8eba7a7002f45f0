"""A plan as lines of text: what the fullest worker holds, by cause, and how the fit will run."""

from __future__ import annotations

from slrt_dask.engine.plan import Plan, readable


def plan_text(plan: Plan) -> str:
    """The whole plan, an amount or a decision in each line."""
    needed = plan.largest
    threads = sum(worker.place.threads for worker in plan.workers)
    sums = "tensor" if plan.slab_mode is None else "fibre"
    turns = f", in {plan.sections} sections one after the other" if plan.sections > 1 else ""
    lines = [
        f"workers           {_occupied(plan)}, threads {threads}",
        _cut(plan),
        *([] if plan.tiling is None else [f"products          {plan.tiling}"]),
        f"observations      {readable(needed.observations)} on the fullest worker",
        f"solver state      {readable(needed.state)}",
        *_working_set(plan),
        f"{sums} sums".ljust(18) + readable(needed.fibre_sums) + turns,
        *([f"linear rows       {readable(needed.rows)}, {plan.rows:,} rows"] * bool(plan.rows)),
        f"buffers           {readable(needed.buffers)}",
        f"runtime           {readable(needed.runtime)}",
        f"total per worker  {readable(needed.total)}",
        *_driver(plan),
        f"network           {readable(plan.exchange_bytes)} an inner iteration",
        f"blocks            {_where(plan)}",
    ]
    return "\n".join(lines)


def _cut(plan: Plan) -> str:
    if plan.slab_mode is None:
        return f"chunks            {plan.partitions} of offsets; {plan.fibres:,} entries cross"
    why = "the least crosses along it"
    if plan.better_slab_mode is not None:
        why = f"stored so; along mode {plan.better_slab_mode} less would cross"
    return f"slab mode         {plan.slab_mode} ({plan.fibres:,} fibres cross partitions; {why})"


def _working_set(plan: Plan) -> list[str]:
    if plan.extra is None:
        return []
    return [f"working set       up to {plan.extra:,} entries beside the observed ones"]


def _driver(plan: Plan) -> list[str]:
    if plan.workers[0].place.address is None:
        return []
    return [f"driver            {readable(plan.driver)}"]


def _occupied(plan: Plan) -> str:
    small = f"; {plan.left_out} more too small for a share" if plan.left_out else ""
    if len(plan.workers) == plan.available:
        return f"{plan.available}{small}"
    some = f"{len(plan.workers)} of {plan.available}{small}"
    several = "s" * (plan.partitions != 1)
    if plan.slab_mode is None:
        return f"{some} (there is one for each chunk of offsets)"
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
