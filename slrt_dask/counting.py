"""Many tasks of one kind on the current dask scheduler, while it is told how many are done.

Threads tell of a task by a callback, a cluster by its futures; this changes when dask does.
"""

from __future__ import annotations

import threading
from typing import Any

import dask
import dask.base
import distributed
from dask.callbacks import Callback

from slrt_dask.data.ingest import Progress, tell


def computed_one_by_one(tasks: list[Any], stage: str, progress: Progress | None) -> None:
    """Compute delayed tasks, whose results are not looked at."""
    tell(progress, stage, 0, len(tasks))
    client = _current_client()
    if client is None:
        _here(tasks, stage, progress)
    else:
        _on_cluster(tasks, stage, progress, client)


def _current_client() -> distributed.Client | None:
    """The client that dask itself would compute with now."""
    client = getattr(dask.base.get_scheduler(), "__self__", None)
    return client if isinstance(client, distributed.Client) else None


def _here(tasks: list[Any], stage: str, progress: Progress | None) -> None:
    wanted, counting = {task.key for task in tasks}, threading.Lock()
    done = 0

    def count(key: Any, *_: Any) -> None:
        nonlocal done
        if key in wanted:
            with counting:
                done += 1
                tell(progress, stage, done, len(tasks))

    with Callback(posttask=count):
        # Nothing is fused or renamed: the tasks that are counted are those that run.
        dask.compute(*tasks, optimize_graph=False)


def _on_cluster(
    tasks: list[Any], stage: str, progress: Progress | None, client: distributed.Client
) -> None:
    futures = client.compute(tasks, optimize_graph=False)
    try:
        for done, future in enumerate(distributed.as_completed(futures), 1):
            future.result()
            tell(progress, stage, done, len(tasks))
    except BaseException:
        client.cancel(futures)
        raise
