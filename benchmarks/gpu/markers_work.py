"""The program that `markers.py` traces: steps that launch far ahead of the device.

    python markers_work.py --told told.json

Each step launches a number of tiny kernels of its own, some of them by replaying a graph, behind
one long kernel, and no step waits for its kernels: when the host is at its last step the device
works on an early one. The JSON file gets the kernels of every step, and times: of a marked step
that launches nothing, of one launch, of one replay.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rca_llm.probes import gpu, recorder
from rca_llm.probes.engines import emit
from rca_llm.probes.span import span

NODES = 30
BLOCKS = 7


def marked(number: int, launch: Callable[[], Any]) -> None:
    """One step: a record, a span that carries its number, and markers around its launches."""
    step = emit.Step.of(number, time.monotonic_ns(), [])
    with span("launch", "compute", step=number):
        gpu.push_step(number)
        launch()
        gpu.pop_step()
    step.end(time.monotonic_ns(), ())


def ahead(x: Any, graph: Any, steps: int) -> dict[int, int]:
    """Steps of different length, all launched while the device is busy; the kernels of each."""
    counts: dict[int, int] = {}
    long = torch.ones(1 << 29, device="cuda")  # over which one kernel takes about a ms
    for number in range(1, steps + 1):
        eager, replays = 3 + number % 11, number % 3

        def launch(eager: int = eager, replays: int = replays) -> None:
            long.add_(1)
            for _ in range(eager):
                x.add_(1)
            for _ in range(replays):
                graph.replay()

        marked(number, launch)
        counts[number] = 1 + eager + replays * NODES
    torch.cuda.synchronize()
    return counts


def each_ns(action: Callable[[], Any], times: int) -> float:
    """Time of one of many, the median of several blocks; the device catches up between them."""
    found: list[float] = []
    for _ in range(BLOCKS):
        begun = time.perf_counter_ns()
        for _ in range(times):
            action()
        found.append((time.perf_counter_ns() - begun) / times)
        torch.cuda.synchronize()
    return round(median(found[1:]), 1)


def nothing_in_a_step() -> None:
    """A marked step that launches nothing: two markers."""
    gpu.push_step(1_000_000)
    gpu.pop_step()


def open_gate() -> None:
    """Let recording begin, and wait until the collector has noticed."""
    with Path(os.environ["RCA_LLM_RUN"], "control").open("r+b") as file:
        file.write(b"\1")
    time.sleep(0.5)


def main() -> None:
    """Warm up, run the steps, then the timed blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--told", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--times", type=int, default=20000)
    parser.add_argument("--paused", action="store_true", help="recording begins after the capture")
    arguments = parser.parse_args()
    recorder.start(os.environ["RCA_LLM_RUN"])
    x = torch.ones(256, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    gpu.push_step(1_000_001)  # of the capture: no kernel of the steps may be taken for its work
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            x.mul_(1)
    gpu.pop_step()
    if arguments.paused:
        open_gate()
    told: dict[str, Any] = {"collecting": gpu.collecting()}
    told["kernels"] = ahead(x, graph, arguments.steps)
    if arguments.times:
        told["two_markers_ns"] = each_ns(nothing_in_a_step, arguments.times)
        told["launch_ns"] = each_ns(lambda: x.add_(1), arguments.times)
        told["replay_ns"] = each_ns(graph.replay, arguments.times // 20)
    arguments.told.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
