"""What it took: time by cause, memory compared with its plan; events; the software."""

from __future__ import annotations

from slrt_dask.data.html import Markup, joined, tag
from slrt_dask.engine.plan import readable
from slrt_dask.reporting.facts import Facts
from slrt_dask.reporting.markup import facts_table, number, table
from slrt_dask.reporting.wording import counted, duration, part_of

UNKNOWN = "What the fit took was not kept with it."
CAUSES = {
    "computing": (0, "kernels over the observations"),
    "visits": (0, "changing which entries are held, and other work on workers"),
    "exchange": (1, "sums of workers, and starting rounds"),
    "files": (2, "waiting for blocks that are in files"),
    "loading": (2, "observations, or a checkpoint"),
    "checkpoints": (2, "and the history"),
    "result": (2, "writing it"),
    "driver": (3, "the optimiser, and everything that has no other cause"),
}
"""The colour of every cause of time, and what is in it."""


def time_taken(facts: Facts) -> str:
    """The whole time of a run."""
    return f"{'at least ' * facts.is_longer}{duration(facts.seconds or 0.0)}"


def time_section(facts: Facts) -> Markup:
    if facts.usage is None:
        return tag("p", UNKNOWN)
    usage, wall = facts.usage, facts.usage.wall
    taken = [
        (name, colour, what, usage.seconds[name])
        for name, (colour, what) in CAUSES.items()
        if usage.seconds.get(name)
    ]
    rows = [
        (
            joined(
                [
                    tag("span", name, class_=f"key colour{colour}"),
                    tag("span", what, class_="soft"),
                ]
            ),
            number(seconds, duration(seconds), f"seconds {name}"),
            part_of(seconds, wall),
        )
        for name, colour, what, seconds in taken
    ]
    by_cause = table("Time by cause", ("cause", "time", "part"), rows, numeric=(1, 2))
    parts = [
        tag("span", class_=f"part fill{colour}", style=f"width: {100 * seconds / wall:.2f}%")
        for _, colour, _, seconds in taken
    ]
    label = ", ".join(f"{name} {part_of(seconds, wall)}" for name, _, _, seconds in taken)
    bar = tag("div", *parts, class_="bar", role="img", aria_label=f"Time by cause: {label}")
    started = "" if usage.starts == 1 else f" It was started {usage.starts} times; all count here."
    several = len(usage.places) > 1
    mean = " Of what workers do at the same time it is the mean." if several else ""
    fit = number(wall, duration(wall), "wall")
    least = "at least " * facts.is_longer
    took = "The fit took "
    if facts.search is not None:
        search = duration(facts.search.took)
        took = f"It took {time_taken(facts)}: the search for its settings {search}, the fit "
    summary = tag("p", joined([took, least, fit, f".{started}{mean}"]), class_="lead")
    figure = tag("figure", bar, class_="plot wide")
    return joined([summary, figure, tag("div", by_cause, class_="time")])


def places_section(facts: Facts) -> Markup:
    if facts.usage is None:
        return tag("p", UNKNOWN)
    rows = [
        (
            use.place, f"{use.threads}", f"{use.entries:,}", f"{use.rounds:,}",
            duration(use.computing), duration(use.waiting),
            number(use.peak, f"{'≤ ' * (use.peak <= use.before)}{readable(use.peak)}", "peak"),
            number(use.planned, readable(use.planned), "planned"),
            "none" if use.limit is None else readable(use.limit),
            "in files" if use.streamed else "in memory" if use.entries else "none",
        )
        for use in facts.usage.places
    ]  # fmt: skip
    headers = (
        "where", "threads", "observations", "rounds", "kernels", "waiting", "peak", "planned",
        "limit", "blocks",
    )  # fmt: skip
    note = (
        "Peaks are the largest resident sizes of whole processes, interpreter and libraries "
        "included, and so is the plan. Where one had been reached before the fit began, it is an "
        "upper limit (≤)."
    )
    shown = table("Workers", headers, rows, numeric=range(1, 9), stacked=True)
    return joined([shown, tag("p", note, class_="soft")])


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
