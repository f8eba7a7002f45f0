"""The program: its help, its commands, and what becomes of an error.

Whatever goes wrong ends in one sentence and an exit code: 1 for what the user can mend, 2 for a
command that was not understood, 70 for a bug, 130 after an interrupt, 143 after SIGTERM.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from slrt_dask import __version__
from slrt_dask.cli.certificate_command import certificates
from slrt_dask.cli.completion_command import completion
from slrt_dask.cli.data_commands import ingest, split
from slrt_dask.cli.demo_command import demo
from slrt_dask.cli.fit_commands import fit, plan, resume
from slrt_dask.cli.options import DEBUG, common_options
from slrt_dask.cli.report_command import report
from slrt_dask.cli.result_commands import evaluate, export, predict
from slrt_dask.cli.tune_command import tune
from slrt_dask.cli.wording import in_options
from slrt_dask.errors import SlrtError

EXIT_ERROR = 1
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class Application(click.Group):
    """A group that tells of every error in a sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are used, not that of the alphabet."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _termination_raised():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise
            if ctx.meta.get(DEBUG):
                traceback.print_exception(error, file=sys.stderr)
            code, sentence = _told(error, self.commands.get(ctx.invoked_subcommand or ""))
        click.echo(f"error: {sentence}", err=True)
        return ctx.exit(code)


@click.group(
    cls=Application,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(__version__, prog_name="slrt-dask")
@common_options
def main() -> None:
    """Complete a mostly-missing tensor from the entries that were observed, with a certificate:
    a proof of how close the answer is to the best possible one. Observations are kept in a store
    on disk; a fit runs in this process, on worker processes, or on a dask cluster.

    \b
    The usual sequence:
      slrt-dask demo                                     # see it work, in half a minute
      slrt-dask ingest measured.tns cube                 # a file becomes a store
      slrt-dask split cube --test 0.1                    # cube-train and cube-test
      slrt-dask plan cube-train --ranks 10,10,5          # what will it need?
      slrt-dask fit cube-train --ranks 10,10,5 --C 1000 --run first
      slrt-dask resume first                             # go on, had it been stopped or killed
      slrt-dask report first                             # a page about it: report.html
      slrt-dask evaluate first cube-test                 # errors on what was held out
      slrt-dask predict first wanted.csv -o found.csv    # some entries
      slrt-dask export first completed.zarr              # or all of them

    Each command explains itself: slrt-dask COMMAND --help.
    """


COMMANDS = (
    demo, ingest, split, plan, tune, fit, resume, report, evaluate, predict, export, certificates,
    completion,
)  # fmt: skip
for command in COMMANDS:
    main.add_command(command)


@contextmanager
def _termination_raised() -> Iterator[None]:
    """Have SIGTERM end a command as an error does, which removes scratch, locks and workers.

    And Ctrl-C raise KeyboardInterrupt, whatever libraries have made of it (dask-jobqueue exits).
    """

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one need not wait
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, end)
    if previous[signal.SIGINT] is not signal.SIG_IGN:  # as of a job in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _told(error: BaseException, command: click.Command | None) -> tuple[int, str]:
    """The exit code of an error and the sentence that tells of it.

    command : the one that was invoked, by whose options arguments are named
    """
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED, "interrupted."
    if isinstance(error, SlrtError):
        return EXIT_ERROR, in_options(_one_line(error), command)
    if isinstance(error, OSError):
        return EXIT_ERROR, _one_line(_system_sentence(error))
    if isinstance(error, MemoryError):
        return EXIT_ERROR, "memory ran out; use more workers or smaller partitions."
    kind = type(error).__name__
    return EXIT_BUG, (
        f"this is a bug in slrt-dask ({kind}: {_one_line(error)}). Run the command again with "
        "--debug and report the traceback."
    )


def _system_sentence(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    place = "" if error.filename is None else f": {error.filename}"
    remedy = "; free some space and try again" if error.errno == errno.ENOSPC else ""
    return f"{error.strerror.lower()}{place}{remedy}."


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
