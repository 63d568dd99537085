"""What each part of the host probes costs `examples/serve.py`: the same bursts to many servers.

    python benchmarks/host_parts.py [--rounds N] [--json FILE] [--only NAMES] [--asleep|--threads N]

Servers that differ in one part stay alive at once and get the same bursts in turns, in an order
that changes from round to round:

`bare`      nothing of ours
`same`      nothing of ours either: how far two equal servers are apart
`sampler`   the launcher samples the process, which holds no probes (`env -u`)
`probes`    all that runs in the process, without a launcher; nobody samples
`no looks`  that, without looks at the thread in steps
`io`        the interposer alone
`all`       `rca-llm trace`

Quartiles of the ratios to `bare` in the same round, of wall time and of the server's processor
time, and of what the latter is more, in ms a burst (about 110 steps and 340 tokens). With
`--asleep` the model sleeps 4 ms instead of computing, so that what is compared is mostly the
probes, with caches as cold as a model leaves them. `--threads` sets the threads of NumPy's BLAS:
with several, one that is interrupted keeps the others spinning, so that what others do costs the
server its own time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import host_probes
from host_probes import ROOT, Server

EXAMPLES = str(ROOT / "examples")
TRACE = [sys.executable, "-m", "rca_llm", "trace", "--gpu", "off", "-o"]
_NO_LOOKS = """
import _rca_llm_probes.scope as scope, _rca_llm_probes.threads as threads
scope.look = threads.look = lambda within: None
"""
_SERVE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
asleep = sys.argv.pop(1) == "asleep"
import serve
class Sleeps(serve.Transformer):
    "As many spans as the model has, and 4 ms of nothing."
    def forward(self, batch):
        import time, numpy
        from rca_llm import span
        with span("forward", kind="compute"):
            for _ in range(2 * self.config.layers + 1):
                with span("attention", kind="compute"): pass
            time.sleep(0.004)
        logits = numpy.zeros((len(batch.rows), self.config.vocab), dtype=numpy.float32)
        logits[:, 65] = 1
        return logits
sys.exit(serve.main(Sleeps if asleep else serve.Transformer))
"""
SERVE = [sys.executable, "-c", _SERVE, EXAMPLES]
UNPROBED = ["env", "-u", "RCA_LLM_RUN", "-u", "LD_PRELOAD"]


def bare(_folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command and what is added to its environment."""
    return SERVE, {}


def sampler(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The launcher looks from outside at a process without probes."""
    return [*TRACE, str(folder / "sampled.rca"), "--", *UNPROBED, *SERVE], {}


def probes(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Probes in the process, and nobody outside."""
    return SERVE, _probed(folder)


def no_looks(folder: Path) -> tuple[list[str], dict[str, str]]:
    """As `probes`, without looks."""
    return [sys.executable, "-c", _NO_LOOKS + _SERVE, EXAMPLES], _probed(folder)


def _probed(folder: Path) -> dict[str, str]:
    run = host_probes.new_run(Path(tempfile.mkdtemp(dir=folder)))
    bootstrap = ROOT / "rca_llm" / "probes" / "bootstrap"
    return {"RCA_LLM_RUN": str(run), "PYTHONPATH": f"{bootstrap}{os.pathsep}{ROOT}"}


def io(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The interposer alone."""
    run = host_probes.new_run(Path(tempfile.mkdtemp(dir=folder)))
    return SERVE, {"RCA_LLM_RUN": str(run), "LD_PRELOAD": str(host_probes.PRELOAD)}


def everything(folder: Path) -> tuple[list[str], dict[str, str]]:
    """As a user traces."""
    return [*TRACE, str(folder / "all.rca"), "--", *SERVE], {}


PARTS: dict[str, Callable[[Path], tuple[list[str], dict[str, str]]]] = {
    "bare": bare,
    "same": bare,
    "sampler": sampler,
    "probes": probes,
    "no looks": no_looks,
    "io": io,
    "all": everything,
}


def start(name: str, folder: Path, threads: int, stack: ExitStack) -> Server:
    """A server with one part, which ends with the stack; no threads: its model sleeps."""
    command, more = PARTS[name](folder)
    command = [*command, "computes" if threads else "asleep"]
    port_file = folder / f"{name}.port"
    command += ["--port", "0", "--port-file", str(port_file), "--weights", str(folder / "weights")]
    env = {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": str(threads or 1), **more}
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    child = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **env})
    stack.callback(child.wait, 60)
    stack.callback(child.send_signal, signal.SIGTERM)

    def port(_name: str) -> int | None:
        return int(port_file.read_text()) if port_file.exists() else None

    found = host_probes.wait(child, name, port, folder)
    return Server(found, child.pid, command[: len(TRACE)] == TRACE)


def measure(folder: Path, names: list[str], rounds: int, threads: int) -> dict[str, Any]:
    """All servers in turns; the ratios of each to the bare one."""
    with ExitStack() as stack:
        servers = {name: start(name, folder, threads, stack) for name in names}
        for server in servers.values():
            host_probes.serve_burst(server)
        found = [_round(servers, number) for number in range(rounds)]
    return {name: _told(name, found) for name in names if name != "bare"}


Burst = tuple[float, float]
"""Wall and processor time."""


def _round(servers: dict[str, Server], number: int) -> dict[str, Burst]:
    names = list(servers)
    first = number % len(names)
    order = names[first:] + names[:first]
    return {name: _burst(servers[name]) for name in (order if number % 2 else reversed(order))}


def _burst(server: Server) -> Burst:
    before = server.cpu_ns()[0]
    wall = host_probes.serve_burst(server)
    return wall, float(server.cpu_ns()[0] - before)


def _told(name: str, found: list[dict[str, Burst]]) -> dict[str, Any]:
    told = {}
    for place, what in enumerate(("wall", "cpu")):
        ratios = [one[name][place] / one["bare"][place] for one in found]
        told[what] = [round(value, 4) for value in statistics.quantiles(ratios, n=4)]
    more = [(one[name][1] - one["bare"][1]) / 1e6 for one in found]
    told["more_cpu_ms"] = [round(value, 2) for value in statistics.quantiles(more, n=4)]
    return told


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--asleep", dest="threads", action="store_const", const=0)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        parts = measure(Path(folder), names, arguments.rounds, arguments.threads)
    found = {"machine": platform.machine(), "cpus": os.cpu_count(), "parts": parts}
    print(json.dumps(found, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
