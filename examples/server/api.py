"""The routes: `GET /health` and `POST /v1/completions`, whole or streamed."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TextIO

from rca_llm import request as request_scope
from rca_llm import span

from .engine import Deliver, Engine
from .http import HttpError, HttpRequest, Reply, to_json
from .parameters import Parameters, bad_request
from .scheduler import Output
from .sequence import Sequence
from .tokenizer import Detokenizer, encode

MODEL_NAME = "numpy-transformer"
REQUEST_ID = re.compile(r"[!-~]{1,128}")
MakeEngine = Callable[[Deliver], Engine]
# How often the connections of open requests are looked at.
WATCH_SECONDS = 0.5


@dataclass(frozen=True)
class Capacity:
    """What the front end accepts: tokens of one sequence, and requests that wait."""

    positions: int
    waiting: int = 1000


@dataclass
class Listener:
    """A request that is being answered; `reason` is set once its last output has come."""

    sequence: Sequence
    reply: Reply
    stream: bool
    reason: str | None = None
    outputs: asyncio.Queue[Output] = field(default_factory=asyncio.Queue[Output])


class Api:
    """Answers requests with what the engine generates; lives on the event loop's thread.

    `deliver` is what the engine calls with its outputs, from its own thread.
    """

    def __init__(self, make_engine: MakeEngine, capacity: Capacity, log: TextIO | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._capacity = capacity
        self._log = log
        self._numbers = itertools.count(1)
        self._open: dict[str, Listener] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        self.engine = make_engine(self.deliver)

    async def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answer one request."""
        methods = {"/health": "GET", "/v1/completions": "POST"}
        expected = methods.get(request.path)
        if expected is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "no such path")
        if request.method != expected:
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, f"use {expected}")
        if request.path == "/health":
            self._health(reply)
        else:
            await self._completions(request, reply)

    def deliver(self, outputs: list[Output]) -> None:
        """Hand a step's outputs to their handlers; called on the engine's thread."""
        if outputs:
            self._loop.call_soon_threadsafe(self._dispatch, outputs)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, give the open ones that long, then abort what is left."""
        self.draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            self.abort_all()
            await self._idle.wait()

    def abort_all(self) -> None:
        """End every open request now."""
        for listener in self._open.values():
            self.engine.abort(listener.sequence)

    async def watch(self) -> None:
        """Abort, until cancelled, the requests whose clients have left."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for listener in self._open.values():
                if listener.reply.gone:
                    self.engine.abort(listener.sequence)

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            listener = self._open.get(output.sequence.id)
            # An id may be used again while the engine still drops its first owner.
            if listener is not None and listener.sequence is output.sequence:
                listener.outputs.put_nowait(output)

    def _health(self, reply: Reply) -> None:
        well = not (self.draining or self.engine.failed)
        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        state = {"status": "ok" if well else "unavailable", **self.engine.status()}
        reply.send(status, to_json(state), {})

    async def _completions(self, request: HttpRequest, reply: Reply) -> None:
        """Generate for one request and tell the probes how it went."""
        id = self._admit(request.headers)
        with request_scope(id) as scope:
            scope.arrival()
            try:
                listener = self._listener(id, request.body, reply)
                scope.prompt_tokens = len(listener.sequence.prompt)
                await self._answer(listener)
            except BaseException:
                scope.abort()
                raise
            if listener.reason in ("stop", "length"):
                scope.finish(output_tokens=len(listener.sequence.output))
            else:
                scope.abort()
            self._write_log(listener)

    def _admit(self, headers: Mapping[str, str]) -> str:
        """The request's id; HttpError where it cannot be taken now or the id is unusable."""
        if self.draining:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping", close=True)
        if self.engine.failed:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "the engine has failed")
        if self.engine.status()["waiting"] >= self._capacity.waiting:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are waiting")
        id = headers.get("x-request-id")
        if id is None:
            names = map("request-{}".format, self._numbers)
            return next(name for name in names if name not in self._open)
        if not REQUEST_ID.fullmatch(id):
            raise bad_request("X-Request-Id must be 1 to 128 printable ASCII characters")
        if id in self._open:
            raise HttpError(HTTPStatus.CONFLICT, "a request of this X-Request-Id is running")
        return id

    def _listener(self, id: str, body: bytes, reply: Reply) -> Listener:
        """Check and tokenize a request."""
        with span("parse", kind="serialize", bytes=len(body)):
            parameters = Parameters.parse(body)
        with span("tokenize", kind="tokenize"):
            prompt = encode(parameters.prompt)
        length = len(prompt) + parameters.max_tokens
        if length > self._capacity.positions:
            raise bad_request(
                f"prompt and max_tokens make {length} tokens, the limit is "
                f"{self._capacity.positions}"
            )
        sequence = Sequence(id, prompt, parameters.max_tokens, parameters.ignore_eos)
        return Listener(sequence, reply, parameters.stream)

    async def _answer(self, listener: Listener) -> None:
        """Queue a request with the engine and send what comes of it."""
        id = listener.sequence.id
        self._open[id] = listener
        self._idle.clear()
        self.engine.submit(listener.sequence)
        try:
            if listener.stream:
                await _answer_stream(listener)
            else:
                await _answer_whole(listener)
        except BaseException:
            self.engine.abort(listener.sequence)
            raise
        finally:
            del self._open[id]
            if not self._open:
                self._idle.set()

    def _write_log(self, listener: Listener) -> None:
        """One line a request, flushed, as access logs are: the probes show what that costs."""
        if self._log is not None:
            entry = {"id": listener.sequence.id, "reason": listener.reason, **usage(listener)}
            with span("access_log", kind="log"):
                self._log.write(json.dumps(entry) + "\n")
                self._log.flush()


