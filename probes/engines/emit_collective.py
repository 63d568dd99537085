"""Records of collectives, which stay open in the recording until they are over.

Times are ns of CLOCK_MONOTONIC. Nothing here raises. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from .. import format as layout
from ..recorder import FAULTS, WORDS_A_CELL, current, put
from ..span import RICH, SPAN, SUSPENDED

COLLECTIVE, WAITED_FROM = "collective", "waited_from"


class Collective:
    """A collective that is under way: stays open in the recording until ``end``.

    Written as a span of kind ``collective`` named after the operation, whose step is the sequence
    number and whose path is ``communicator|ranks|type``; ``docs/format.md`` says more.
    """

    __slots__ = ("_at", "_words")

    def __init__(self, op: str, where: str, seq: int, bytes: int, start: int) -> None:
        self._words: memoryview[int] | None = None
        try:
            here = current()
            room = here.reserve(3)
            if room is None:
                return
            words, at = room
            more = at + WORDS_A_CELL
            put(words, more, layout.MORE, seq, bytes, here.ids[where])
            words[at] = start
            words[at + 2] = here.kinds[COLLECTIVE]
            words[at + 3] = here.word(here.spans, op, SPAN) | SUSPENDED | RICH
            self._words, self._at = words, at
        except FAULTS:
            pass

    def end(self, time: int, waited_from: int) -> None:
        """It is over; its thread waited for it since ``waited_from``."""
        words = self._words
        if words is None:
            return
        try:
            last = self._at + 2 * WORDS_A_CELL
            put(words, last, layout.NUMBER, 0, waited_from, 0, 0, current().ids[WAITED_FROM])
            words[self._at + 1] = time
        except FAULTS:
            pass
