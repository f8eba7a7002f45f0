"""Puts measurements into the README: a table between two marks of a section, and pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from kernels import Measured
from measuring import Row
from peers import Course

README = Path(__file__).parent / "README.md"
PLOTS = Path(__file__).parent / "plots"


def write_table(section: str, rows: list[Row], readme: Path = README) -> None:
    """Replace what is between the marks of a section."""
    begin, end = f"<!-- {section} -->\n", f"<!-- end of {section} -->"
    text = readme.read_text()
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{readme} has no marks for {section}")
    lines = ["| what | ratio | measured |", "|---|---|---|"]
    lines += [f"| {row.what} | {row.ratio} | {row.measured} |" for row in rows]
    readme.write_text(before + begin + "\n".join(lines) + "\n" + end + after)


def draw_kernels(found: dict[str, list[Measured]]) -> None:
    """Entries a second, by rank, order and density."""
    figure, axes = _panels(3, "million entries a second, one core")
    marks = {
        "ranks": ("rank", [each.ranks[0] for each in found["ranks"]]),
        "orders": ("order", [len(each.shape) for each in found["orders"]]),
        "densities": ("density", [_density(each) for each in found["densities"]]),
    }
    for axis, (kind, (label, places)) in zip(axes, marks.items(), strict=True):
        for tool, name in (("ours", "slrt-dask"), ("plain", "plain loops"), ("csr", "CSR")):
            speeds = [each.entries / getattr(each, tool) / 1e6 for each in found[kind]]
            axis.plot(places, speeds, "o-", label=name)
        axis.set_xlabel(label)
        axis.set_ylim(bottom=0)
    for axis in (axes[0], axes[2]):
        axis.set_xscale("log")
    axes[0].legend(frameon=False)
    _write(figure, "kernels.png")


def draw_courses(courses: list[Course]) -> None:
    """Test errors as time goes by."""
    figure, (axis,) = _panels(1, "test RMSE, Indian Pines")
    colours = {"slrt-dask": "C0", "tensorly": "C1", "pyttb": "C2"}
    for course in courses:
        ends = course.setting[-3:].strip()
        style = {"15)": "-", "50": "-", "5)": ":"}.get(ends, "--")
        name = f"{course.tool}, {course.setting}"
        axis.plot(course.seconds, course.errors, style, color=colours[course.tool], label=name)
    axis.set(xscale="log", yscale="log", ylim=(0.014, 0.1), xlabel="seconds, two cores")
    axis.legend(frameon=False)
    _write(figure, "error.png")


def _density(each: Measured) -> float:
    return each.entries / math.prod(each.shape)


def _panels(count: int, label: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * max(count, 2), 3.4), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    axes[0].set_ylabel(label)
    return figure, axes


def _write(figure: Any, name: str) -> None:
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / name, dpi=110)
