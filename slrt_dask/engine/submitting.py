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


class Submitter:
    """Submits tasks under names that read well on a dashboard: slrt-<label>."""

    def __init__(self, client: distributed.Client) -> None:
        self._client = client
        self._kept: dict[str, Any] = {}

    def submit(self, label: str, worker: str, task: Callable[..., Any], *arguments: Any) -> Any:
        """One task on one worker; its future."""
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
        """Let go of what was kept."""
        self._kept.clear()

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
