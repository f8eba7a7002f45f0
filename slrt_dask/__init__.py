"""Certified completion of mostly-missing tensors, distributed and out of core.

The usual way: make a store of observations (`from_array`, `from_coo`, `from_file`), complete it
(`complete`), read its certificate, and ask the result for what is missing (`predict`, `to_dask`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from slrt_dask.completion import Completion, load_completion
    from slrt_dask.constraints import Bounds, Nonnegative
    from slrt_dask.data import (
        ObservationStore,
        from_array,
        from_batches,
        from_coo,
        from_file,
        low_rank_tensor,
        open_array,
        open_store,
    )
    from slrt_dask.dual.certificate import Certificate
    from slrt_dask.fit import complete, resume
    from slrt_dask.hankel import Hankel
    from slrt_dask.linear import Linear
    from slrt_dask.losses import Huber
    from slrt_dask.planning import plan
    from slrt_dask.scoring import Scores, evaluate
    from slrt_dask.show.progress import LiveProgress
    from slrt_dask.show.report import report
    from slrt_dask.tuning.api import tune

# Names are imported when first used, so that `import slrt_dask` stays fast: the solver brings
# numba and distributed, which opening a store does not need.
_HOMES = {
    "Bounds": "constraints",
    "Certificate": "dual.certificate",
    "Completion": "completion",
    "Hankel": "hankel",
    "Huber": "losses",
    "Linear": "linear",
    "LiveProgress": "show.progress",
    "Nonnegative": "constraints",
    "ObservationStore": "data",
    "Scores": "scoring",
    "complete": "fit",
    "evaluate": "scoring",
    "from_array": "data",
    "from_batches": "data",
    "from_coo": "data",
    "from_file": "data",
    "load_completion": "completion",
    "low_rank_tensor": "data",
    "open_array": "data",
    "open_store": "data",
    "plan": "planning",
    "report": "show.report",
    "resume": "fit",
    "tune": "tuning.api",
}

__all__ = [
    "Bounds",
    "Certificate",
    "Completion",
    "Hankel",
    "Huber",
    "Linear",
    "LiveProgress",
    "Nonnegative",
    "ObservationStore",
    "Scores",
    "complete",
    "evaluate",
    "from_array",
    "from_batches",
    "from_coo",
    "from_file",
    "load_completion",
    "low_rank_tensor",
    "open_array",
    "open_store",
    "plan",
    "report",
    "resume",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'slrt_dask' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"slrt_dask.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
