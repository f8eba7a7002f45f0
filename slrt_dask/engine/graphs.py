"""Tasks that are pinned to workers, submitted one by one or many at once.

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
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer


class PinnedGraph:
    """Tasks, each on a worker of its own, that take each other's results."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._layers: dict[str, dict[str, Any]] = {}
        self._count = 0
        self.labels: dict[str, str] = {}
        """Every label, with a worker that has a task of it."""

    def add(self, label: str, worker: str, task: Callable[..., Any], *results: Any) -> str:
        """A task that is called with the results of other keys or futures; its key."""
        self._count += 1
        self.labels.setdefault(label, worker)
        key = f"slrt-{label}-{self._mark}-{self._count}"
        self._layers.setdefault(worker, {})[key] = (task, *results)
        return key

    def submit(self, client: distributed.Client, keys: list[str]) -> list[Any]:
        """Futures for some of the tasks; the others run as far as these need them."""
        layers = {
            worker: MaterializedLayer(tasks, annotations={"workers": [worker]})
            for worker, tasks in self._layers.items()
        }
        graph = HighLevelGraph(layers, {worker: set() for worker in layers})
        futures: list[Any] = client.get(graph, keys, sync=False)
        return futures


class Submitter:
    """Submits tasks under names that read well on a dashboard: slrt-<label>."""

    def __init__(self, client: distributed.Client) -> None:
        self._client = client
        self._kept: dict[str, Any] = {}

    def submit(self, label: str, worker: str, task: Callable[..., Any], *arguments: Any) -> Any:
        """One task on one worker; its future."""
        self._keep_group(label, worker)
        return self._submit(label, worker, task, *arguments)

    def submit_graph(self, graph: PinnedGraph, *keys: str) -> list[Any]:
        """All tasks of a graph at once; the futures of some."""
        for label, worker in graph.labels.items():
            self._keep_group(label, worker)
        return graph.submit(self._client, list(keys))

    def scatter(self, worker: str, values: dict[str, Any], seconds: float) -> list[Any]:
        """Values on a worker, as data that dask cannot, and so does not try to, remake.

        A chain that begins so is forgotten link by link; one that begins with a task is kept whole.
        """
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
