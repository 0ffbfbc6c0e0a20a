"""How numbers are written in a report: three significant digits, SI units, intervals in the unit of their centre.

Times are given in ns (int or float); rates and counts are decimal (1 GB = 1e9 bytes).
"""

from __future__ import annotations

import math

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
MISSING = "–"
NBSP = "\u00a0"
"""Keeps a number, its unit and its interval on one line."""


def decimals(value: float) -> int:
    """The decimals that leave three significant digits of `value`."""
    if value == 0 or not math.isfinite(value):
        return 0
    # of the rounded value, so that 0.99996 has as many as the 1.00 it is written as
    return max(0, 2 - math.floor(math.log10(float(f"{abs(value):.3g}"))))


def plain(value: float) -> str:
    """Three significant digits with thousands separators and a true minus sign: 1,240 or 0.0127."""
    return signed_text(f"{value:,.{min(decimals(value), 9)}f}")


def signed_text(text: str) -> str:
    """The same number with the typographic minus."""
    return text.replace("-", "−")


def _scale(value: float, table: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    size = abs(value)
    # a hair below the step, so that 999.9 µs reads 1.00 ms and not 1,000 µs
    return next(((scale, unit) for scale, unit in table if size >= 0.9995 * scale), table[-1])


def duration(ns: float | None) -> str:
    """118 ms, 4.21 ms, 812 µs, 3.20 s."""
    if ns is None:
        return MISSING
    if ns == 0:
        return f"0{NBSP}ms"
    scale, unit = _scale(ns, _TIMES)
    return f"{plain(ns / scale)}{NBSP}{unit}"


def interval(low: float, high: float, scale: float = 1.0, centre: float | None = None) -> str:
    """`[low, high]` in units of `scale`, with the decimals of `centre` (or of the wider end)."""
    places = decimals((centre if centre else max(abs(low), abs(high))) / scale)
    return signed_text(f"[{low / scale:,.{places}f},{NBSP}{high / scale:,.{places}f}]")


def duration_interval(ns: float | None, low: float | None, high: float | None) -> str:
    """51.2 ms [49.0, 53.1]: the interval in the unit and decimals of the centre; the centre alone without one."""
    if ns is None or low is None or high is None:
        return duration(ns)
    scale, _ = _scale(ns if ns else max(abs(low), abs(high)), _TIMES)
    return f"{duration(ns)}{NBSP}{interval(low, high, scale, ns)}"


def ratio(value: float | None) -> str:
    """2.87×."""
    return MISSING if value is None else f"{value:,.2f}×"


def ratio_interval(value: float | None, low: float | None, high: float | None) -> str:
    """2.87× [2.79, 2.95]."""
    if value is None or low is None or high is None:
        return ratio(value)
    return f"{ratio(value)}{NBSP}[{low:,.2f},{NBSP}{high:,.2f}]"


def share(part: float, whole: float) -> str:
    """43%, 4.3%, < 0.1%; a dash when there is no whole."""
    if whole <= 0:
        return MISSING
    return percent(part / whole)


def percent(fraction: float | None) -> str:
    """A fraction as 43%, 4.3%, < 0.1%."""
    if fraction is None or not math.isfinite(fraction):
        return MISSING
    value = 100 * fraction
    if value == 0:
        return "0%"
    if abs(value) < 0.1:
        return f"<{NBSP}0.1%" if value > 0 else f">{NBSP}−0.1%"
    return signed_text(f"{value:.0f}%" if abs(value) >= 9.95 else f"{value:.1f}%")


def si(value: float | None, unit: str) -> str:
    """1.24 TFLOP/s, 18.3 GB/s, 512 B."""
    if value is None:
        return MISSING
    scale, prefix = _scale(value, _PREFIXES)
    return f"{plain(value / scale)}{NBSP}{prefix}{unit}"


def count(value: float | None) -> str:
    """1,234 for whole numbers, 3 digits otherwise."""
    if value is None:
        return MISSING
    return f"{int(value):,}" if float(value).is_integer() else plain(value)


def nanoseconds(ns: int) -> str:
    """Every digit, for tables whose rows must add up: 51,203,112."""
    return signed_text(f"{ns:,}")


def sentence(text: str) -> str:
    """The text as a sentence: a capital first letter and a full stop; empty stays empty."""
    text = text.strip()
    if not text:
        return ""
    return f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.!?' else '.'}"
