"""The example server, its load generator and the demonstration, as real processes over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rca_llm
from tests.traced import ROOT, environment, trace

EXAMPLES = ROOT / "examples"
PATIENCE = 120
PROMPT = "the engine plans a step"


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: subprocess.Popen[str]
    port: int

    def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own: status, headers, body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, dict(headers or {}))
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, content

    def complete(self, id: str = "", **fields: Any) -> tuple[int, Any]:
        """A completion: status and decoded body."""
        headers = {"X-Request-Id": id} if id else {}
        status, _, body = self.call("POST", "/v1/completions", fields, headers)
        return status, json.loads(body)

    def text(self, **fields: Any) -> str:
        """The text of a completion that must succeed."""
        status, body = self.complete(**{"ignore_eos": True, **fields})
        assert status == 200, body
        text: str = body["choices"][0]["text"]
        return text

    def health(self) -> dict[str, Any]:
        """What /health says."""
        health: dict[str, Any] = json.loads(self.call("GET", "/health")[2])
        return health

    def wait_for(self, met: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until /health meets a condition."""
        deadline = time.monotonic() + PATIENCE
        while not met(self.health()):
            assert time.monotonic() < deadline, self.health()
            time.sleep(0.01)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Signal the server and wait: status, stdout, stderr."""
        self.process.send_signal(number)
        stdout, stderr = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, stdout, stderr


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where servers keep two layers of weights; the first one makes them."""
    return tmp_path_factory.mktemp("model") / "weights"


@contextlib.contextmanager
def serving(folder: Path, weights: Path, *options: str) -> Iterator[Server]:
    """A server of two layers on a free port."""
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    command = [sys.executable, str(EXAMPLES / "serve.py"), "--port", "0", "--layers", "2"]
    command += ["--port-file", str(port_file), "--weights", str(weights), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not port_file.exists():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.02)
        yield Server(process, int(port_file.read_text()))
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, weights: Path) -> Iterator[Server]:
    """A server that tests share; each leaves it idle."""
    with serving(tmp_path_factory.mktemp("server"), weights) as running:
        yield running


