"""Numbers as a reader wants them."""

from __future__ import annotations

import math

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(value: float, digits: int = 4) -> str:
    """A number with some digits; far from 1 with a power of ten."""
    if not math.isfinite(value):
        return str(value)
    text = f"{value:.{digits}g}"
    if "e" not in text:
        if abs(value) >= 1e4:
            return f"{value:,.0f}".replace("-", "−")
        return text.replace("-", "−")
    mantissa, exponent = text.split("e")
    power = str(int(exponent)).translate(SUPERSCRIPTS)
    factor = "" if mantissa == "1" else "−" if mantissa == "-1" else None
    lead = f"{mantissa.replace('-', '−')}·" if factor is None else factor
    return f"{lead}10{power}"


def percent(part: float) -> str:
    """A part as a percentage."""
    return f"{plain(100 * part, 3)} %"


def duration(seconds: float) -> str:
    """A time with the units that a person would choose."""
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds >= 0.001 else f"{1e6 * seconds:.0f} µs"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def lengths(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{length:,}" for length in shape)


def listed(numbers: tuple[float, ...]) -> str:
    return ", ".join(plain(number) for number in numbers)
