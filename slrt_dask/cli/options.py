"""Options that several commands share, and the kinds of value they take."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from slrt_dask.certificates import CertificateDirectory

AUTO, CERTIFIED = "auto", "certified"
DEBUG = "slrt_dask.debug"
VERBOSE = "slrt_dask.verbose"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class NumberList(click.ParamType[tuple[Any, ...]]):
    """Numbers separated by commas, such as 10,10,5."""

    def __init__(self, number: type[int] | type[float]) -> None:
        self.number = number
        self.name = "whole numbers" if number is int else "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self.number(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of {self.name} with commas, such as 10,10,5")


class NumbersOrWord(NumberList):
    """The same, or a word that says how to find them."""

    def __init__(self, number: type[int] | type[float], *words: str) -> None:
        super().__init__(number)
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in self.words else super().convert(value, param, ctx)


class NumberOrAuto(click.ParamType[float | str]):
    """A number, or auto."""

    name = "number or auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        try:
            return AUTO if value == AUTO else float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor auto")


WHOLE_NUMBERS = NumberList(int)
WHOLE_NUMBERS_OR_AUTO = NumbersOrWord(int, AUTO)
RANKS = NumbersOrWord(int, AUTO, CERTIFIED)
NUMBER_OR_AUTO = NumberOrAuto()
NUMBERS = NumberList(float)


class Bytes(click.ParamType[str]):
    """A number of bytes, perhaps with a unit; checked here, parsed where it is used."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from dask.utils import parse_bytes

        try:
            count = parse_bytes(value) if str(value).strip() else 0
        except (ValueError, OverflowError):
            count = 0
        if count <= 0:
            self.fail(f"{value!r} is not an amount of memory, such as 4GB or 800MiB")
        return str(value)


class Certificates(click.ParamType[CertificateDirectory]):
    """A directory of certificates; whether it holds what is needed shows when it is used."""

    name = "directory"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> CertificateDirectory:
        if isinstance(value, CertificateDirectory):
            return value
        return CertificateDirectory(value)


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
