"""What the probes of the host cost: on cached reads, on the example server, and on vLLM.

    [RCA_LLM_VLLM_PYTHON=…] python benchmarks/host_probes.py [--pairs N] [--json FILE] [--stages …]

`reads`: a loop of 4 KiB reads that the page cache answers, in Python and, where a C compiler is
found, in C; with and without the interposer, in turns, one process each; ns of wall time a read,
the quickest of several rounds in each process. Goal: at most 10 %.
`serve`: two of `examples/serve.py` that stay alive, one under `rca-llm trace` with all probes of
the host, get the same bursts in turns; the wall time of a burst, and the processor time of the
server. Goal: at most 2 % (median of pairs).
`vllm`: the same with a real vLLM that serves a small random Llama on the CPU, by the interpreter
that RCA_LLM_VLLM_PYTHON names (`make test-engines` makes one). Goal: the same.
Ratios are traced / untraced: the median of the pairs, with the quartiles. All stages take about
five minutes on two cores, of which starting two vLLMs is most.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.engines import load  # noqa: E402  # the path above
from tests.engines import server as engines  # noqa: E402

START_S = 300.0
PRELOAD = ROOT / "probes" / "native" / "librca_preload.so"

_PYTHON = """
import os, sys, time
f = os.open(sys.argv[1], os.O_RDONLY)
def once(n):
    begun = time.perf_counter_ns()
    for _ in range(n):
        os.pread(f, 4096, 0)
    return (time.perf_counter_ns() - begun) / n
print(min(once(20000) for _ in range(15)))
"""

_C = r"""
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main(int count, char **arguments)
{
    char block[4096];
    double best = 1e9;
    int fd = open(arguments[count - 1], O_RDONLY);
    for (int round = 0; round < 15; round++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int i = 0; i < 20000; i++)
            if (pread(fd, block, sizeof block, 0) != sizeof block)
                return 1;
        clock_gettime(CLOCK_MONOTONIC, &b);
        double ns = ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / 20000;
        best = ns < best ? ns : best;
    }
    printf("%f\n", best);
    return 0;
}
"""


def pairs_of(untraced: Callable[[], float], traced: Callable[[], float], count: int) -> Any:
    """Both in turns, the order changing: medians, and the ratio with its quartiles."""
    found: list[tuple[float, float]] = []
    for number in range(count):
        order = (untraced, traced) if number % 2 == 0 else (traced, untraced)
        values = [work() for work in order]
        found.append((values[0], values[1]) if number % 2 == 0 else (values[1], values[0]))
    return ratios_of(found)


def ratios_of(found: list[tuple[float, float]]) -> dict[str, Any]:
    """Medians of pairs (untraced, traced), and of their ratio with its quartiles."""
    ratios = sorted(b / a for a, b in found)
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return {
        "untraced": statistics.median(a for a, _ in found),
        "traced": statistics.median(b for _, b in found),
        "ratio": statistics.median(ratios),
        "quartiles": [quartiles[0], quartiles[2]],
        "pairs": len(found),
    }


def reads(folder: Path, count: int) -> dict[str, Any]:
    """The loop of reads, by language."""
    file = folder / "data"
    file.write_bytes(bytes(4096))
    commands = {"python": [sys.executable, "-S", "-c", _PYTHON, str(file)]}
    compiler = shutil.which("cc")
    if compiler is not None:
        (folder / "reads.c").write_text(_C)
        program = folder / "reads"
        subprocess.run([compiler, "-O2", str(folder / "reads.c"), "-o", str(program)], check=True)
        commands["c"] = [str(program), str(file)]
    run = new_run(folder)
    env = {**os.environ, "RCA_LLM_RUN": str(run), "LD_PRELOAD": str(PRELOAD)}
    return {
        name: pairs_of(lambda c=command: timed(c, None), lambda c=command: timed(c, env), count)
        for name, command in commands.items()
    }


def timed(command: list[str], env: dict[str, str] | None) -> float:
    """What the command prints."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


def new_run(folder: Path) -> Path:
    """An empty run directory with an open gate."""
    run = folder / "run"
    (run / "segments").mkdir(parents=True)
    (run / "control").write_bytes(b"\1" + bytes(4095))
    return run


@dataclass(frozen=True)
class Server:
    """A server that answers: its port, and the process that was started."""

    port: int
    pid: int
    traced: bool

    def cpu_ns(self) -> tuple[int, int]:
        """Processor time so far of the server with its children, and of the launcher."""
        pids = _tree(self.pid)
        spent = [_cpu_ns(pid) for pid in pids]
        own = spent.pop(0) if self.traced else 0
        return sum(spent), own


def _tree(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    found = [pid]
    for one in found:
        for file in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, file.read_text().split())
    return found


def _cpu_ns(pid: int) -> int:
    """The processor time of a process with all its threads; its clock is named by its id."""
    return time.clock_gettime_ns(~pid << 3 | 2)


Burst = Callable[[Server], float]
"""Sends a server a burst; its wall time as the client saw it, ns."""


