"""A dense reference of the dual problem with Huber's loss: a bounded least-squares problem.

With A = RᵀR the inner problem is  min ½ ‖R z − R⁻ᵀ y‖²  subject to  |z| ≤ 2Cδ, which scipy's method
of Stark and Parker solves exactly, in finitely many steps.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import lsq_linear

from tests.oracles.convex import huber
from tests.oracles.dense import DenseEvaluation, DenseInner, DenseProblem, unfold


class RobustDenseProblem(DenseProblem):
    """The dense problem with Huber's loss in the place of the squared misfit."""

    def __init__(self, mask, values, ranks, *, C, lambdas, delta):
        super().__init__(mask, values, ranks, C=C, lambdas=lambdas)
        self.delta = delta

    @property
    def most(self):
        return 2 * self.C * self.delta

    def evaluate(self, point, *, rtol, warm):
        A = self.system(point)
        R = np.linalg.cholesky(A).T
        target = solve_triangular(R.T, self.y, lower=True)
        found = lsq_linear(R, target, (-self.most, self.most), method="bvls", tol=1e-15)
        z = found.x
        cost = float(z @ self.y - 0.5 * z @ A @ z)
        return DenseEvaluation(point, cost, DenseInner(found.nit, 0.0, True), self.scatter(z))

    def primal(self, parts):
        """C Σ h(W − Y) + Σ 1/(2λ_k) ‖unfold_k(W^k)‖_*²."""
        misfit = (sum(parts) - self.values)[self.mask]
        nuclear = [np.linalg.norm(unfold(part, k), "nuc") for k, part in enumerate(parts)]
        penalty = sum(n**2 / (2 * w) for n, w in zip(nuclear, self.lambdas, strict=True))
        return float(self.C * huber(misfit, self.delta).sum() + penalty)


def with_outliers(dense, delta, *, fraction=0.1, size=8.0, seed=3):
    """The same observations, of which some are absurd, with Huber's loss."""
    rng = np.random.default_rng(seed)
    absurd = dense.mask & (rng.random(dense.mask.shape) < fraction)
    values = np.where(absurd, size * rng.choice([-1.0, 1.0], dense.mask.shape), dense.values)
    return RobustDenseProblem(
        dense.mask, values, dense.manifold.ranks, C=dense.C, lambdas=dense.lambdas, delta=delta
    )
