"""Pictures have the panels they promise, need no display and no pyplot, and refuse nonsense."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from slrt_dask.errors import InvalidInput, MissingDependency
from slrt_dask.optim.records import IterationRecord
from slrt_dask.plot import (
    completion_figure,
    convergence_figure,
    frames_figure,
    prediction_figure,
    save_figure,
    series_figure,
    spectra_figure,
    tuning_figure,
)
from slrt_dask.tuning.candidate import Candidate
from slrt_dask.tuning.search import Tried

pytest.importorskip("matplotlib")

ROW = IterationRecord(
    iteration=0, cost=8.0, gradient_norm=1.0, paper_gap=None, primal=None, dual=None,
    relative_gap=None, violation=None, inner_iterations=1, inner_residual=0.1,
    inner_converged=True, sweeps=3, step=1.0, seconds=2.0, ranks=(2, 2), validation_rmse=None,
)  # fmt: skip
RECORDS = [
    replace(ROW, iteration=n, cost=8.0 / (n + 1), relative_gap=0.5**n if n % 2 else None)
    for n in range(7)
]


@pytest.fixture
def slices():
    truth = np.add.outer(np.arange(6.0), np.arange(9.0))
    observed = np.where(np.arange(54).reshape(6, 9) % 5 == 0, truth, np.nan)
    return truth, observed, truth + 0.5


def titles(figure):
    return [axis.get_title() for axis in figure.axes if axis.get_title()]


def test_four_panels_show_truth_observed_completed_and_error(slices):
    figure = completion_figure(*slices, title="a slice")
    assert titles(figure) == ["truth", "observed (20.4 %)", "completed", "error (RMSE 0.5)"]
    images = [axis.images[0] for axis in figure.axes if axis.images]
    assert {image.get_clim() for image in images[:3]} == {(0.0, 13.5)}
    assert images[3].get_clim() == (-0.5, 0.5)
    assert np.ma.count_masked(images[1].get_array()) == 54 - 11


def test_without_truth_the_misfit_at_observed_entries_is_shown(slices):
    figure = completion_figure(None, *slices[1:], error_limit=2.0)
    assert titles(figure) == ["observed (20.4 %)", "completed", "misfit (RMSE 0.5)"]
    misfit = [axis.images[0] for axis in figure.axes if axis.images][-1]
    assert np.ma.count(misfit.get_array()) == 11
    assert misfit.get_clim() == (-2.0, 2.0)


def test_a_masked_array_says_what_is_missing(slices):
    masked = np.ma.masked_invalid(slices[1])
    assert titles(completion_figure(None, masked, slices[2]))[0] == "observed (20.4 %)"


def test_convergence_leaves_out_what_was_never_measured():
    assert titles(convergence_figure(RECORDS)) == [
        "cost above its lowest",
        "gradient norm",
        "certified relative gap",
    ]
    measured = [replace(row, validation_rmse=0.1) for row in RECORDS]
    assert titles(convergence_figure(measured))[-1] == "validation RMSE"


def test_the_gap_is_drawn_where_it_is_known():
    axis = convergence_figure(RECORDS).axes[2]
    assert axis.get_yscale() == "log"
    np.testing.assert_array_equal(axis.lines[0].get_xdata(), [1, 3, 5])


def test_the_records_of_a_fit_without_iterations_can_be_drawn():
    assert titles(convergence_figure([replace(ROW, relative_gap=0.1)]))


def test_figures_are_written_without_pyplot(slices, tmp_path):
    figures = sys.modules.get("matplotlib.pyplot")
    before = figures.get_fignums() if figures else []
    save_figure(completion_figure(*slices), tmp_path / "a.png")
    save_figure(convergence_figure(RECORDS, title="fit"), tmp_path / "b.pdf")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "b.pdf").read_bytes().startswith(b"%PDF")
    assert before == (figures.get_fignums() if figures else [])


def test_slices_that_cannot_be_drawn_are_refused(slices):
    truth, observed, completed = slices
    with pytest.raises(InvalidInput, match="truth has shape"):
        completion_figure(truth[:3], observed, completed)
    with pytest.raises(InvalidInput, match="two dimensions"):
        completion_figure(None, observed[0], completed)
    with pytest.raises(InvalidInput, match="no records"):
        convergence_figure([])


def test_without_matplotlib_the_remedy_is_named(slices, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"slrt-dask\[plot\]"):
        completion_figure(*slices)


def test_a_search_is_drawn_with_its_best_and_none_is_refused():
    history = [
        Tried(Candidate((2, 2), (4.0**n, 1.0)), 1.0 + (n - 3) ** 2, 0, 1, 0.1, ()) for n in range(6)
    ]
    figure = tuning_figure(history, title="a search")
    by_strength, by_order = figure.axes
    assert by_strength.collections[0].get_offsets()[:, 0].tolist() == [4.0**n for n in range(6)]
    assert by_strength.collections[1].get_offsets().tolist() == [[64.0, 1.0]]
    assert by_order.lines[1].get_ydata().tolist() == [10.0, 5.0, 2.0, 1.0, 1.0, 1.0]
    with pytest.raises(InvalidInput, match="no settings"):
        tuning_figure([])


def test_only_the_curves_asked_for_are_drawn():
    wanted = ["gradient norm", "certified relative gap"]
    assert titles(convergence_figure(RECORDS, only=wanted)) == wanted
    with pytest.raises(InvalidInput, match="no curve 'speed'"):
        convergence_figure(RECORDS, only=["speed"])


@pytest.mark.parametrize("shape", [(6, 9, 2), (6, 9, 3, 2)], ids=["grey", "colours"])
def test_frames_have_a_row_for_truth_observed_completed_and_error(shape):
    truth = np.random.default_rng(0).random(shape)
    observed = np.where(truth > 0.5, truth, np.nan)
    figure = frames_figure(truth, observed, truth + 0.25, names=["frame 0", "frame 5"])
    panels = [axis for axis in figure.axes if axis.images]
    assert len(panels) == 4 * 2
    assert titles(figure) == ["frame 0", "frame 5"]
    rows = [axis.get_ylabel() for axis in panels if axis.get_ylabel()]
    assert rows == ["truth", "observed", "completed", "error (RMSE 0.25)"]
    np.testing.assert_allclose(panels[-1].images[0].get_array(), 0.25)
    assert len([a for a in frames_figure(None, observed, truth).axes if a.images]) == 2 * 2
    with pytest.raises(InvalidInput, match="observed has shape"):
        frames_figure(None, observed[:3], truth)
    with pytest.raises(InvalidInput, match="give \\(rows, columns, frames\\)"):
        frames_figure(None, observed[..., 0, 0], truth)


def test_a_single_frame_is_a_row_of_panels():
    picture = np.random.default_rng(0).random((6, 9, 3, 1))
    figure = frames_figure(picture, picture, picture)
    assert titles(figure) == ["truth", "observed", "completed", "error (RMSE 0)"]


def test_spectra_show_truth_completed_and_dots_at_what_was_observed():
    truth = np.arange(10.0).reshape(2, 5)
    observed = np.where(truth % 2 == 0, truth, np.nan)
    figure = spectra_figure(truth, observed, truth + 1.0, names=["here", "there"])
    assert titles(figure) == ["here", "there"]
    for number, axis in enumerate(figure.axes):
        for line, wanted in zip(axis.lines, (truth, truth + 1.0, observed), strict=True):
            np.testing.assert_array_equal(line.get_ydata(), wanted[number])
    with pytest.raises(InvalidInput, match="same shape"):
        spectra_figure(None, observed, truth[:1])


@pytest.mark.parametrize("values", [5, 400])
def test_predictions_are_grouped_by_what_they_should_be(values):
    true = np.random.default_rng(0).integers(1, values + 1, 3000).astype(float)
    figure = prediction_figure(true, true + 0.5, unit="rating")
    medians = [line for line in figure.axes[0].lines if line.get_color() == "#D55E00"]
    assert len(medians) == min(values, 10)
    if values == 5:
        assert [line.get_ydata()[0] for line in medians] == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert titles(figure) == ["RMSE 0.5"]
    with pytest.raises(InvalidInput, match="as many of both"):
        prediction_figure(true, true[:-1])


def test_of_a_series_the_truth_is_drawn_where_it_was_missing():
    truth = np.arange(8.0)
    known = np.where(truth < 5, truth, np.nan)
    lines = {
        line.get_label(): line for line in series_figure(known, truth + 1.0, truth).axes[0].lines
    }
    np.testing.assert_array_equal(lines["known"].get_ydata(), known)
    np.testing.assert_array_equal(lines["filled in"].get_ydata()[5:], [6.0, 7.0, 8.0])
    assert np.isnan(lines["truth"].get_ydata()[:5]).all()
    assert list(lines) == ["known", "truth", "filled in"]  # the later ones are on top


def test_stages_are_marked_and_their_costs_compared_with_each_other_only():
    def row(number, cost, step=1.0, event=""):
        return replace(ROW, iteration=number, cost=cost, step=step, event=event)

    records = [row(0, 5.0, 0.0), row(1, 4.0), row(2, 9.0, 0.0), row(3, 7.0), row(4, 6.0),
               row(5, 6.0, 0.0), row(6, 6.5, 0.0, "went back to iteration 3")]  # fmt: skip
    cost = convergence_figure(records).axes[0]
    *curves, begins = cost.lines
    assert [line.get_ydata().tolist() for line in curves] == [[1.0], [3.0, 1.0, 0.5]]
    assert begins.get_xdata() == [2, 2]
    assert len(convergence_figure(RECORDS).axes[0].lines) == 1


@pytest.mark.parametrize("shape", [(6, 9), (30, 9)])
def test_colour_bars_are_as_high_as_their_panels(shape):
    values = np.arange(float(np.prod(shape))).reshape(shape)
    for figure in (
        completion_figure(values, values, values),
        frames_figure(*[values[..., None]] * 3),
    ):
        figure.draw_without_rendering()
        bars = [(axis, bar) for axis in figure.axes for bar in axis.child_axes]
        assert len(bars) == 2
        for axis, bar in bars:
            heights = [one.get_window_extent().height for one in (axis, bar)]
            assert heights[0] == pytest.approx(heights[1], rel=0.02)


def test_settings_with_the_other_centring_are_drawn_beside_the_rest():
    def tried(number):
        return Tried(Candidate((2, 2), (4.0**number, 1.0)), 9.0 - number, 0, 1, 0.1, ())

    figure = tuning_figure([tried(2), tried(3)], others=[tried(0), tried(1)])
    by_strength, by_order = figure.axes
    names = [text.get_text() for text in by_strength.get_legend().get_texts()]
    assert names == ["tried", "tried with the other centring", "the best"]
    assert by_order.lines[0].get_ydata().tolist() == [9.0, 8.0, 7.0, 6.0]