async def _answer_whole(listener: Listener) -> None:
    text = ""
    async for piece in _texts(listener):
        text += piece
    if listener.reason not in ("stop", "length"):
        raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "the request was aborted")
    with span("serialize", kind="serialize"):
        body = to_json(completion(listener, text, listener.reason))
    with span("send", kind="network", bytes=len(body)):
        listener.reply.send(HTTPStatus.OK, body, {"X-Request-Id": listener.sequence.id})
    await listener.reply.flush()


async def _answer_stream(listener: Listener) -> None:
    listener.reply.begin({"X-Request-Id": listener.sequence.id})
    async for piece in _texts(listener):
        with span("serialize", kind="serialize"):
            event = b"data: %b\n\n" % to_json(completion(listener, piece, listener.reason))
        with span("send", kind="network", bytes=len(event)):
            listener.reply.write(event)
        await listener.reply.flush()
    with span("send", kind="network"):
        listener.reply.write(b"data: [DONE]\n\n")
        listener.reply.end()
    await listener.reply.flush()


async def _texts(listener: Listener) -> AsyncIterator[str]:
    """The text of each token as it comes."""
    detokenizer = Detokenizer()
    while listener.reason is None:
        output = await listener.outputs.get()
        listener.reason = output.finish_reason
        with span("detokenize", kind="detokenize"):
            tokens = [] if output.token is None else [output.token]
            text = detokenizer.text(tokens, final=listener.reason is not None)
        yield text


def completion(listener: Listener, text: str, reason: str | None) -> dict[str, Any]:
    """A completion, or one event of a streamed one; the last carries the token counts."""
    body: dict[str, Any] = {
        "id": listener.sequence.id,
        "object": "text_completion",
        "model": MODEL_NAME,
        "choices": [{"index": 0, "text": text, "finish_reason": reason}],
    }
    if reason is not None:
        body["usage"] = usage(listener)
    return body


def usage(listener: Listener) -> dict[str, int]:
    """The token counts of a request."""
    prompt, output = len(listener.sequence.prompt), len(listener.sequence.output)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
