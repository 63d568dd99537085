"""What the probes of the host cost: on cached reads, and on the example server under load.

    python benchmarks/host_probes.py [--pairs N] [--json FILE] [--stages reads,serve]

`reads`: a loop of 4 KiB reads that the page cache answers, in Python and, where a C compiler is
found, in C; with and without the interposer, in turns, one process each; ns of wall time a read,
the quickest of several rounds in each process. Goal: at most 10 %.
`serve`: two of `examples/serve.py` that stay alive, one under `rca-llm trace` with all probes of
the host, get the same bursts in turns; the wall time of a burst. Goal: at most 2 % (median of
pairs). Ratios are traced / untraced: the median of the pairs, with the quartiles.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
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


def serve(folder: Path, count: int) -> dict[str, Any]:
    """Bursts to an untraced and a traced server: wall time, and the server's processor time.

    The second is what can be compared on a machine that others use.
    """
    trace = [sys.executable, "-m", "rca_llm", "trace", "--gpu", "off", "-o", str(folder / "s.rca")]
    with server(folder, "bare", []) as bare, server(folder, "traced", [*trace, "--"]) as traced:
        for one in (bare, traced):
            burst(one, [])
        first: list[float] = []
        second: list[float] = []
        wall = pairs_of(lambda: burst(bare, first), lambda: burst(traced, second), count)
        cpu = list(zip(first, second, strict=True))
    return {"wall": wall, "cpu": ratios_of(cpu)}


@contextmanager
def server(folder: Path, name: str, prefix: list[str]) -> Iterator[tuple[int, int]]:
    """An example server; its port and its process."""
    port_file = folder / f"{name}.port"
    command = [*prefix, sys.executable, str(ROOT / "examples" / "serve.py"), "--port", "0"]
    command += ["--port-file", str(port_file), "--weights", str(folder / "weights")]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    try:
        deadline = time.monotonic() + 120
        while not port_file.exists():
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"host_probes.py: the {name} server did not start")
            time.sleep(0.05)
        yield int(port_file.read_text()), _innermost(child.pid)
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)


def _innermost(pid: int) -> int:
    """The server itself: where there is a launcher, its child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return _innermost(int(children[0])) if children else pid


def _cpu_ns(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(words[11]) + int(words[12])) * 1e9 / os.sysconf("SC_CLK_TCK")


def burst(of: tuple[int, int], cpu: list[float]) -> float:
    """The wall time of a burst, ns, as the client saw it; the server's CPU time goes into `cpu`."""
    port, pid = of
    before = _cpu_ns(pid)
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable, str(ROOT / "examples" / "load.py")]
        command += ["--url", f"http://127.0.0.1:{port}", "--requests", "12", "--concurrency", "4"]
        command += ["--json", out.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        told = json.loads(Path(out.name).read_text())
    cpu.append(_cpu_ns(pid) - before)
    rows = told["requests"] if isinstance(told, dict) else told
    return float(max(r["end_ns"] for r in rows) - min(r["submit_ns"] for r in rows))


STAGES: dict[str, Callable[[Path, int], dict[str, Any]]] = {"reads": reads, "serve": serve}


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
