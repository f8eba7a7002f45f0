"""Ctrl-C told in a line. Scripts ask for it before anything else, as importing takes seconds."""

from __future__ import annotations

import sys
from types import TracebackType


def tell_in_a_line() -> None:
    """Show no traceback of an interrupt that nobody caught; a fit under way catches its own."""
    otherwise = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.stderr.write("\ninterrupted\n")
        else:
            otherwise(kind, error, trace)

    sys.excepthook = told
