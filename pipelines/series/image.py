"""Fill rows and columns of an image that are missing altogether, by Hankel structure.

    python pipelines/series/image.py                             a texture made here
    python pipelines/series/image.py photo.png --output pictures
    python pipelines/series/image.py arrays.npz --key full --damaged damaged

Low rank alone knows nothing of a row of which nothing was observed. Windows of a few rows have the
same shapes everywhere, and those that cross a gap are completed from those that do not: first the
rows, then, from what that gave, the columns. Rows and columns that are black throughout in the
damaged image are missing; without one, a fifth of both is hidden at random.
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
from slrt_dask.plot import frames_figure

HERE = Path(__file__).parent
WINDOW, DEVIATION = 8, 1e-2
PLAIN = {"ranks": (20, 20, 3), "C": 10.0, "center": True, "max_iterations": 20}


def texture(size: int) -> np.ndarray:
    """Woven waves in three colours, between 0 and 1."""
    x, y = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    waves = [np.cos(0.35 * x + 0.1 * y), np.cos(0.15 * x - 0.3 * y), np.cos(0.5 * y)]
    mixed = [waves[0] + waves[1], waves[1] + waves[2], waves[2] + waves[0]]
    return 0.5 + 0.25 * np.stack(mixed, axis=-1)


def read(arguments, key: str | None) -> np.ndarray:
    """(rows, columns, colours)"""
    arguments.key = key
    image = shared.data(arguments, lambda: texture(40 if arguments.small else 96)).compute()
    return image[..., None] if image.ndim == 2 else image[..., :3]


def fit_rows(known: np.ndarray, arguments, directory: Path, what: str) -> shared.Fitted:
    """Complete an image, NaN where it is not known, from the rows of which something is."""
    options = command.settings(arguments, HERE / "image.toml", known.shape)
    options["constraint"] = slrt.Hankel((known.shape[0] - WINDOW + 1, 1, 1), DEVIATION)
    store = slrt.from_array(directory, known)
    return shared.fit(store, None, options, arguments, what=what)


def filled(known: np.ndarray, fitted: shared.Fitted) -> np.ndarray:
    return np.where(np.isnan(known), fitted.done.to_dask().compute(), known)


def main(given: Sequence[str] | None = None) -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--damaged", help="the damaged image in an .npz, black where missing")
    arguments = parser.parse_args(given)
    name, image = shared.title(arguments, "a texture"), read(arguments, arguments.key)
    image = image.astype(np.float64)
    generator = np.random.default_rng(arguments.seed)
    rows, columns = (generator.random(length) < 0.2 for length in image.shape[:2])
    if arguments.damaged:
        black = read(arguments, arguments.damaged) == 0
        rows, columns = black.all(axis=(1, 2)), black.all(axis=(0, 2))
    hidden = np.broadcast_to((rows[:, None] | columns)[..., None], image.shape)
    known = np.where(hidden, np.nan, image)
    with shared.workspace(arguments) as directory:
        first = fit_rows(known, arguments, directory / "rows", "the fit of rows")
        half = filled(known, first)
        half[:, columns] = np.nan
        turned = half.transpose(1, 0, 2)
        second = fit_rows(turned, arguments, directory / "columns", "the fit of columns")
        completed = filled(turned, second).transpose(1, 0, 2)
        answers = {"with Hankel": completed}
        if not (first.interrupted or second.interrupted):
            ranks = tuple(min(pair) for pair in zip(PLAIN["ranks"], image.shape, strict=True))
            options = {**PLAIN, "ranks": ranks}
            plain = shared.fit(first.train, None, options, arguments, what="low rank only")
            answers["low rank only"] = plain.done.to_dask().compute()
        missing = f"{rows.sum()} rows, {columns.sum()} columns"
        scores.report(second, more=[("missing", missing)])
        scores.compare(second, image, hidden, answers, top=np.nanmax(image))
        panels = (part[..., None] for part in (image, known, completed))
        figure = frames_figure(*panels, title=f"Rows and columns missing from {name}")
        shared.draw(second, arguments.output, "image", {"filled": figure})


if __name__ == "__main__":
    shared.run(main)
