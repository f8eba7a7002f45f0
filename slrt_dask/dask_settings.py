"""How dask's servers are set where fits run: tasks stay in place, and the cores are the kernels'.

    with dask.config.set(slrt_dask.dask_settings.SETTINGS):
        cluster = LocalCluster(...)

Everything this project starts has them; processes that are started elsewhere take them as
environment variables. This file changes when dask's servers have other habits.
"""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, Any] = {
    # State lives on the workers, so tasks must stay where they were put.
    "distributed.scheduler.work-stealing": False,
    # Servers look at themselves and at their threads for dashboards, many times a second, whether
    # anybody watches or not. With as many workers as cores that took 5 % of the kernels' time.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}


def as_variables() -> dict[str, str]:
    """The settings as environment variables, for processes to be started."""
    return {
        "DASK_" + name.replace(".", "__").replace("-", "_").upper(): str(value)
        for name, value in SETTINGS.items()
    }
