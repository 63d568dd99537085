"""Millions of kernels in one recording, how soon a recording is ready, and hardware counters.

    python benchmarks/gpu/scale.py --out results --stages counters,many,ready

`counters` samples the GPU's hardware counters while a program idles, multiplies and copies, and
compares their edges with the kernels' times. `many` launches short kernels and replays short graphs
(`launches.cu`, needs nvcc): memory of the program, rotation of files, kernels without a time.
`ready` records 240,000 of them by `rca-llm trace` and times from the program's end to the
launcher's. Results are in `results/scale.json`. On one H200 about 25 s, 110 s and 15 s.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collector import NATIVE, Session, build, read
from stages import folders, run_stages
from turns import make_path, quartiles

KERNELS = 240_000
INTERVAL_NS = 1_000_000


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--stages", default="counters,many,ready")
    parser.add_argument("--launches", type=int, default=10_000_000)
    parser.add_argument("--replays", type=int, default=26_000)
    parser.add_argument("--seconds", type=float, default=60, help="most for launches, and replays")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--counters", type=Path, default=os.environ.get("RCA_GPU_COUNTERS"),
        help="a folder with cupti-python and its libcupti",
    )  # fmt: skip
    parser.add_argument("--size", default="1b", choices=("tiny", "1b", "7b"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def path_of(session: Session, *more: Path) -> dict[str, str]:
    """PYTHONPATH with our package, and what else is needed."""
    parts = [*map(str, more), make_path(session), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(part for part in parts if part)}


def launcher(run: Path, *chosen: str) -> list[str]:
    """Words before a command that is traced."""
    return [sys.executable, "-m", "rca_llm", "trace", "--force", "-o", str(run), *chosen, "--"]


# ------------------------------------------------------------------ many


def kernel_rows(run: Path) -> Iterator[Any]:
    """The collector's kernel rows, buffer by buffer: no table of all of them is made."""
    from rca_llm.readers import cupti_rows, segments

    for path in sorted((run / "segments").glob("*.seg")):
        found = segments.parse(path.name, path.read_bytes())
        for buffer in found.buffers if found is not None else ():
            kind, size = int(buffer.cell["c"]), int(buffer.cell["d"])
            rows = cupti_rows.unpacked(kind, size, buffer.data)
            if kind == cupti_rows.ROW_KERNEL and rows is not None:
                yield rows


def installed_cupti() -> dict[str, str]:
    """The libcupti among Python's packages: a program without PyTorch finds it by no other way."""
    for folder in map(Path, sys.path):
        for found in sorted(folder.glob("nvidia/cu*/lib/libcupti.so.*")):
            return {"RCA_LLM_CUPTI": str(found)}
    return {}


def launches(session: Session) -> Path:
    """The program, compiled; raises where that cannot be."""
    program = session.work / "launches"
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source = str(Path(__file__).with_name("launches.cu"))
    done = session.run([nvcc, "-O2", "-arch=native", "-o", str(program), source], {}, 90)
    if done["status"]:
        raise RuntimeError(done["said"])
    return program


def many(session: Session) -> dict[str, Any]:
    """Millions of short kernels: memory, rotation, kernels without a time."""
    arguments = session.arguments
    program = launches(session)
    run, env = session.traced("many", RCA_LLM_GPU="kernels", **installed_cupti())
    counts = [str(arguments.launches), str(arguments.replays), str(arguments.seconds)]
    log = session.work / "many.log"
    done = session.run(["sh", "-c", f'"$@" >{log}', "sh", str(program), *counts], env, 240)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    found = {"run": done, "told": lines}
    files = sorted((run / "segments").glob("*.seg"))
    found["files"] = [path.stat().st_size for path in files]
    begun, counted = (
        time.monotonic(),
        {"kernels": 0, "nodes": 0, "without_time": 0, "nodes_without": 0},
    )
    for rows in kernel_rows(run):
        node, none = rows["graph_node"] > 0, rows["start"] == 0
        counted["kernels"] += len(rows)
        counted["nodes"] += int(node.sum())
        counted["without_time"] += int(none.sum())
        counted["nodes_without"] += int((node & none).sum())
    expected = lines[-1]["launched"] + lines[-1]["nodes"]
    found["counted"] = counted | {"expected": expected, "s": round(time.monotonic() - begun, 1)}
    shutil.rmtree(run, ignore_errors=True)
    return found


# ------------------------------------------------------------------ ready


def ready(session: Session) -> dict[str, Any]:
    """From the end of a program with 240,000 kernels to the end of the launcher, tables and all."""
    program = launches(session)
    found: dict[str, Any] = {"untraced_ms": [], "traced_ms": []}
    env = path_of(session) | installed_cupti()
    for number in range(session.arguments.repeat):
        run = session.work / f"ready-{number}.rca"
        for name, under in (("untraced_ms", []), ("traced_ms", launcher(run))):
            done = session.run([*under, str(program), str(KERNELS), "0"], env, 60)
            last = json.loads([line for line in done["said"].splitlines() if line[:1] == "{"][-1])
            found[name].append(round((done["ended_ns"] - last["ns"]) / 1e6, 1))
        found["tables"] = tables(run)
    return found


def tables(run: Path) -> dict[str, Any]:
    """Kernels of a finished run, and the bytes of its Parquet files."""
    sizes = {path.name: path.stat().st_size for path in (run / "tables").glob("*")}
    gpu = read(run)["gpu"]
    kernels = int((gpu["kind"] == 0).sum())
    parquet = sum(size for name, size in sizes.items() if name.endswith(".parquet"))
    device = sum(size for name, size in sizes.items() if name.startswith("gpu"))
    return {
        "kernels": kernels,
        "parquet_bytes": parquet,
        "bytes_a_kernel": round(parquet / kernels, 2) if kernels else None,
        "gpu_table_bytes_a_kernel": round(device / kernels, 2) if kernels else None,
        "sizes": sizes,
    }


