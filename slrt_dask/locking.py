"""One process at a time is at work on a run."""

from __future__ import annotations

import contextlib
import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path

from slrt_dask.errors import RunInUse

LOCK = "lock"
logger = logging.getLogger("slrt_dask")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep others from working on a directory's run meanwhile; RunInUse if one does already."""
    # The system lets go of it when the process ends, however that happens; the file stays, for
    # one that were removed could be held by one process and made anew by another.
    with open(path / LOCK, "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunInUse(
                f"another process is at work on the run {path}; wait until it ends, or stop it"
            ) from error
        except OSError as error:
            logger.warning("%s cannot be locked (%s); use it from one process only", path, error)
        yield


def is_locked(path: Path) -> bool:
    """Whether a process is at work on the run in a directory."""
    try:
        with open(path / LOCK, encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it cannot be told
        return False
    return False
