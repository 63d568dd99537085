"""Shows that a device's gaps are charged to what the host did in them, on a decode loop.

    python benchmarks/gpu/gaps.py --out results

One traced process alternates blocks of eager decode steps with blocks of the same step as a CUDA
graph. Eagerly the device waits for the launching thread, so its gaps must be charged to launching
and to Python (`scheduling.launch`, `scheduling.host`); as a graph those parts must shrink by what
the step gained by the workload's own clock. Figures and verdicts go into `results/gaps.json` as
they come. `--device cpu` runs the same without a device, to try the script: nothing is judged then.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages import command, folders, left, write

ROOT = Path(__file__).resolve().parent.parent.parent
MODES = ("eager", "graph")
BLOCK = 20
WARM = 4
"""Steps at the beginning of each block that are not counted."""
GAIN_TOLERANCE = 0.10
LEAST_CHARGED = 0.90
"""The share of an eager step's gaps that launching and Python must explain."""


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--size", default="1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--blocks", type=int, default=4, help="blocks of each kind")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for the traced run")
    parser.add_argument("--gpu", default="full", choices=("kernels", "full"))
    parser.add_argument("--io", default="on", choices=("on", "off"))
    parser.add_argument("--python", default=sys.executable, help="the workload's interpreter")
    parser.add_argument("--work", type=Path, help="be the workload, and write its times there")
    return parser.parse_args()


def work(arguments: argparse.Namespace) -> None:
    """Decode in blocks of steps; each step ends with a synchronisation, as sampling does."""
    import torch
    from workload import Model, synchronise

    from rca_llm import span, step

    modes = MODES if arguments.device == "cuda" else MODES[:1]
    times: list[dict[str, Any]] = []
    with torch.inference_mode():
        model = Model(arguments.size, arguments.device)
        for mode in modes:
            for _ in range(3):
                getattr(model, mode)()
        synchronise(arguments.device)
        for number in range(arguments.blocks * len(modes) * BLOCK):
            mode = modes[number // BLOCK % len(modes)]
            begun = time.perf_counter_ns()
            with step(number, {}, mode=mode):
                with span("forward"):
                    getattr(model, mode)()
                with span("wait for the token", "sync"):
                    synchronise(arguments.device)
            counted = number % BLOCK >= WARM
            ns = time.perf_counter_ns() - begun
            times.append({"step": number, "mode": mode, "ns": ns, "counted": counted})
    arguments.work.write_text(json.dumps(times))


def record(arguments: argparse.Namespace, run: Path, times: Path) -> float:
    """Trace the workload; the seconds it took. RuntimeError where that failed or was too long."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    workload = [arguments.python, __file__, "--work", str(times), "--size", arguments.size]
    workload += ["--device", arguments.device, "--blocks", str(arguments.blocks)]
    trace = [sys.executable, "-m", "rca_llm", "trace", "--force", "-o", str(run)]
    # With kernels alone no call is recorded, and launching counts as host work.
    trace += ["--gpu", arguments.gpu, "--io", arguments.io, "--", *workload]
    status, said, seconds = command(trace, {"PYTHONPATH": path}, left(arguments.limit), ROOT)
    if status:
        raise RuntimeError(f"status {status} after {seconds:.0f} s: {said[-1500:]}")
    return seconds


def parts_by_mode(
    rows: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """The mean ns of every part a counted step, by mode; `rows` are the steps in their order."""
    found: dict[str, dict[str, float]] = {}
    for mode in MODES:
        own = [row["parts"] for row, one in zip(rows, times, strict=True) if _counts(one, mode)]
        names = sorted({name for parts in own for name in parts})
        found[mode] = {name: statistics.fmean(p.get(name, 0) for p in own) for name in names}
    return found


def _counts(one: Mapping[str, Any], mode: str) -> bool:
    return bool(one["mode"] == mode and one["counted"])


def judge(
    parts: Mapping[str, Mapping[str, float]], times: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the gaps were charged to, and whether both demands are met."""
    wall = {
        mode: statistics.fmean(one["ns"] for one in times if _counts(one, mode)) for mode in MODES
    }
    gaps = {
        mode: sum(ns for name, ns in parts[mode].items() if not name.startswith("compute."))
        for mode in MODES
    }
    host = {mode: _launching(parts[mode]) for mode in MODES}
    gained, shrunk = wall["eager"] - wall["graph"], host["eager"] - host["graph"]
    charged = host["eager"] / gaps["eager"] if gaps["eager"] else None
    return {
        "step_ns": wall,
        "gap_ns": gaps,
        "launch_and_host_ns": host,
        "gained_ns": gained,
        "shrunk_ns": shrunk,
        "shrunk_to_gained": shrunk / gained if gained > 0 else None,
        "all_gaps_shrunk_to_gained": (gaps["eager"] - gaps["graph"]) / gained if gained else None,
        "eager_gaps_charged": charged,
        "charged_ok": charged is not None and charged >= LEAST_CHARGED,
        "shrinks_ok": gained > 0 and abs(shrunk - gained) <= GAIN_TOLERANCE * gained,
    }


def _launching(parts: Mapping[str, float]) -> float:
    return parts.get("scheduling.launch", 0.0) + parts.get("scheduling.host", 0.0)


def analyse(run: Path) -> dict[str, Any]:
    """The summary of a run."""
    sys.path.insert(0, str(ROOT))
    import rca_llm

    return rca_llm.load(run).attribute().summary


def main() -> int:
    """Record, analyse, judge; 1 where a demand is missed, 3 where nothing could be judged."""
    arguments = options()
    if arguments.work:
        work(arguments)
        return 0
    out, folder = folders(arguments.out, "rca-gpu-gaps")
    found: dict[str, Any] = {}
    status, file = 3, out / "gaps.json"
    run, times = folder / "gaps.rca", folder / "gaps-times.json"
    try:
        found["record_s"] = record(arguments, run, times)
        write(file, found)
        summary = analyse(run)
        found |= {"idle": summary.get("idle"), "devices": summary["devices"]}
        measured = json.loads(times.read_text())
        found["parts"] = parts_by_mode(summary["windows"], measured)
        write(file, found)
        if arguments.device == "cuda":
            found["verdict"] = judge(found["parts"], measured)
            status = 0 if found["verdict"]["charged_ok"] and found["verdict"]["shrinks_ok"] else 1
    except Exception as error:  # whatever it is, what was found so far is kept
        found["error"] = f"{type(error).__name__}: {error}"
    write(file, found)
    print(json.dumps({key: found.get(key) for key in ("verdict", "parts", "error")}, indent=1))
    return status


if __name__ == "__main__":
    sys.exit(main())
