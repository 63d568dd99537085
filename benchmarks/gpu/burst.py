"""What a tracer costs a vLLM server that is already running: bursts of 12 requests, in turns.

    python benchmarks/gpu/burst.py --out results --bundle FOLDER --size small

FOLDER holds vLLM (on PYTHONPATH); leave it out where vLLM is installed. One engine starts first and
warms the compile caches, then one under each tracer; all stay alive, and serve bursts in turns
(`turns.py`). Then the paused one is switched on by `rca-llm ctl start`, and torch.profiler in the
first. At last two traced engines serve the same requests one by one: their kernels are compared.
Results are in `results/burst-SIZE.json`, written as they come. About four minutes on one H200.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vllm_model
from collector import Kernels, Session, build, compared, export_nsys, nsys_program, read
from stages import folders, run_stages
from turns import Answers, Turns, make_path, ratios, tracers, turns

SERVER = Path(__file__).with_name("burst_server.py")
WARM = "torch.profiler"
"""The engine that starts first; its bursts are untraced until its profiler is switched on."""
BASE = ["none-1", "none-2"]
RESTING = "trace-rest"
COUNTED = ("trace-full", "trace-kernels", RESTING, "nsys")
"""Engines whose kernels are compared with those of the first that is there: recorded from the
start, from `ctl start` on, and by nsys."""
TRACERS = {
    "small": "none-1,none-2,trace-kernels,trace-full,trace-graph,trace-paused,trace-rest,"
    "kernels,floor-kernels,floor-graph,nsys",
    # Weights of 16 GB each: what fits beside one another.
    "large": "none-1,trace-kernels,trace-graph,trace-rest,floor-kernels,nsys",
    "tiny": "none-1,trace-kernels,trace-rest",
}
STAGGER_S = 0.7
QUIET_S = 1.5
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 300,
}  # fmt: skip


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--bundle", type=Path, help="a folder with vLLM")
    parser.add_argument("--size", choices=TRACERS, default="small")
    parser.add_argument("--tracers", default="", help="instead of the usual ones, comma separated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=75, help="seconds for each set of rounds")
    parser.add_argument("--start-limit", type=float, default=170, help="seconds to start in")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--stages", default="build,start,first,switched,serial", help="of what precedes counting"
    )
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def engine(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Engine arguments; the cache's size is given, so that engines may start side by side."""
    if arguments.size == "tiny":
        vllm_model.SIZES["tiny"] = TINY
    model = vllm_model.make(work / f"model-{arguments.size}", arguments.size)
    chosen = vllm_model.engine_options(
        model,
        gpu_memory_utilization=0.05,
        kv_cache_memory_bytes=768 << 20,
        max_model_len=1024,
        disable_log_stats=True,
    )
    if arguments.device == "cpu":
        chosen |= {"enforce_eager": True, "dtype": "float32"}
        del chosen["compilation_config"]
    return chosen


def environment(session: Session) -> dict[str, str]:
    """Variables of every engine: where vLLM and our package lie, and caches that all share."""
    bundle: Path | None = session.arguments.bundle
    found = vllm_model.environment(bundle) if bundle else {"HF_HUB_OFFLINE": "1"}
    parts = [found.get("PYTHONPATH", ""), make_path(session), os.environ.get("PYTHONPATH", "")]
    cache = str(session.work / "cache")
    return found | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(part for part in parts if part)),
        "VLLM_CACHE_ROOT": cache,
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # Nsight Systems does not follow a fork without an exec, which is vLLM's way otherwise.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }


def start(session: Session, players: Turns, found: dict[str, Any]) -> None:
    """Start the engine that warms the caches, serve a burst, then start the others."""
    env = environment(session)
    chosen = json.dumps(engine(session.arguments, session.work))
    command = [sys.executable, str(SERVER), "--engine", chosen]
    known = tracers(session)
    profiles = ["--profiles", str(session.work / "profiles")]
    players.start(WARM, command + profiles, known["none"](WARM), **env)
    found["start_s"] = [players.ready(session.arguments.start_limit)]
    found["cold_burst"] = players.ask(WARM, 120.0, do="burst")
    for name in (session.arguments.tracers or TRACERS[session.arguments.size]).split(","):
        try:
            tracer = known[name.rpartition("-")[0] if name[-1].isdigit() else name](name)
        except FileNotFoundError as error:
            players.lost[name] = str(error)
            continue
        players.start(name, command, tracer, **env)
        time.sleep(STAGGER_S)
    found["start_s"].append(players.ready(session.arguments.start_limit))


def wall(answer: Any) -> float:
    """Wall time of a burst, ns."""
    return float(answer["wall"])


def ttft(answer: Any) -> float:
    """Median time to the first token of a burst, ns."""
    return float(statistics.median(answer["ttft"]))


def told(rounds: list[dict[str, Any]], base: list[str]) -> dict[str, Any]:
    """Ratios of wall time and time to first token, by tracer."""
    return {"wall": ratios(rounds, wall, base), "ttft": ratios(rounds, ttft, base)}


def measure(
    session: Session, players: Turns, found: dict[str, Any], part: str, names: list[str]
) -> None:
    """Bursts in turns; every round is on disk before the next begins."""

    def each(rounds: list[Answers]) -> None:
        found[part] = told(rounds, [name for name in BASE if name in names])
        found[f"{part}_rounds"] = rounds
        keep(session, players)

    arguments = session.arguments
    players.rounds(arguments.rounds, names, arguments.limit, each=each, do="burst")


