"""Small tables for notebooks: plain HTML that is XML too, without scripts, in any colour scheme.

Colours are the page's own, made fainter where something is less important. Every text is escaped
here, so that names from files cannot become markup. This changes when tables are to look different.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

FAINT = "border-bottom:1px solid rgba(128,128,128,0.35)"
CELL = "padding:0.15em 0.9em 0.15em 0;text-align:{side};vertical-align:top"
# What XML has no place for, escaped or not.
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def escaped(text: object) -> str:
    """A text in which nothing is markup."""
    return html.escape(CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(text)))


def panel(title: str, subtitle: str, *parts: str) -> str:
    """A heading with tables and the like below it; the parts are HTML."""
    return (
        '<div style="font-size:0.92em;line-height:1.4;color:inherit">'
        f"<div><b>{escaped(title)}</b> <span>{escaped(subtitle)}</span></div>{''.join(parts)}</div>"
    )


def note(text: object, *, faint: bool = False) -> str:
    """A line of text; several lines stay several."""
    lines = "<br/>".join(escaped(line) for line in str(text).splitlines())
    return f'<div style="opacity:{0.7 if faint else 1}">{lines}</div>'


def facts(pairs: Sequence[tuple[str, object]]) -> str:
    """A table of names and what is said of them."""
    rows = "".join(
        f'<tr style="background:none">{_cell(name, "left", faint=True)}{_cell(value, "left")}</tr>'
        for name, value in pairs
    )
    return f'<table style="{_TABLE}">{rows}</table>'


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with a heading; the first column is text, the others are numbers."""
    sides = ["left", *(["right"] * (len(head) - 1))]
    titles = "".join(
        f'<th style="{CELL.format(side=side)};{FAINT}">{escaped(name)}</th>'
        for name, side in zip(head, sides, strict=True)
    )
    body = "".join(
        '<tr style="background:none">'
        + "".join(_cell(value, side) for value, side in zip(row, sides, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<table style="{_TABLE}"><tr style="background:none">{titles}</tr>{body}</table>'


_TABLE = "border-collapse:collapse;border:none;margin:0.4em 0;color:inherit"


def _cell(value: object, side: str, *, faint: bool = False) -> str:
    opacity = ";opacity:0.7" if faint else ""
    return f'<td style="{CELL.format(side=side)}{opacity}">{escaped(value)}</td>'
