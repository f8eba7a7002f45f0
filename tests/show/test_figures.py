"""Pictures have the panels they promise, need no display and no pyplot, and refuse nonsense."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from slrt_dask import plot
from slrt_dask.errors import InvalidInput, MissingDependency
from slrt_dask.tuning.candidate import Candidate
from slrt_dask.tuning.search import Tried

pytest.importorskip("matplotlib")

TRUTH = np.add.outer(np.arange(6.0), np.arange(9.0))
OBSERVED = np.where(np.arange(54).reshape(6, 9) % 5 == 0, TRUTH, np.nan)
SHARE = "observed (20.4 %)"
KNOWN = np.where(np.arange(8) < 5, np.arange(8.0), np.nan)
CURVES = ["cost above its lowest", "gradient norm", "certified relative gap", "validation RMSE"]


def titles(figure):
    return [axis.get_title() for axis in figure.axes if axis.get_title()]


def images(figure):
    return [axis.images[0] for axis in figure.axes if axis.images]


def tried(number, error):
    return Tried(Candidate((2, 2), (4.0**number, 1.0)), error, 0, 1, 0.1, ())


@pytest.fixture
def records(record):
    """Those of a fit whose gap is known at every second iteration."""
    return [record(n, gap=0.5**n if n % 2 else None) for n in range(7)]


def test_four_panels_show_truth_observed_completed_and_error():
    figure = plot.completion_figure(TRUTH, OBSERVED, TRUTH + 0.5)
    assert titles(figure) == ["truth", SHARE, "completed", "error (RMSE 0.5)"]
    *values, error = images(figure)
    assert {image.get_clim() for image in values} == {(0.0, 13.5)}
    assert error.get_clim() == (-0.5, 0.5)
    assert np.ma.count_masked(values[1].get_array()) == 54 - 11


@pytest.mark.parametrize("observed", [OBSERVED, np.ma.masked_invalid(OBSERVED)])
def test_without_truth_the_misfit_at_observed_entries_is_shown(observed):
    figure = plot.completion_figure(None, observed, TRUTH + 0.5, error_limit=2.0)
    assert titles(figure) == [SHARE, "completed", "misfit (RMSE 0.5)"]
    misfit = images(figure)[-1]
    assert np.ma.count(misfit.get_array()) == 11
    assert misfit.get_clim() == (-2.0, 2.0)


def test_convergence_shows_what_was_measured_or_asked_for(records, record):
    assert titles(plot.convergence_figure(records)) == CURVES[:3]
    measured = [record(n, gap=0.5, rmse=0.1) for n in range(3)]
    assert titles(plot.convergence_figure(measured)) == CURVES
    assert titles(plot.convergence_figure(records, only=CURVES[1:3])) == CURVES[1:3]
    assert titles(plot.convergence_figure(measured[:1]))  # of a fit without iterations
    grown = [record(0), record(1, ranks=(3, 2))]
    assert titles(plot.convergence_figure(grown))[-1] == "ranks"
    gap = plot.convergence_figure(records).axes[2]
    assert gap.get_yscale() == "log"
    np.testing.assert_array_equal(gap.lines[0].get_xdata(), [1, 3, 5])


def test_stages_are_marked_and_their_costs_compared_with_each_other_only(record):
    steps = [(5.0, 0.0), (4.0, 1.0), (9.0, 0.0), (7.0, 1.0), (6.0, 1.0), (6.0, 0.0)]
    rows = [record(n, cost=cost, step=step) for n, (cost, step) in enumerate(steps)]
    rows.append(record(6, cost=6.5, step=0.0, event="went back to iteration 3"))
    *curves, begins = plot.convergence_figure(rows).axes[0].lines
    assert [line.get_ydata().tolist() for line in curves] == [[1.0], [3.0, 1.0, 0.5]]
    assert begins.get_xdata() == [2, 2]


def test_a_search_is_drawn_with_its_best_and_what_was_tried_with_the_other_centring():
    history = [tried(n, 1.0 + (n - 3) ** 2) for n in range(6)]
    by_strength, by_order = plot.tuning_figure(history).axes
    assert by_strength.collections[0].get_offsets()[:, 0].tolist() == [4.0**n for n in range(6)]
    assert by_strength.collections[1].get_offsets().tolist() == [[64.0, 1.0]]
    assert by_order.lines[1].get_ydata().tolist() == [10.0, 5.0, 2.0, 1.0, 1.0, 1.0]
    by_strength, by_order = plot.tuning_figure(history[3:], others=history[:2]).axes
    names = [text.get_text() for text in by_strength.get_legend().get_texts()]
    assert names == ["tried", "tried with the other centring", "the best"]
    assert by_order.lines[0].get_ydata().tolist() == [10.0, 5.0, 1.0, 2.0, 5.0]


@pytest.mark.parametrize("shape", [(6, 9, 2), (6, 9, 3, 2)], ids=["grey", "colours"])
def test_frames_have_a_row_for_truth_observed_completed_and_error(shape):
    truth = np.random.default_rng(0).random(shape)
    observed = np.where(truth > 0.5, truth, np.nan)
    figure = plot.frames_figure(truth, observed, truth + 0.25, names=["frame 0", "frame 5"])
    panels = [axis for axis in figure.axes if axis.images]
    assert titles(figure) == ["frame 0", "frame 5"]
    rows = [axis.get_ylabel() for axis in panels if axis.get_ylabel()]
    assert rows == ["truth", "observed", "completed", "error (RMSE 0.25)"]
    np.testing.assert_allclose(panels[-1].images[0].get_array(), 0.25)
    assert (len(panels), len(images(plot.frames_figure(None, observed, truth)))) == (8, 4)
    one = truth[..., :1]
    assert titles(plot.frames_figure(one, one, one)) == [*rows[:3], "error (RMSE 0)"]


def test_spectra_show_truth_completed_and_dots_at_what_was_observed():
    truth = np.arange(10.0).reshape(2, 5)
    observed = np.where(truth % 2 == 0, truth, np.nan)
    figure = plot.spectra_figure(truth, observed, truth + 1.0, names=["here", "there"])
    assert titles(figure) == ["here", "there"]
    for number, axis in enumerate(figure.axes):
        for line, wanted in zip(axis.lines, (truth, truth + 1.0, observed), strict=True):
            np.testing.assert_array_equal(line.get_ydata(), wanted[number])


@pytest.mark.parametrize("values", [5, 400])
def test_predictions_are_grouped_by_what_they_should_be(values):
    true = np.random.default_rng(0).integers(1, values + 1, 3000).astype(float)
    figure = plot.prediction_figure(true, true + 0.5, unit="rating")
    medians = [line for line in figure.axes[0].lines if line.get_color() == "#D55E00"]
    assert len(medians) == min(values, 10)
    if values == 5:
        assert [line.get_ydata()[0] for line in medians] == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert titles(figure) == ["RMSE 0.5"]


def test_the_truth_of_a_series_is_drawn_where_it_was_missing():
    truth = np.arange(8.0)
    axis = plot.series_figure(KNOWN, truth + 1.0, truth).axes[0]
    lines = {line.get_label(): line.get_ydata() for line in axis.lines}
    assert list(lines) == ["known", "truth", "filled in"]  # the later ones are on top
    np.testing.assert_array_equal(lines["known"], KNOWN)
    np.testing.assert_array_equal(lines["filled in"][5:], [6.0, 7.0, 8.0])
    assert np.isnan(lines["truth"][:5]).all()


@pytest.mark.parametrize("shape", [(6, 9), (30, 9)])
def test_colour_bars_are_as_high_as_their_panels(shape):
    values = np.arange(float(np.prod(shape))).reshape(shape)
    frames = [values[..., None]] * 3
    for figure in (plot.completion_figure(*[values] * 3), plot.frames_figure(*frames)):
        figure.draw_without_rendering()
        bars = [(axis, bar) for axis in figure.axes for bar in axis.child_axes]
        assert len(bars) == 2
        for axis, bar in bars:
            heights = [one.get_window_extent().height for one in (axis, bar)]
            assert heights[0] == pytest.approx(heights[1], rel=0.02)


def test_figures_are_written_without_pyplot(records, tmp_path):
    pyplot = sys.modules.get("matplotlib.pyplot")
    before = pyplot.get_fignums() if pyplot else []
    plot.save_figure(plot.completion_figure(TRUTH, OBSERVED, TRUTH), tmp_path / "a.png")
    plot.save_figure(plot.convergence_figure(records, title="fit"), tmp_path / "b.pdf")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "b.pdf").read_bytes().startswith(b"%PDF")
    assert before == (pyplot.get_fignums() if pyplot else [])


@pytest.mark.parametrize(
    ("draw", "value"),
    [
        (lambda: plot.completion_figure(TRUTH[:3], OBSERVED, TRUTH), r"\(3, 9\)"),
        (lambda: plot.completion_figure(None, OBSERVED[0], TRUTH), r"\(9,\)"),
        (lambda: plot.convergence_figure([]), "no records"),
        (lambda: plot.convergence_figure([], only=["speed"]), "'speed'"),
        (lambda: plot.tuning_figure([]), "no settings"),
        (lambda: plot.frames_figure(None, OBSERVED, OBSERVED), r"\(6, 9\)"),
        (lambda: plot.spectra_figure(None, OBSERVED, TRUTH[:1]), r"\(1, 9\)"),
        (lambda: plot.prediction_figure(KNOWN, KNOWN[:-1]), r"\(7,\)"),
        (lambda: plot.series_figure(KNOWN, KNOWN[:-1]), r"\(7,\)"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, value):
    with pytest.raises(InvalidInput, match=value):
        draw()


def test_without_matplotlib_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"slrt-dask\[plot\]"):
        plot.completion_figure(TRUTH, OBSERVED, TRUTH)
