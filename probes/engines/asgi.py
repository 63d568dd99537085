"""HTTP requests of ASGI servers: received, first byte, last byte, and clients that hang up.

Under uvicorn a request is received when its head has been parsed; elsewhere (Starlette and FastAPI
applications on another server) when the application is called. In a process that holds an engine's
frontend the engine knows best what a request is: there the HTTP side only tells what passes before
the engine has the request and after it let go of it (``joined``, ``left``). In every other
application each HTTP request is a request, and a scope of its id: ``X-Request-Id``, else the ids of
``traceparent``, else ``http-PID-N``. Health checks and the like are not requests.
"""

from __future__ import annotations

import os
import sys
from _contextvars import ContextVar
from itertools import count
from time import perf_counter_ns
from types import MethodType

from ..span import request_id, watch_requests
from ..threads import beneath, follow
from . import emit
from .guard import quiet
from .patch import package_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Modules of engines that make requests of their own out of what comes in by HTTP.
FRONTENDS = (
    "vllm.v1.engine.output_processor",
    "sglang.srt.managers.tokenizer_manager",
    "lmdeploy.pytorch.engine.engine",
    "lmdeploy.turbomind.turbomind",
    "tensorrt_llm.executor",
)
# Asked by machines that watch the server, not by its users.
NOT_REQUESTS = frozenset(
    [
        "/docs",
        "/favicon.ico",
        "/health",
        "/health_generate",
        "/healthz",
        "/livez",
        "/load",
        "/metrics",
        "/openapi.json",
        "/ping",
        "/readyz",
        "/redoc",
        "/v1/models",
        "/version",
    ]
)
MAX_SEEN = 65536
MAX_ID = 200
RECEIVED = "_rca_llm_received"

served: ContextVar[Served | None] = ContextVar("rca_llm_served", default=None)
_numbers = count(1)
_seen: set[str] = set()
_by_request: dict[str, Served] = {}


def version(module: Any) -> str:
    """The server and its version."""
    return package_version(module.__name__.partition(".")[0])


class Served:
    """One HTTP request that is being answered."""

    def __init__(self, scope: Any, received: int, cycle: Any) -> None:
        self.received = received
        self.began = perf_counter_ns()
        self.cycle = cycle
        self.id = _id_of(scope)
        self.own = not any(name in sys.modules for name in FRONTENDS)
        # Set by a probe that tells of tokens or of waiting under this request's id.
        self.claimed = False
        self.first = self.piece = self.closing = self.last = self.status = 0
        self.hung_up = False
        self.engines: dict[str, int] = {}
        if self.own:
            emit.event("arrival", self.id, received)

    def sending(self, message: Any, began: int) -> None:
        """A message was handed to the server and, where the client is slow, waited for."""
        now = perf_counter_ns()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if message["type"] != "http.response.body":
            return
        if self.own:
            emit.span("http send", "network", began, now, self.id, overlaps=True)
        if message.get("body"):
            if self.own and not self.claimed:
                # What a piece holds is not known: no tokens are counted.
                emit.event("token" if self.first else "first_token", self.id, now)
            self.first, self.piece = self.first or now, now
        if not message.get("more_body"):
            self.last, self.closing = now, began

    def receiving(self, message: Any, began: int) -> None:
        """A piece of the request's body came in, or word that the client has gone."""
        if message.get("type") == "http.disconnect":
            self.hung_up = self.hung_up or not self.last
        elif self.own:
            now = perf_counter_ns()
            emit.span("http receive", "network", began, now, self.id, overlaps=True)

    def end(self, failed: bool) -> None:
        """The application is done with it."""
        now = perf_counter_ns()
        for name, left in self.engines.items():
            _by_request.pop(name, None)
            if left:
                end = max(self.last or now, left)
                emit.span("http after engine", "network", left, end, name, overlaps=True)
        if not self.own:
            return
        if not self.claimed:
            emit.event("scheduled", self.id, self.began)
            if self.piece < self.closing:
                # The application had its turn again only then: others held the event loop.
                emit.span("http close", "queue", self.piece, self.closing, self.id, overlaps=True)
        whole = self.last and self.status < 400 and not failed and not self._cut_off()
        emit.event("finished" if whole else "aborted", self.id, self.last or now)

    def _cut_off(self) -> bool:
        """Whether the client had gone before the last byte; uvicorn then drops what is sent."""
        gone = getattr(self.cycle, "disconnected", False)
        return self.hung_up or (gone and not getattr(self.cycle, "response_complete", True))


