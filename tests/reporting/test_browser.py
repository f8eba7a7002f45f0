"""The page in a real browser, at the widths of a desk and of a hand."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

import slrt_dask as slrt
from tests.reporting.browser import CHROMIUM, Look, look_at

WIDTHS = (1280, 390)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium here; install Debian's package chromium"
)


def looked_through(picture):
    """How many different rows of pixels a screenshot has, its size, and the colour of a corner."""
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    place, content = 8, b""
    while place < len(picture):
        (length,) = struct.unpack(">I", picture[place : place + 4])
        if picture[place + 4 : place + 8] == b"IDAT":
            content += picture[place + 8 : place + 8 + length]
        place += 12 + length
    raw = zlib.decompress(content)
    stride = len(raw) // height
    rows = {raw[row * stride : (row + 1) * stride] for row in range(height)}
    return len(rows), (width, height), raw[1:4]


@pytest.fixture(scope="module")
def series_page(store_of, tmp_path_factory):
    place = tmp_path_factory.mktemp("series")
    store = store_of(np.arange(80) % 9 != 0, np.sin(0.3 * np.arange(80)))
    slrt.complete(
        store, (2,), C=10.0, constraint=slrt.Hankel(30, deviation=0.01), max_iterations=3,
        threads=1, run_directory=place / "run",
    )  # fmt: skip
    return slrt.report(place / "run", place / "report.html")


@pytest.fixture(scope="module")
def seen(page, series_page, tmp_path_factory):
    """Everything that is to be looked at, by a browser that is started once."""
    looks = [
        *(Look(page, width, dark) for width in WIDTHS for dark in (False, True)),
        *(Look(series_page, width) for width in WIDTHS),
    ]
    profile = tmp_path_factory.mktemp("browser") / "profile"
    return dict(zip(looks, look_at(looks, profile), strict=True))


def test_the_browser_has_nothing_to_complain_of_and_fetches_nothing(seen):
    assert [one.complaints for one in seen.values()] == [[]] * len(seen)
    assert [one.measured["fetched"] for one in seen.values()] == [[]] * len(seen)


def test_pages_are_as_wide_as_the_window(seen):
    for look, one in seen.items():
        assert one.measured["width"] <= one.measured["inner"] == look.width


def test_no_table_is_cut_but_long_ones_that_are_asked_for(seen):
    for one in seen.values():
        assert one.measured["cut"] == []


def test_every_plot_is_seen(seen, page):
    for look, one in seen.items():
        plots = one.measured["plots"]
        kinds = sorted(plot["kind"] for plot in plots)
        # slices observed and completed, and curves; the bar of time is on both pages
        assert kinds.count("IMG") == (6 if look.page == page else 0)
        assert kinds.count("svg") == 4
        assert kinds.count("DIV") == 1
        for plot in plots:
            assert plot["width"] > 60
            assert plot["height"] > 10
            assert plot["decoded"]
            assert 0 <= plot["left"] < plot["right"] <= look.width


def test_pages_are_not_blank_and_dark_ones_are_dark(seen):
    for look, one in seen.items():
        rows, size, first = looked_through(one.picture)
        assert size == (look.width, one.measured["height"])
        assert rows > 300
        assert (max(first) < 60) == look.dark
