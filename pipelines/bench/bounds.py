"""Measure what constraints cost and gain, as ratios within one run.

    python pipelines/bench/bounds.py             many zeros, two ways to solve, linear constraints
    python pipelines/bench/bounds.py --draws 5   more draws of the tensor with many zeros

Errors are against the truth, at the entries that were not observed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import slrt_dask as slrt

SHAPE, RANKS, C = (60, 50, 20), (8, 8, 6), 3.0
NOISE, OBSERVED = 0.05, 0.1


def many_zeros(seed: int) -> np.ndarray:
    """Five rank-one terms, 35 % of the factors' numbers non-zero and uniform; maximum 1."""
    rng = np.random.default_rng(seed)
    factors = [rng.random((n, 5)) * (rng.random((n, 5)) < 0.35) for n in SHAPE]
    tensor = np.einsum("ir,jr,kr->ijk", *factors)
    return tensor / tensor.max()


def rising(seed: int) -> np.ndarray:
    """Three rank-one terms that rise along the first mode; maximum 1."""
    rng = np.random.default_rng(seed)
    factors = [rng.random((n, 3)) for n in (30, 20, 10)]
    factors[0] = np.sort(factors[0], axis=0)
    tensor = np.einsum("ir,jr,kr->ijk", *factors)
    return tensor / tensor.max()


def symmetric(seed: int) -> np.ndarray:
    """Three rank-one terms that are the same in the first two modes; maximum 1."""
    rng = np.random.default_rng(seed)
    factor, third = rng.standard_normal((25, 3)), rng.standard_normal((12, 3))
    tensor = np.einsum("ir,jr,kr->ijk", factor, factor, third)
    return tensor / np.abs(tensor).max()


def observed(tensor: np.ndarray, part: float, path: Path, seed: int = 0):
    """A store of noisy observations, and where they are."""
    rng = np.random.default_rng(1000 + seed)
    mask = rng.random(tensor.shape) < part
    values = tensor[mask] + NOISE * rng.standard_normal(mask.sum())
    return slrt.from_coo(path, np.stack(np.nonzero(mask)), values, tensor.shape), mask


def fitted(store, mask, tensor, ranks, **options) -> dict[str, float]:
    """Error, sweeps and seconds of a fit, and the completed tensor."""
    began = time.perf_counter()
    answer = slrt.complete(store, ranks, **options)
    seconds = time.perf_counter() - began
    completed = np.asarray(answer.to_dask())
    return {
        "tensor": completed,
        "rmse": error(completed, tensor, mask),
        "sweeps": sum(record.sweeps for record in answer.records),
        "cost": answer.records[-1].cost,
        "seconds": seconds,
        "gap": answer.certificate.relative_gap,
        "violation": answer.certificate.violation,
    }


def error(completed: np.ndarray, tensor: np.ndarray, mask: np.ndarray) -> float:
    return float(np.sqrt(np.mean((completed - tensor)[~mask] ** 2)))


def zeros_rows(directory: Path, draws: int) -> list[tuple[str, ...]]:
    """Nonnegative against clipped, over some draws."""
    rows, gains = [], []
    for seed in range(draws):
        tensor = many_zeros(seed)
        store, mask = observed(tensor, OBSERVED, directory / f"zeros{seed}", seed)
        options = {"C": C, "max_iterations": 100}
        plain = fitted(store, mask, tensor, RANKS, **options)
        bounded = fitted(store, mask, tensor, RANKS, constraint=slrt.Nonnegative(), **options)
        clipped = error(np.maximum(plain["tensor"], 0.0), tensor, mask)
        gains.append(1.0 - bounded["rmse"] / clipped)
        rows.append(
            (
                f"draw {seed}, {np.mean(tensor == 0.0):.0%} zeros",
                f"{plain['rmse']:.4f} plain, {clipped:.4f} clipped, {bounded['rmse']:.4f} bounded",
                f"{bounded['sweeps'] / plain['sweeps']:.1f} × the sweeps",
            )
        )
    if gains:
        rows.append(("below clipped, mean over draws", f"{np.mean(gains):.1%}", ""))
    return rows


def ways_rows(directory: Path) -> list[tuple[str, ...]]:
    """The joint solve against the alternation, same tensor, same iterations."""
    tensor = many_zeros(0)
    store, mask = observed(tensor, OBSERVED, directory / "ways")
    for inner in ("joint", "alternating"):  # compiles what is not compiled yet
        fitted(
            store, mask, tensor, RANKS, inner=inner, C=C, max_iterations=1,
            constraint=slrt.Nonnegative(),
        )  # fmt: skip
    rows = []
    for where in ("observed", "all"):
        options = {"C": C, "max_iterations": 40, "constraint": slrt.Nonnegative(where)}
        joint, turns = (
            fitted(store, mask, tensor, RANKS, inner=inner, **options)
            for inner in ("joint", "alternating")
        )
        rows.append(
            (
                f"alternating against joint, where={where!r}, 40 iterations",
                f"{turns['sweeps'] / joint['sweeps']:.1f} × the sweeps, "
                f"{turns['seconds'] / joint['seconds']:.1f} × the time",
                f"costs {turns['cost']:.6g} and {joint['cost']:.6g}",
            )
        )
    return rows


def linear_rows(directory: Path) -> list[tuple[str, ...]]:
    """What totals, monotony and symmetry gain over not knowing of them."""
    tensor, twins = rising(0), symmetric(0)
    known = slrt.Linear.totals(tensor.sum(axis=1), mode=1, length=tensor.shape[1])
    rise = slrt.Linear.rising(tensor.shape, mode=0)
    same = slrt.Linear.symmetric(twins.shape)
    cases = [
        ("totals over a mode", tensor, (4, 4, 4), known),
        ("rising along a mode", tensor, (4, 4, 4), rise),
        ("both, and between 0 and 1", tensor, (4, 4, 4), [known, rise, slrt.Bounds(0.0, 1.0)]),
        ("symmetric in two modes", twins, (4, 4, 4), same),
    ]
    rows = []
    for number, (name, truth, ranks, constraint) in enumerate(cases):
        store, mask = observed(truth, 0.15, directory / f"linear{number}")
        options = {"C": 2.0, "max_iterations": 100}
        plain = fitted(store, mask, truth, ranks, **options)
        bound = fitted(store, mask, truth, ranks, constraint=constraint, **options)
        rows.append(
            (
                name,
                f"RMSE {bound['rmse']:.4f} instead of {plain['rmse']:.4f}",
                f"{bound['sweeps'] / plain['sweeps']:.0f} × the sweeps, missed by "
                f"{bound['violation']:.1g}",
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=3, help="tensors with many zeros [3]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        print("| what | measured | |\n|---|---|---|")
        for part in (
            lambda: zeros_rows(directory, arguments.draws),
            lambda: ways_rows(directory),
            lambda: linear_rows(directory),
        ):
            for row in part():
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