def compared(bare: Server, traced: Server, burst: Burst, count: int) -> dict[str, Any]:
    """Bursts to both servers in turns: wall time, and the servers' processor time.

    The second is what can be compared on a machine that others use. `launcher` is the launcher's
    share of one processor during the bursts to the server that it traces.
    """
    cpu: dict[bool, list[float]] = {False: [], True: []}
    launcher: list[float] = []

    def one(server: Server) -> float:
        before, began = server.cpu_ns(), time.monotonic_ns()
        wall = burst(server)
        after, took = server.cpu_ns(), time.monotonic_ns() - began
        cpu[server.traced].append(after[0] - before[0])
        launcher.append((after[1] - before[1]) / took)
        return wall

    for server in (bare, traced, bare, traced):  # first bursts warm up
        burst(server)
    wall = pairs_of(lambda: one(bare), lambda: one(traced), count)
    pairs = list(zip(cpu[False], cpu[True], strict=True))
    busy = [share for share in launcher if share > 0]
    return {"wall": wall, "cpu": ratios_of(pairs), "launcher": statistics.median(busy)}


def serve(folder: Path, count: int) -> dict[str, Any]:
    """Bursts to `examples/serve.py`."""

    def command(name: str) -> list[str]:
        weights = ["--weights", str(folder / "weights")]
        file = str(folder / f"{name}.port")
        script = str(ROOT / "examples" / "serve.py")
        return [sys.executable, script, "--port", "0", "--port-file", file, *weights]

    def port(name: str) -> int | None:
        file = folder / f"{name}.port"
        return int(file.read_text()) if file.exists() else None

    with running(folder, command, port, {}) as (bare, traced):
        return compared(bare, traced, serve_burst, count)


def serve_burst(server: Server) -> float:
    """Twelve requests to the example server, four at a time."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, str(ROOT / "examples" / "load.py")]
        command += ["--url", f"http://127.0.0.1:{server.port}"]
        command += ["--requests", "12", "--concurrency", "4", "--json", out.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        told = json.loads(Path(out.name).read_text())
    rows = told["requests"] if isinstance(told, dict) else told
    return float(max(r["end_ns"] for r in rows) - min(r["submit_ns"] for r in rows))


def vllm(folder: Path, count: int) -> dict[str, Any]:
    """Bursts to a real vLLM that serves a small random Llama on the CPU."""
    python = os.environ.get("RCA_LLM_VLLM_PYTHON", "")
    if not python:
        reason = "RCA_LLM_VLLM_PYTHON is not set: sh tests/engines/vllm.sh python3 FOLDER"
        return {"skipped": reason}
    model = engines.make_model(python, folder / "model")
    ports = {name: engines.free_port() for name in ("bare", "traced")}

    def command(name: str) -> list[str]:
        serve = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        own = [f"--port={ports[name]}", "--served-model-name=tiny", "--max-num-seqs=8"]
        return [*serve, *own, *engines.CPU_OPTIONS]

    def port(name: str) -> int | None:
        return ports[name] if load.is_ready(ports[name]) else None

    env = {**engines.CPU_ENVIRONMENT, **_VLLM}
    with running(folder, command, port, env) as (bare, traced):
        return compared(bare, traced, _stream, count)


_VLLM = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def _stream(server: Server) -> float:
    calls = [load.Call(64, 32) for _ in range(8)]
    load.run(server.port, calls, 0.0)
    errors = [call.error for call in calls if call.error]
    if errors:
        raise SystemExit(f"host_probes.py: a request failed: {errors[0]}")
    return float(max(call.ended for call in calls) - min(call.submitted for call in calls))


@contextmanager
def running(
    folder: Path,
    command: Callable[[str], list[str]],
    port: Callable[[str], int | None],
    more: Mapping[str, str],
) -> Iterator[tuple[Server, Server]]:
    """An untraced and a traced server, started one after the other and alive at once.

    `port` says where the server of a name answers, None as long as it does not.
    """
    trace = [sys.executable, "-m", "rca_llm", "trace", "--gpu", "off"]
    prefixes = {"bare": [], "traced": [*trace, "-o", str(folder / "run.rca"), "--"]}
    children: list[subprocess.Popen[bytes]] = []
    env = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    found: list[Server] = []
    try:
        for name, prefix in prefixes.items():
            log = (folder / f"{name}.log").open("wb")
            with log:
                child = subprocess.Popen(
                    [*prefix, *command(name)], stdout=log, stderr=log, cwd=ROOT, env=env
                )
            children.append(child)
            found.append(Server(wait(child, name, port, folder), child.pid, bool(prefix)))
        yield found[0], found[1]
    finally:
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            child.wait(180)


def wait(
    child: subprocess.Popen[bytes], name: str, port: Callable[[str], int | None], folder: Path
) -> int:
    """The port of a server once it answers; ends the program where it does not start."""
    deadline = time.monotonic() + START_S
    while (found := port(name)) is None:
        if child.poll() is not None or time.monotonic() > deadline:
            said = (folder / f"{name}.log").read_text(errors="replace")[-2000:]
            raise SystemExit(f"host_probes.py: the {name} server did not start:\n{said}")
        time.sleep(0.05)
    return found


STAGES: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "reads": reads,
    "serve": serve,
    "vllm": vllm,
}


def main() -> None:
    """Run the stages and print, and write, what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": platform.machine(), "cpus": os.cpu_count()}
    for name in arguments.stages.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found[name] = STAGES[name](Path(folder), arguments.pairs)
        print(json.dumps({name: found[name]}, indent=1), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
