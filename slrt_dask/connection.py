"""The way to a cluster, opened anew when its scheduler was started again.

A client tries for some seconds to reach a scheduler that has gone, and then closes for good. A fit
that wants to go on after that needs another client to the same address, with the same security.
"""

from __future__ import annotations

import contextlib
from types import TracebackType

import distributed
from distributed.deploy.spec import SpecCluster

from slrt_dask.errors import ClusterLost

SECONDS_TO_CONNECT = 5.0


class Connection:
    """A client that was given, or the one that has taken its place."""

    def __init__(self, given: distributed.Client) -> None:
        if given.scheduler is None:
            raise ClusterLost(f"the client is {given.status}; give one that is connected")
        self._given = given
        self._own: distributed.Client | None = None
        self._address = given.scheduler.address

    @property
    def client(self) -> distributed.Client:
        return self._given if self._own is None else self._own

    def restore(self) -> None:
        """Open a new client if the last one has closed; ClusterLost if no scheduler is there."""
        if self.client.status != "closed":
            return
        try:
            self._own = distributed.Client(
                self._address,
                security=self._given.security,
                timeout=SECONDS_TO_CONNECT,
                set_as_default=False,
            )
        except (OSError, ValueError) as error:
            raise ClusterLost(f"no scheduler answers at {self._address}") from error

    def ask_for_lost_workers(self) -> None:
        """Have a cluster that was made in this process start again what it has given up.

        It closes a worker that was lost and is slow to come back, but still counts it as wanted.
        """
        cluster = self._given.cluster
        if not isinstance(cluster, SpecCluster) or cluster.status.name != "running":
            return
        if len(cluster.workers) < len(cluster.worker_spec):
            cluster.scale(len(cluster.worker_spec))

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close what was opened here; the given client belongs to who gave it."""
        if self._own is not None:
            with contextlib.suppress(TimeoutError):
                self._own.close(timeout=SECONDS_TO_CONNECT)