def _id_of(scope: Any) -> str:
    headers = {bytes(name).lower(): bytes(value) for name, value in scope["headers"]}
    given = headers.get(b"x-request-id", b"").decode("utf-8", "replace")[:MAX_ID]
    parts = headers.get(b"traceparent", b"").decode("utf-8", "replace")[:MAX_ID].split("-")
    if not given and len(parts) == 4:
        given = "%s-%s" % (parts[1], parts[2])
    name = given or "http-%d-%d" % (os.getpid(), next(_numbers))
    if len(_seen) >= MAX_SEEN:
        _seen.clear()
    while name in _seen:  # a client that tries again under the same id
        name = "%s~%d" % (given, next(_numbers))
    _seen.add(name)
    return name


# ------------------------------------------------------------------ for the engines


@quiet
def claim() -> None:
    """The HTTP request of this context is told of by an engine's probe, under the same id."""
    found = served.get()
    if found is not None:
        found.claimed = True


@quiet
def joined(request: str) -> None:
    """The engine has a request that came in by the HTTP request of this context."""
    found = served.get()
    if found is not None and not found.own and request not in found.engines:
        now = perf_counter_ns()
        found.engines[request] = 0
        _by_request[request] = found
        emit.span("http before engine", "network", found.received, now, request, overlaps=True)


@quiet
def left(request: str, time: int) -> None:
    """The engine has let go of a request."""
    found = _by_request.get(request)
    if found is not None:
        found.engines[request] = time


# ------------------------------------------------------------------ the application


def _is_request(scope: Any) -> bool:
    return scope["type"] == "http" and scope["path"] not in NOT_REQUESTS


@quiet
def _open(scope: Any, received: int, cycle: Any) -> Served | None:
    if not _is_request(scope) or served.get() is not None:
        return None
    return Served(scope, received, cycle)


@quiet
def _enter(here: Served) -> tuple[Any, Any]:
    watch_requests()
    follow()
    scope = request_id.set(here.id) if here.own else None
    return served.set(here), scope


def _leave(tokens: Any) -> None:
    try:
        if tokens is not None:
            served.reset(tokens[0])
            if tokens[1] is not None:
                request_id.reset(tokens[1])
    except ValueError:
        pass  # left in another context than entered


async def _serve(app: Any, scope: Any, receive: Any, send: Any, received: int, cycle: Any) -> Any:
    """Call the application, and note what it receives and sends."""
    here = _open(scope, received, cycle)
    if here is None:
        try:
            return await app(scope, receive, send)
        except BaseException as error:
            error.__traceback__ = beneath(error)
            raise
    sending, receiving, end = quiet(here.sending), quiet(here.receiving), quiet(here.end)

    async def send_noted(message: Any) -> Any:
        began = perf_counter_ns()
        try:
            result = await send(message)
        except BaseException as error:
            error.__traceback__ = beneath(error)
            raise
        sending(message, began)
        return result

    async def receive_noted() -> Any:
        began = perf_counter_ns()
        try:
            message = await receive()
        except BaseException as error:
            error.__traceback__ = beneath(error)
            raise
        receiving(message, began)
        return message

    tokens = _enter(here)
    failed = True
    try:
        result = await app(scope, receive_noted, send_noted)
        failed = False
        return result
    except BaseException as error:
        error.__traceback__ = beneath(error)
        raise
    finally:
        _leave(tokens)
        end(failed)


def _received(init: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        now = perf_counter_ns()
        result = init(self, *args, **kwargs)
        try:
            setattr(self, RECEIVED, now)
        except AttributeError:
            pass
        return result

    return call


def _run(run: Callable[..., Any]) -> Callable[..., Any]:
    """`RequestResponseCycle.run_asgi(app)`: the server calls the application here."""

    def call(self: Any, app: Any, *args: Any, **kwargs: Any) -> Any:
        received = getattr(self, RECEIVED, 0) or perf_counter_ns()

        async def noted(scope: Any, receive: Any, send: Any) -> Any:
            try:
                return await _serve(app, scope, receive, send, received, self)
            except BaseException as error:
                error.__traceback__ = beneath(error)
                raise

        return run(self, noted, *args, **kwargs)

    return call


def _application(application: Callable[..., Any]) -> Callable[..., Any]:
    """`Starlette.__call__`, for servers that are not known here."""

    async def call(self: Any, scope: Any, receive: Any, send: Any) -> Any:
        app = MethodType(application, self)
        try:
            return await _serve(app, scope, receive, send, perf_counter_ns(), None)
        except BaseException as error:
            error.__traceback__ = beneath(error)
            raise

    return call


_CYCLE = {"RequestResponseCycle.__init__": _received, "RequestResponseCycle.run_asgi": _run}
TARGETS = {
    "uvicorn.protocols.http.h11_impl": _CYCLE,
    "uvicorn.protocols.http.httptools_impl": _CYCLE,
    "uvicorn.protocols.http.zttp_impl": _CYCLE,
    "uvicorn.protocols.http.zttp_h2_impl": _CYCLE,
    "starlette.applications": {"Starlette.__call__": _application},
}
