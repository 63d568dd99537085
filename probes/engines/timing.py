"""Wrappers that record a call only where it took long: what is called by the million stays cheap.

The wrapper is in C where that was built: no frame of ours then stands in the program's tracebacks.
Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from time import perf_counter_ns

from ..span import request_id
from . import emit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Report = Callable[[int, int, Any], None]
    Timed: Any = None
else:
    try:  # built for this very Python, or not at all
        from ..native._timed import Timed
    except ImportError:
        Timed = None

SHORTEST_NS = 100_000
"""Shorter calls explain nothing, and recording one would cost as much as many of them."""


def long_calls(name: str, kind: str) -> Callable[[Any], Any]:
    """Makes wrappers that record a span around every call of at least ``SHORTEST_NS``."""

    def report(begun: int, ended: int, first: Any) -> None:
        emit.span(name, kind, begun, ended, request_id.get())

    return reporting(report)


def reporting(report: Report) -> Callable[[Any], Any]:
    """Makes wrappers that call ``report(begun, ended, first argument)`` after every long call."""

    def make(function: Any) -> Any:
        return Timed(function, report, SHORTEST_NS) if Timed else _timed(function, report)

    return make


def _timed(function: Any, report: Report) -> Any:
    """What `Timed` does, with a frame in tracebacks."""

    def call(*args: Any, **kwargs: Any) -> Any:
        begun = perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            ended = perf_counter_ns()
            if ended - begun >= SHORTEST_NS:
                report(begun, ended, args[0] if args else None)

    return call
