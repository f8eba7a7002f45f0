"""HTML as strings that are escaped unless they say that they are markup; and small tables of it.

The tables are for notebooks: plain HTML that is XML too, without scripts, in any colour scheme.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

TABLE = "border-collapse:collapse;border:none;margin:0.4em 0;color:inherit"
CELL = "padding:0.15em 0.9em 0.15em 0;vertical-align:top;text-align:"
FAINT = "opacity:0.7"
LINE = ";border-bottom:1px solid rgba(128,128,128,0.35)"
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""What XML has no place for, escaped or not."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: object) -> str:
    """A text in which nothing is markup."""
    return html.escape(CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(text)))


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """Parts as HTML: escaped, unless they are markup."""
    shown = (part if isinstance(part, Markup) else escaped(part) for part in parts)
    return Markup(between.join(shown))


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """An element; `class_` and `aria_label` are class and aria-label, None leaves one out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{joined(content)}</{name}>")


def panel(title: str, subtitle: str, *parts: str) -> Markup:
    """A heading with tables and the like below it; parts that are no markup are escaped."""
    heading = tag("div", tag("b", title), " ", tag("span", subtitle))
    return tag("div", heading, *parts, style="font-size:0.92em;line-height:1.4;color:inherit")


def note(text: object, *, faint: bool = False) -> Markup:
    """A line of text; several lines stay several."""
    lines = joined(str(text).splitlines(), Markup("<br/>"))
    return tag("div", lines, style=FAINT if faint else None)


def facts(pairs: Sequence[tuple[str, object]]) -> Markup:
    """A table of names and what is said of them."""
    left = f"{CELL}left"
    rows = [(tag("td", n, style=f"{left};{FAINT}"), tag("td", v, style=left)) for n, v in pairs]
    return _table(rows)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    """A table with a heading; the first column is text, the others are numbers."""
    sides = [f"{CELL}{'right' if column else 'left'}" for column in range(len(head))]
    titles = [tag("th", name, style=side + LINE) for name, side in zip(head, sides, strict=True)]
    cells = [
        [tag("td", value, style=side) for value, side in zip(row, sides, strict=True)]
        for row in rows
    ]
    return _table([titles, *cells])


def _table(rows: Sequence[Sequence[Markup]]) -> Markup:
    return tag("table", *(tag("tr", *row, style="background:none") for row in rows), style=TABLE)
