"""Write the reference of the public names, notebooks/api.md, from their docstrings.

    python .ci/api.py            # write it
    python .ci/api.py --check    # exit code 1 if it is not what would be written

Signatures are formatted here, so that the page does not depend on the release of Python.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import sys
from pathlib import Path
from typing import Any

import slrt_dask

PAGE = Path(__file__).parents[1] / "notebooks" / "api.md"
BEGINNING = """# Reference

Every public name of `slrt_dask`, written by `python .ci/api.py` from the docstrings. How they
are used is in the [README](../README.md) and the [guide](guide.md). `slrt-dask COMMAND --help` is
the reference of the command line.
"""
RETURNED = (
    "slrt_dask.optim.records:IterationRecord",
    "slrt_dask.optim.stopping:StopReason",
    "slrt_dask.engine.plan:Plan",
    "slrt_dask.tuning.tuning:Tuning",
)
"""What public names give, without being public names themselves."""
ACCESSOR = "slrt_dask.xarray:CompletionAccessor"
SHOWN = {
    "Bounds": (),
    "Hankel": (),
    "Linear": ("totals", "rising", "symmetric"),
    "CompletionAccessor": ("complete", "filled_by"),
    "Plan": ("in_memory", "tiles", "check"),
}
"""Members of classes that have others, which only the solver calls."""
HIDDEN = ("stays_within",)
MADE_ELSEWHERE = (
    *("ObservationStore", "Completion", "Certificate", "Scores"),
    *("IterationRecord", "Plan", "Tuning", "CompletionAccessor"),
)
"""Classes of which users make no objects themselves."""
LINE = 96


def found(place: str) -> Any:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def parameter_text(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    annotation = parameter.annotation
    if annotation is not parameter.empty:
        text += f": {annotation if isinstance(annotation, str) else annotation.__name__}"
    if parameter.default is not parameter.empty:
        text += f" = {parameter.default!r}"
    return text


def call_text(name: str, function: Any) -> str:
    """A call with names, types and defaults; one a line where they are too many for one."""
    signature = inspect.signature(function)
    parts, named_only = [], False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not named_only:
            parts.append("*")
            named_only = True
        parts.append(parameter_text(parameter))
    gives = signature.return_annotation
    result = f" -> {gives}" if isinstance(gives, str) and gives != "None" else ""
    short = f"{name}({', '.join(parts)}){result}"
    if len(short) <= LINE:
        return short
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){result}"])


def code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def prose(thing: Any, name: str) -> str:
    """A docstring as Markdown: definitions `name : meaning` become list items."""
    text = inspect.getdoc(thing)
    if not text:
        raise SystemExit(f"{name} has no docstring; write one")
    lines: list[str] = []
    for line in text.splitlines():
        term, colon, meaning = line.partition(" : ")
        if colon and not line.startswith(" ") and len(term) < 40 and "`" not in term:
            if lines and lines[-1] and not lines[-1].startswith(("- ", "  ")):
                lines.append("")
            lines.append(f"- `{term}`: {meaning}")
        elif line.startswith("    ") and lines and lines[-1].startswith(("- ", "  ")):
            lines.append(f"  {line.strip()}")
        else:
            if line and lines and lines[-1].startswith(("- ", "  ")):
                lines.append("")
            lines.append(line)
    return "\n".join(lines) + "\n"


def member_text(owner: str, name: str, member: Any) -> str:
    whole = f"{owner}.{name}"
    if isinstance(member, (property, functools.cached_property)):
        function = member.fget if isinstance(member, property) else member.func
        gives = inspect.signature(function).return_annotation  # type: ignore[arg-type]
        return f"**`.{name}`** : `{gives}`. {prose(function, whole)}"
    function = member.__func__ if isinstance(member, classmethod) else member
    before = f"{owner}." if isinstance(member, classmethod) else "."
    return code(call_text(before + name, function)) + "\n" + prose(function, whole)


def members(kind: type) -> list[tuple[str, Any]]:
    """Public methods and properties in the order of the source."""
    documented = (property, functools.cached_property, classmethod)
    return [
        (name, member)
        for name, member in vars(kind).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, documented))
        and name in SHOWN.get(kind.__name__, (name,))
        and name not in HIDDEN
    ]


def fields_text(kind: type) -> str:
    """Fields of a class, with the sentences that follow them in its source."""
    body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
    said = {
        line.target.id: inspect.cleandoc(following.value.value)
        for line, following in itertools.pairwise(body)
        if isinstance(line, ast.AnnAssign)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }
    lines = [
        f"- `{name}`: `{annotation}`. {said.get(name, '')}".rstrip(". ") + "."
        for name, annotation in kind.__annotations__.items()
    ]
    return "\n".join(lines) + "\n"


def entry(name: str, thing: Any) -> str:
    parts = [f"### {name}\n"]
    if inspect.isclass(thing):
        made = name not in (*MADE_ELSEWHERE, "StopReason")
        parts += [code(call_text(name, thing))] if made else []
        parts.append(prose(thing, name))
        if name == "IterationRecord":
            parts.append(fields_text(thing))
        if name == "StopReason":
            parts.append("".join(f"- `{reason.name}`: {reason.value}\n" for reason in thing))
        parts += [member_text(name, *member) for member in members(thing)]
    else:
        parts += [code(call_text(name, thing)), prose(thing, name)]
    return "\n".join(parts)


def errors_text() -> str:
    """All errors with what they are besides, so that `except ValueError` and so on work."""
    from slrt_dask import errors

    rows = ["| error | is also a | |", "|---|---|---|"]
    for kind in vars(errors).values():
        if inspect.isclass(kind) and kind.__module__ == errors.__name__:
            also = "" if kind is errors.SlrtError else f"`{kind.__bases__[1].__name__}`"
            rows.append(f"| `{kind.__name__}` | {also} | {inspect.getdoc(kind)} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    things = {name: getattr(slrt_dask, name) for name in slrt_dask.__all__}
    functions = [
        name for name, thing in things.items() if not inspect.isclass(thing) and name.islower()
    ]
    classes = [name for name in things if name not in functions]
    accessor = found(ACCESSOR)
    parts = [
        BEGINNING,
        "## Functions\n",
        *(entry(name, things[name]) for name in functions),
        "## Classes and constraints\n",
        *(entry(name, things[name]) for name in classes),
        "## The accessor of xarray\n",
        "`import slrt_dask.xarray` gives every DataArray an attribute `.slrt`.\n",
        *(member_text("array.slrt", *member) for member in members(accessor)),
        "## What they give\n",
        *(entry(place.split(":")[1], found(place)) for place in RETURNED),
        "## Errors\n",
        "All are in `slrt_dask.errors`, and all are a `SlrtError`.\n",
        errors_text(),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    text = page()
    if not arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE} is stale; run python .ci/api.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
