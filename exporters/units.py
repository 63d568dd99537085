"""Numbers for people: three significant digits and always a unit; unknown is a dash, never 0."""

from __future__ import annotations

import re

UNKNOWN = "–"
"""How a value that nobody knows is shown."""

_TIME = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_BYTES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))


def duration(ns: float | None) -> str:
    """A time in ns in the unit that suits it."""
    return _scaled(ns, _TIME)


def milliseconds(ns: float | None) -> str:
    """A time in ns as ms with three decimals, for columns that are compared line by line."""
    return UNKNOWN if ns is None else f"{ns / 1e6:,.3f} ms"


def size(count: float | None) -> str:
    """A number of bytes in powers of ten."""
    return _scaled(count, _BYTES)


def rate(bytes_s: float | None) -> str:
    """Bytes a second in powers of ten."""
    return UNKNOWN if bytes_s is None else f"{size(bytes_s)}/s"


def percent(fraction: float | None) -> str:
    """A fraction as percent with one decimal; what is there but rounds to nothing says so."""
    if fraction is None:
        return UNKNOWN
    if 0 < fraction < 0.0005:
        return "< 0.1 %"
    return f"{fraction * 100:.1f} %"


def number(value: float | None) -> str:
    """A count with thousands separated."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def counted(count: int, noun: str) -> str:
    """A count and its noun in the number that it asks for."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def unbroken(text: str) -> str:
    """The same sentence, with no line break possible between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|ns|µs|ms|s|B|kB|MB|GB|TB)\b|%)", "\u00a0", text)


def ratio(part: float | None, whole: float | None) -> float | None:
    """A fraction, None where it has no meaning."""
    return None if part is None or not whole else part / whole


def _scaled(value: float | None, scale: tuple[tuple[int, str], ...]) -> str:
    if value is None:
        return UNKNOWN
    factor, unit = next((s for s in scale if abs(value) >= s[0] * 0.9995), scale[-1])
    scaled = value / factor
    if factor == 1 and float(value).is_integer():
        return f"{int(value)} {unit}"
    digits = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:,.{digits}f} {unit}"
