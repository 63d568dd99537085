"""Plain text and numbers of whatever a program hands to the probes.

An argument may be anything: its ``__str__`` may raise, return a string with methods of its own or
half a character; a count may be infinite or negative. Only exact ``str`` and ``int`` come out, so
nothing behind this runs code of the program. What an argument raises is taken as "unknown";
exceptions that are no ``Exception`` (KeyboardInterrupt) belong to the program and pass.
Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from _operator import index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

UNPRINTABLE = "(unprintable)"
UNKNOWN = -1
_LIMIT = 1 << 63


def text(value: object) -> str:
    """``value`` as an exact str."""
    if type(value) is str:
        return value
    try:
        made: Any = value if isinstance(value, str) else str(value)
        # str() may hand on a subclass, whose methods are the program's.
        return str.__str__(made)
    except Exception:
        return UNPRINTABLE


def whole(value: object) -> int:
    """A count, id or size as an int of 0 … 2^63-1; UNKNOWN (-1) where it is none."""
    try:
        number = int(value)  # type: ignore[call-overload]  # whatever it is, it is tried
    except Exception:
        return UNKNOWN
    return number if 0 <= number < _LIMIT else UNKNOWN


def number(value: object) -> int | float | None:
    """``value`` as an exact int of 64 bits, else as a float; None where it is no number."""
    if type(value) is float:
        return value
    try:
        exact = int(index(value))  # type: ignore[arg-type]  # as above
        if -_LIMIT <= exact < _LIMIT:
            return exact
    except Exception:
        pass
    try:
        return float(value)  # type: ignore[arg-type]  # as above
    except Exception:
        return None


def batch(requests: Mapping[Any, Any] | None) -> list[tuple[str, str, int]]:
    """Each request's id, phase and tokens; nothing where the mapping is not of that shape."""
    if requests is None:
        return []
    try:
        rows = [(name, phase, tokens) for name, (phase, tokens) in requests.items()]
    except Exception:
        return []
    return [(text(name), text(phase), whole(tokens)) for name, phase, tokens in rows]
