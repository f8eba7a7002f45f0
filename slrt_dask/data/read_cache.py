"""What tasks of one process read and share: each thing once, and not more than there is room for.

Threads that ask for the same thing at the same time wait for one read. What was used longest ago
goes first; the newest always stays, however large, because it is about to be used.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

Key = tuple[Any, ...]
Value = TypeVar("Value")


class ReadCache:
    """Values by key, bounded in bytes.

    most_bytes : what may be kept now; one value is, even if it alone is larger
    """

    def __init__(self, most_bytes: Callable[[], int]) -> None:
        self.most_bytes = most_bytes
        self._kept: dict[Key, _Kept] = {}  # in the order of their use
        # Reentrant, because `forget` is called when an object is collected, and that may be in
        # the midst of anything; so whatever is done under it has to bear entries that vanish.
        self._lock = threading.RLock()
        CACHES.add(self)

    def get(self, key: Key, read: Callable[[], Value]) -> Value:
        """The value of a key: an array, a tuple of such, or anything that has nbytes."""
        with self._lock:
            kept = self._kept.pop(key, None) or _Kept()
            self._kept[key] = kept
        with kept.lock:
            if kept.value is None:
                try:
                    kept.value = read()
                except BaseException:
                    self.forget(key)
                    raise
                kept.nbytes = nbytes_of(kept.value)
            value: Value = kept.value
        with self._lock:
            for other in list(self._kept):
                if self.nbytes > self.most_bytes() and other != key:
                    self._kept.pop(other, None)
        return value

    def forget(self, start: Key = ()) -> None:
        """Drop the values of all keys that start so."""
        for key in list(self._kept):
            if key[: len(start)] == start:
                self._kept.pop(key, None)

    @property
    def nbytes(self) -> int:
        """Bytes kept now."""
        return sum(kept.nbytes for kept in list(self._kept.values()))


@dataclass
class _Kept:
    """One value, or its reading."""

    lock: Any = field(default_factory=threading.Lock)
    value: Any = None
    nbytes: int = 0


CACHES: weakref.WeakSet[ReadCache] = weakref.WeakSet()
"""All there are in this process, so that they can be emptied together."""


def drop_kept() -> None:
    """Make room for something that counts with all memory: what is wanted again is read again."""
    for cache in list(CACHES):
        cache.forget()


def nbytes_of(value: Any) -> int:
    return sum(map(nbytes_of, value)) if isinstance(value, tuple) else value.nbytes
