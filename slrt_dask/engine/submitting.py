"""Tasks that are pinned to workers.

A scheduler remembers for good every task group that it has ever seen, and makes a new one whenever
a name comes up of which no task is left. So that it does not grow with the iterations of a fit, one
small task of every name is kept for as long as the fit runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import distributed

SEND_SECONDS = 0.001
"""How long a client may collect messages to the scheduler, while a fit has it. Dask's 10 ms are for
thousands of tasks; a fit submits a few, right after it has let go of the last ones, and waits."""


class Submitter:
    """Submits tasks under names that read well on a dashboard: slrt-<label>."""

    def __init__(self, client: distributed.Client) -> None:
        self._client = client
        self._kept: dict[str, Any] = {}
        self._hastened: tuple[Any, float] | None = None

    def submit(self, label: str, worker: str, task: Callable[..., Any], *arguments: Any) -> Any:
        """One task on one worker; its future."""
        self._hasten()
        self._keep_group(label, worker)
        return self._submit(label, worker, task, *arguments)

    def scatter(self, worker: str, values: dict[str, Any], seconds: float) -> list[Any]:
        """Values on a worker, straight from here: what is large should not pass the scheduler."""
        for label in values:
            self._keep_group(label, worker)
        named = {_key(label): value for label, value in values.items()}
        scatter = partial(self._client.scatter, named, workers=[worker], asynchronous=True)
        futures: dict[str, Any] = self._client.sync(scatter, callback_timeout=seconds)
        return [futures[key] for key in named]

    def forget(self) -> None:
        """Let go of what was kept, and of the client."""
        self._kept.clear()
        if self._hastened is not None:
            sending, seconds = self._hastened
            sending.interval, self._hastened = seconds, None

    def _hasten(self) -> None:
        """Have messages sent soon; a connection that was made anew has yet to be told."""
        sending = self._client.scheduler_comm
        if sending is not None and sending.interval > SEND_SECONDS:
            self._hastened = sending, sending.interval
            sending.interval = SEND_SECONDS

    def _keep_group(self, label: str, worker: str) -> None:
        if label not in self._kept:
            self._kept[label] = self._submit(label, worker, _nothing)

    def _submit(self, label: str, worker: str, task: Callable[..., Any], *arguments: Any) -> Any:
        return self._client.submit(
            task,
            *arguments,
            key=_key(label),
            workers=[worker],
            allow_other_workers=False,
            pure=False,
        )


def _key(label: str) -> str:
    return f"slrt-{label}-{uuid.uuid4().hex}"


def _nothing() -> None:
    return None
