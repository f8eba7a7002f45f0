"""What it took: time by cause, memory beside its plan; what happened meanwhile; the software."""

from __future__ import annotations

from dataclasses import dataclass

from slrt_dask.engine.plan import readable
from slrt_dask.reporting.facts import Facts
from slrt_dask.reporting.markup import Markup, facts_table, joined, number, table, tag
from slrt_dask.reporting.wording import counted, duration, part_of
from slrt_dask.usage import PlaceUsage, Seconds, Usage

UNKNOWN = "What the fit took was not kept with it."


@dataclass(frozen=True)
class Cause:
    """A part of the wall time: its group's colour, its name, what is in it, and the seconds."""

    group: int
    name: str
    what: str
    seconds: float


GROUPS = ("kernels", "exchange", "files", "orchestration", "not known")


def causes_of(seconds: Seconds) -> list[Cause]:
    """All of the wall time, by cause."""
    return [
        Cause(0, "sweeps", "kernels over the observations", seconds.computing),
        Cause(0, "entries looked after", "changing which, and other work there", seconds.visits),
        Cause(1, "exchange", "adding up between workers, and waiting for them", seconds.exchange),
        Cause(2, "loading", "observations, or a checkpoint", seconds.loading),
        Cause(2, "streaming", "waiting for blocks in files", seconds.files),
        Cause(2, "checkpoints", "and the history", seconds.checkpoints),
        Cause(2, "result", "writing it", seconds.result),
        Cause(3, "starting rounds", "submitting them, hearing of their end", seconds.starting),
        Cause(3, "driver", "the optimiser, and whatever has no other cause", seconds.driver),
        Cause(4, "not known", "of a process that was killed", seconds.untold),
    ]


def time_taken(facts: Facts) -> str:
    """The whole time of a run."""
    return f"{'at least ' * facts.is_longer}{duration(facts.seconds or 0.0)}"


def time_section(facts: Facts) -> Markup:
    if facts.usage is None:
        return tag("p", UNKNOWN)
    usage, wall = facts.usage, facts.usage.seconds.wall
    causes = causes_of(usage.seconds)
    rows = [
        (
            joined(
                [
                    tag("span", cause.name, class_=f"key colour{cause.group}"),
                    tag("span", cause.what, class_="soft"),
                ]
            ),
            number(cause.seconds, duration(cause.seconds), f"seconds {cause.name}"),
            part_of(cause.seconds, wall),
        )
        for cause in causes
        if cause.seconds > 0.0
    ]
    started = "" if usage.starts == 1 else f" It was started {usage.starts} times; all count here."
    many = "" if len(usage.workers) <= 1 else " Of what workers do at the same time it is the mean."
    least = "at least " * facts.is_longer
    summary = joined(
        [
            _whole(facts),
            f"{'the' if facts.search else 'The'} fit took {least}",
            number(wall, duration(wall), "wall"),
            f".{started}{many}",
        ]
    )
    return joined(
        [
            tag("p", summary, class_="lead"),
            _bar(causes, wall),
            tag(
                "div",
                table("Time by cause", ("cause", "time", "part"), rows, numeric=(1, 2)),
                class_="time",
            ),
            _by_worker(usage) if len(usage.workers) > 1 else "",
        ]
    )


def _whole(facts: Facts) -> str:
    """Of a run that was searched for first, the whole time and that of the search."""
    if facts.search is None:
        return ""
    search = duration(facts.search.took)
    return f"It took {time_taken(facts)}: the search for its settings {search}, and then "


def _bar(causes: list[Cause], wall: float) -> Markup:
    """One bar of the whole time, cut by cause."""
    totals = [sum(c.seconds for c in causes if c.group == group) for group in range(len(GROUPS))]
    whole = max(wall, sum(totals)) or 1.0
    parts = [
        tag("span", class_=f"part fill{group}", style=f"width: {100 * total / whole:.2f}%")
        for group, total in enumerate(totals)
        if total > 0.0
    ]
    told = ", ".join(
        f"{name} {part_of(total, whole)}" for name, total in zip(GROUPS, totals, strict=True)
    )
    keys = [
        tag("span", f"{name} {part_of(total, whole)}", class_=f"key colour{group}")
        for group, (name, total) in enumerate(zip(GROUPS, totals, strict=True))
        if total > 0.0
    ]
    bar = tag("div", *parts, class_="bar", role="img", aria_label=f"Time by cause: {told}")
    return tag("figure", bar, tag("figcaption", *keys), class_="plot wide")


def _by_worker(usage: Usage) -> Markup:
    rows = [
        (
            use.place or "this process", f"{use.threads}", f"{use.entries:,}", f"{use.rounds:,}",
            duration(use.computing), duration(use.exchange), duration(use.files),
        )
        for use in usage.workers
    ]  # fmt: skip
    headers = ("worker", "threads", "observations", "rounds", "kernels", "exchange", "files")
    return table("Time by worker", headers, rows, numeric=range(1, 7), stacked=True)


# ---- memory ----------------------------------------------------------------------------------


def memory_section(facts: Facts) -> Markup:
    if facts.usage is None:
        return tag("p", UNKNOWN)
    uses = [*(("driver", use) for use in facts.usage.drivers)]
    uses += [(use.place or "this process", use) for use in facts.usage.workers]
    largest = max((max(use.planned, use.memory.peak) for _, use in uses), default=1)
    rows = [
        (
            name,
            _memory_bar(use, largest),
            number(use.memory.peak, _peak(use), "peak"),
            number(use.planned, readable(use.planned), "planned"),
            "none" if use.limit is None else readable(use.limit),
            "in files" if use.streamed else "in memory" if use.entries else "none",
            use.memory.process,
        )
        for name, use in uses
    ]
    headers = ("where", "peak and plan", "peak", "planned", "limit", "blocks", "process")
    return joined(
        [
            table("Memory measured and planned", headers, rows, numeric=(2, 3, 4), stacked=True),
            tag(
                "p",
                "Peaks are the largest resident sizes of whole processes, interpreter and "
                "libraries included, as the plan has them. Where one had been reached before the "
                "fit began, it is an upper limit (≤).",
                class_="soft",
            ),
        ]
    )


def _peak(use: PlaceUsage) -> str:
    return f"{'' if use.memory.peak > use.memory.before else '≤ '}{readable(use.memory.peak)}"


def _memory_bar(use: PlaceUsage, largest: int) -> Markup:
    """The peak as a bar, and a mark where the plan was."""
    peak, planned = (100 * size / largest for size in (use.memory.peak, use.planned))
    kind = "part fill0" if peak <= planned else "part fill1"
    label = f"peak {readable(use.memory.peak)}, planned {readable(use.planned)}"
    return tag(
        "span",
        tag("span", class_=kind, style=f"width: {peak:.1f}%"),
        tag("span", class_="mark", style=f"left: {planned:.1f}%"),
        class_="bar small",
        role="img",
        aria_label=label,
    )


# ---- events, software ------------------------------------------------------------------------


def events_section(facts: Facts) -> Markup:
    rows = [
        (f"{record.iteration:,}", duration(record.seconds), record.event)
        for record in facts.records
        if record.event
    ]
    if not rows:
        return tag("p", "Nothing out of the ordinary.")
    return table("Events", ("iteration", "time", "what happened"), rows, numeric=(0, 1))


def software_section(facts: Facts) -> Markup:
    return facts_table("Software", list(facts.versions.items()))


def sweeps_made(facts: Facts) -> str:
    """How often the observations were gone through."""
    return counted(sum(record.sweeps for record in facts.records), "sweep")
