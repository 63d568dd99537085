"""Records with times of their own: spans, request events, engine steps and samples.

What ``span.py`` and ``scope.py`` record is timed by entering and leaving; an engine tells of things
that have already happened, on other threads, or that overlap. Times are ns of CLOCK_MONOTONIC.
Nothing here raises what belongs to us. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from .. import format as layout
from ..recorder import FAULTS, WORDS_A_CELL, current, fast, put
from ..scope import EVENTS, PHASES
from ..span import RICH, SPAN, SUSPENDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from mmap import mmap
    from struct import pack, unpack
    from typing import Any

    Batch = Iterable[tuple[str, str, int]]
else:
    from struct import pack, unpack

_STEP_REQUEST = layout.tag(layout.STEP_REQUEST)
_CELL = layout.CELL


def event(name: str, request: str, time: int, count: int = 0) -> None:
    """Something happened to a request at ``time``; names are those of ``REQUEST_EVENTS``."""
    try:
        if fast and fast.event(EVENTS[name], request, count, time):
            return
        here = current()
        room = here.reserve(1)
        if room is not None:
            words, at = room
            put(words, at, layout.REQUEST, time, count, EVENTS[name], here.ids[request])
    except FAULTS:
        pass


def setting(name: str, on: object) -> None:
    """A setting that the engine works with, on or off; nothing where it does not tell."""
    if type(on) is not bool:
        return
    try:
        current().info("engine.setting", "%s=%s" % (name, "on" if on else "off"))
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
        if fast and size is None and fast.over(name, kind, start, end, request, overlaps):
            return
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


def all_single(objects: Any, name: str) -> bool:
    """Whether the attribute of that name has a length of 1 in every one of a list of objects.

    A loop in C, where a batch of 64 costs as much as all else.
    """
    if fast and type(objects) is list:
        return bool(fast.single(objects, name))
    return all(len(getattr(each, name)) == 1 for each in objects)


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


# The recorder, cells and place of the last batch that was written whole: steps that decode on have
# the same again and again, and a page of the file that is touched first costs more than all else.
_whole: list[Any] = [None, b"", 0]


class Step:
    """An engine step that is under way; steps may overlap, and end on any thread.

    ``names`` are the requests of its batch and ``cells`` their cells (``batch_cell``) one behind
    the other; an engine may keep both from step to step, since most of a batch stays the same.
    """

    __slots__ = ("_at", "_cells", "_names", "_recorder", "_under_way", "_words")

    def __init__(self, id: int, start: int, names: Sequence[str], cells: bytes) -> None:
        self._names = names
        self._cells = cells
        self._words: memoryview[int] | None = None
        self._recorder = here = current()
        again = cells == _whole[1] and here is _whole[0] and len(cells) > 0
        room = here.reserve(2 if again else 2 + len(names))
        if room is None:
            return
        words, at = room
        place = here.place(at)
        back = place - _whole[2] if again else 0
        if not again:
            _whole[:] = here, cells, place
        self._under_way = _begin(words, at, id, start, b"" if again else cells, back)
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
        if self._words is None:
            return
        words, at = self._spelled_out(self._words, self._at)
        # Behind the cells STEP and MORE, the second word of a request's cell.
        first = at + 2 * WORDS_A_CELL + 1
        place = {name: number for number, name in enumerate(self._names)}
        for request, count in tokens:
            found = place.get(request)
            if found is not None:
                words[first + found * WORDS_A_CELL] = count
        words[at + 1] = time

    def _spelled_out(self, words: memoryview[int], at: int) -> tuple[memoryview[int], int]:
        """Its cells with its batch behind them, written anew where they only told of another's."""
        if not words[at + 3] & layout.ALL:
            return words, at
        room = self._recorder.reserve_always(2 + len(self._names))
        if room is None:
            return words, at
        id, start = words[at + WORDS_A_CELL], words[at]
        words[at + 3] = words[at + WORDS_A_CELL + 3] = 0
        _put_step(room[0], room[1], id, start, self._cells, 0)
        return room

    def end_alike(self, time: int, count: int) -> None:
        """The step is over, and ``count`` tokens of every request left the engine with it."""
        words, at = self._words, self._at
        if words is None:
            return
        if fast:
            fast.step_over(self._under_way, time, count)
            return
        if words[at + 3] & layout.ALL:
            words[at + WORDS_A_CELL + 1] = count
        else:
            first = at + 2 * WORDS_A_CELL + 1
            for place in range(first, first + len(self._names) * WORDS_A_CELL, WORDS_A_CELL):
                words[place] = count
        words[at + 1] = time


def _begin(
    words: memoryview[int], at: int, id: int, start: int, cells: bytes, back: int
) -> object | None:
    """Fill room for a step, in C where that was built; gives what C must know to end it."""
    if fast:
        made: object = fast.step(words, at, id, start, cells, back)
        return made
    _put_step(words, at, id, start, cells, back)
    return None


def _put_step(
    words: memoryview[int], at: int, id: int, start: int, cells: bytes, back: int
) -> None:
    put(words, at + WORDS_A_CELL, layout.MORE, id, -1)
    first = (at + 2 * WORDS_A_CELL) * 8
    block: mmap = words.obj  # type: ignore[assignment]  # the mapping below the view
    block[first : first + len(cells)] = cells
    count = len(cells) // layout.CELL_BYTES
    put(words, at, layout.STEP, start, 0, 0, count, back, layout.FLAG_MORE)
