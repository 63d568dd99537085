"""Wrappers that record a call only where it took long: what is called by the million stays cheap.

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

SHORTEST_NS = 100_000
"""Shorter calls explain nothing, and recording one would cost as much as many of them."""


def long_calls(name: str, kind: str) -> Callable[[Any], Any]:
    """Makes wrappers that record a span around every call of at least ``SHORTEST_NS``."""

    def make(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            begun = perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                ended = perf_counter_ns()
                if ended - begun >= SHORTEST_NS:
                    emit.span(name, kind, begun, ended, request_id.get())

        return call

    return make
