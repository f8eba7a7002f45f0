"""Options that several commands share, and the kinds of value they take."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from slrt_dask.certificates import CertificateDirectory

AUTO, CERTIFIED = "auto", "certified"
DEBUG = "slrt_dask.debug"
VERBOSE = "slrt_dask.verbose"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Parsed(click.ParamType[Any]):
    """A text that a function understands, or refuses with a ValueError.

    expected : what it is, said of a text that is refused
    """

    def __init__(self, name: str, parse: Callable[[str], Any], expected: str) -> None:
        self.name, self._parse, self._expected = name, parse, expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is {self._expected}")


def _words(parse: Callable[[str], Any], *words: str) -> Callable[[str], Any]:
    """The same, or a word as it is."""
    return lambda text: text if text in words else parse(text)


def _list(number: type[int] | type[float]) -> Callable[[str], Any]:
    return lambda text: tuple(number(part) for part in text.split(","))


def _bytes(text: str) -> str:
    """Checked here, parsed where it is used."""
    from dask.utils import parse_bytes

    if not text.strip() or parse_bytes(text) <= 0:
        raise ValueError
    return text


_LIST = "not a list of {} with commas, such as 10,10,5"
_WHOLE = "whole numbers", _LIST.format("whole numbers")
WHOLE_NUMBERS = Parsed(_WHOLE[0], _list(int), _WHOLE[1])
WHOLE_NUMBERS_OR_AUTO = Parsed(_WHOLE[0], _words(_list(int), AUTO), _WHOLE[1])
RANKS = Parsed(_WHOLE[0], _words(_list(int), AUTO, CERTIFIED), _WHOLE[1])
NUMBERS = Parsed("numbers", _list(float), _LIST.format("numbers"))
NUMBER_OR_AUTO = Parsed("number or auto", _words(float, AUTO), "neither a number nor auto")
BYTES = Parsed("bytes", _bytes, "not an amount of memory, such as 4GB or 800MiB")
CERTIFICATES = Parsed("directory", lambda text: CertificateDirectory(Path(text)), "")
"""Whether it holds what is needed shows when it is used."""


class Place(click.ParamType[str]):
    """A path or a URL; whether something is there shows when it is used.

    completed : what a shell offers, "file" (and directories) or "dir" (only these)
    """

    name = "path"

    def __init__(self, completed: str) -> None:
        self.completed = completed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type=self.completed)]


FILE = Place("file")
DIRECTORY = Place("dir")
"""Stores and runs are directories."""


def common_options(function: Decorated) -> Decorated:
    """--debug and --verbose, which may stand before or after the command."""
    for option in (
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            expose_value=False,
            callback=_be_verbose,
            help="Show the log.",
        ),
        click.option(
            "--debug",
            is_flag=True,
            expose_value=False,
            callback=_debug,
            help="Show the traceback of an error.",
        ),
    ):
        function = option(function)
    return function


def is_verbose() -> bool:
    return bool(click.get_current_context().meta.get(VERBOSE))


def _debug(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        context.meta[DEBUG] = True


def _be_verbose(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.meta.get(VERBOSE):
        return
    context.meta[VERBOSE] = True
    logger = logging.getLogger("slrt_dask")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    previous = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(previous)

    context.find_root().call_on_close(undo)
