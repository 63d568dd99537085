"""A `vllm serve`, traced or not, with a collector for the spans it exports."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rca_llm.run import Run
from tests.engines import load
from tests.traced import TRACE, environment

HERE = Path(__file__).resolve().parent
CPU_OPTIONS = (
    "--dtype=float32",
    "--enforce-eager",
    "--max-num-batched-tokens=512",
    "--max-model-len=512",
    "--no-enable-prefix-caching",
)
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}


@dataclass(frozen=True)
class Setup:
    """What is served, by which interpreter, with which options of the server and of the trace."""

    python: str
    model: Path
    options: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    trace: tuple[str, ...] | None = ()
    """Options of `rca-llm trace`; None: untraced."""


def on_cpu(python: str, model: Path, *options: str, traced: bool = True) -> Setup:
    """A small model on the CPU."""
    trace = () if traced else None
    return Setup(python, model, (*CPU_OPTIONS, *options), CPU_ENVIRONMENT, trace)


@dataclass(frozen=True)
class Served:
    """A server that answers: where, and what it leaves behind."""

    port: int
    run: Path
    spans: Path
    python: str
    environment: Mapping[str, str]

    def counter(self, name: str) -> float:
        """A counter of vLLM's own (`/metrics`), summed over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))

    def kill_engine(self) -> None:
        """End the engine's process by SIGKILL."""
        for pid in {path.name.partition("-")[0] for path in Run(self.run).segment_files()}:
            try:
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"VLLM::EngineCore"):
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                continue  # it has ended by itself

    def stamps(self) -> dict[str, dict[str, Any]]:
        """What vLLM says of its requests, by id; once the server has ended."""
        command = [self.python, str(HERE / "stamps.py"), str(self.spans)]
        told = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**self.environment}
        ).stdout
        return {row["gen_ai.request.id"]: row for row in json.loads(told)}


@contextmanager
def serve(setup: Setup, folder: Path) -> Iterator[Served]:
    """Serve until the block is left; the run is finished then."""
    port, spans, run = free_port(), folder / "spans", folder / "run.rca"
    spans.mkdir(parents=True)
    with _collector(spans) as endpoint, (folder / "log").open("wb") as log:
        command = [*_tracing(setup, run), setup.python, "-m", "vllm.entrypoints.cli.main"]
        command += ["serve", str(setup.model), f"--port={port}", "--served-model-name=tiny"]
        command += [*setup.options, f"--otlp-traces-endpoint={endpoint}"]
        env = _environment(setup.environment)
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=env, cwd=folder, start_new_session=True
        )
        try:
            _wait(process, port, folder / "log")
            yield Served(port, run, spans, setup.python, env)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server as its users do; its whole session by force where it does not."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=180)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def _tracing(setup: Setup, run: Path) -> list[str]:
    return [] if setup.trace is None else [*TRACE, "-o", str(run), *setup.trace, "--"]


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    told = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
    }
    return environment(**told | dict(more))


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    alive = threading.Event()
    alive.set()

    def watch() -> None:
        process.wait()
        alive.clear()

    threading.Thread(target=watch, daemon=True).start()
    assert load.wait_until_ready(port, 600, alive), log.read_text(errors="replace")[-3000:]


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _collector(folder: Path) -> Iterator[str]:
    """An OTLP endpoint that writes every message into a file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            name = f"{len(os.listdir(folder)):06d}-{threading.get_ident()}"
            (folder / name).write_bytes(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
    finally:
        server.shutdown()


def make_model(python: str, folder: Path) -> Path:
    """The small model, made by the engine's own libraries."""
    subprocess.run([python, str(HERE / "tiny_llama.py"), str(folder)], check=True)
    return folder