def events(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream, which must end with [DONE]."""
    *pieces, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(piece.removeprefix(b"data: ")) for piece in pieces]


def test_health(server: Server) -> None:
    health = server.health()
    assert (health["status"], health["waiting"], health["running"]) == ("ok", 0, 0)


def test_a_stream_brings_a_token_an_event_and_adds_up_to_the_whole_answer(server: Server) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True}
    status, headers, body = server.call(
        "POST", "/v1/completions", {**fields, "stream": True}, {"X-Request-Id": "mine"}
    )
    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert headers["transfer-encoding"] == "chunked"
    assert headers["x-request-id"] == "mine"
    streamed = events(body)
    assert len(streamed) == 24
    assert {event["id"] for event in streamed} == {"mine"}
    reasons = [event["choices"][0]["finish_reason"] for event in streamed]
    assert reasons == [None] * 23 + ["length"]
    assert streamed[-1]["usage"] == {
        "prompt_tokens": len(PROMPT) + 1,
        "completion_tokens": 24,
        "total_tokens": len(PROMPT) + 25,
    }
    text = "".join(event["choices"][0]["text"] for event in streamed)
    assert text == server.text(**fields)
    assert len(set(text)) > 1


def test_first_tokens_come_before_the_last_ones_are_made(server: Server) -> None:
    body = json.dumps({"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("POST", "/v1/completions", body)
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    assert server.health()["running"] == 1
    connection.close()
    server.wait_for(lambda health: health["running"] == 0)


def test_requests_served_together_get_what_they_get_alone(server: Server) -> None:
    jobs = [{"prompt": PROMPT * n, "max_tokens": 8 + 3 * n} for n in range(1, 9)]
    alone = [server.text(**job) for job in jobs]
    with ThreadPoolExecutor(len(jobs)) as pool:
        together = list(pool.map(lambda job: server.text(**job), jobs))
    assert together == alone


def test_preemption_and_another_process_change_no_text(
    server: Server, tmp_path: Path, weights: Path
) -> None:
    jobs = [{"prompt": PROMPT * 2, "max_tokens": 20 + n} for n in range(8)]
    expected = [server.text(**job) for job in jobs]
    with serving(tmp_path, weights, "--kv-blocks", "12", "--block-size", "8") as tight:
        with ThreadPoolExecutor(len(jobs)) as pool:
            assert list(pool.map(lambda job: tight.text(**job), jobs)) == expected
        assert tight.health()["kv_usage"] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([1], "not a JSON object"),
        ({}, "prompt must be"),
        ({"prompt": 3}, "prompt must be"),
        ({"prompt": "x", "max_tokens": "3"}, "max_tokens must be"),
        ({"prompt": "x", "max_tokens": True}, "max_tokens must be"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens must be"),
        ({"prompt": "x", "max_tokens": 10**9}, "the limit is"),
        ({"prompt": "x" * 5000}, "the limit is"),
        ({"prompt": "x", "stream": 1}, "stream must be"),
    ],
)
def test_bad_input_is_answered_400_and_named(server: Server, body: object, message: str) -> None:
    status, _, content = server.call("POST", "/v1/completions", body)
    assert status == 400
    assert message in json.loads(content)["error"]["message"]
    assert server.health()["waiting"] == 0


def test_lone_surrogates_in_a_prompt_are_tokenized(server: Server) -> None:
    status, _, _ = server.call("POST", "/v1/completions", b'{"prompt":"\\ud800","max_tokens":1}')
    assert status == 200


@pytest.mark.parametrize("id", ["", "a b", "é", "x" * 129])
def test_an_unusable_request_id_is_refused(server: Server, id: str) -> None:
    headers = {"X-Request-Id": id.encode().decode("latin-1")}
    status, _, body = server.call("POST", "/v1/completions", {"prompt": "x"}, headers)
    assert status == 400
    assert "X-Request-Id" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /health HTTP/9.9\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"POST /health HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"GET /v1/completions HTTP/1.1\r\n\r\n", 405),
        (b"POST /v1/completions HTTP/1.1\r\n\r\n", 411),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
        (b"GET /health HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_good_http_gets_the_right_status(
    server: Server, request_bytes: bytes, status: int
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(request_bytes)
        answer = connection.recv(100)
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_one_connection_serves_several_requests(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    for stream in (False, True, False):
        body = json.dumps({"prompt": PROMPT, "max_tokens": 3, "stream": stream})
        connection.request("POST", "/v1/completions", body)
        assert connection.getresponse().read()
    connection.close()


def test_a_second_request_of_a_running_id_and_a_full_queue_are_refused(
    tmp_path: Path, weights: Path
) -> None:
    options = ("--max-running", "1", "--max-waiting", "1")
    with serving(tmp_path, weights, *options) as busy, ThreadPoolExecutor(2) as pool:
        long = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True}
        first = pool.submit(busy.complete, id="one", **long)
        busy.wait_for(lambda health: health["running"] == 1)
        assert busy.complete(id="one", prompt="x")[0] == 409
        second = pool.submit(busy.complete, id="two", **long)
        busy.wait_for(lambda health: health["waiting"] == 1)
        assert busy.complete(id="three", prompt="x")[0] == 503
        assert [first.result()[0], second.result()[0]] == [200, 200]


def test_a_client_that_leaves_frees_its_place(server: Server) -> None:
    body = b'{"prompt":"x","max_tokens":1000,"ignore_eos":true}'
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        server.wait_for(lambda health: health["running"] == 1)
    server.wait_for(lambda health: health["running"] == 0 and health["kv_usage"] == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_open_requests_end(tmp_path: Path, weights: Path, number: int) -> None:
    with serving(tmp_path, weights, "--grace", "60") as running, ThreadPoolExecutor(1) as pool:
        idle = socket.create_connection(("127.0.0.1", running.port), PATIENCE)
        answer = pool.submit(running.complete, prompt=PROMPT, max_tokens=900, ignore_eos=True)
        running.wait_for(lambda health: health["running"] == 1)
        status, stdout, stderr = running.end(number)
        assert (status, stderr) == (0, "")
        assert stdout == f"listening on http://127.0.0.1:{running.port}\n"
        code, body = answer.result()
        assert (code, body["usage"]["completion_tokens"]) == (200, 900)
        idle.close()


def test_after_the_grace_period_open_requests_are_aborted(tmp_path: Path, weights: Path) -> None:
    with serving(tmp_path, weights, "--grace", "0") as running, ThreadPoolExecutor(2) as pool:
        fields: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True}
        whole = pool.submit(running.complete, **fields)
        streamed = pool.submit(running.call, "POST", "/v1/completions", {**fields, "stream": True})
        running.wait_for(lambda health: health["running"] == 2)
        assert running.end()[0] == 0
        assert whole.result()[0] == 503
        last = events(streamed.result()[2])[-1]
        assert last["choices"][0]["finish_reason"] == "abort"


def test_a_server_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = [
        sys.executable,
        str(EXAMPLES / "serve.py"),
        "--port",
        "0",
        "--weights",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path) in done.stderr


def test_a_port_that_is_taken_is_named_in_one_line(server: Server, weights: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "serve.py"), "--port", str(server.port)]
    done = subprocess.run(
        [*command, "--weights", str(weights)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert str(server.port) in done.stderr


def load(server: Server, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the load generator."""
    command = [
        sys.executable,
        str(EXAMPLES / "load.py"),
        "--url",
        f"http://127.0.0.1:{server.port}",
    ]
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("pace", [("--rate", "200"), ("--concurrency", "2")])
def test_the_load_generator_reports_every_request(
    server: Server, tmp_path: Path, pace: tuple[str, str]
) -> None:
    path = tmp_path / "load.json"
    done = load(server, "--requests", "7", "--rows", "3", "--json", str(path), *pace)
    assert done.returncode == 0, done.stderr
    assert "7 requests, 0 failed" in done.stdout
    assert done.stdout.count("load-000") == 3
    result = json.loads(path.read_text())
    for each in result["requests"]:
        assert each["output_tokens"] == len(each["token_ns"])
        assert 0 < each["ttft_ns"] <= each["latency_ns"]
        assert each["token_ns"] == sorted(each["token_ns"])
    assert 1 <= concurrency(result["requests"]) <= (2 if pace[0] == "--concurrency" else 7)
    latencies = sorted(each["latency_ns"] for each in result["requests"])
    summary = result["summary"]["latency_ns"]
    assert (summary["p50"], summary["p99"]) == (latencies[3], latencies[6])


def concurrency(requests: list[dict[str, Any]]) -> int:
    """The most requests that were under way at an instant."""
    edges = [(each["submit_ns"], 1) for each in requests]
    edges += [(each["submit_ns"] + each["latency_ns"], -1) for each in requests]
    now = most = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most


def test_the_load_generator_fails_where_requests_fail(server: Server) -> None:
    done = load(server, "--requests", "2", "--prompt-tokens", "5000")
    assert done.returncode == 1
    assert done.stdout.count("HTTP 400") == 2


def test_the_load_generator_names_a_server_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        command = [sys.executable, str(EXAMPLES / "load.py"), "--requests", "1"]
        command += ["--url", f"http://127.0.0.1:{taken.getsockname()[1]}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ConnectionRefusedError" in done.stdout


def test_the_demonstration_under_trace_shows_queueing_and_preemption(tmp_path: Path) -> None:
    command = (sys.executable, str(EXAMPLES / "demo.py"), "--requests", "24", "--rate", "500")
    traced = trace(tmp_path, *command, "--kv-blocks", "32")
    assert traced.status == 0, traced.stderr
    summary = rca_llm.load(traced.run.path).attribute().summary
    requests = summary["requests"]
    assert {each["id"] for each in requests} == {f"load-{n:04d}" for n in range(24)}
    for each in requests:
        assert each["status"] == "finished"
        assert sum(each["parts"].values()) == each["latency_ns"]
        assert each["parts"]["compute.cpu"] > 0
        assert each["client_ns"] is not None
    parts = {name for each in requests for name in each["parts"]}
    assert {"scheduling.queue", "scheduling.preempt", "scheduling.recompute"} <= parts
    assert any(step["prefill_tokens"] and step["decode_tokens"] for step in summary["steps"])


def test_ending_the_demonstration_ends_its_server(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--requests", "500", "--rate", "50"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert demo.stdout is not None
    port = int(demo.stdout.readline().rpartition(":")[2])
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(PATIENCE) == 128 + signal.SIGTERM
    demo.stdout.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), PATIENCE)