def first(session: Session, players: Turns, found: dict[str, Any]) -> None:
    """The first burst of each, and then the steady state."""
    names = list(players.players)
    found["first"] = {name: players.ask(name, 60.0, do="burst") for name in names if name != WARM}
    keep(session, players)
    measure(session, players, found, "steady", names)


def switched(session: Session, players: Turns, found: dict[str, Any]) -> None:
    """Paused tracers are switched on, and torch.profiler: their first bursts, and then."""
    for name in (RESTING, "trace-paused"):
        run = players.players[name].tracer.run if name in players.players else None
        if run is not None:
            command = [sys.executable, "-m", "rca_llm", "ctl", str(run), "start"]
            found[f"ctl {name}"] = session.run(command, environment(session), 20)
    found["profile"] = players.ask(WARM, 60.0, do="profile")
    time.sleep(0.3)
    names = [
        n for n in (WARM, RESTING, "trace-paused", *BASE, "trace-kernels") if n in players.players
    ]
    found["first_switched"] = {name: players.ask(name, 60.0, do="burst") for name in names}
    measure(session, players, found, "switched", names)


def serial(players: Turns, found: dict[str, Any]) -> None:
    """The same requests one by one, alone, between quiet moments: what is counted at the end."""
    for name in (name for name in COUNTED if name in players.players):
        time.sleep(QUIET_S)
        found.setdefault("serial", {})[name] = players.ask(name, 60.0, do="serial")
    time.sleep(1.0)


def last_work(timeline: Any) -> Kernels:
    """The kernels after the last quiet moment of a recording."""
    import numpy as np

    gpu = timeline["gpu"]
    rows = gpu.take(np.flatnonzero((gpu["kind"] == 0) & (gpu["start"] >= 0))).sorted_by("start")
    quiet = np.flatnonzero(np.diff(rows["start"]) > QUIET_S * 0.6e9)
    rows = rows.take(np.arange(int(quiet[-1]) + 1 if len(quiet) else 0, len(rows)))
    columns = [rows[f"{what}_{axis}"] for what in ("grid", "block") for axis in "xyz"]
    return Kernels(
        len(rows),
        int((rows["end"] - rows["start"]).sum()),
        list(zip(*(column.tolist() for column in columns), strict=True)),
        [timeline.text(code) or "" for code in rows["name"].tolist()],
        int((rows["graph_node"] > 0).sum()),
    )


def count(session: Session, players: Turns, found: dict[str, Any], runs: dict[str, Path]) -> None:
    """Kernels of the same requests by tracer: all, those of graphs, their time; then compared."""
    counted: dict[str, Any] = {}
    found["kernels"] = counted
    works: dict[str, Kernels] = {}
    for name in (name for name in COUNTED if name in runs):
        path, program = runs[name], nsys_program()
        if name == "nsys" and program is not None:
            counted["export"] = export_nsys(session, program, path)[-200:]
            path = path.with_suffix(".sqlite")
        works[name] = last_work(read(path))
        counted[name] = [works[name].count, works[name].nodes, works[name].total_ns]
        base = next(iter(works))
        if name != base:
            counted[f"{base}, {name}"] = compared(works[base], works[name])
        keep(session, players)


def keep(session: Session, players: Turns) -> None:
    """Write what is known so far; the rounds one by one are in the file and not on the screen."""
    session.write("lost", players.lost)


def show(found: dict[str, Any]) -> None:
    """The table, on the screen."""
    for part in ("steady", "switched"):
        for what, rows in found.get(part, {}).items():
            print(f"== {part} {what}: median ratio (quartiles), median ms")
            for name, row in rows.items():
                print(f"  {name:16} {row['ratio']} {row['ms']} {row['rounds']}")
    for part in ("first", "first_switched"):
        walls = {n: round(a["wall"] / 1e6, 1) for n, a in found.get(part, {}).items() if a}
        print(f"== {part}: wall ms {walls}")
    print("== kernels", json.dumps(found.get("kernels"))[:1500])
    print("== other", {key: found.get(key) for key in ("start_s", "took_s", "lost", "profile")})


LIMITS = {"start": 300, "first": 150, "switched": 150, "serial": 90, "count": 150}
"""Seconds."""


def main() -> None:
    """Run everything; what fails is told beside what did not."""
    arguments = options()
    file = f"burst-{arguments.size}.json"
    session = Session(*folders(arguments.out, "rca-gpu-burst"), arguments, file=file)
    begun, found = time.monotonic(), session.results
    with turns(session) as players:
        served: dict[str, Callable[[Session], None]] = {
            "build": build,
            "start": lambda _: start(session, players, found),
            "first": lambda _: first(session, players, found),
            "switched": lambda _: switched(session, players, found),
            "serial": lambda _: serial(players, found),
        }
        run_stages(session, served, arguments.stages, limits=LIMITS)
        runs = {n: p.tracer.run for n, p in players.players.items() if p.tracer.run is not None}
    counted = {"count": lambda _: count(session, players, found, runs)}
    run_stages(session, counted, "count", limits=LIMITS)
    found["took_s"] = round(time.monotonic() - begun, 1)
    keep(session, players)
    show(found)


if __name__ == "__main__":
    main()
