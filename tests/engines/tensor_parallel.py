"""A tensor-parallel toy model on gloo: run by torchrun, one rank of it delayed on purpose.

Every step multiplies by a column-parallel and a row-parallel matrix and sums the ranks' parts with
an all-reduce, as a layer of a transformer does. What the delays really took, by this program's own
clock, is written as JSON by rank 0's neighbour: the rank that was delayed.

    torchrun --nproc-per-node 2 tensor_parallel.py --delay sleep --rank 1 --truth truth.json
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from rca_llm import span

WIDTH = 256
MS = 1_000_000


def spin(cpu_ms: float) -> None:
    """Use the processor for this long, by this thread's own clock."""
    until = time.thread_time_ns() + int(cpu_ms * MS)
    while time.thread_time_ns() < until:
        pass


def sleep(ms: float) -> int:
    """Do nothing; how long that took, ns."""
    begin = time.perf_counter_ns()
    time.sleep(ms / 1000)
    return time.perf_counter_ns() - begin


class Garbage:
    """A heap on which one collection takes about as long as wanted."""

    def __init__(self, ms: float) -> None:
        gc.disable()
        self.heap: list[list[object]] = []
        while self.collect() < ms * MS:
            self.heap += [[None] for _ in range(100_000)]

    def collect(self) -> int:
        """Collect; how long that took, ns."""
        begin = time.perf_counter_ns()
        gc.collect()
        return time.perf_counter_ns() - begin

    def delay(self, _: float) -> int:
        """The same."""
        return self.collect()


class Hog:
    """Another process that wants the same core all the time."""

    def __init__(self) -> None:
        core = {sorted(os.sched_getaffinity(0))[-1]}
        os.sched_setaffinity(0, core)
        code = f"import os\nos.sched_setaffinity(0, {core})\nwhile os.getppid() != 1: pass"
        self.process = subprocess.Popen([sys.executable, "-S", "-E", "-c", code])

    def delay(self, ms: float) -> int:
        """Work that takes longer than its processor time; by how much, ns."""
        begin = time.perf_counter_ns() - time.thread_time_ns()
        with span("work", kind="compute"):
            spin(ms)
        return time.perf_counter_ns() - time.thread_time_ns() - begin


def delays(kind: str, ms: float) -> Callable[[float], int]:
    """What delays a rank; returns the ns that it cost."""
    if kind == "sleep":
        return sleep
    return Garbage(ms).delay if kind == "gc" else Hog().delay


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", choices=["none", "sleep", "gc", "hog"], default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--ms", type=float, default=80)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--truth", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = arguments.delay != "none" and rank == arguments.rank
    delay = delays(arguments.delay, arguments.ms) if mine else None
    torch.manual_seed(rank)
    column, row = torch.randn(WIDTH, WIDTH // size), torch.randn(WIDTH // size, WIDTH)
    state = torch.ones(16, WIDTH)
    took: list[int] = []
    dist.barrier()
    for step in range(arguments.steps):
        with span(f"step {step}", step=step):
            if delay is not None:
                took.append(delay(arguments.ms))
            with span("layer", kind="compute"):
                part = torch.relu(state @ column) @ row
            dist.all_reduce(part)
            state = part / part.norm()
    waiting = dist.all_reduce(state, async_op=True)
    with span("meanwhile", kind="compute"):
        spin(5)
    waiting.wait()
    if mine:
        arguments.truth.write_text(json.dumps(took))
    dist.barrier()
    dist.destroy_process_group()
    if isinstance(getattr(delay, "__self__", None), Hog):
        delay.__self__.process.kill()  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
