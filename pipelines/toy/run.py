"""The paper's toy experiments: nonnegative and Hankel completion, and how fast they converge.

    python pipelines/toy/run.py     prints tables, leaves toy-nonnegative.png, toy-hankel.png, …
    python pipelines/toy/run.py --structure nonnegative --output pictures --seed 3

A nonnegative tensor of 100 × 100 × 3, of rank five and without noise, is observed at a tenth of its
entries. The picture has the curves of the paper's figure: gradient norm, and relative duality gap,
by iteration. `waves` is a tensor that does have Hankel structure: two plane waves, with phases of
their own in each of three channels, observed at a fifth of 48 × 48 × 3 entries.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import slrt_dask as slrt
from slrt_dask.config import read_settings
from slrt_dask.plot import convergence_figure, save_figure

HERE = Path(__file__).parent
CONFIGS = {"nonnegative": "toy.toml", "hankel": "hankel.toml", "waves": "waves.toml"}
SHAPE = (100, 100, 3)
RANK = 5


def nonnegative_tensor(seed: int) -> np.ndarray:
    """A sum of nonnegative terms of rank one, scaled to a maximum of one."""
    generator = np.random.default_rng(seed)
    factors = [generator.random((length, RANK)) for length in SHAPE]
    tensor = np.einsum("ia,ja,ka->ijk", *factors)
    return tensor / tensor.max()


def plane_waves(seed: int) -> np.ndarray:
    """Two of random directions, with random phases in every channel; standard deviation one."""
    generator = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(48), np.arange(48), indexing="ij")
    tensor = np.zeros((48, 48, 3))
    for along, across in 0.2 + 1.5 * generator.random((2, 2)):
        phases = 2 * np.pi * generator.random(3)
        tensor += np.cos(along * x[..., None] + across * y[..., None] + phases)
    return tensor / tensor.std()


def observe(tensor: np.ndarray, part: float, seed: int, path: Path) -> slrt.ObservationStore:
    count = int(part * tensor.size)
    places = np.random.default_rng(seed + 1).permutation(tensor.size)[:count]
    indices = np.stack(np.unravel_index(places, tensor.shape))
    return slrt.from_coo(path, indices, tensor[tuple(indices)], tensor.shape)


def report(name: str, done: slrt.Completion, tensor: np.ndarray, output: Path) -> None:
    """Print how a fit ended, and leave its curves."""
    error = done.to_dask().compute() - tensor
    first, last = done.records[0], done.records[-1]
    print(done)
    print(f"iterations        {last.iteration}, {sum(row.sweeps for row in done.records)} sweeps")
    print(f"seconds           {last.seconds:.0f}")
    print(f"gradient norm     {first.gradient_norm:.3g} at first, {last.gradient_norm:.3g} at last")
    print(f"relative gap      {done.certificate.relative_gap:.2g}")
    print(f"violation         {done.certificate.violation:.2g}")
    print(f"RMSE everywhere   {np.sqrt(np.mean(error**2)):.4g}")
    save_figure(convergence_figure(done.records, title=f"{name} completion"), output)
    print(f"curves            {output}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--structure", choices=[*CONFIGS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("."), help="directory of the pictures")
    arguments = parser.parse_args()

    names = list(CONFIGS) if arguments.structure == "all" else [arguments.structure]
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            waves = name == "waves"
            tensor = (plane_waves if waves else nonnegative_tensor)(arguments.seed)
            path = Path(directory) / name
            store = observe(tensor, 0.2 if waves else 0.1, arguments.seed, path)
            settings = read_settings(HERE / CONFIGS[name])
            done = slrt.complete(store, settings.pop("ranks"), **settings)
            report(name.capitalize(), done, tensor, arguments.output / f"toy-{name}.png")


if __name__ == "__main__":
    main()
