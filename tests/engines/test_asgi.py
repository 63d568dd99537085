"""A FastAPI application under load: every HTTP request explained, as it and its clients time it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from rca_llm.readers import read
from rca_llm.trace import Timeline
from tests.traced import TRACE, environment, texts

APP = Path(__file__).with_name("streaming_app.py")
MS = 1_000_000
LOAD = 12

if find_spec("uvicorn") is None or find_spec("fastapi") is None:
    pytest.skip("no uvicorn and fastapi (pip install -e '.[dev]')", allow_module_level=True)


@dataclass
class Call:
    """One request as its client saw it; times are ns of CLOCK_MONOTONIC."""

    id: str
    path: str = "/generate"
    method: str = "POST"
    count: int = 4
    headers: dict[str, str] | None = None
    hang_up_after: int = 0
    submitted: int = 0
    first: int = 0
    ended: int = 0
    status: int = 0
    text: bytes = b""


def send(port: int, call: Call) -> None:
    """Send one request and read its answer, or hang up after so many pieces."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"X-Request-Id": call.id} if call.headers is None else call.headers
    try:
        call.submitted = time.monotonic_ns()
        body = json.dumps({"count": call.count, "seconds": 0.01})
        connection.request(call.method, call.path, body, headers)
        response = connection.getresponse()
        call.status = response.status
        for number, line in enumerate(response, 1):
            call.first = call.first or time.monotonic_ns()
            call.text += line
            if number == call.hang_up_after:
                response.close()
                return
        call.ended = time.monotonic_ns()
    finally:
        connection.close()


@dataclass
class Served:
    """What one load left behind."""

    calls: list[Call]
    stamps: dict[str, dict[str, int]]
    timeline: Timeline
    summary: dict[str, Any]
    printed: bytes

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The requests by id."""
        return {row["id"]: row for row in self.summary["requests"]}

    @property
    def trips(self) -> list[Call]:
        """Health checks amid the load: what a client's clock is worth here."""
        return [call for call in self.calls if call.id == "trip"]

    @property
    def whole(self) -> list[Call]:
        """The calls that were answered in full, less the one whose id was used twice."""
        return self.calls[1:LOAD]


def serve(folder: Path, protocol: str, under: list[str]) -> tuple[list[Call], bytes]:
    """Put the application under load; the calls, and what it printed."""
    port = _free_port()
    command = [*under, sys.executable, str(APP), str(port), str(folder), protocol]
    with subprocess.Popen(
        command,
        env=environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            _wait(port, process)
            calls = _load(port)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        return calls, process.stdout.read()


def _load(port: int) -> list[Call]:
    calls = [Call(f"load-{number}", count=2 + number % 5) for number in range(LOAD)]
    threads = [threading.Thread(target=send, args=(port, call)) for call in calls]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    trips = [Call("trip", "/health", "GET", headers={}) for _ in range(8)]
    for trip in trips:  # while the load is on
        send(port, trip)
    for thread in threads:
        thread.join()
    odd = [
        Call("hung-up", count=400, hang_up_after=2),
        Call("refused", "/fails", "GET"),
        Call("broken", "/breaks"),
        Call("pooled", "/sleeps-and-computes"),
        Call("", count=2, headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}),
        Call("load-0", count=2),  # the id of an earlier one
    ]
    for call in odd:
        send(port, call)
    return calls + odd + trips


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        call = Call("", "/health", "GET", headers={})
        try:
            send(port, call)
            return
        except OSError:
            assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


