"""The documented names exist, are called as documented, and are cheap to import."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import slrt_dask as slrt

ROOT = Path(__file__).parents[1]

# name: (positional arguments, other arguments that must be accepted with their defaults)
CALLS = {
    "from_coo": (("path", "indices", "values", "shape"), {"duplicates": "error"}),
    "from_array": (("path", "array"), {"mask": None}),
    "from_file": (("path", "source"), {}),
    "open_store": (("path",), {}),
    "complete": (
        ("store", "ranks"),
        {
            "constraint": None,
            "C": "auto",
            "lambdas": None,
            "loss": None,
            "method": "auto",
            "center": None,
            "gap_tolerance": 1e-3,
            "gradient_tolerance": 1e-6,
            "max_iterations": 200,
            "validation": None,
            "run_directory": None,
            "client": None,
            "memory_limit": None,
            "seed": 0,
            "checkpoint_every": 1,
            "observers": (),
        },
    ),
    "resume": (
        ("run_directory",),
        {
            "client": None,
            "memory_limit": None,
            "threads": None,
            "checkpoint_every": 1,
            "observers": (),
        },
    ),
    "load_completion": (("path",), {}),
    "evaluate": (("completion", "store"), {}),
    "report": (("run", "path"), {"overwrite": False, "modes": None}),
    "Nonnegative": ((), {"where": "all"}),
    "Bounds": (("lower", "upper"), {"where": "all"}),
    "Linear": (("A", "b"), {"kind": ">="}),
    "Hankel": (("tau",), {"deviation": "auto"}),
    "Huber": (("delta",), {}),
}

STORE = ("shape", "nnz", "order", "partitions", "indices", "values", "mean", "split")
COMPLETION = (
    *("predict", "to_dask", "to_zarr", "to_xarray", "save"),
    *("factors", "ranks", "records", "stop_reason", "certificate"),
)
CERTIFICATE = ("primal", "dual", "gap", "relative_gap", "paper_gap", "violation")
RECORD = (
    *("iteration", "cost", "gradient_norm", "paper_gap", "primal", "dual", "relative_gap"),
    *("violation", "inner_iterations", "inner_residual", "step", "seconds", "ranks"),
    "validation_rmse",
)


@pytest.mark.parametrize("name", CALLS)
def test_a_documented_function_is_called_as_documented(name):
    positional, options = CALLS[name]
    parameters = inspect.signature(getattr(slrt, name)).parameters
    assert tuple(parameters)[: len(positional)] == positional
    for argument, default in options.items():
        assert parameters[argument].default == default, argument


def test_documented_names_are_public():
    assert set(CALLS) <= set(slrt.__all__)
    assert set(slrt.__all__) <= set(dir(slrt))
    for name in slrt.__all__:
        assert getattr(slrt, name) is not None
    assert slrt.__version__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        slrt.nonsense  # noqa: B018


def test_stores_completions_and_records_have_the_documented_attributes(store_of, tmp_path):
    import numpy as np

    mask = np.ones((4, 3), dtype=bool)
    store = store_of(mask, np.arange(12.0).reshape(4, 3))
    assert [name for name in STORE if not hasattr(store, name)] == []
    done = slrt.complete(store, (1, 1), C=1.0, max_iterations=0, run_directory=tmp_path / "run")
    assert [name for name in COMPLETION if not hasattr(done, name)] == []
    assert [name for name in CERTIFICATE if not hasattr(done.certificate, name)] == []
    assert [name for name in RECORD if not hasattr(done.records[0], name)] == []
    assert done.stop_reason.value.endswith(".")
    train, test = store.split(
        test=0.5, seed=0, train_path=tmp_path / "train", test_path=tmp_path / "test"
    )
    assert train.nnz + test.nnz == store.nnz


def run(program):
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(finished.stdout)


def test_importing_the_package_is_fast_and_brings_no_heavy_library():
    program = (
        "import json, sys, time; began = time.perf_counter(); import slrt_dask;"
        "seconds = time.perf_counter() - began;"
        "print(json.dumps([seconds, sorted(m for m in sys.modules if '.' not in m)]))"
    )
    tries = [run(program) for _ in range(3)]  # the machine may be busy with something else
    assert not {"numba", "distributed", "matplotlib", "dask", "zarr"} & set(tries[0][1])
    assert min(seconds for seconds, _ in tries) < 0.5


def test_opening_a_store_needs_no_compiler_and_no_cluster():
    modules = run(
        "import json, sys, slrt_dask; slrt_dask.open_store, slrt_dask.from_coo;"
        "print(json.dumps(sorted(m for m in sys.modules if '.' not in m)))"
    )
    assert not {"numba", "distributed", "matplotlib"} & set(modules)


def test_every_error_is_ours_and_a_builtin():
    from slrt_dask import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert len(kinds) > 8
    for kind in kinds:
        assert issubclass(kind, errors.SlrtError)
        if kind is not errors.SlrtError:
            assert kind.__bases__[1].__module__ == "builtins"
        assert kind.__doc__
