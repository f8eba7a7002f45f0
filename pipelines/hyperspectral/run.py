"""Hide most of a full array, complete it from the rest, and score the prediction.

    python pipelines/hyperspectral/run.py cube.npz
    python pipelines/hyperspectral/run.py image.npz --config pipelines/hyperspectral/image.toml
    python pipelines/hyperspectral/run.py image.npz --auto

The array (.npy, .npz or zarr; any order) is scaled to [0, 1] by its largest magnitude. A random
part of it is observed, another random part is held out for the score, the rest is not used.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import slrt_dask as slrt
from slrt_dask.config import read_settings

HERE = Path(__file__).parent


def read_array(path: Path, key: str | None) -> np.ndarray:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as content:
            return content[key or content.files[0]].astype(np.float64)
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False).astype(np.float64)
    import zarr

    return np.asarray(zarr.open_array(path, mode="r")[...], dtype=np.float64)


def observe(array: np.ndarray, fraction: float, seed: int, directory: Path) -> tuple:
    """Stores of the observed and of the held-out entries, both `fraction` of the array."""
    chosen = np.random.default_rng(seed).permutation(array.size)
    count = int(fraction * array.size)
    stores = []
    for name, places in (("train", chosen[:count]), ("test", chosen[count : 2 * count])):
        indices = np.stack(np.unravel_index(places, array.shape))
        path = directory / name
        stores.append(slrt.from_coo(path, indices, array[tuple(indices)], array.shape))
    return tuple(stores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("array", type=Path)
    parser.add_argument("--key", help="which array of an .npz")
    parser.add_argument("--config", type=Path, default=HERE / "hyperspectral.toml")
    parser.add_argument("--observed", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of entries")
    parser.add_argument("--method", choices=("auto", "rcg", "rtr"))
    parser.add_argument("--nonnegative", action="store_true", help="no entry below zero")
    parser.add_argument("--auto", action="store_true", help="search for ranks and weights")
    arguments = parser.parse_args()

    settings = {"ranks": "auto"} if arguments.auto else read_settings(arguments.config)
    if arguments.method:
        settings["method"] = arguments.method
    if arguments.nonnegative:
        settings["constraint"] = slrt.Nonnegative()
    array = read_array(arguments.array, arguments.key)
    array /= np.abs(array).max()
    with tempfile.TemporaryDirectory() as directory:
        train, test = observe(array, arguments.observed, arguments.seed, Path(directory))
        began = time.perf_counter()
        done = slrt.complete(train, settings.pop("ranks"), **settings)
        seconds = time.perf_counter() - began
        scores = slrt.evaluate(done, test, peak=1.0)
    print(done)
    if arguments.auto:
        print(done.records[0].event)
    print(f"test RMSE {scores.rmse:.5f}   PSNR {scores.psnr:.2f} dB   on {scores.count:,} entries")
    sweeps = sum(record.sweeps for record in done.records)
    print(f"{len(done.records) - 1} iterations, {sweeps} sweeps, {seconds:.1f} s")


if __name__ == "__main__":
    main()
