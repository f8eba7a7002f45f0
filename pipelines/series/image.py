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

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import slrt_dask as slrt
from slrt_dask.config import read_settings
from slrt_dask.plot import completion_figure, save_figure

HERE = Path(__file__).parent
WINDOW, DEVIATION = 8, 1e-2


def texture(size: int) -> np.ndarray:
    """Woven waves in three colours, between 0 and 1."""
    x, y = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    waves = [np.cos(0.35 * x + 0.1 * y), np.cos(0.15 * x - 0.3 * y), np.cos(0.5 * y)]
    mixed = [waves[0] + waves[1], waves[1] + waves[2], waves[2] + waves[0]]
    return 0.5 + 0.25 * np.stack(mixed, axis=-1)


def read_image(path: Path, key: str | None) -> np.ndarray:
    """(rows, columns, colours), scaled to at most 1."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as content:
            image = content[key or content.files[0]].astype(np.float64)
    else:
        from matplotlib.image import imread

        image = np.asarray(imread(path), dtype=np.float64)
    image = image[..., None] if image.ndim == 2 else image[..., :3]
    return image / max(1.0, image.max())


def missing_lines(
    image: np.ndarray, damaged: np.ndarray | None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows and which columns are missing."""
    if damaged is not None:
        return (damaged == 0).all(axis=(1, 2)), (damaged == 0).all(axis=(0, 2))
    generator = np.random.default_rng(seed)
    rows, columns = (generator.random(length) < 0.2 for length in image.shape[:2])
    return rows, columns


def fill_rows(known: np.ndarray, settings: dict) -> np.ndarray:
    """Complete an image, NaN where it is not known, from the rows of which something is."""
    hankel = slrt.Hankel((known.shape[0] - WINDOW + 1, 1, 1), DEVIATION)
    with tempfile.TemporaryDirectory() as directory:
        store = slrt.from_array(Path(directory) / "image", known)
        options = {name: value for name, value in settings.items() if name != "ranks"}
        done = slrt.complete(store, settings["ranks"], constraint=hankel, **options)
        return done.to_dask().compute()


def fill(image: np.ndarray, rows: np.ndarray, columns: np.ndarray, settings: dict) -> np.ndarray:
    known = np.where((rows[:, None] | columns)[..., None], np.nan, image)
    filled = np.where(np.isnan(known), fill_rows(known, settings), known)
    filled[:, columns] = np.nan
    turned = filled.transpose(1, 0, 2)
    return np.where(np.isnan(turned), fill_rows(turned, settings), turned).transpose(1, 0, 2)


def plain(image: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Low rank without the structure, for comparison."""
    with tempfile.TemporaryDirectory() as directory:
        store = slrt.from_array(Path(directory) / "image", np.where(hidden, np.nan, image))
        ranks = tuple(min(20, length) for length in image.shape)
        done = slrt.complete(store, ranks, C=10.0, center=True, max_iterations=20)
        return done.to_dask().compute()


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image", type=Path, nargs="?", help="picture, or .npz of arrays")
    parser.add_argument("--key", help="the full image in an .npz")
    parser.add_argument("--damaged", help="the damaged one in an .npz, black where missing")
    parser.add_argument("--size", type=int, default=96, help="of the texture made here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("."), help="directory of the picture")
    arguments = parser.parse_args(given)

    path = arguments.image
    image = read_image(path, arguments.key) if path else texture(arguments.size)
    damaged = read_image(path, arguments.damaged) if arguments.damaged else None
    rows, columns = missing_lines(image, damaged, arguments.seed)
    hidden = np.broadcast_to((rows[:, None] | columns)[..., None], image.shape)
    completed = fill(image, rows, columns, read_settings(HERE / "image.toml"))
    print(f"missing        {rows.sum()} rows, {columns.sum()} columns, {hidden.mean():.0%}")
    for name, answer in (("with Hankel", completed), ("low rank only", plain(image, hidden))):
        error = np.mean((answer - image)[hidden] ** 2)
        print(f"{name:14} PSNR {-10 * np.log10(error):.2f} dB on the missing pixels")
    arguments.output.mkdir(parents=True, exist_ok=True)
    picture = arguments.output / "image.png"
    truth, observed = image[..., 0], np.where(hidden, np.nan, image)[..., 0]
    save_figure(completion_figure(truth, observed, completed[..., 0], title="Image"), picture)
    print(f"picture        {picture}")


if __name__ == "__main__":
    main()
