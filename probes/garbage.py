"""Garbage collections as spans of kind ``gc``, through ``gc.callbacks``."""

from __future__ import annotations

import gc
from time import perf_counter_ns

from . import format as layout
from .looks import edge
from .recorder import FAULTS, WORDS_A_CELL, current, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Collections of the youngest generation come by the thousand and take microseconds; below this
# many ns they explain nothing, and a record would cost as much as the collection.
SHORTEST_NS = 50_000

FULL = 2
"""The generation whose collections look at the whole heap."""

_began = [0]


def watch() -> None:
    """Record every collection of this process that lasts at least ``SHORTEST_NS``."""
    gc.callbacks.append(_on_collection)


def _on_collection(phase: str, info: dict[str, Any]) -> None:
    if phase == "start":
        if info["generation"] == FULL:  # what came before in the step is told from it
            edge()
        _began[0] = perf_counter_ns()
        return
    now = perf_counter_ns()
    if now - _began[0] >= SHORTEST_NS:
        try:
            _write(_began[0], now, info)
            edge()
        except FAULTS:
            pass


def _write(start: int, end: int, info: dict[str, Any]) -> None:
    here = current()
    room = here.reserve(3)
    if room is None:
        return
    words, at = room
    generation, collected = here.ids["generation"], here.ids["collected"]
    put(words, at + WORDS_A_CELL, layout.NUMBER, 0, info["generation"], 0, 0, generation)
    put(words, at + 2 * WORDS_A_CELL, layout.NUMBER, 0, info["collected"], 0, 0, collected)
    words[at] = start
    words[at + 1] = end
    words[at + 2] = here.kinds["gc"]
    words[at + 3] = here.word(here.spans, "gc", layout.tag(layout.SPAN))
