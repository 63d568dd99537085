"""An HTTP endpoint that Prometheus scrapes: one page of text, made anew for every scrape.

It listens on one address, by default of this machine alone, answers `GET /metrics` and nothing
else, and says nothing about the process that it runs in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rca_llm.errors import RcaError

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DEFAULT = "127.0.0.1:9464"
"""Where an endpoint listens if nobody says: the port that OpenTelemetry's exporters use as well."""


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `:PORT` (this machine alone) or `[IPv6]:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise RcaError(f"{text}: expected an address such as {DEFAULT}")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextlib.contextmanager
def endpoint(address: str, text: Callable[[], str]) -> Generator[ThreadingHTTPServer]:
    """A server that listens; call its `serve_forever`. Raises `RcaError` where it cannot."""
    host, port = address_of(address)
    try:
        server = _server(":" in host)((host, port), _handler(text))
    except OSError as error:
        raise RcaError(f"{address}: cannot listen: {error.strerror or error}") from error
    with server:
        yield server


def _server(ipv6: bool) -> type[ThreadingHTTPServer]:
    import socket

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ipv6 else socket.AF_INET
        daemon_threads = True

    return Server


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "rca-llm", ""

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == PATH
            body = text().encode() if found else f"the metrics are at {PATH}\n".encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a line a scrape would drown what matters."""

    return Handler