@pytest.fixture(scope="module", params=["h11", "httptools"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    if request.param == "httptools" and find_spec("httptools") is None:
        pytest.skip("no httptools")
    folder = tmp_path_factory.mktemp(request.param)
    calls, printed = serve(folder, request.param, [*TRACE, "-o", str(folder / "run.rca"), "--"])
    stamps = json.loads((folder / "stamps.json").read_text())
    trace = read(folder / "run.rca")
    return Served(calls, stamps, trace.timelines[0], trace.attribute().summary, printed)


def test_no_request_is_missing_and_none_is_extra(served: Served) -> None:
    ids = sorted(row["id"].partition("~")[0] for row in served.summary["requests"])
    expected = [f"load-{number}" for number in range(LOAD)] + ["hung-up", "refused", "broken"]
    assert ids == sorted([*expected, "pooled", f"{'a' * 32}-{'b' * 16}", "load-0"])


def test_what_was_not_answered_in_full_is_aborted(served: Served) -> None:
    status = {id: row["status"] for id, row in served.rows.items()}
    assert {status[id] for id in ("hung-up", "refused", "broken")} == {"aborted"}
    assert {status[call.id] for call in served.whole} == {"finished"}


def test_times_are_those_of_the_application(served: Served) -> None:
    """Medians: a busy machine may hold up either of two looks at a clock."""
    table = served.timeline["requests"]
    rows = dict(zip(texts(served.timeline, "requests", "id"), range(len(table)), strict=True))
    for ours, theirs in (("scheduled", "begin"), ("first_token", "first"), ("finished", "last")):
        off = [
            abs(int(table[ours][rows[call.id]]) - served.stamps[call.id][theirs])
            for call in served.whole
        ]
        print(f"{ours}: median {median(off) / 1000:.0f} us, worst {max(off) / 1000:.0f} us")
        assert median(off) < 2 * MS


def test_the_clients_clock_agrees(served: Served) -> None:
    late = [
        call.ended - call.submitted - served.rows[call.id]["latency_ns"] for call in served.whole
    ]
    assert min(late) >= 0
    print(f"client beyond the server: median {median(late) / MS:.1f}, max {max(late) / MS:.1f} ms")
    trips = [call.ended - call.submitted for call in served.trips]
    print(f"a trip to the health check: {min(trips) / MS:.1f} to {max(trips) / MS:.1f} ms")
    # On a machine as busy as a trip to the health check says, a client cannot be closer: several
    # calls begin at once, so the longest trip of few is what the median call may meet.
    assert median(late) < max(5 * MS, 2 * max(trips))


def test_tracing_changes_nothing_that_a_client_sees(served: Served, tmp_path: Path) -> None:
    untraced, _ = serve(tmp_path, "h11", [])
    answers = [(call.status, call.text) for call in served.calls if not call.hang_up_after]
    assert answers == [(call.status, call.text) for call in untraced if not call.hang_up_after]


def test_what_a_server_prints_of_an_exception_has_no_line_of_ours(served: Served) -> None:
    assert b"ValueError: broken" in served.printed
    assert b"streaming_app.py" in served.printed
    assert b"probes" not in served.printed, served.printed.decode()


@pytest.mark.clocks
def test_work_in_a_thread_of_the_pool_is_that_of_its_request(served: Served) -> None:
    """The endpoint sleeps as long as it computes, and only that is nobody's time."""
    row = served.rows["pooled"]
    parts = dict(row["parts"])
    asleep = parts.pop("scheduling.other")
    print(f"asleep {asleep / MS:.0f} ms, else { ({k: v // MS for k, v in parts.items()}) }")
    assert 75 * MS < asleep < row["latency_ns"] / 2 + 50 * MS
    assert sum(parts.values()) > 100 * MS


@pytest.mark.clocks  # an event loop that gets no CPU between two looks at it leaves no reason
def test_shares_add_up_and_leave_little_unexplained(served: Served) -> None:
    rows = [served.rows[call.id] for call in served.whole]
    for row in served.rows.values():
        assert sum(row["parts"].values()) == row["latency_ns"]
    total = sum(row["latency_ns"] for row in rows)
    parts: dict[str, int] = {}
    for row in rows:
        for name, ns in row["parts"].items():
            parts[name] = parts.get(name, 0) + ns
    print(f"unexplained: {parts.get('scheduling.other', 0) / total:.2%}")
    assert parts.get("scheduling.other", 0) <= 0.03 * total, parts
    assert parts["compute.cpu"] > 0, parts
