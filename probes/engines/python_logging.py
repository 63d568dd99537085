"""Python's logging: the time that handlers take, and wait for one another.

A handler is timed as a whole, its lock included: a thread that waits for another's slow handler is
held up by the log too.
"""

from __future__ import annotations

from time import perf_counter_ns

from ..span import request_id
from . import emit
from .timing import SHORTEST_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def version(module: Any) -> str:
    """Nothing: logging is not an engine."""
    return ""


def _handle(handle: Any) -> Any:
    def call(self: Any, record: Any) -> Any:
        begun = perf_counter_ns()
        try:
            return handle(self, record)
        finally:
            ended = perf_counter_ns()
            if ended - begun >= SHORTEST_NS:
                emit.span("log " + type(self).__name__, "log", begun, ended, request_id.get())

    return call


TARGETS = {"logging": {"Handler.handle": _handle}}
