"""Real data that Python packages bring, read where these are installed and never copied."""

from __future__ import annotations

from typing import Any

import numpy as np

from slrt_dask.errors import MissingDependency

PACKAGED = {
    "indian-pines": "tensorly",
    "astronaut": "scikit-image",
    "chelsea": "scikit-image",
    "coffee": "scikit-image",
    "rocket": "scikit-image",
}
"""A name that may be given in the place of a path, and who has it."""


def packaged_array(name: str) -> np.ndarray:
    """A hyperspectral cube (rows, columns, bands), or an image (rows, columns, colours)."""
    try:
        if name == "indian-pines":
            from tensorly.datasets import load_indian_pines

            return np.asarray(load_indian_pines().tensor)
        from skimage import data

        image: Any = getattr(data, name)
        return np.asarray(image())
    except ImportError as error:
        raise MissingDependency(
            f"{name} comes with {PACKAGED[name]}, which is not installed; install "
            "slrt-dask[pipelines]."
        ) from error
