"""Request scopes and engine steps: ``request(id)`` and ``step(id, requests)``.

A request scope follows asyncio tasks through its context variable, threads that are started in it
(threading.Thread, ThreadPoolExecutor), and forked processes; elsewhere pass the id on and open
another scope with it. Nothing here raises or prints. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from time import perf_counter_ns

from . import format as layout
from . import recorder
from .looks import look
from .plain import batch, text, whole
from .recorder import FAULTS, WORDS_A_CELL, current, fast, put
from .span import OFF, request_id, suspendable, watch_requests
from .threads import follow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _contextvars import Token
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any

EVENTS = {name: code for code, name in enumerate(layout.REQUEST_EVENTS)}
_MODES = {name: code for code, name in enumerate(layout.STEP_MODES)}
PHASES = {name: code for code, name in enumerate(layout.PHASES)}
_COUNTS = ("prompt_tokens", "output_tokens")


class request:
    """What happens to one request: a scope for its spans, and its events.

    ``with request("A") as r:`` gives every span inside the id "A". Call ``r.arrival()``,
    ``r.scheduled()``, ``r.first_token()``, ``r.token()``, ``r.finish()``, ``r.abort()`` where those
    happen; without ``arrival`` and ``finish`` the first scope of an id in a run tells when it
    arrived, and the last one when it finished. Any process may hold a scope of the same id.
    """

    __slots__ = ("_output_tokens", "_prompt_tokens", "_span", "_token", "id")

    def __init__(
        self, id: object, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        self.id = text(id)
        self._token: Token[str | None] | None = None
        self._span = OFF
        self._prompt_tokens = prompt_tokens
        self._output_tokens = output_tokens
        if prompt_tokens is not None:
            self.prompt_tokens = prompt_tokens
        if output_tokens is not None:
            self.output_tokens = output_tokens

    def __str__(self) -> str:
        return self.id

    def __enter__(self) -> request:
        if recorder.run:
            watch_requests()
            follow()
            self._token = request_id.set(self.id)
            self._span = suspendable("request", "request", self.id)
            self._span.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._span.__exit__(kind, error, traceback)
        token, self._token = self._token, None
        if token is not None:
            _reset(token)

    def client_submit(self) -> None:
        """The client sent it (recorded in the client)."""
        _event("client_submit", self.id)

    def arrival(self) -> None:
        """The server saw it."""
        _event("arrival", self.id)

    def queued(self) -> None:
        """It waits to be scheduled."""
        _event("queued", self.id)

    def scheduled(self) -> None:
        """The scheduler admitted it."""
        _event("scheduled", self.id)

    def preempted(self) -> None:
        """The scheduler took its place away."""
        _event("preempted", self.id)

    def resumed(self) -> None:
        """The scheduler admitted it again."""
        _event("resumed", self.id)

    def first_token(self) -> None:
        """Its first token left the engine."""
        _event("first_token", self.id, 1)

    def token(self, count: int = 1) -> None:
        """``count`` tokens left the engine together."""
        _event("token", self.id, count)

    def finish(self, output_tokens: int | None = None) -> None:
        """Its last token left the engine."""
        _event("finished", self.id)
        if output_tokens is not None:
            self.output_tokens = output_tokens

    def abort(self) -> None:
        """It ended without finishing."""
        _event("aborted", self.id)

    @property
    def prompt_tokens(self) -> int | None:
        """How many tokens its prompt has; assigning records it."""
        return self._prompt_tokens

    @prompt_tokens.setter
    def prompt_tokens(self, count: int) -> None:
        self._prompt_tokens = count
        _event("prompt_tokens", self.id, count)

    @property
    def output_tokens(self) -> int | None:
        """How many tokens were generated; assigning records it."""
        return self._output_tokens

    @output_tokens.setter
    def output_tokens(self, count: int) -> None:
        self._output_tokens = count
        _event("output_tokens", self.id, count)


def _reset(token: Token[str | None]) -> None:
    try:
        request_id.reset(token)
    except ValueError:
        pass  # left in another context than entered, as async generators do


def _event(name: str, request: str, count: int = 0) -> None:
    if not recorder.run:
        return
    if fast and type(count) is int and fast.event(EVENTS[name], request, count):
        return
    now = perf_counter_ns()
    number = whole(count)
    if number < 0:
        if name in _COUNTS:
            return  # not a count: it stays unknown
        number = 0
    try:
        here = current()
        room = here.reserve(1)
        if room is not None:
            words, at = room
            put(words, at, layout.REQUEST, now, number, EVENTS[name], here.ids[request])
    except FAULTS:
        pass


class step:
    """One engine step: ``with step(7, {"A": ("prefill", 512), "B": ("decode", 1)}):``.

    ``requests`` gives each request's phase (prefill, decode, recompute) and tokens in this step.
    ``mode`` is eager, graph or mixed, and may be set on the object until the step ends.
    """

    __slots__ = ("_id", "_requests", "_room", "mode")

    def __init__(
        self,
        id: int,
        requests: Mapping[str, tuple[str, int | None]] | None = None,
        mode: str = "unknown",
    ) -> None:
        self.mode = mode
        self._id = id
        self._requests = requests
        self._room: Any = None

    def __enter__(self) -> step:
        if recorder.run:
            try:
                self._room = _begin_step(self._id, self._requests, _mode(self.mode))
            except FAULTS:
                self._room = None
            look(True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        room, self._room = self._room, None
        if room is None:
            return
        look(False)
        try:
            mode = _mode(self.mode)
            if not (fast and fast.leave_step(room, mode)):
                _end_step(room, mode)
        except FAULTS:
            pass


def _mode(name: object) -> int:
    return _MODES.get(text(name), 0)


def _begin_step(
    id: object, requests: Mapping[str, tuple[str, int | None]] | None, mode: int
) -> object | None:
    """What ends the step: an object of the fast paths, or its block and word; None: no room."""
    if fast:
        made: object = fast.enter_step(id, requests, mode, PHASES)
        if made is not False:
            return made
    return _write_step(whole(id), batch(requests), mode)


def _write_step(
    id: int, requests: list[tuple[str, str, int]], mode: int
) -> tuple[memoryview[int], int] | None:
    now = perf_counter_ns()
    here = current()
    room = here.reserve(2 + len(requests))
    if room is None:
        return None
    words, at = room
    follower = at + WORDS_A_CELL
    put(words, follower, layout.MORE, id, -1)
    for name, phase, tokens in requests:
        follower += WORDS_A_CELL
        put(words, follower, layout.STEP_REQUEST, tokens, 0, PHASES.get(phase, 0), here.ids[name])
    put(words, at, layout.STEP, now, 0, mode, len(requests), 0, layout.FLAG_MORE)
    return room


def _end_step(room: tuple[memoryview[int], int], mode: int) -> None:
    words, at = room
    words[at + 2] = mode | (words[at + 2] >> 32) << 32
    words[at + 1] = perf_counter_ns()
