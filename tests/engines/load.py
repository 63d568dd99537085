"""Streams completions from a server at once, as real HTTP clients do, and notes their times.

Standard library only: it runs beside any engine, in the test's own process or as a program.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass, field


@dataclass
class Call:
    """One request as its client saw it; times are ns of CLOCK_MONOTONIC."""

    prompt_tokens: int
    max_tokens: int
    submitted: int = 0
    first: int = 0
    ended: int = 0
    closed: int = 0
    """When the answer was over, which is a little after its last token."""
    id: str = ""
    tokens: list[int] = field(default_factory=list[int])
    pieces: int = 0
    error: str = ""


def calls(count: int) -> list[Call]:
    """Requests of mixed length: short and long prompts, short and long answers."""
    prompts, answers = (16, 64, 200, 400), (8, 24, 48)
    return [
        Call(prompts[number % len(prompts)], answers[number % len(answers)])
        for number in range(count)
    ]


def run(port: int, work: list[Call], gap_s: float) -> list[int]:
    """Send one request every `gap_s`, whether the earlier ones have ended or not.

    Meanwhile the health check is asked again and again: what these trips took, sorted, ns.
    """
    threads = [threading.Thread(target=stream, args=(port, call)) for call in work]
    trips: list[int] = []
    over = threading.Event()
    asking = threading.Thread(target=_ask, args=(port, trips, over))
    asking.start()
    for thread in threads:
        thread.start()
        time.sleep(gap_s)
    for thread in threads:
        thread.join()
    over.set()
    asking.join()
    return sorted(trips)


def _ask(port: int, trips: list[int], over: threading.Event) -> None:
    while not over.wait(0.1):
        began = time.monotonic_ns()
        if is_ready(port):
            trips.append(time.monotonic_ns() - began)


def stream(port: int, call: Call, stop_after: int | None = None) -> None:
    """Send one request and read its answer; hang up after so many pieces if told to."""
    body = {
        "model": "tiny",
        "prompt": "x" * call.prompt_tokens,
        "max_tokens": call.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        call.submitted = time.monotonic_ns()
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        _read(connection.getresponse(), call, stop_after)
        call.closed = time.monotonic_ns()
    except (OSError, http.client.HTTPException, LookupError) as error:
        call.error = repr(error)
    finally:
        connection.close()


def _read(response: http.client.HTTPResponse, call: Call, stop_after: int | None) -> None:
    if response.status != 200:
        call.error = f"status {response.status}: {response.read(500)!r}"
        return
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        now = time.monotonic_ns()
        piece = json.loads(line[6:])
        call.id = piece["id"]
        call.tokens += piece["choices"][0].get("token_ids") or []
        call.first = call.first or now
        call.ended = now
        call.pieces += 1
        if call.pieces == stop_after:
            return


def wait_until_ready(port: int, seconds: float, alive: threading.Event) -> bool:
    """Whether the server answers its health check in time; `alive` is cleared when it has died."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and alive.is_set():
        if is_ready(port):
            return True
        time.sleep(0.5)
    return False


def is_ready(port: int) -> bool:
    """Whether the server answers its health check."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
