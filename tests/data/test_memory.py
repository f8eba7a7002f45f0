"""Ingest stays within about a batch plus a partition, however large the source.

Peaks are measured in a process of their own. The same measurement with a batch and a partition as
large as the source must exceed the bounds, or the measurement would prove nothing.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")

MEASURE = """
import sys
from pathlib import Path
import dask
import dask.array as da
import numpy as np
from slrt_dask.data.arrays import array_source
from slrt_dask.data.text import TextFormat, text_source
from slrt_dask.data.ingest import IngestOptions, ingest

dask.config.set(scheduler="synchronous")
kind, directory, text, entries = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

def dask_source(slices):
    array = da.random.default_rng(0).standard_normal((slices, 100, 100), chunks=(5, 100, 100))
    return array_source(array)

def source(small):
    if kind == "dask":
        return dask_source(5 if small else 130)
    path = text.with_suffix(".small") if small else text
    return text_source(str(path), TextFormat(",", 0, True), None)

options = IngestOptions(batch_entries=entries, partition_entries=2 * entries)
ingest(directory / "warm", source(True), options)
before = peak()
ingest(directory / "store", source(False), options)
print(peak() - before)
"""


def growth(kind, directory, text, entries):
    directory.mkdir()
    arguments = [kind, str(directory), str(text), str(entries)]
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True
    )
    return float(result.stdout)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "table.csv"
    count = 500_000
    cells = np.random.default_rng(0).permutation(100 * 100 * 100)[:count]
    columns = [c.tolist() for c in np.unravel_index(cells, (100, 100, 100))]
    lines = [f"{i},{j},{k},{n}.5" for n, (i, j, k) in enumerate(zip(*columns, strict=True))]
    path.write_text("\n".join(lines))
    path.with_suffix(".small").write_text("\n".join(lines[:20_000]))
    return path


@pytest.mark.parametrize(
    ("kind", "entries", "bound"), [("dask", 50_000, 35.0), ("csv", 25_000, 25.0)]
)
def test_peak_memory_is_bounded_by_batch_and_partition(tmp_path, table, kind, entries, bound):
    grown = growth(kind, tmp_path / "bounded", table, entries)
    assert grown < bound, f"grew by {grown:.0f} MB"


def test_without_bounds_the_peak_is_seen_to_be_larger(tmp_path, table):
    grown = growth("dask", tmp_path / "at_once", table, 10_000_000)
    assert grown > 2 * 35.0, f"grew by {grown:.0f} MB only, so the bounds prove nothing"
