"""Checks the transformers probe on a GPU: every kernel has its step, every step its requests.

    OUT=results benchmarks/gpu/run.sh generate.py
    python benchmarks/gpu/generate.py --out results --device cpu --size tiny    # without a GPU

Runs `generate_work.py` once untraced and once under `rca-llm trace` with external correlation ids
pushed around every step, and compares, kernel by kernel, the step that its launch's time lies in
(containment) with the step whose id CUPTI handed back with it. Results go to `generate.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from collector import NATIVE, ROOT, Session, build, read
from stages import folders, run_stages

sys.path.insert(0, str(ROOT))
from rca_llm.table import UNKNOWN  # from this tree, which need not be installed
from rca_llm.trace import KERNEL

WORK = Path(__file__).with_name("generate_work.py")
LIMIT_S = 150
FIELDS = ("grid_x", "block_x", "registers")


def work(session: Session, name: str, under: list[str], **env: str) -> dict[str, Any]:
    """Run the program once; its status and its own stamps."""
    told = session.work / f"{name}.json"
    told.unlink(missing_ok=True)
    chosen = session.arguments
    command = [*under, sys.executable, str(WORK), "--told", str(told), "--size", chosen.size]
    command += ["--device", chosen.device, "--backend", chosen.backend, "--modes", chosen.modes]
    done = session.run(command, env, LIMIT_S)
    done["batches"] = json.loads(told.read_text()) if told.exists() else []
    return done


def untraced(session: Session) -> None:
    """The program alone: what it answers, and how long that takes."""
    session.keep("untraced", work(session, "untraced", []))


def traced(session: Session) -> None:
    """The program under `rca-llm trace`, as a user runs it, with external ids."""
    run = session.work / "generate.rca"
    shutil.rmtree(run, ignore_errors=True)
    native = NATIVE / session.collector.name
    if session.collector.exists() and not native.exists():
        shutil.copy(session.collector, native)
    under = [sys.executable, "-m", "rca_llm", "trace", "--gpu", "full", "-o", str(run), "--"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = work(session, "traced", under, PYTHONPATH=path, RCA_LLM_EXTERNAL="on")
    session.keep("traced", done)


def same_output(session: Session) -> None:
    """Whether tracing changed a single token, and what it cost."""
    found: dict[str, Any] = {}
    alone, watched = (session.results[name]["batches"] for name in ("untraced", "traced"))
    found["same_tokens"] = [b["tokens"] for b in alone] == [b["tokens"] for b in watched]
    found["batches"] = len(watched)
    for mode in session.arguments.modes.split(","):
        times = [
            median(b["end"] - b["begin"] for b in rows if b["mode"] == mode and not b["warm"])
            for rows in (alone, watched)
        ]
        found[mode] = {"untraced_ns": times[0], "traced_ns": times[1]}
    session.keep("same_output", found)


def steps(session: Session) -> None:
    """Containment against external correlation, and what every kernel record holds."""
    from rca_llm.attribute import partition, step_work

    timeline = read(session.work / "generate.rca")
    gpu = timeline["gpu"]
    recording = partition.prepare(timeline)
    found = recording.steps
    timeline.tables["gpu"] = gpu.with_columns(step=np.full(len(gpu), UNKNOWN))
    every = np.ones(len(gpu), bool)
    work = step_work.find(timeline, recording.links, found, np.arange(len(found)), every)
    session.keep("steps", compared(gpu, np.array(gpu["step"]), work.of_gpu, found))


def compared(gpu: Any, stated: Any, held: Any, found: Any) -> dict[str, Any]:
    """Counts: how many records agree, and how many lack something."""
    kernel = gpu["kind"] == KERNEL
    known = stated >= 0
    by_time = np.where(held >= 0, found.id[np.maximum(held, 0)], -1)
    return {
        "steps": len(found),
        "records": len(gpu),
        "kernels": int(kernel.sum()),
        "with_external_id": int(known.sum()),
        "agree": int((known & (by_time == stated)).sum()),
        "disagree": int((known & (by_time != stated)).sum()),
        "only_by_time": int((~known & (held >= 0)).sum()),
        "disagreeing_kernels": int((known & (by_time != stated) & kernel).sum()),
        "kernels_in_no_step": int((kernel & (held < 0)).sum()),
        "kernels_without": {name: int((gpu[name][kernel] <= 0).sum()) for name in FIELDS},
        "kernels_in_graphs": int((gpu["graph_node"][kernel] > 0).sum()),
    }


def requests(session: Session) -> None:
    """Every row of every batch is a request whose parts add up, timed as the program timed it."""
    from rca_llm.readers import read as read_trace

    summary = read_trace(session.work / "generate.rca").attribute().summary
    rows = summary["requests"]
    total = sum(row["latency_ns"] for row in rows)
    other = sum(row["parts"].get("scheduling.other", 0) for row in rows)
    batches = session.results["traced"]["batches"]
    by_batch: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_batch.setdefault(row["id"].rpartition("/")[0], []).append(row)
    off = [
        abs(row["latency_ns"] - (batch["end"] - batch["begin"]))
        for batch, members in zip(batches, by_batch.values(), strict=True)
        for row in members
    ]
    session.keep(
        "requests",
        {
            "requests": len(rows),
            "expected": 4 * len(batches),
            "add_up": all(sum(row["parts"].values()) == row["latency_ns"] for row in rows),
            "other_share": other / total,
            "worst_off_ns": max(off),
            "steps": len(summary["steps"]),
            "steps_without_kernels": sum(not step["kernels"] for step in summary["steps"]),
            "modes": sorted({str(step["mode"]) for step in summary["steps"]}),
            "parts": summary["requests"][-1]["parts"],
            "quality": summary["quality"],
        },
    )


LIMITS = {"build": 120, "untraced": 160, "traced": 160}
"""Seconds."""
STAGES = {
    "build": build,
    "untraced": untraced,
    "traced": traced,
    "same_output": same_output,
    "steps": steps,
    "requests": requests,
}


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--size", default="1b", choices=("tiny", "1b"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--modes", default="eager,graph")
    parser.add_argument(
        "--backend", default="cudagraphs", choices=("cudagraphs", "inductor", "eager")
    )
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Run the stages that were asked for."""
    arguments = options()
    session = Session(*folders(arguments.out, "rca-gpu-generate"), arguments, file="generate.json")
    run_stages(session, STAGES, arguments.stages, limits=LIMITS)


if __name__ == "__main__":
    main()
