"""Records with times of their own: spans, request events, engine steps and samples.

What ``span.py`` and ``scope.py`` record is timed by entering and leaving; an engine tells of things
that have already happened, on other threads, or that overlap. Times are ns of CLOCK_MONOTONIC.
Nothing here raises what belongs to us. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from array import array

from .. import format as layout
from ..recorder import FAULTS, WORDS_A_CELL, current, put
from ..scope import EVENTS, PHASES
from ..span import RICH, SPAN, SUSPENDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from mmap import mmap
    from struct import pack, unpack

    Batch = Iterable[tuple[str, str, int]]
else:
    from struct import pack, unpack

_STEP_REQUEST = layout.tag(layout.STEP_REQUEST)
_CELL = layout.CELL


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
    name: str,
    kind: str,
    start: int,
    end: int,
    request: str | None = None,
    overlaps: bool = False,
    size: int | None = None,
) -> None:
    """A span that is over; ``overlaps``: it does not nest with others of this thread.

    ``size`` is what was moved, in bytes.
    """
    try:
        here = current()
        room = here.reserve(1 if size is None else 2)
        if room is None:
            return
        words, at = room
        flags = SUSPENDED if overlaps else 0
        words[at] = start
        words[at + 1] = end
        words[at + 2] = here.ids[request] | here.kinds[kind]
        if size is not None:
            put(words, at + WORDS_A_CELL, layout.MORE, -1, size)
            flags |= RICH
        words[at + 3] = here.word(here.spans, name, SPAN) | flags
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


def batch_cell(request: str, phase: str, tokens: int) -> bytes:
    """The cell of a request in a step's batch; it holds a number that means its id here only:

    in records of the calling thread.
    """
    here = current()
    return _CELL.pack(tokens, 0, PHASES[phase], here.ids[request], 0, _STEP_REQUEST)


class Step:
    """An engine step that is under way; steps may overlap, and end on any thread.

    ``names`` are the requests of its batch and ``cells`` their cells (``batch_cell``) one behind
    the other; an engine may keep both from step to step, since most of a batch stays the same.
    """

    __slots__ = ("_at", "_names", "_words")

    def __init__(self, id: int, start: int, names: Sequence[str], cells: bytes) -> None:
        self._names = names
        self._words: memoryview[int] | None = None
        count = len(names)
        room = current().reserve(2 + count)
        if room is None:
            return
        words, at = room
        put(words, at + WORDS_A_CELL, layout.MORE, id, -1)
        if count:
            first = (at + 2 * WORDS_A_CELL) * 8
            block: mmap = words.obj  # type: ignore[assignment]  # the mapping below the view
            block[first : first + len(cells)] = cells
        put(words, at, layout.STEP, start, 0, 0, count, 0, layout.FLAG_MORE)
        self._words, self._at = words, at

    @classmethod
    def of(cls, id: int, start: int, batch: Batch) -> Step:
        """A step of which every request's id, phase and tokens are given."""
        rows = list(batch)
        cells = b"".join([batch_cell(*row) for row in rows])
        return cls(id, start, [row[0] for row in rows], cells)

    def __len__(self) -> int:
        """How many requests are in its batch."""
        return len(self._names)

    def end(self, time: int, tokens: Iterable[tuple[str, int]]) -> None:
        """The step is over, and so many tokens of each request left the engine with it."""
        words = self._words
        if words is None:
            return
        # Behind the cells STEP and MORE, the second word of a request's cell.
        first = self._at + 2 * WORDS_A_CELL + 1
        place = {name: number for number, name in enumerate(self._names)}
        for request, count in tokens:
            found = place.get(request)
            if found is not None:
                words[first + found * WORDS_A_CELL] = count
        words[self._at + 1] = time

    def end_alike(self, time: int, count: int) -> None:
        """The step is over, and ``count`` tokens of every request left the engine with it."""
        words = self._words
        if words is None:
            return
        first = self._at + 2 * WORDS_A_CELL + 1
        many = len(self._names)
        if many:
            words[first : first + many * WORDS_A_CELL : WORDS_A_CELL] = _alike(count, many)
        words[self._at + 1] = time


def _alike(count: int, many: int) -> memoryview[int]:
    return memoryview(array("q", (count,)) * many)
