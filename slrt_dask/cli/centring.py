"""The option that says what is subtracted before a fit: `--center`, with or without a word.

A store may follow it, as in `fit --center STORE`, so that only words which are known are its own.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from slrt_dask.cli.options import AUTO, Parsed

OPTION, MEAN, NONE = "--center", "mean", "none"
MODES = "modes"  # as in slrt_dask.config, which a command need not import to show its help
WORDS = (MEAN, MODES, AUTO)


def _centring(text: str) -> bool | str:
    """The words of the command line as `complete` takes them."""
    if text in (MEAN, NONE):
        return text == MEAN
    if text not in WORDS:
        raise ValueError
    return text


CENTRING = Parsed("centring", _centring, f"none of {', '.join(WORDS)}")


class CentringCommand(click.Command):
    """A command whose `--center` may stand alone, for the mean."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(args))


def spelled_out(args: list[str]) -> list[str]:
    """The arguments with a word for every `--center` that has none."""
    end = args.index("--") if "--" in args else len(args)
    words = list(args)
    for place, word in enumerate(args[:end]):
        if word == OPTION and (*args, "")[place + 1] not in WORDS:
            words[place] = f"{OPTION}={MEAN}"
    return words


def center_options(command: Callable[..., None]) -> Callable[..., None]:
    """--center and --no-center."""
    for option in (
        click.option("--no-center", "center", flag_value=NONE, type=CENTRING,
                     help="Subtract nothing."),
        click.option(OPTION, type=CENTRING, metavar=f"[{'|'.join(WORDS)}]",
                     help="Fit deviations from the observed mean, or from it and an offset per "
                     "index of every mode; auto: what predicts better [auto if ranks are]."),
    ):  # fmt: skip
        command = option(command)
    return command
