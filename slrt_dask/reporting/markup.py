"""Tables and numbers of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slrt_dask.data.html import Markup, tag


def number(value: float, shown: str, name: str | None = None) -> Markup:
    """A number as it is shown, with all its digits for whoever reads the page by a program."""
    return tag("data", shown, value=repr(value), data_name=name)


def table(
    caption: str,
    headers: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    numeric: Sequence[int] = (),
    stacked: bool = False,
) -> Markup:
    """A table that scrolls in itself where it is too wide.

    caption : says what it is to those who do not see it
    numeric : columns of numbers, which are aligned to the right
    stacked : on a narrow screen a row is shown as a list instead, each cell after its header
    """
    kinds = ["number" if column in numeric else None for column in range(len(headers))]
    head = [
        tag("th", header, scope="col", class_=kind)
        for header, kind in zip(headers, kinds, strict=True)
    ]
    names = headers if stacked else [None] * len(headers)
    body = [
        tag(
            "tr",
            *(
                tag("td", cell, class_=kind, data_header=name)
                for cell, kind, name in zip(row, kinds, names, strict=True)
            ),
        )
        for row in rows
    ]
    content = tag("thead", tag("tr", *head)), tag("tbody", *body)
    whole = tag("table", _hidden_caption(caption), *content, class_="stacked" if stacked else None)
    return _scrolling(caption, whole)


def facts_table(caption: str, rows: Iterable[tuple[object, object]]) -> Markup:
    """A table of names and what they are."""
    body = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in rows]
    content = tag("table", _hidden_caption(caption), tag("tbody", *body), class_="facts")
    return _scrolling(caption, content)


def _hidden_caption(caption: str) -> Markup:
    return tag("caption", caption, class_="unseen")


def _scrolling(caption: str, content: Markup) -> Markup:
    return tag("div", content, class_="scroll", role="region", aria_label=caption, tabindex=0)


def folded(summary: str, content: Markup) -> Markup:
    """Something that is shown when it is asked for."""
    return tag("details", tag("summary", summary), content)
