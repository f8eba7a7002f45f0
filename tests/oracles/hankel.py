"""A dense reference of the Hankel problem: every operator is a matrix, every copy has its index."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import scipy.optimize

from tests.oracles.inner import model_operator


def embedding_matrix(shape, tau):
    """H as a matrix, from its definition: H(W)[a, b] = W[a + b]."""
    window = tuple(n - t + 1 for n, t in zip(shape, tau, strict=True))
    offsets, places = (list(np.ndindex(*sizes)) for sizes in (tau, window))
    H = np.zeros((len(offsets) * len(places), int(np.prod(shape))))
    for row, (a, b) in enumerate(itertools.product(offsets, places)):
        index = tuple(i + j for i, j in zip(a, b, strict=True))
        H[row, np.ravel_multi_index(index, shape)] = 1.0
    return H


@dataclass(frozen=True)
class DenseHankel:
    """The problem at a point, solved by least squares."""

    mask: np.ndarray
    values: np.ndarray
    tau: tuple[int, ...]
    C: float
    lambdas: tuple[float, ...]
    deviation: float

    @property
    def H(self):
        return embedding_matrix(self.mask.shape, self.tau)

    @property
    def seen(self):
        return self.mask.reshape(-1)

    def model(self, point):
        """L: every offset's window by itself."""
        window = tuple(len(U) for U in point)
        one = model_operator(window, point, self.lambdas)
        return np.kron(np.eye(int(np.prod(self.tau))), one)

    def projection(self):
        H = self.H
        copies = H.sum(axis=0)
        return np.eye(len(H)) - H @ np.diag(~self.seen / copies) @ H.T

    def solve(self, point):
        """g and S."""
        H, L, P = self.H, self.model(point), self.projection()
        y = np.where(self.seen, self.values.reshape(-1), 0.0)
        A = H @ np.diag(self.seen / (2 * self.C)) @ H.T + L + self.deviation * np.eye(len(H))
        S = P @ np.linalg.lstsq(P @ A @ P, H @ y, rcond=1e-12)[0]
        return 0.5 * (H @ y) @ S, S

    def tensor(self, point, S):
        """W, and how far L S + δ S is from being Hankel."""
        H = self.H
        embedded = self.model(point) @ S + self.deviation * S
        W = H.T @ embedded / H.sum(axis=0)
        return W.reshape(self.mask.shape), np.abs(H @ W - embedded).max()

    def bounded(self, point, lower, upper):
        """The minimum over W within bounds, and W, by a bounded least-squares solver."""
        H, M = self.H, self.model(point) + self.deviation * np.eye(len(self.H))
        quadratic = H.T @ np.linalg.solve(M, H) + np.diag(2.0 * self.C * self.seen)
        y = np.where(self.seen, self.values.reshape(-1), 0.0)
        root = np.linalg.cholesky(quadratic).T
        target = np.linalg.solve(root.T, 2.0 * self.C * y)
        found = scipy.optimize.lsq_linear(
            root, target, (lower.reshape(-1), upper.reshape(-1)), method="bvls", tol=1e-14
        )
        W = found.x
        cost = self.C * np.sum((W - y)[self.seen] ** 2)
        cost += 0.5 * (H @ W) @ np.linalg.solve(M, H @ W)
        return cost, W.reshape(self.mask.shape)
