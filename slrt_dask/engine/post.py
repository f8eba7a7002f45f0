"""Letters between workers of one machine, which do not pass their event loops.

In every round all workers wait for a few numbers from each other. Through dask's event loops these
take a millisecond, mostly of the very cores that the kernels want; through a pipe a tenth of it.
Each worker has a pipe, which its neighbours open through /proc and a thread of its own reads. What
is too long for a letter lies in memory that both see (`neighbours.py`), and the letter says where;
the answer tells when it was taken from there, or found, if it stays there.

Workers that cannot open each other's pipes send everything through sockets.
"""

from __future__ import annotations

import os
import pickle
import secrets
import select
import stat
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from slrt_dask.engine.exchange import Letter
from slrt_dask.engine.neighbours import Parcel
from slrt_dask.engine.seen_memory import OutOfSight
from slrt_dask.errors import StateLost

LONGEST = select.PIPE_BUF
"""Bytes that arrive in one piece, whoever else writes to the pipe meanwhile."""
TOKEN_BYTES = 16
LENGTH = struct.Struct("<I")
LOOK_SECONDS = 0.5
"""How long to wait for an answer before looking whether it is still of interest."""

Address = tuple[int, int, int, bytes]
"""Process and number of the open pipe, its number in the kernel, and how letters to it begin."""
Answer = Callable[[bool], None]
"""Tells the sender that a part was taken, or could not be seen."""
Take = Callable[[Letter, Any], None]
"""Takes a part."""
TakeParcel = Callable[[Letter, Parcel, Answer], None]
"""Takes what says where a part is, and answers when that has been taken from there."""


class Route:
    """The way to a neighbour's pipe."""

    def __init__(self, address: Address) -> None:
        process, number, inode, self._token = address
        self._using = threading.Lock()
        try:
            self._file = os.open(f"/proc/{process}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            raise OutOfSight from error
        # Elsewhere the process of that number may be another one, and have another file there.
        found = os.fstat(self._file)
        if not stat.S_ISFIFO(found.st_mode) or found.st_ino != inode:
            self.close()
            raise OutOfSight

    def write(self, content: Any) -> bool:
        """Send something; whether it is on its way, for it may be too long, or the pipe full."""
        buffers: list[pickle.PickleBuffer] = []
        pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
        if sum(buffer.raw().nbytes for buffer in buffers) > LONGEST:
            return False
        pickled = pickle.dumps(content, protocol=5)
        framed = self._token + LENGTH.pack(len(pickled)) + pickled
        if len(framed) > LONGEST:
            return False
        with self._using:  # or the number may be another file's by now
            if self._file < 0:
                raise StateLost("this worker has let go of its part of the problem")
            try:
                return os.write(self._file, framed) == len(framed)
            except BlockingIOError:
                return False
            except OSError as error:
                raise StateLost(f"a worker on this machine is gone ({error})") from error

    def close(self) -> None:
        with self._using:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


def opened_post(take: Take, take_parcel: TakeParcel, failed: Callable[[str], None]) -> Post | None:
    """A worker's post; None on a system that has no such pipes."""
    try:
        return Post(take, take_parcel, failed)
    except (AttributeError, OSError, OutOfSight, RuntimeError):
        return None


class Post:
    """A worker's pipe, the thread that reads it, and the routes to its neighbours' pipes.

    take, take_parcel : what is done with parts that have come
    failed : is told if letters cannot be read any more
    """

    def __init__(self, take: Take, take_parcel: TakeParcel, failed: Callable[[str], None]) -> None:
        self._take, self._take_parcel, self._failed = take, take_parcel, failed
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._answers: dict[int, Future[bool]] = {}
        self._routes: dict[Address, Route] = {}
        self._asked = 0
        self._changing = threading.Lock()
        self._closed = False
        self._reading, writing = os.pipe2(os.O_CLOEXEC)
        inode = os.fstat(self._reading).st_ino
        self.address: Address = (os.getpid(), self._reading, inode, self._token)
        try:
            self._own = Route(self.address)  # which also keeps the pipe open while it is read
        except OutOfSight:
            os.close(self._reading)
            raise
        finally:
            os.close(writing)
        self._thread = threading.Thread(target=self._read, name="slrt-post", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._own.close()
            os.close(self._reading)
            raise

    def route_to(self, address: Address) -> Route:
        """The way to a neighbour; OutOfSight if there is none."""
        with self._changing:
            if self._closed:
                raise OutOfSight
            if address not in self._routes:
                self._routes[address] = Route(address)
            return self._routes[address]

    def send(self, address: Address, letter: Letter, part: Any) -> bool:
        """Send a part in a letter; whether it was short enough."""
        return self.route_to(address).write(("part", letter, part))

    def send_parcel(
        self, address: Address, letter: Letter, parcel: Parcel, still_wanted: Callable[[], None]
    ) -> bool:
        """Say where a part is, and wait until it was taken from there; whether that could be said.

        OutOfSight if it cannot be seen from there.
        still_wanted : raises if there is nothing to wait for any more
        """
        taken: Future[bool] = Future()
        with self._changing:
            self._asked += 1
            number = self._asked
            self._answers[number] = taken
        try:
            if not self.route_to(address).write(("parcel", letter, parcel, self.address, number)):
                return False
            while True:
                try:
                    if not taken.result(LOOK_SECONDS):
                        raise OutOfSight
                    return True
                except TimeoutError:
                    still_wanted()
        finally:
            del self._answers[number]

    def close(self) -> None:
        """Read no more letters; whoever writes one is told that this worker has gone."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
        while self._thread.is_alive() and not self._own.write(("end",)):
            self._thread.join(LOOK_SECONDS)  # until there is room in the pipe
        self._thread.join()
        os.close(self._reading)
        for route in (self._own, *self._routes.values()):
            route.close()
        self._routes.clear()

    def _read(self) -> None:
        try:
            with os.fdopen(self._reading, "rb", closefd=False) as pipe:
                while True:
                    token, (length,) = pipe.read(TOKEN_BYTES), LENGTH.unpack(pipe.read(LENGTH.size))
                    pickled = pipe.read(length)
                    if token != self._token:
                        raise ValueError("a letter for somebody else")
                    kind, *content = pickle.loads(pickled)
                    if kind == "end":
                        return
                    self._open(kind, content)
        except BaseException as error:
            self._failed(f"letters of other workers cannot be read ({error!r})")

    def _answer(self, sender: Address, number: int, seen: bool) -> None:
        answered = False
        with suppress(OutOfSight):
            try:
                answered = self.route_to(sender).write(("answer", number, seen))
            except StateLost:
                return  # the sender has gone, and waits for nothing
        if not answered and not self._closed:
            # It would wait for ever: this worker's run has to end, and so will the sender's.
            self._failed("another worker on this machine cannot be answered")

    def _open(self, kind: str, content: list[Any]) -> None:
        if kind == "part":
            letter, part = content
            self._take(letter, part)
        elif kind == "parcel":
            letter, parcel, sender, number = content
            self._take_parcel(letter, parcel, partial(self._answer, sender, number))
        else:
            number, seen = content
            waiting = self._answers.get(number)
            if waiting is not None:
                waiting.set_result(seen)
