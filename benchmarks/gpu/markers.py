"""Whether markers tell the step of kernels that run long after their launch, and what they cost.

    OUT=results benchmarks/gpu/run.sh markers.py

`agree` runs `markers_work.py` with calls recorded and markers made (`RCA_LLM_GPU=full`,
`RCA_LLM_STEPS=on`): of every kernel the step by markers against the step whose span its launch is
in. `default` runs it in the mode `kernels`: the kernels of every step against those that the
program launched, and how many of them their start alone would give to another. `price` runs it in
turns with markers and without: a step's two markers, a launch and a replay. `paused` is `default`
where recording begins after the graph was captured; `calls`, only when asked for, is `default` with
other calls of the driver for markers. Results go to `markers.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from collector import NATIVE, Session, build, facts_of, read
from generate import compared
from stages import folders, run_stages

WORK = Path(__file__).with_name("markers_work.py")
ROUNDS = 2


def work(session: Session, name: str, *words: str, **env: str) -> tuple[Path, dict[str, Any]]:
    """Run the program in a run directory; its recording, and what it told."""
    told = session.work / f"{name}.json"
    told.unlink(missing_ok=True)
    run, traced = session.traced(name, **env)
    if "--paused" in words:
        (run / "control").write_bytes(bytes(4096))
    command = [sys.executable, str(WORK), "--told", str(told), *words]
    done = session.run(command, traced, 60)
    if done["status"] != 0:
        raise RuntimeError(f"status {done['status']}: {done['said']}")
    return run, done | json.loads(told.read_text())


def by_launch(timeline: Any) -> tuple[Any, Any]:
    """The steps of a recording, and the step of each `gpu` row without what the record says."""
    from rca_llm.attribute import partition, step_work
    from rca_llm.table import UNKNOWN

    gpu = timeline["gpu"]
    recording = partition.prepare(timeline)
    timeline.tables["gpu"] = gpu.with_columns(step=np.full(len(gpu), UNKNOWN))
    rows, every = np.arange(len(recording.steps)), np.ones(len(gpu), bool)
    held = step_work.find(timeline, recording.links, recording.steps, rows, every)
    timeline.tables["gpu"] = gpu
    return recording.steps, held.of_gpu


def per_step(stated: Any, kernel: Any, expected: dict[str, int]) -> dict[str, Any]:
    """How many steps have as many kernels as the program launched in them."""
    counted: Counter[int] = Counter(stated[kernel & (stated >= 0)].tolist())
    right = sum(counted[int(step)] == count for step, count in expected.items())
    return {"steps": len(expected), "as_launched": right, "in_other_steps": len(counted) - right}


def agree(session: Session) -> None:
    """With calls recorded: markers against containment."""
    env = {"RCA_LLM_GPU": "full", "RCA_LLM_STEPS": "on"}
    run, told = work(session, "agree", "--times", "0", **env)
    timeline = read(run)
    gpu = timeline["gpu"]
    stated = np.array(gpu["step"])
    steps, held = by_launch(timeline)
    found = compared(gpu, stated, held, steps)
    found["with_a_marker"] = found.pop("with_external_id")
    found |= per_step(stated, gpu["kind"] == 0, told["kernels"])
    session.keep("agree", found | {"status": told["status"], "facts": facts_of(run)})


def default(session: Session) -> None:
    """Without calls: markers against what the program launched, and the start alone against it."""
    session.keep("default", without_calls(session, "default"))


def paused(session: Session) -> None:
    """The same where recording begins after the graph was captured."""
    session.keep("paused", without_calls(session, "paused", "--paused"))


def calls(session: Session) -> None:
    """The same with other calls of the driver as markers, and what two of those cost."""
    for call in CALLS:
        cc = [os.environ.get("CC", "cc"), "-std=c11", "-O2", "-D_GNU_SOURCE", "-fPIC", "-shared"]
        sources = [str(path) for path in NATIVE.glob("*.c") if not path.name.startswith("_")]
        named = ["-fvisibility=hidden", f'-DMARKER_CALL="{call}"', "-o", str(session.collector)]
        session.run([*cc, *sources, *named, "-Wl,-z,nodelete", "-pthread", "-ldl"], {})
        found = without_calls(session, call)
        words = ("--steps", "10", "--times", str(session.arguments.times))
        _, told = work(session, call, *words, RCA_LLM_GPU="kernels", RCA_LLM_STEPS="on")
        session.keep(call, found | {"two_markers_ns": told["two_markers_ns"]})


def without_calls(session: Session, name: str, *words: str) -> dict[str, Any]:
    """Steps by markers against what was launched, and by the start alone against markers."""
    env = {"RCA_LLM_GPU": "kernels", "RCA_LLM_STEPS": "on"}
    run, told = work(session, name, "--times", "0", *words, **env)
    timeline = read(run)
    gpu = timeline["gpu"]
    stated, kernel = np.array(gpu["step"]), np.array(gpu["kind"]) == 0
    steps, held = by_launch(timeline)
    by_start = np.where(held >= 0, steps.id[np.maximum(held, 0)], -1)
    known = kernel & (stated >= 0)
    found = per_step(stated, kernel, told["kernels"])
    found |= {
        "status": told["status"],
        "kernels": int(kernel.sum()),
        "launched_in_steps": sum(told["kernels"].values()),
        "with_a_marker": int(known.sum()),
        "otherwise_by_start": int((known & (by_start != stated)).sum()),
        "calls": len(timeline["api"]),
        "facts": facts_of(run),
    }
    return found


def price(session: Session) -> None:
    """In turns with markers and without; medians over the rounds, and all of them."""
    rounds: dict[str, list[dict[str, Any]]] = {"on": [], "off": []}
    for _ in range(ROUNDS):
        for steps, rows in rounds.items():
            words = ("--steps", "10", "--times", str(session.arguments.times))
            _, told = work(session, "price", *words, RCA_LLM_GPU="kernels", RCA_LLM_STEPS=steps)
            rows.append(
                {key: told.get(key) for key in ("two_markers_ns", "launch_ns", "replay_ns")}
            )
    found: dict[str, Any] = {"rounds": rounds}
    for key in ("two_markers_ns", "launch_ns", "replay_ns"):
        found[key] = {steps: median(row[key] for row in rows) for steps, rows in rounds.items()}
    session.keep("price", found)


STAGES = {
    "build": build,
    "agree": agree,
    "default": default,
    "paused": paused,
    "price": price,
    "calls": calls,
}
ASKED = "build,agree,default,paused,price"
LIMITS = {"build": 60, "agree": 40, "default": 40, "paused": 40, "price": 90}
"""Seconds."""
CALLS = ("cuDeviceGetCount", "cuCtxGetCurrent", "cuCtxGetDevice")


def main() -> None:
    """Run the stages that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--stages", default=ASKED)
    parser.add_argument("--times", type=int, default=20000, help="launches in a timed block")
    arguments = parser.parse_args()
    arguments.dry_run = False
    session = Session(*folders(arguments.out, "rca-gpu-markers"), arguments, file="markers.json")
    run_stages(session, STAGES, arguments.stages, limits=LIMITS)


if __name__ == "__main__":
    main()
