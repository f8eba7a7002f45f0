"""What tasks of one process read and share: each thing once, and not more than there is room for.

Threads that ask for the same thing at the same time wait for one read. What was used longest ago
goes first; the newest always stays, however large, because the next task will want it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


CACHES: weakref.WeakSet[ReadCache[Any, Any]] = weakref.WeakSet()
"""All there are in this process, so that they can be emptied together."""


def drop_kept() -> None:
    """Make room for something that counts with all memory: what is wanted again is read again."""
    for cache in list(CACHES):
        cache.forget(lambda key: True)


class ReadCache(Generic[Key, Value]):
    """Values by key, bounded in bytes.

    most_bytes : what may be kept; one value is, even if it alone is larger
    size_of : the bytes of a value
    """

    def __init__(self, most_bytes: int, size_of: Callable[[Value], int]) -> None:
        self.most_bytes = most_bytes
        self.reads = 0
        self._size_of = size_of
        self._kept: dict[Key, _Kept[Value]] = {}  # in the order of their use
        # Reentrant, because `forget` is called when an object is collected, and that may be in
        # the midst of anything; so whatever is done under it has to bear entries that vanish.
        self._lock = threading.RLock()
        CACHES.add(self)

    def get(self, key: Key, read: Callable[[], Value], at_least: int = 0) -> Value:
        """The value of a key, read if it is not here.

        at_least : bytes that may be kept for its sake, it included, if that is more than usual
        """
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
        with kept.lock:
            if kept.value is None:
                try:
                    kept.value = read()
                except BaseException:
                    self._drop(key)
                    raise
                kept.nbytes = self._size_of(kept.value)
                self.reads += 1
            value = kept.value
        self._make_room(key, max(at_least, self.most_bytes))
        return value

    def __contains__(self, key: Key) -> bool:
        """Whether the value of a key is here now."""
        kept = self._kept.get(key)
        return kept is not None and kept.value is not None

    def forget(self, wanted: Callable[[Key], bool]) -> None:
        """Drop the values of all keys for which `wanted` is true."""
        for key in list(self._kept):
            if wanted(key):
                self._drop(key)

    @property
    def nbytes(self) -> int:
        """Bytes kept now."""
        with self._lock:
            return sum(kept.nbytes for kept in list(self._kept.values()))

    def __len__(self) -> int:
        return len(self._kept)

    def _drop(self, key: Key) -> None:
        with self._lock:
            self._kept.pop(key, None)

    def _make_room(self, newest: Key, most_bytes: int) -> None:
        with self._lock:
            if newest in self._kept:
                self._kept[newest] = self._kept.pop(newest)
            for key in list(self._kept)[:-1]:
                if self.nbytes <= most_bytes:
                    break
                self._drop(key)


class _Kept(Generic[Value]):
    """One value, or its reading."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Value | None = None
        self.nbytes = 0
