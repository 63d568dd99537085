"""Python's logging: the time that handlers take, and wait for one another.

A handler is timed as a whole, its lock included: a thread that waits for another's slow handler is
held up by the log too.
"""

from __future__ import annotations

from ..span import request_id
from . import emit
from .timing import reporting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def version(module: Any) -> str:
    """Nothing: logging is not an engine."""
    return ""


def _handled(begun: int, ended: int, handler: Any) -> None:
    emit.span("log " + type(handler).__name__, "log", begun, ended, request_id.get())


TARGETS = {"logging": {"Handler.handle": reporting(_handled)}}
