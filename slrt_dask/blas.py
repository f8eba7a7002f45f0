"""One BLAS thread while somebody computes: threads are the engine's, not a library's.

A BLAS with threads of its own leaves them spinning on the cores that the kernels need. How many it
uses is a setting of the whole process, and several fits may run in one, so it is counted who wants
it: the first changes it, and the last puts it back.
"""

from __future__ import annotations

import threading
from typing import Any

from threadpoolctl import threadpool_limits

_lock = threading.Lock()
_wanted = 0
_limits: Any = None


class SingleBlasThread:
    """From when this is made until it is released, BLAS has one thread in this process."""

    def __init__(self) -> None:
        global _wanted, _limits
        # Products in compiled kernels use the BLAS of scipy: only one that is loaded has a setting.
        import scipy.linalg  # noqa: F401

        self._released = False
        with _lock:
            if _wanted == 0:
                _limits = threadpool_limits(limits=1, user_api="blas")
            _wanted += 1

    def release(self) -> None:
        """Want it no more; again does nothing."""
        global _wanted, _limits
        with _lock:
            if self._released:
                return
            self._released = True
            _wanted -= 1
            if _wanted == 0:
                _limits.restore_original_limits()
                _limits = None

    def __enter__(self) -> SingleBlasThread:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
