"""A tensor-parallel toy model on gloo: run by torchrun, one rank of it delayed on purpose.

Every step multiplies by a column-parallel and a row-parallel matrix and sums the ranks' parts with
an all-reduce, as a layer of a transformer does. What the delays really cost, by this program's own
clocks, every rank writes as JSON: ns of each step, before the all-reduce.

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

    def collect_again(self, _: float) -> int:
        """The same."""
        return self.collect()


class Hog:
    """Another process that wants the same core all the time."""

    def __init__(self) -> None:
        core = {sorted(os.sched_getaffinity(0))[-1]}
        os.sched_setaffinity(0, core)
        code = f"import os\nos.sched_setaffinity(0, {core})\nwhile os.getppid() != 1: pass"
        self.process = subprocess.Popen([sys.executable, "-S", "-E", "-c", code])

    def stop(self) -> None:
        """End it."""
        self.process.kill()


def work(ms: float) -> int:
    """Compute; how much longer it took than its processor time, ns."""
    begin = time.perf_counter_ns() - time.thread_time_ns()
    with span("work", kind="compute"):
        spin(ms)
    return time.perf_counter_ns() - time.thread_time_ns() - begin


def nothing(_: float) -> int:
    """No delay."""
    return 0


def delays(kind: str, mine: bool, ms: float) -> Callable[[float], int]:
    """What a rank does before each layer; it returns what that cost, ns.

    With a hog all ranks do the same work, and one has to share its core.
    """
    if kind == "hog":
        return work
    if not mine or kind == "none":
        return nothing
    return sleep if kind == "sleep" else Garbage(ms).collect_again


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", choices=["none", "sleep", "gc", "hog"], default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--ms", type=float, default=80)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--truth", required=True, help="a path, to which each adds its rank")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = rank == arguments.rank
    delay = delays(arguments.delay, mine, arguments.ms)
    hog = Hog() if mine and arguments.delay == "hog" else None
    torch.manual_seed(rank)
    column, row = torch.randn(WIDTH, WIDTH // size), torch.randn(WIDTH // size, WIDTH)
    state = torch.ones(16, WIDTH)
    took: list[int] = []
    dist.barrier()
    for step in range(arguments.steps):
        with span(f"step {step}", step=step):
            took.append(delay(arguments.ms))
            with span("layer", kind="compute"):
                part = torch.relu(state @ column) @ row
            dist.all_reduce(part)
            state = part / part.norm()
    waiting = dist.all_reduce(state, async_op=True)
    with span("meanwhile", kind="compute"):
        spin(5)
    waiting.wait()
    Path(f"{arguments.truth}.{rank}").write_text(json.dumps(took))
    dist.barrier()
    dist.destroy_process_group()
    if hog is not None:
        hog.stop()


if __name__ == "__main__":
    main()
