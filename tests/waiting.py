"""Calls that must come back: one that does not fails, and is left behind."""

from __future__ import annotations

import threading
from concurrent.futures import Future

PATIENCE = 30.0
"""Seconds after which something that should have ended has failed, on a busy machine too."""


def begun(call, *arguments):
    """The future of a call in another thread; the process ends without waiting for it."""
    future = Future()

    def make():
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=make, daemon=True).start()
    return future


def soon(call, *arguments):
    """The result of a call that must not hang."""
    return begun(call, *arguments).result(PATIENCE)
