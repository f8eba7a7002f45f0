"""A dense reference of the unconstrained dual problem, for small tensors of any order.

Everything is formed: unfoldings, the |Ω|×|Ω| system, singular values. It shares no code with the
package but the manifold, and follows the formulas one by one. It is a Problem for the optimisers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slrt_dask.optim.manifold import SpectrahedronProduct

InnerSolver = Callable[[np.ndarray, np.ndarray, float, "np.ndarray | None"], tuple[np.ndarray, int]]
"""(A, y, rtol, start) -> (z, iterations)."""


def unfold(tensor, mode):
    """(n_mode, product of the others)."""
    return np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1)


def mode_product(tensor, matrix, mode):
    """tensor ×_mode matrix, matrix (m, n_mode)."""
    return np.moveaxis(np.tensordot(matrix, tensor, axes=(1, mode)), 0, mode)


def solve_exactly(A, y, rtol, start):
    """A direct solve, whatever the tolerance."""
    return np.linalg.solve(A, y), 1


def solve_with_residual(A, y, rtol, start):
    """A solve whose residual has exactly the size asked for, in a direction drawn from A's bytes.

    The worst that a truncated solve may do: noise that differs at every point, yet repeatable.
    """
    rng = np.random.default_rng(zlib.crc32(A.tobytes()))
    r = rng.standard_normal(y.shape)
    r *= rtol * np.linalg.norm(y) / np.linalg.norm(r)
    return np.linalg.solve(A, y - r), 1


def solve_by_conjugate_gradients(A, y, rtol, start, max_iterations=10_000):
    """Plain conjugate gradients from the warm start: what a truncated solve really does."""
    z = np.zeros_like(y) if start is None else start.copy()
    r = y - A @ z
    p = r.copy()
    iterations = 0
    while np.linalg.norm(r) > rtol * np.linalg.norm(y) and iterations < max_iterations:
        Ap = A @ p
        step = (r @ r) / (p @ Ap)
        z = z + step * p
        old, r = r @ r, r - step * Ap
        p = r + (r @ r) / old * p
        iterations += 1
    return z, iterations


@dataclass(frozen=True)
class DenseInner:
    iterations: int
    residual: float
    converged: bool
    violation: float = 0.0
    noise_scale: float = 0.0


@dataclass(frozen=True)
class DenseEvaluation:
    point: tuple[np.ndarray, ...]
    cost: float
    inner: DenseInner
    dual: np.ndarray  # Z, the shape of the tensor, zero outside Ω


@dataclass(frozen=True)
class DenseCertificate:
    primal: float
    dual: float
    paper_gap: float
    violation: float = 0.0
    complementarity: float = 0.0

    @property
    def gap(self):
        return self.primal - self.dual

    @property
    def relative_gap(self):
        size = max(abs(self.primal), abs(self.dual))
        return self.gap / size if size else 0.0


class DenseProblem:
    """min over U of max over Z of ⟨Z, Y⟩ − ‖Z‖²/4C − Σ λ_k/2 ‖U_kᵀ Z_k‖², Z zero outside Ω.

    mask : (n_1, …, n_K) bool.   values : (n_1, …, n_K), read on mask only.
    """

    def __init__(self, mask, values, ranks, *, C, lambdas, solver: InnerSolver = solve_exactly):
        self.mask = np.asarray(mask, dtype=bool)
        self.values = np.where(self.mask, values, 0.0)
        self.y = self.values[self.mask]
        self.C = float(C)
        self.lambdas = tuple(float(weight) for weight in lambdas)
        self.solver = solver
        self.sweeps = 0
        self.manifold = SpectrahedronProduct(
            tuple((int(n), int(r)) for n, r in zip(self.mask.shape, ranks, strict=True))
        )

    def reshape(self, ranks):
        self.manifold = self.manifold.with_ranks(ranks)

    def settle(self, evaluation, *, rtol):
        return evaluation

    def scatter(self, vector):
        """The tensor with these values on Ω and zero elsewhere."""
        tensor = np.zeros(self.mask.shape)
        tensor[self.mask] = vector
        return tensor

    def system(self, point):
        """A = I/2C + Σ λ_k P_Ω (×_k U_k U_kᵀ) P_Ω, (|Ω|, |Ω|), entry by entry."""
        where = np.argwhere(self.mask)
        A = np.eye(len(where)) / (2 * self.C)
        for mode, (U, weight) in enumerate(zip(point, self.lambdas, strict=True)):
            rest = np.delete(where, mode, axis=1)
            same_fibre = (rest[:, None, :] == rest[None, :, :]).all(axis=2)
            theta = U @ U.T
            A += weight * np.where(same_fibre, theta[np.ix_(where[:, mode], where[:, mode])], 0.0)
        return A

    def evaluate(self, point, *, rtol, warm):
        A = self.system(point)
        start = None if warm is None else warm.dual[self.mask]
        z, iterations = self.solver(A, self.y, rtol, start)
        r = self.y - A @ z
        size = np.linalg.norm(self.y)
        residual = float(np.linalg.norm(r) / size) if size else 0.0
        self.sweeps += iterations
        inner = DenseInner(iterations, residual, residual <= max(1.01 * rtol, 1e-11))
        return DenseEvaluation(point, float(0.5 * (self.y + r) @ z), inner, self.scatter(z))

    def renew(self, evaluation, *, rtol):
        return None

    def gradient(self, evaluation):
        Z = evaluation.dual
        return tuple(
            -weight * unfold(Z, k) @ (unfold(Z, k).T @ U)
            for k, (U, weight) in enumerate(zip(evaluation.point, self.lambdas, strict=True))
        )

    def hessian(self, evaluation, direction, *, rtol):
        point, Z = evaluation.point, evaluation.dual
        right = np.zeros(self.mask.shape)
        for k, (U, V, weight) in enumerate(zip(point, direction, self.lambdas, strict=True)):
            right -= weight * mode_product(Z, V @ U.T + U @ V.T, k)
        z, _ = self.solver(self.system(point), right[self.mask], rtol, None)
        dotted = self.scatter(z)
        products = []
        for k, (U, V, weight) in enumerate(zip(point, direction, self.lambdas, strict=True)):
            X, Xd = unfold(Z, k), unfold(dotted, k)
            products.append(-weight * (X @ (X.T @ V) + X @ (Xd.T @ U) + Xd @ (X.T @ U)))
        return tuple(products)

    def parts(self, evaluation):
        """W^k = λ_k Z ×_k U_k U_kᵀ, K tensors."""
        return tuple(
            weight * mode_product(evaluation.dual, U @ U.T, k)
            for k, (U, weight) in enumerate(zip(evaluation.point, self.lambdas, strict=True))
        )

    def completed(self, evaluation):
        """W = Σ W^k."""
        return sum(self.parts(evaluation))

    def primal(self, parts):
        """C ‖W_Ω − Y_Ω‖² + Σ 1/(2λ_k) ‖unfold_k(W^k)‖_*²."""
        misfit = (sum(parts) - self.values)[self.mask]
        nuclear = [np.linalg.norm(unfold(part, k), "nuc") for k, part in enumerate(parts)]
        penalty = sum(n**2 / (2 * w) for n, w in zip(nuclear, self.lambdas, strict=True))
        return float(self.C * misfit @ misfit + penalty)

    looseness = 1.0

    def next_stage(self):
        return False

    def certify(self, evaluation, *, rough=False):
        Z = evaluation.dual
        top = [np.linalg.norm(unfold(Z, k), 2) for k in range(Z.ndim)]
        seen = [np.linalg.norm(U.T @ unfold(Z, k)) for k, U in enumerate(evaluation.point)]
        bound = np.vdot(Z, self.values) - np.vdot(Z, Z) / (4 * self.C)
        bound -= sum(w / 2 * s**2 for w, s in zip(self.lambdas, top, strict=True))
        delta = sum(w / 2 * (s**2 - t**2) for w, s, t in zip(self.lambdas, top, seen, strict=True))
        return DenseCertificate(self.primal(self.parts(evaluation)), float(bound), float(delta))


def low_rank_tensor(shape, rank, rng):
    """A tensor of multilinear rank (rank, …, rank), entries of size about one."""
    ranks = tuple(min(rank, n) for n in shape)
    tensor = rng.standard_normal(ranks)
    for mode, n in enumerate(shape):
        tensor = mode_product(tensor, rng.standard_normal((n, ranks[mode])), mode)
    return tensor / np.sqrt(np.mean(tensor**2))


def random_problem(
    shape, ranks, *, C=10.0, rank=2, fraction=0.5, noise=0.1, seed=0, solver=solve_exactly
):
    """A noisy low-rank tensor of which a fraction is observed, with λ_k = n_k / mean n."""
    rng = np.random.default_rng(seed)
    tensor = low_rank_tensor(shape, rank, rng) + noise * rng.standard_normal(shape)
    mask = rng.random(shape) < fraction
    lambdas = np.asarray(shape) / np.mean(shape)
    return DenseProblem(mask, tensor, ranks, C=C, lambdas=lambdas, solver=solver)
