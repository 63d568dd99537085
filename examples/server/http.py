"""HTTP/1.1 on asyncio streams: reading requests, writing whole and streamed responses."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

MAX_BODY_BYTES = 1 << 20
IDLE_SECONDS = 60.0


class HttpError(Exception):
    """A request that gets an error response; `close` where the connection cannot go on after it."""

    def __init__(self, status: HTTPStatus, message: str, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.close = close


@dataclass(frozen=True)
class HttpRequest:
    """A request read whole; header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """Read one request; None where the client closed instead. HttpError for what is not HTTP."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        raise HttpError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers too large", close=True
        ) from error
    line, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, version = _request_line(line)
    headers = _headers(lines)
    body = await reader.readexactly(_body_bytes(method, headers))
    keep_alive = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return HttpRequest(method, path.partition("?")[0], headers, body, keep_alive)


def _request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise HttpError(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request", close=True)
    return parts[0], parts[1], parts[2]


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or name.lower() in headers:
            raise HttpError(HTTPStatus.BAD_REQUEST, "malformed or repeated header", close=True)
        headers[name.lower()] = value.strip()
    return headers


def _body_bytes(method: str, headers: Mapping[str, str]) -> int:
    """The announced length of the body; HttpError where there is none, or too much."""
    if "transfer-encoding" in headers:
        raise HttpError(HTTPStatus.NOT_IMPLEMENTED, "send a Content-Length", close=True)
    length = headers.get("content-length")
    if length is None:
        if method == "POST":
            raise HttpError(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing", close=True)
        return 0
    if not (length.isascii() and length.isdigit()):
        raise HttpError(HTTPStatus.BAD_REQUEST, "Content-Length is not a number", close=True)
    if len(length) > 9 or int(length) > MAX_BODY_BYTES:
        raise HttpError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body over {MAX_BODY_BYTES} bytes", close=True
        )
    return int(length)


class Reply:
    """The response to one request: either `send` once, or `begin`, `write`…, `end`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keep_alive: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.keep_alive = keep_alive
        self.status: HTTPStatus | None = None

    @property
    def gone(self) -> bool:
        """Whether the client has closed the connection."""
        return self._reader.at_eof() or self._writer.is_closing()

    def send(self, status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> None:
        """Write a whole JSON response."""
        self._head(
            status,
            {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers},
        )
        self._writer.write(body)

    def begin(self, headers: Mapping[str, str]) -> None:
        """Start a stream of server-sent events in chunked encoding."""
        self._head(
            HTTPStatus.OK,
            {
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "Transfer-Encoding": "chunked",
                **headers,
            },
        )

    def write(self, data: bytes) -> None:
        """Write one chunk of a stream; to the socket at once where it takes it."""
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """End the stream."""
        self._writer.write(b"0\r\n\r\n")

    async def flush(self) -> None:
        """Wait until the client has taken enough; ConnectionError where it is gone."""
        await self._writer.drain()

    def _head(self, status: HTTPStatus, headers: Mapping[str, str]) -> None:
        self.status = status
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"Connection: {'keep-alive' if self.keep_alive else 'close'}")
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


Handler = Callable[[HttpRequest, Reply], Awaitable[None]]


async def serve_connection(
    handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection, one after the other, until either side closes."""
    try:
        while await _serve_one(handler, reader, writer):
            pass
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError):
        pass  # the client went away in the middle, or sent nothing for too long
    except asyncio.CancelledError:
        pass  # the server stops; asyncio before 3.12 logs a handler that ends cancelled
    finally:
        writer.close()


async def _serve_one(
    handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Answer one request; False where the connection is to be closed."""
    reply = Reply(reader, writer, keep_alive=False)
    try:
        request = await asyncio.wait_for(read_request(reader), IDLE_SECONDS)
        if request is None:
            return False
        reply.keep_alive = request.keep_alive
        await handler(request, reply)
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError):
        raise
    except HttpError as error:
        _send_error(reply, error)
    except Exception:
        traceback.print_exc(file=sys.stderr)
        internal = HTTPStatus.INTERNAL_SERVER_ERROR
        _send_error(reply, HttpError(internal, "the server failed", close=True))
    await reply.flush()
    return reply.keep_alive


def _send_error(reply: Reply, error: HttpError) -> None:
    """Answer with an error; where half a response is out already, closing is all that is left."""
    if error.close or reply.status is not None:
        reply.keep_alive = False
    if reply.status is None:
        reply.send(error.status, error_body(error.status, str(error)), {})


def error_body(status: HTTPStatus, message: str) -> bytes:
    """An error as the JSON body that OpenAI-like APIs send."""
    return to_json({"error": {"message": message, "type": status.phrase, "code": status.value}})


def to_json(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()
