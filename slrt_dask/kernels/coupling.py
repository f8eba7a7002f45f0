"""Products with the sparse rows of a linear constraint on the entries of a block.

A row is `Σ_e a_e W_e` over some entries. A block has the coefficients of its own entries: three
arrays, (position of the entry in the block, number of the row, coefficient).
"""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def add_products(positions, rows, coefficients, w, products):
    """products += A w, the block's part of it."""
    for n in range(positions.size):
        products[rows[n]] += coefficients[n] * w[positions[n]]


@njit(nogil=True, cache=True)
def add_adjoint(positions, rows, coefficients, multipliers, factor, out):
    """out += factor · Aᵀ multipliers at the block's entries."""
    for n in range(positions.size):
        out[positions[n]] += factor * coefficients[n] * multipliers[rows[n]]
