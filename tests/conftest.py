"""Shared fixtures: stores made once for many tests, and small clusters kept for a whole run."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import warnings

# Read when numpy is first imported: threads of a BLAS do not help with matrices so small, and
# several processes run tests at once.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import dask
import numpy as np
import pytest

import slrt_dask
from slrt_dask.dask_settings import SETTINGS, as_variables

# For the clusters that are kept for a whole run, and for the processes that tests start.
dask.config.set(SETTINGS)
for _name, _value in as_variables().items():
    os.environ.setdefault(_name, _value)


# Thousands of small files are written, and made sure of: in memory, where there is room for them.
MEMORY_FILES, ROOM_FOR_FILES = "/dev/shm", 4 * 2**30
if os.access(MEMORY_FILES, os.W_OK) and shutil.disk_usage(MEMORY_FILES).free > ROOM_FOR_FILES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY_FILES)


# A shell that starts a run in the background has it ignore interrupts, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start many processes, and each would compile the whole package where bytecode is not kept.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _compile_once_for_all_processes(run):
    """Have processes that need the same kernel at the same time wait for one that compiles it.

    Kernels are kept in files, but all processes begin at once, and each would compile them all.
    """
    from numba.core.ccallback import CFunc
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    directory = os.path.join(tempfile.gettempdir(), f"slrt-compiling-{run}")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)

    def alone(compile_kernel, name_of):
        def compile_alone(self, *signature):
            os.makedirs(directory, exist_ok=True)  # or the first process to end has removed it
            # Numba's own lock first: threads of one process would wait for each other else.
            with (
                global_compiler_lock,
                open(os.path.join(directory, name_of(self)), "w") as file,
            ):
                fcntl.flock(file, fcntl.LOCK_EX)
                return compile_kernel(self, *signature)

        return compile_alone

    Dispatcher.compile = alone(Dispatcher.compile, lambda kernel: kernel.py_func.__qualname__)
    CFunc.compile = alone(CFunc.compile, lambda kernel: kernel.__name__)


if "PYTEST_XDIST_TESTRUNUID" in os.environ:
    _compile_once_for_all_processes(os.environ["PYTEST_XDIST_TESTRUNUID"])


# Files go to the processes that run tests in this order. Those that mostly wait, for processes and
# servers, come first: the others keep the machine busy meanwhile. Short ones come last, so that
# all processes end at about one time.
FIRST = ("faults", "data/test_urls", "cluster", "cli", "show", "data/test_memory")
THEN = (
    "tuning",
    "notebooks",
    "test_resume",
    "engine",
    "test_",
    "dual",
    "data",
    "optim/test_methods",
    "optim",
    "kernels",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    here = os.path.dirname(__file__)

    def place(item):
        name = os.path.relpath(item.path, here)
        found = [number for number, start in enumerate(FIRST + THEN) if name.startswith(start)]
        return found[0] if found else len(FIRST + THEN)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Whole files go to one process, and all that need worker processes to the same one.

    So do all that kill processes: these are forked from one that has taken seconds to start.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            if "/faults/" in nodeid or "/engine/test_cluster_" in nodeid:
                return "processes to be killed"
            if "process" in nodeid or "test_urls" in nodeid:
                return "worker processes"
            return super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def store_of(tmp_path_factory):
    """Make a store of a tensor's observed entries, once for each set of arguments.

    parts : about how many partitions to cut it into; there are never fewer.
    """
    made = {}
    directory = tmp_path_factory.mktemp("stores")

    def make(mask, values, *, parts=1, slab_mode=None, **options):
        indices = np.array(np.nonzero(mask))
        numbers = np.asarray(values)[mask]
        key = (mask.tobytes(), numbers.tobytes(), mask.shape, parts, slab_mode, str(options))
        if key not in made:
            made[key] = slrt_dask.from_coo(
                directory / f"store{len(made)}",
                indices,
                numbers,
                mask.shape,
                slab_mode=slab_mode,
                partition_entries=-(-numbers.size // parts),
                **options,
            )
        return made[key]

    return make


def _fork_workers_from_one_that_has_imported():
    """Let worker processes start in a fraction of a second: most of it are imports otherwise."""
    from distributed.utils import get_mp_context

    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    needed = ["distributed", "dask.array", "numba", "zarr", "slrt_dask.fit", "slrt_dask.engine"]
    get_mp_context().set_forkserver_preload(needed)


@pytest.fixture(scope="session")
def open_client():
    """Start a cluster on this machine; all are closed at the end of the run."""
    from distributed import Client, LocalCluster

    opened = []
    _fork_workers_from_one_that_has_imported()

    def start(**options):
        options = {"threads_per_worker": 1, "memory_limit": 0, **options}
        with warnings.catch_warnings():
            # A busy machine is no reason to fail.
            warnings.filterwarnings("ignore", "Creating scratch directories is taking")
            cluster = LocalCluster(dashboard_address=":0", **options)
        # Not for everything that is computed from now on, in whichever test.
        opened.append((Client(cluster, set_as_default=False), cluster))
        return opened[-1][0]

    yield start
    with warnings.catch_warnings():
        # Sockets that the event loop still holds while it stops are not ours to judge.
        warnings.simplefilter("ignore", ResourceWarning)
        for client, cluster in reversed(opened):
            # A cluster that does not end must not keep the run from ending.
            if client.status == "closed":
                continue
            with contextlib.suppress(TimeoutError):
                client.close(timeout=10)
            with contextlib.suppress(TimeoutError):
                cluster.close(timeout=10)


@pytest.fixture(scope="session")
def process_client(open_client):
    """Two workers, each a process of its own."""
    return open_client(n_workers=2, processes=True)


@pytest.fixture(scope="session")
def thread_client(open_client):
    """Three workers in this process."""
    return open_client(n_workers=3, processes=False)


@pytest.fixture(scope="session")
def lone_client(open_client):
    """One worker in this process."""
    return open_client(n_workers=1, processes=False)


@pytest.fixture
def vectors_held(monkeypatch):
    """How many vectors a block in memory held, beyond its values, whenever it was given one."""
    from slrt_dask.engine.block import EXTRA, FIBRES, ROWS, VALUES, MemoryArrays

    held, fresh = [], MemoryArrays.fresh

    def counted(self, name):
        vector = fresh(self, name)
        vectors = [one for one in self.held if not one.startswith((ROWS, FIBRES, VALUES, EXTRA))]
        held.append(len(vectors))
        return vector

    monkeypatch.setattr(MemoryArrays, "fresh", counted)
    return held
