"""A product with the operator as one writes it with scipy: a sparse matrix for every unfolding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array


def csr_product(columns, fibres, shape, factors, weights, shift, x) -> Callable[[], np.ndarray]:
    """A call that makes A x. What does not depend on x is made beforehand."""
    unfoldings, orders = [], []
    for mode, (rows, length) in enumerate(zip(columns, shape, strict=True)):
        count = int(np.prod(shape)) // shape[mode]
        # Transposed, so that the product with a factor runs along rows of the result.
        numbers = csr_array(
            (np.arange(1, x.size + 1, dtype=np.float64), (fibres[mode], rows)),
            shape=(count, length),
        )
        orders.append(numbers.data.astype(np.int64) - 1)
        numbers.data = x[orders[-1]]
        unfoldings.append(numbers)

    def product() -> np.ndarray:
        out = shift * x
        for mode, unfolding in enumerate(unfoldings):
            unfolding.data = x[orders[mode]]
            sums = unfolding @ factors[mode]
            rows = factors[mode][columns[mode]]
            out += weights[mode] * np.einsum("er,er->e", rows, sums[fibres[mode]])
        return out

    return product
