"""Entries of a block in the order of sections: ranges of the slab mode's fibres.

A section's fibre sums fit in memory where those of all fibres do not. Where the entries of every
slice are sorted by fibre, those of a section are one run in each slice; put one after the other,
they can be read, changed and written by themselves.
"""

from __future__ import annotations

from numba import njit


def section_length(fibres: int, sections: int) -> int:
    """Fibres of each section but the last ones, which may have fewer, or none."""
    return -(-fibres // sections)


def section_borders(fibres: int, sections: int) -> tuple[int, ...]:
    """The fibre numbers between which sections lie, from 0 to `fibres`."""
    length = section_length(fibres, sections)
    return tuple(min(number * length, fibres) for number in range(sections + 1))


def section_range(fibres: int, sections: int, section: int) -> tuple[int, int]:
    """The first fibre of a section, and the one after its last."""
    borders = section_borders(fibres, sections)
    return borders[section], borders[section + 1]


@njit(nogil=True, cache=True)
def by_section(bounds, source, target):
    """Put entries that lie slice by slice in the order of sections, slices in order within each.

    bounds : (sections + 1, slices) where in every slice each section begins
        (`crossing.strip_bounds`)
    """
    position = 0
    for section in range(bounds.shape[0] - 1):
        for number in range(bounds.shape[1]):
            first, stop = bounds[section, number], bounds[section + 1, number]
            target[position : position + stop - first] = source[first:stop]
            position += stop - first


@njit(nogil=True, cache=True)
def by_slice(bounds, source, target):
    """The way back from `by_section`."""
    position = 0
    for section in range(bounds.shape[0] - 1):
        for number in range(bounds.shape[1]):
            first, stop = bounds[section, number], bounds[section + 1, number]
            target[first:stop] = source[position : position + stop - first]
            position += stop - first
