"""What is found in one pass through the observations is what a dense look at them finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slrt_dask.constraints import Bounds
from slrt_dask.reporting import planes
from slrt_dask.reporting.images import MISSING, SHADES, colour_range, palette, png
from slrt_dask.reporting.observed import look_through
from slrt_dask.reporting.planes import Axis, Plane, planes_of


@given(length=st.integers(1, 10**9), most=st.integers(1, 300))
@settings(max_examples=80, deadline=None)
def test_cells_cover_a_mode_and_are_not_too_many(length, most):
    axis = Axis.of(0, length, most)
    assert axis.cells <= most
    assert (axis.cells - 1) * axis.step < length <= axis.cells * axis.step
    middles = axis.middles
    assert np.array_equal(middles // axis.step, np.arange(axis.cells))
    assert middles[-1] < length


@given(shape=st.lists(st.integers(1, 400), min_size=1, max_size=5).map(tuple))
@settings(max_examples=80, deadline=None)
def test_planes_have_entries_of_the_tensor(shape):
    for plane in planes_of(shape):
        places = plane.places()
        assert places.shape == (len(shape), np.prod(plane.cells))
        assert (places >= 0).all()
        assert (places < np.array(shape)[:, None]).all()


@pytest.mark.parametrize(
    ("shape", "modes"),
    [
        ((145, 145, 200), (0, 1)),
        ((3, 256, 256), (1, 2)),
        ((300, 120, 160), (1, 2)),
        ((3, 3, 500, 600), (2, 3)),
        ((80, 60), (0, 1)),
    ],
)
def test_slices_look_like_pictures(shape, modes):
    for plane in planes_of(shape):
        assert tuple(axis.mode for axis in plane.axes) == modes


def test_cells_hold_the_means_of_what_was_observed_in_them(store_of, monkeypatch):
    monkeypatch.setattr(planes, "MOST_CELLS", 4)
    random = np.random.default_rng(0)
    values = random.standard_normal((10, 9, 6))
    mask = random.random(values.shape) < 0.3
    store = store_of(mask, values, parts=4)
    found = look_through(store, planes_of(store.shape), Bounds(-0.5, 0.8))
    seen = values[mask]
    assert found.outside == np.count_nonzero((seen < -0.5) | (seen > 0.8))
    assert (found.lowest, found.highest) == (seen.min(), seen.max())
    for plane, cells in zip(planes_of(store.shape), found.cells, strict=True):
        assert max(plane.cells) <= 4
        ((mode, index),) = plane.fixed
        slab = np.where(mask, values, np.nan).take(index, axis=mode)
        for row, column in np.ndindex(cells.shape):
            rows, columns = (axis.step for axis in plane.axes)
            part = slab[row * rows :, column * columns :][:rows, :columns]
            part = part[np.isfinite(part)]
            wanted = part.mean() if part.size else np.nan
            np.testing.assert_allclose(cells[row, column], wanted)


def test_modes_without_observations_are_counted(store_of):
    mask = np.ones((7, 6, 5), dtype=bool)
    mask[2], mask[:, 4] = False, False
    mask[:, 1] = False
    found = look_through(store_of(mask, np.ones(mask.shape)), (), None)
    assert found.empty == (1, 2, 0)


def test_a_picture_has_the_colour_of_every_value(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    values = np.array([[0.0, 0.5, 1.0], [np.nan, 2.0, -1.0]])
    (tmp_path / "picture.png").write_bytes(png(values, 0.0, 1.0))
    shown = np.rint(255 * image.imread(tmp_path / "picture.png")).astype(int)
    assert shown.shape == (2, 3, 4)
    colours = palette()
    wanted = {(0, 0): 0, (0, 1): (SHADES - 1) // 2, (0, 2): SHADES - 1, (1, 1): SHADES - 1}
    for place, number in wanted.items():
        assert shown[place].tolist() == [*colours[number].tolist(), 255]
    assert shown[1, 2].tolist() == [*colours[0].tolist(), 255]
    assert shown[1, 0, 3] == 0
    assert len(colours) - 1 == MISSING


def test_colours_have_a_range_whatever_there_is_to_show():
    assert colour_range(None, np.full((2, 2), np.nan)) == (0.0, 1.0)
    low, high = colour_range(np.full((2, 2), 3.0))
    assert low < 3.0 < high


def test_a_series_is_one_plane():
    (plane,) = planes_of((5000,))
    assert plane == Plane((Axis(0, 5000, 5),), ())
