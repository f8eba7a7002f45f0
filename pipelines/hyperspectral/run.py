"""Complete a hyperspectral cube, or a colour image, from a tenth of its entries.

    python pipelines/hyperspectral/run.py                    a landscape made here
    python pipelines/hyperspectral/run.py indian-pines       the scene that tensorly brings
    python pipelines/hyperspectral/run.py cube.zarr          (rows, columns, bands); or .npz, .nc
    python pipelines/hyperspectral/run.py photo.png --auto   an image; astronaut is scikit-image's

Nine tenths of full data are hidden, and a tenth of the entries scores the answer. Where something
is missing already (NaN, a mask, or --missing 0), all that is known but a tenth is used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import interrupts

interrupts.tell_in_a_line()

import command
import numpy as np
import scores
import shared

import slrt_dask as slrt
from slrt_dask.demo import scene
from slrt_dask.errors import InvalidInput
from slrt_dask.plot import completion_figure, frames_figure, spectra_figure

HERE = Path(__file__).parent
OBSERVED = 0.1
MOST_COLOURS = 4


def noisy_scene(seed: int, small: bool) -> np.ndarray:
    cube = scene()[:, :, ::4] if small else scene()
    return cube + 0.01 * np.random.default_rng(seed).standard_normal(cube.shape)


def pictures(cube, fitted: shared.Fitted, name: str) -> dict:
    """One band, and the spectra of three places."""
    truth = cube if shared.is_full(cube) else None
    rows, columns, bands = cube.shape
    band, completed = (2 * bands) // 3, fitted.done.to_dask()
    shown = completion_figure(
        None if truth is None else truth[:, :, band].compute(),
        shared.observed_at(fitted.train, 2, [band])[:, :, 0],
        completed[:, :, band].compute(),
        title=f"Band {band} of {bands} of {name}",
    )
    places = [(rows // 4, columns // 4), (rows // 2, columns // 2), (3 * rows // 4, columns // 3)]
    seen = shared.observed_at(fitted.train, 0, [row for row, _ in places])
    spectra = spectra_figure(
        None if truth is None else np.stack([truth[place].compute() for place in places]),
        np.stack([seen[number, column] for number, (_, column) in enumerate(places)]),
        np.stack([completed[place].compute() for place in places]),
        names=[f"row {row}, column {column}" for row, column in places],
        title=f"Spectra of {name}",
    )
    return {"band": shown, "spectra": spectra}


def image_pictures(image, fitted: shared.Fitted, name: str) -> dict:
    truth = image[..., None].compute() if shared.is_full(image) else None
    seen = fitted.train.to_array()[..., None]
    completed = fitted.done.to_dask()[..., None].compute()
    return {"image": frames_figure(truth, seen, completed, peak=shared.peak(image), title=name)}


def main(given: Sequence[str] | None = None) -> None:
    parser = command.parser(__doc__, observed=OBSERVED)
    parser.add_argument("--nonnegative", action="store_true", help="no entry below zero")
    arguments = parser.parse_args(given)
    cube = shared.data(arguments, lambda: noisy_scene(arguments.seed, arguments.small))
    if cube.ndim != 3:
        raise InvalidInput(f"the data have shape {cube.shape}; give rows, columns and bands")
    name = shared.title(arguments, "a landscape")
    is_image = cube.shape[2] <= MOST_COLOURS
    config = HERE / ("image.toml" if is_image else "hyperspectral.toml")
    with shared.workspace(arguments) as directory:
        train, test = shared.hide(cube, arguments, directory, OBSERVED)
        options = command.settings(arguments, config, cube.shape)
        if arguments.nonnegative:
            options["constraint"] = slrt.Nonnegative()
        fitted = shared.fit(train, test, options, arguments)
        scores.report(fitted, top=shared.peak(cube))
        made = (image_pictures if is_image else pictures)(cube, fitted, name)
        shared.draw(fitted, arguments.output, "hyperspectral", made)


if __name__ == "__main__":
    shared.run(main)
