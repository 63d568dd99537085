"""Spans and marks: ``with span("x"):`` and ``record("x")``.

Outside a trace both do nothing, at the price of a call. In a trace they write SPAN and MARK cells
of ``format.py`` through this thread's recorder. Nothing here raises or prints. Standard library
only, Python >= 3.7.
"""

from __future__ import annotations

from _contextvars import ContextVar
from struct import pack, unpack
from time import perf_counter_ns

from . import format as layout
from . import ranges
from .plain import number as plain_number
from .plain import text, whole
from .recorder import FAULTS, WORDS_A_CELL, current, fast, local, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from .recorder import Recorder

SPAN, MARK = layout.tag(layout.SPAN), layout.tag(layout.MARK)
RICH = layout.FLAG_MORE << layout.FLAG_SHIFT + 32
SUSPENDED = layout.FLAG_ASYNC << layout.FLAG_SHIFT + 32
FAILED = layout.FLAG_ERROR << layout.FLAG_SHIFT + 32

request_id: ContextVar[str | None] = ContextVar("rca_llm_request", default=None)
# Whether any request scope was ever entered here: spares spans a look at the context.
scoped = False


def watch_requests() -> None:
    """Let spans look for the request of the scope around them from here on."""
    global scoped
    scoped = True
    if fast:
        fast.watch_requests()


class Off:
    """A span that records nothing."""

    __slots__ = ()

    def __enter__(self) -> Off:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


class Span(Off):
    """A span whose cell is reserved at word ``at``: entering stores the start, leaving the end."""

    __slots__ = ("at", "words")

    words: memoryview[int]
    at: int

    def __enter__(self) -> Span:
        self.words[self.at] = perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.words[self.at + 1] = perf_counter_ns()
            if kind is not None:
                self.words[self.at + 3] |= FAILED
        except ValueError:
            pass  # a forked child leaves a span of its parent: the cell is the parent's


class RangeSpan(Span):
    """A span that is an NVTX range too."""

    __slots__ = ("attributes",)

    attributes: object

    def __enter__(self) -> RangeSpan:
        ranges.push(self.attributes)
        self.words[self.at] = perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.words[self.at + 1] = perf_counter_ns()
            if kind is not None:
                self.words[self.at + 3] |= FAILED
        except ValueError:
            pass
        ranges.pop()


class LongSpan(RangeSpan):
    """A span that may overlap others of its thread; NVTX knows such as start and end ranges."""

    __slots__ = ("range_id",)

    range_id: object

    def __enter__(self) -> LongSpan:
        self.range_id = ranges.start(self.attributes)
        self.words[self.at] = perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        Span.__exit__(self, kind, error, traceback)
        ranges.end(self.range_id)


OFF = Off()


def span(
    name: str,
    kind: str = "host",
    request: str | None = None,
    step: int | None = None,
    bytes: int | None = None,
    path: str | None = None,
) -> Off:
    """A context manager that records the time spent inside it.

    ``kind`` is a span kind of the contract (``host``, ``file``, ``tokenize`` …), ``request`` the id
    it serves (default: that of the ``request`` scope around it), ``step`` the engine step,
    ``bytes`` and ``path`` what was read or written. Enter it once.
    """
    try:
        if type(name) is not str or type(kind) is not str:
            name, kind = text(name), text(kind)
        if request is not None and type(request) is not str:
            request = text(request)
        try:
            here: Recorder = local.recorder
        except AttributeError:  # the first span of a thread opens its recorder
            here = current()
        if step is not None or bytes is not None or path is not None:
            return _rich(here, name, kind, request, step, bytes, path)
        if here.at >= here.last and not here.refill():
            return OFF
        # No call between these lines: a signal handler or the collector may record in a call.
        words = here.words
        at = here.at
        here.at = at + 4
        made = _ranged(name) if ranges.enabled else Span()
        made.words = words
        made.at = at
        if scoped and request is None:
            request = request_id.get()
        if request is not None or kind != "host":
            words[at + 2] = here.ids[request] | here.kinds[kind]
        try:
            words[at + 3] = here.spans[name]
        except KeyError:
            words[at + 3] = here.word(here.spans, name, SPAN)
        return made
    except FAULTS:
        return OFF  # a span that cannot be written


