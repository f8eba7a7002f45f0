"""Numbers as a reader wants them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

NARROW = "\N{NO-BREAK SPACE}"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(value: float, digits: int = 4) -> str:
    """A number with some digits; far from 1 with a power of ten."""
    if not math.isfinite(value):
        return str(value)
    if 1e4 <= abs(value) < 1e6:
        return f"{value:,.0f}".replace("-", "−")
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text.replace("-", "−")
    mantissa, exponent = text.split("e")
    power = str(int(exponent)).translate(SUPERSCRIPTS)
    factor = "" if mantissa == "1" else "−" if mantissa == "-1" else None
    lead = f"{mantissa.replace('-', '−')}·" if factor is None else factor
    return f"{lead}10{power}"


def label(value: Any) -> str:
    """A coordinate: numbers as they are, dates as far as they say something."""
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    if isinstance(value, np.floating):
        return plain(float(value), 6)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def percent(part: float) -> str:
    """A part as a percentage."""
    return f"{plain(100 * part, 3)}{NARROW}%"


def part_of(part: float, whole: float) -> str:
    """A part of something, in percent, as precise as is worth comparing."""
    return f"{100 * part / whole if whole else 0.0:.1f}{NARROW}%"


def duration(seconds: float) -> str:
    """A time with the units that a person would choose."""
    if seconds < 0.1:
        return f"{1e3 * seconds:.2g}{NARROW}ms"
    if seconds < 60:
        return f"{seconds:.{2 if seconds < 10 else 1}f}{NARROW}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def counted(count: int, what: str) -> str:
    """A number of things."""
    several = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"
    return f"{count:,} {what if count == 1 else several}"


def lengths(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{length:,}" for length in shape)


def listed(numbers: tuple[float, ...]) -> str:
    return ", ".join(plain(number) for number in numbers)
