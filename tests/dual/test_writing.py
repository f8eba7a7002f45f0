"""Arrays of a model are written, and copied, some rows at a time."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest
import zarr

from slrt_dask.dual import writing
from slrt_dask.dual.writing import create_array, read_array, write_array, write_rows


class Watched:
    """An array that remembers how many rows were read at once."""

    def __init__(self, values):
        self.values, self.read = values, []
        self.shape, self.dtype, self.size = values.shape, values.dtype, values.size

    def __getitem__(self, rows):
        part = self.values[rows]
        self.read.append(len(part))
        return part


@pytest.fixture
def group(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "CHUNK_BYTES", 64)
    zarr.create_group(tmp_path / "group")
    return str(tmp_path / "group")


def test_never_more_than_a_chunk_is_read_of_what_is_copied(group):
    values = np.arange(38.0).reshape(19, 2)
    source = Watched(values)
    checksum = write_array(group, "copy", source)
    assert max(source.read) == 4
    assert sum(source.read) == 19
    np.testing.assert_array_equal(read_array(group, "copy", checksum), values)


@pytest.mark.parametrize("cuts", [(0, 19), (0, 5, 19), (0, 3, 4, 4, 11, 19)])
def test_rows_written_in_parts_are_the_whole(cuts, group):
    values = np.arange(38.0).reshape(19, 2)
    create_array(group, "parts", values.shape, values.dtype)
    checksum = 0
    for first, stop in itertools.pairwise(cuts):
        checksum = write_rows(group, "parts", first, values[first:stop], checksum)
    assert checksum == zlib.crc32(values.data)
    np.testing.assert_array_equal(read_array(group, "parts", checksum), values)
