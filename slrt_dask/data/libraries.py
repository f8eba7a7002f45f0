"""Other libraries: recognising their arrays, and importing them only when they are needed.

An object of a library's class can only exist once that library has been imported, so looking in
`sys.modules` is enough, and the optional ones stay optional.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from slrt_dask.errors import MissingDependency


def is_dask_array(value: object) -> bool:
    return _is_instance(value, "dask.array", "Array")


def is_data_array(value: object) -> bool:
    return _is_instance(value, "xarray", "DataArray")


def is_dataset(value: object) -> bool:
    return _is_instance(value, "xarray", "Dataset")


def is_sparse_coo(value: object) -> bool:
    return _is_instance(value, "sparse", "COO")


def _is_instance(value: object, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def load(module: str, extra: str | None = None) -> Any:
    """A module by name; `extra` names the installation extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        remedy = f"slrt-dask[{extra}]" if extra else package
        raise MissingDependency(f"{package} is not installed; install {remedy}.") from error
