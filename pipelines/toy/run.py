"""The paper's toy experiments: nonnegative and Hankel completion, and how fast they converge.

    python pipelines/toy/run.py                               tables, and pictures of each
    python pipelines/toy/run.py --only nonnegative --output pictures --seed 3

A nonnegative tensor of 100 × 100 × 3, of rank five and without noise, is observed at a tenth of its
entries. toy-nonnegative.png and toy-hankel.png have the curves of the paper's two figures: gradient
norm, and relative duality gap, by iteration. `waves` is a tensor that does have Hankel structure:
two plane waves, with phases of their own in each of three channels, 48 × 48 × 3, a fifth observed.
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

from slrt_dask.plot import completion_figure, save_figure

HERE = Path(__file__).parent
EXPERIMENTS = {"nonnegative": "toy.toml", "hankel": "hankel.toml", "waves": "waves.toml"}
RANK = 5
PAPER_CURVES = ("gradient norm", "certified relative gap")


def nonnegative_tensor(size: int, seed: int) -> np.ndarray:
    """A sum of nonnegative terms of rank one, scaled to a maximum of one."""
    generator = np.random.default_rng(seed)
    factors = [generator.random((length, RANK)) for length in (size, size, 3)]
    tensor = np.einsum("ia,ja,ka->ijk", *factors)
    return tensor / tensor.max()


def plane_waves(size: int, seed: int) -> np.ndarray:
    """Two of random directions, with random phases in every channel; standard deviation one."""
    generator = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    tensor = np.zeros((size, size, 3))
    for along, across in 0.2 + 1.5 * generator.random((2, 2)):
        phases = 2 * np.pi * generator.random(3)
        tensor += np.cos(along * x[..., None] + across * y[..., None] + phases)
    return tensor / tensor.std()


def experiment(name: str, arguments, directory: Path) -> bool:
    """Do one of them; whether it may go on with the next."""
    waves, size = name == "waves", 40 if arguments.small else 100
    tensor = plane_waves(min(size, 48), arguments.seed) if waves else nonnegative_tensor(
        size, arguments.seed)  # fmt: skip
    share = 0.2 if waves else 0.1
    train, test = shared.hide(shared.lazy(tensor), arguments, directory / name, share)
    options = command.settings(arguments, HERE / EXPERIMENTS[name], tensor.shape)
    print(f"\n{name.capitalize()}\n")
    fitted = shared.fit(train, test, options, arguments)
    gradients = [row.gradient_norm for row in fitted.done.records]
    change = f"{gradients[0]:.3g} at first, {gradients[-1]:.3g} at last"
    violation = f"{fitted.done.certificate.violation:.2g}"
    scores.report(fitted, more=[("gradient norm", change), ("violation", violation)])
    curves = shared.histories(fitted, f"{name.capitalize()} completion", only=PAPER_CURVES)
    slices = completion_figure(
        tensor[..., 0],
        shared.observed_at(train, 2, [0])[..., 0],
        fitted.done.to_dask()[..., 0].compute(),
        title=f"{name.capitalize()}: the first of three slices",
    )
    arguments.output.mkdir(parents=True, exist_ok=True)
    for kind, figure in {**curves, "slice": slices}.items():
        path = arguments.output / f"toy-{name}{'' if kind == 'convergence' else f'-{kind}'}.png"
        save_figure(figure, path)
        scores.table([("picture", str(path))])
    return not fitted.interrupted


def main(given: Sequence[str] | None = None) -> None:
    parser = command.parser(__doc__, observed=0.1, path=False)
    parser.add_argument("--only", choices=list(EXPERIMENTS), help="one of the experiments")
    arguments = parser.parse_args(given)
    with shared.workspace(arguments) as directory:
        for name in EXPERIMENTS if arguments.only is None else [arguments.only]:
            if not experiment(name, arguments, directory):
                break


if __name__ == "__main__":
    shared.run(main)