def off_span(
    name: str,
    kind: str = "host",
    request: str | None = None,
    step: int | None = None,
    bytes: int | None = None,
    path: str | None = None,
) -> Off:
    """``span`` outside a trace."""
    return OFF


def _rich(
    here: Recorder,
    name: str,
    kind: str,
    request: str | None,
    step: int | None,
    bytes: int | None,
    path: str | None,
) -> Off:
    """A span with step, bytes or path, or one at the end of a block."""
    more = step is not None or bytes is not None or path is not None
    # Whatever they are, they may record themselves while they are asked.
    number, size, where = whole(step), whole(bytes), None if path is None else text(path)
    room = here.reserve(2 if more else 1)
    if room is None:
        return OFF
    made = _ranged(name) if ranges.enabled else Span()
    made.words, made.at = words, at = room
    if request is None:
        request = request_id.get()
    words[at + 2] = here.ids[request] | here.kinds[kind]
    if more:
        put(words, at + WORDS_A_CELL, layout.MORE, number, size, here.ids[where])
    words[at + 3] = here.word(here.spans, name, SPAN) | (RICH if more else 0)
    return made


def _ranged(name: str) -> Span:
    """A span that is an NVTX range too."""
    made = RangeSpan()
    try:
        made.attributes = ranges.attributes[name]
    except KeyError:
        made.attributes = ranges.attributes_of(name)
    return made


def record(name: str, request: str | None = None, **numbers: float) -> None:
    """Mark this instant, with numbers that belong to it: ``record("sched_start", waiting=3)``."""
    try:
        if type(name) is not str:
            name = text(name)
        if request is not None and type(request) is not str:
            request = text(request)
        try:
            here: Recorder = local.recorder
        except AttributeError:
            here = current()
        if numbers:
            _rich_mark(here, name, request, numbers)
        elif here.at < here.last or here.refill():
            words = here.words
            at = here.at
            here.at = at + 4
            words[at] = perf_counter_ns()
            if scoped and request is None:
                request = request_id.get()
            if request is not None:
                words[at + 2] = here.ids[request]
            try:
                words[at + 3] = here.marks[name]
            except KeyError:
                words[at + 3] = here.word(here.marks, name, MARK)
        if ranges.enabled:
            ranges.mark(name)
    except FAULTS:
        pass


def off_record(name: str, request: str | None = None, **numbers: float) -> None:
    """``record`` outside a trace."""


def _rich_mark(here: Recorder, name: str, request: str | None, numbers: dict[str, float]) -> None:
    now = perf_counter_ns()
    told = [(text(key), plain_number(value)) for key, value in numbers.items()]
    known = [(key, value) for key, value in told if value is not None]
    room = here.reserve(1 + len(known))
    if room is None:
        return
    words, at = room
    follower = at
    for key, value in known:
        follower += WORDS_A_CELL
        number(words, follower, value, here.ids[key])
    if request is None:
        request = request_id.get()
    words[at] = now
    words[at + 2] = here.ids[request]
    words[at + 3] = here.word(here.marks, name, MARK)


def number(words: memoryview[int], at: int, value: float, name_id: int) -> None:
    """Store a NUMBER cell at word ``at``: an int as it is where 64 bits hold it, else a float64."""
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        put(words, at, layout.NUMBER, 0, value, 0, 0, name_id)
        return
    bits = unpack("<q", pack("<d", float(value)))[0]
    put(words, at, layout.NUMBER, 0, bits, 0, 0, name_id, layout.FLAG_FLOAT)


def suspendable(name: str, kind: str, request: str | None = None) -> Off:
    """A span that may overlap others of its thread: of a coroutine, a generator, a request."""
    plain = python_span(name, kind, request)
    if not isinstance(plain, Span):
        return plain
    try:
        plain.words[plain.at + 3] |= SUSPENDED
    except ValueError:
        return OFF
    if not isinstance(plain, RangeSpan):
        return plain
    made = LongSpan()
    made.words, made.at, made.attributes = plain.words, plain.at, plain.attributes
    return made


python_span, python_record, python_suspendable = span, record, suspendable
# The C functions hand what is uncommon to those here. They know nothing of NVTX.
if fast and not ranges.wanted():
    slow = (python_span, python_record, python_suspendable)
    fast.prepare(*slow, text, whole, plain_number, OFF, request_id, FAULTS)
    span, record, suspendable = fast.span, fast.record, fast.suspendable