# ------------------------------------------------------------------ counters

PROGRAM = """
import json, sys, time
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.randn(2**28, device="cuda")
host = torch.empty(2**26).pin_memory()
def gemm(): a @ a
def stream(): b.add_(1.0)
def upload(): b[:2**26].copy_(host, non_blocking=True)
works = {"gemm": gemm, "stream": stream, "upload": upload}
for work in works.values(): work()
torch.cuda.synchronize()
time.sleep(float(sys.argv[1]))
found = []
for _ in range(4):
    for name, work in works.items():
        time.sleep(0.15)
        begun, count = time.monotonic_ns(), 0
        while time.monotonic_ns() - begun < 150_000_000:
            for _ in range(4): work()
            count += 4
            torch.cuda.synchronize()
        found.append([name, begun, time.monotonic_ns(), count])
with open(sys.argv[2], "w") as file:
    json.dump(found, file)
"""
WAIT_S = 5.0
"""Until the counting process has its context, before the program begins."""


def counters(session: Session) -> dict[str, Any]:
    """What the counters say of known work, and how well they lie on our clock."""
    folder: Path | None = session.arguments.counters
    env = path_of(session, *([folder] if folder else []))
    found: dict[str, Any] = {}
    file = session.work / "windows.json"
    file.unlink(missing_ok=True)
    plain = session.run([sys.executable, "-c", PROGRAM, "0.5", str(file)], path_of(session), 40)
    found |= {"plain_s": plain["wall_s"], "plain_said": plain["said"]}
    session.keep("counters", found)
    found["plain"] = rates(json.loads(file.read_text()))
    file.unlink()
    run = session.work / "counters.rca"
    command = [*launcher(run, "--counters"), sys.executable, "-c", PROGRAM, str(WAIT_S), str(file)]
    done = session.run(command, env, 50)
    found |= {"status": done["status"], "said": done["said"], "counted_s": done["wall_s"]}
    found["told"] = told(run)
    session.keep("counters", found)
    windows = json.loads(file.read_text())
    found["counted"] = rates(windows)
    timeline = read(run)
    found["means"] = means(timeline, windows)
    found["edges_us"] = edges(timeline)
    found["kernels"] = int((timeline["gpu"]["kind"] == 0).sum())
    return found


def rates(windows: list[Any]) -> dict[str, float]:
    """Repetitions a second of each kind of work, as the program counted them."""
    found: dict[str, float] = {}
    for kind in dict.fromkeys(name for name, *_ in windows):
        own = [(end - begun, count) for name, begun, end, count in windows if name == kind]
        found[kind] = round(sum(count for _, count in own) / sum(ns for ns, _ in own) * 1e9, 1)
    return found


def told(run: Path) -> list[Any]:
    """What the counting process said of itself."""
    from tests.native.segments import read_run

    infos = [info for segment in read_run(run) for info in segment.infos()]
    return [list(info) for info in infos if "counters" in info[0]]


def samples(timeline: Any, metric: str) -> tuple[Any, Any]:
    """Times and values of a metric of GPU 0."""
    rows = timeline["samples"]
    ours = rows.take((rows["metric"] == timeline.strings.find(metric)).nonzero()[0]).sorted_by("t")
    return ours["t"], ours["value"]


def means(timeline: Any, windows: list[Any]) -> dict[str, dict[str, float]]:
    """The mean of every counter in each kind of work, and between."""
    names = [timeline.text(code) for code in set(timeline["samples"]["metric"].tolist())]
    found: dict[str, dict[str, float]] = {}
    for metric in sorted(name for name in names if name):
        times, values = samples(timeline, metric)
        row: dict[str, float] = {}
        for kind in ("gemm", "stream", "upload"):
            inside = sum(
                (times > begun + 20_000_000) & (times < end - 5_000_000)
                for name, begun, end, _ in windows if name == kind
            )  # fmt: skip
            chosen = values[inside > 0]
            if len(chosen):
                row[kind] = float(f"{chosen.mean():.4g}")
        found[metric] = row | {"samples": len(times)}
    return found


def edges(timeline: Any) -> dict[str, Any]:
    """By how much the SMs become active later than the first kernel after a pause begins, in µs.

    A sample tells of the interval that ends at its time, so 0 to one interval is right.
    """
    import numpy as np

    gpu = timeline["gpu"]
    start = np.sort(gpu["start"][gpu["kind"] == 0])
    first = start[1:][np.diff(start) > 100_000_000]
    times, values = samples(timeline, "gpu.sm_active")
    active = times[values > 0.02]
    after = [active[np.searchsorted(active, at - 20_000_000)] - at for at in first if len(active)]
    return {"delays": quartiles([delay / 1000 for delay in after], 1), "count": len(after)}


LIMITS = {"counters": 120, "many": 300, "ready": 200}
"""Seconds."""
STAGES = {"counters": counters, "many": many, "ready": ready}


def main() -> None:
    """Run the stages that were asked for."""
    arguments = options()
    session = Session(*folders(arguments.out, "rca-gpu-scale"), arguments, file="scale.json")
    sys.path.insert(0, str(NATIVE.parent.parent))
    build(session)
    run_stages(session, STAGES, arguments.stages, limits=LIMITS)


if __name__ == "__main__":
    main()
