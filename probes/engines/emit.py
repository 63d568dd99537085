"""Records with times of their own: spans, request events, engine steps and samples.

What ``span.py`` and ``scope.py`` record is timed by entering and leaving; an engine tells of things
that have already happened, on other threads, or that overlap. Times are ns of CLOCK_MONOTONIC.
Nothing here raises what belongs to us. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from array import array

from .. import format as layout
from ..recorder import FAULTS, WORDS_A_CELL, current, pair, put
from ..scope import EVENTS, PHASES
from ..span import SPAN, SUSPENDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from struct import pack, unpack

    Batch = Iterable[tuple[str, str, int]]
else:
    from struct import pack, unpack

_STEP_REQUEST = layout.tag(layout.STEP_REQUEST) << 32


def event(name: str, request: str, time: int, count: int = 0) -> None:
    """Something happened to a request at ``time``; names are those of ``REQUEST_EVENTS``."""
    try:
        here = current()
        room = here.reserve(1)
        if room is not None:
            words, at = room
            put(words, at, layout.REQUEST, time, count, EVENTS[name], here.ids[request])
    except FAULTS:
        pass


def alias(request: str, known_as: str, time: int) -> None:
    """The id ``request`` of an engine stands for what clients know as ``known_as``."""
    try:
        event("alias", request, time, current().ids[known_as])
    except FAULTS:
        pass


def span(
    name: str, kind: str, start: int, end: int, request: str | None = None, overlaps: bool = False
) -> None:
    """A span that is over; ``overlaps``: it does not nest with others of this thread."""
    try:
        here = current()
        room = here.reserve(1)
        if room is None:
            return
        words, at = room
        words[at] = start
        words[at + 1] = end
        words[at + 2] = here.ids[request] | here.kinds[kind]
        words[at + 3] = here.word(here.spans, name, SPAN) | (SUSPENDED if overlaps else 0)
    except FAULTS:
        pass


def mark(name: str, request: str | None, time: int) -> None:
    """A mark at ``time``."""
    try:
        here = current()
        room = here.reserve(1)
        if room is not None:
            words, at = room
            words[at] = time
            words[at + 2] = here.ids[request]
            words[at + 3] = here.word(here.marks, name, layout.tag(layout.MARK))
    except FAULTS:
        pass


def sample(metric: str, value: float, time: int) -> None:
    """A value of a metric of the contract at ``time``."""
    try:
        here = current()
        room = here.reserve(1)
        if room is not None:
            words, at = room
            bits = unpack("<q", pack("<d", value))[0]
            name, subject = here.ids[metric], layout.SUBJECTS.index("none")
            put(words, at, layout.SAMPLE, time, bits, name, layout.ALL, subject)
    except FAULTS:
        pass


class Step:
    """An engine step that is under way; steps may overlap, and end on any thread."""

    __slots__ = ("_at", "_place", "_words")

    def __init__(self, id: int, start: int, batch: Batch) -> None:
        """Write the step; ``batch`` gives each request's id, phase and tokens."""
        here = current()
        ids, phases = here.ids, PHASES
        rows: list[int] = []
        place: dict[str, int] = {}
        for request, phase, tokens in batch:
            place[request] = len(rows)
            rows += (tokens, 0, pair(phases[phase], ids[request]), _STEP_REQUEST)
        self._place = place
        self._words: memoryview[int] | None = None
        room = here.reserve(2 + len(place))
        if room is None:
            return
        words, at = room
        more = at + WORDS_A_CELL
        put(words, more, layout.MORE, id, -1)
        first = more + WORDS_A_CELL
        words[first : first + len(rows)] = memoryview(array("q", rows))
        put(words, at, layout.STEP, start, 0, 0, len(place), 0, layout.FLAG_MORE)
        self._words, self._at = words, at

    def end(self, time: int, tokens: Iterable[tuple[str, int]]) -> None:
        """The step is over, and so many tokens of each request left the engine with it."""
        words = self._words
        if words is None:
            return
        # Behind the cells STEP and MORE, the second word of a request's cell.
        first = self._at + 2 * WORDS_A_CELL + 1
        place = self._place
        for request, count in tokens:
            found = place.get(request)
            if found is not None:
                words[first + found] = count
        words[self._at + 1] = time
