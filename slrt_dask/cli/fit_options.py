"""The options of commands that fit."""

from __future__ import annotations

from collections.abc import Callable

import click

from slrt_dask.cli.centring import center_options
from slrt_dask.cli.options import NUMBER_OR_AUTO, NUMBERS, RANKS, WHOLE_NUMBERS, Parsed
from slrt_dask.cli.progress import quiet_option

PRECISION = click.Choice(["float64", "float32"])


def _every(text: str) -> str:
    """Checked here, parsed where it is used."""
    from slrt_dask.checkpoint import Cadence

    Cadence.of(text)
    return text


def _number_or_path(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


EVERY = Parsed(
    "iterations or time", _every, "neither a number of iterations nor a time, such as 10 or 30s"
)
NUMBER_OR_PATH = Parsed("number or store", _number_or_path, "")


HELD_OUT = click.option(
    "--held-out",
    metavar="auto|entries|fibres:MODE|slices:MODE",
    help="What a search holds out to judge on [auto: what most of the gaps are].",
)


HUBER = click.option(
    "--huber",
    type=NUMBER_OR_AUTO,
    metavar="DELTA|auto",
    help="Huber's loss: observations that are missed by more than DELTA pull no harder than that. "
    "auto: from the spread of the values [the squared misfit].",
)


METHOD = click.option(
    "--method",
    type=click.Choice(["auto", "lbfgs", "rcg", "rtr"]),
    help="Quasi-Newton, conjugate gradients or trust region; auto if left out.",
)


INNER = click.option(
    "--inner",
    type=click.Choice(["joint", "alternating"]),
    help="How bounds are solved for; alternating as in the paper, slower [joint].",
)


def fit_options(command: Callable[..., None]) -> Callable[..., None]:
    """The flags of the settings; left out, the file decides, or else the default."""
    for option in reversed(
        (
            click.option(
                "--ranks",
                type=RANKS,
                metavar="R,R,…|auto|certified",
                help="One rank per mode; searched for if left out. certified: as many as the "
                "certified gap needs to close.",
            ),
            click.option(
                "--max-ranks",
                type=WHOLE_NUMBERS,
                metavar="R,R,…",
                help="How far certified ranks may grow [50 in every mode].",
            ),
            click.option(
                "--C",
                "C",
                type=NUMBER_OR_AUTO,
                metavar="NUMBER|auto",
                help="Weight of the misfit, larger fits closer; searched for if left out.",
            ),
            click.option(
                "--lambdas",
                type=NUMBERS,
                metavar="L,L,…",
                help="Weights of the modes; their lengths if left out. Only C·λ matters.",
            ),
            METHOD,
            INNER,
            center_options,
            click.option(
                "--gap-tolerance",
                type=float,
                help="Stop when certified this close to the optimum, relatively [1e-3].",
            ),
            click.option(
                "--gradient-tolerance",
                type=float,
                help="Or when the gradient is this small relative to the cost [1e-6].",
            ),
            click.option("--max-iterations", type=int, help="Or after so many iterations [200]."),
            click.option("--max-seconds", type=float, help="Or after so many seconds [no limit]."),
            click.option(
                "--patience",
                type=int,
                metavar="N",
                help="Or when the error on --validation has not fallen for N iterations; the best "
                "of them is kept [no such limit].",
            ),
            HUBER,
            HELD_OUT,
            click.option("--precision", type=PRECISION, help="Of the solver's vectors [float64]."),
            click.option("--seed", type=int, help="Of the starting point [0]."),
        )
    ):
        command = option(command)
    return command


def constraint_options(command: Callable[..., None]) -> Callable[..., None]:
    """What the completed tensor has to satisfy."""
    for option in reversed(
        (
            click.option("--nonnegative", is_flag=True, default=None, help="Same as --lower 0."),
            click.option("--lower", type=float, help="No entry below this."),
            click.option("--upper", type=float, help="No entry above this."),
            click.option(
                "--where",
                metavar="all|observed|STORE",
                help="Entries that are bounded: all [default], the observed ones, or a store's.",
            ),
            click.option(
                "--hankel",
                "tau",
                type=WHOLE_NUMBERS,
                metavar="T,T,…",
                help="Windows of low rank: offsets in every mode, 1 for a mode without.",
            ),
            click.option(
                "--deviation",
                type=NUMBER_OR_PATH,
                metavar="auto|NUMBER",
                help="What missing a Hankel tensor costs: in stages [auto], or a fixed weight.",
            ),
            click.option(
                "--rows",
                metavar="STORE",
                help="Linear conditions: coefficients by row number and index, as a store.",
            ),
            click.option(
                "--bound",
                type=NUMBER_OR_PATH,
                metavar="NUMBER|STORE",
                help="What the rows must come to: a number [0], or a store of shape (rows, 1).",
            ),
            click.option(
                "--kind", type=click.Choice([">=", "==", "<="]), help="How rows compare [>=]."
            ),
        )
    ):
        command = option(command)
    return command


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """What may differ between the parts of a run that was stopped in between."""
    for option in (
        quiet_option,
        click.option(
            "--checkpoint-every",
            type=EVERY,
            default="1",
            show_default=True,
            metavar="N|TIME",
            help="Iterations between checkpoints, or a time such as 30s.",
        ),
    ):
        command = option(command)
    return command
