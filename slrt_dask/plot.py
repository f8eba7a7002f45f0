"""Pictures of completions, fits and searches; with matplotlib, from the extra `plot`."""

from slrt_dask.show.figures import (
    completion_figure,
    convergence_figure,
    frames_figure,
    prediction_figure,
    save_figure,
    series_figure,
    spectra_figure,
    tuning_figure,
)

__all__ = [
    "completion_figure",
    "convergence_figure",
    "frames_figure",
    "prediction_figure",
    "save_figure",
    "series_figure",
    "spectra_figure",
    "tuning_figure",
]
