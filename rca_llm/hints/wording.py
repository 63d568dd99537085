"""Numbers in the sentences of hints: four significant digits and a unit."""

from __future__ import annotations

import re

_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_ROUNDS_UP = 0.99995
"""What is so near to a unit is shown as one of it: 1 s, not 1000 ms."""

_NS = re.compile(r"\b(\d+) ns\b")
_SIZES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def time(ns: float) -> str:
    """A time in the unit that suits it."""
    return _scaled(ns, _TIMES, "ns")


def size(count: float) -> str:
    """A number of bytes in powers of ten."""
    return _scaled(count, _SIZES, "B")


def rate(bytes_s: float) -> str:
    """Bytes a second."""
    return f"{size(bytes_s)}/s"


def percent(fraction: float) -> str:
    """A fraction in percent."""
    return f"{figure(fraction * 100, 3)} %"


def figure(value: float, digits: int = 4) -> str:
    """A number of so many significant digits, thousands separated, never with an exponent."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits - 0.5 else f"{value:,.0f}"


def summed(ns: float, requests: int) -> str:
    """A time, and over how many requests it is a sum: these overlap, so it may exceed the trace."""
    return f"{time(ns)} summed over {requests:,} requests" if requests > 1 else time(ns)


def plural(count: int, noun: str) -> str:
    """A count and its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def readable(detail: str) -> str:
    """A detail of a finding, which holds every nanosecond, with its times in units that suit."""
    return _NS.sub(lambda match: time(int(match.group(1))), detail)


def name(text: str, most: int = 60) -> str:
    """A name from a trace, cut and without control characters."""
    clean = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def _scaled(value: float, scale: tuple[tuple[int, str], ...], least: str) -> str:
    for factor, unit in scale:
        if abs(value) >= factor * _ROUNDS_UP:
            return f"{figure(value / factor)} {unit}"
    return f"{figure(value)} {least}"
