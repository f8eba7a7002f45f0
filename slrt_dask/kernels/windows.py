"""Windows of a flattened tensor, and their overlap-add; no index table is built.

firsts : where each window begins;  rows : how far from there its rows are, which lie in one piece
lines : (windows, rows, row length)
"""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def cut(flat, firsts, rows, lines):
    for window in range(firsts.size):
        for row in range(rows.size):
            first = firsts[window] + rows[row]
            for place in range(lines.shape[2]):
                lines[window, row, place] = flat[first + place]


@njit(nogil=True, cache=True)
def add(lines, firsts, rows, flat):
    for window in range(firsts.size):
        for row in range(rows.size):
            first = firsts[window] + rows[row]
            for place in range(lines.shape[2]):
                flat[first + place] += lines[window, row, place]
