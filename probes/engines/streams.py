"""asyncio's streams: a client that reads slowly lets `drain` wait until its socket takes more."""

from __future__ import annotations

from time import perf_counter_ns

from ..span import request_id
from . import emit
from .timing import SHORTEST_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def version(module: Any) -> str:
    """Nothing: asyncio is not an engine."""
    return ""


def _drain(drain: Any) -> Any:
    async def call(self: Any) -> None:
        begun = perf_counter_ns()
        try:
            await drain(self)
        finally:
            ended = perf_counter_ns()
            if ended - begun >= SHORTEST_NS:
                # Other tasks run on this thread meanwhile.
                emit.span("drain", "network", begun, ended, request_id.get(), overlaps=True)

    return call


TARGETS = {"asyncio.streams": {"StreamWriter.drain": _drain}}
