"""What it costs to ask where a process runs: the CPU of threads, the nodes of its pages.

    python benchmarks/where.py [--sizes 64,1024] [--rounds 9] [--json FILE]

`look`: a look at a busy thread that reads `schedstat` alone, and one that reads `stat` too, for the
CPU it ran on; in turns, µs of CPU time of the looking thread (best and median of the rounds).
`pages`: a process with so many MiB of its own, in pages of 4 KiB and in huge ones, is asked for
where they lie, by a sample (`move_pages`) and by all of them (`numa_maps`): ms of CPU time of the
asking thread, and the longest that an `mmap` and `munmap` of one page took the process meanwhile
(ms), beside that of as long a time in which nobody asks. Machines with one node answer alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from rca_llm.probes import format as layout
from rca_llm.probes import pages

LOOKS = 200
watch: Any = import_module("rca_llm.probes.watch")
with contextlib.suppress(ImportError):  # in Python where there was no C compiler
    watch = import_module("rca_llm.probes.native._watch")
_HELD = """
import mmap, sys, time
size = int(sys.argv[1]) << 20
own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
own.madvise(int(sys.argv[2]))
for at in range(0, size, 4096):
    own[at] = 1
print("ready", flush=True)
for line in sys.stdin:
    longest, until = 0, time.monotonic() + float(line)
    while time.monotonic() < until:
        begun = time.perf_counter_ns()
        mmap.mmap(-1, 4096).close()
        longest = max(longest, time.perf_counter_ns() - begun)
        time.sleep(0)
    print(longest, flush=True)
"""


def looks(rounds: int) -> dict[str, Any]:
    """A look with and without `stat`, µs of CPU time."""
    words = memoryview(bytearray(4 * LOOKS * layout.CELL_BYTES)).cast("q")
    found: dict[str, list[float]] = {"schedstat": [], "and stat": []}
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as busy:
        ways = {
            "schedstat": [watch.Watch(busy.pid, busy.pid)],
            "and stat": [watch.Watch(busy.pid, busy.pid, 1)],
        }
        for _ in range(rounds):
            for name, watches in ways.items():
                spent, at = 0, 0
                for _ in range(LOOKS):
                    time.sleep(0.001)
                    begun = time.thread_time_ns()
                    at = watch.look(watches, words, at)
                    spent += time.thread_time_ns() - begun
                found[name].append(spent / 1000 / max(at // 8, 1))
        busy.kill()
    return {name: [min(each), statistics.median(each)] for name, each in found.items()}


def held(size: int, advice: int, rounds: int) -> dict[str, Any]:
    """Asking a process with so many MiB, by each way."""
    command = [sys.executable, "-S", "-c", _HELD, str(size), str(advice)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ways: dict[str, Callable[[int], dict[int, int] | None]] = {
            "nobody asks": lambda pid: {},
            "a sample": pages.sampled,
            "all": pages.counted,
        }
        found = {name: asked(process, way, rounds) for name, way in ways.items()}
        process.kill()
    return found


def asked(
    process: subprocess.Popen[str], way: Callable[[int], dict[int, int] | None], rounds: int
) -> dict[str, Any]:
    """Ask again and again while the process maps and unmaps pages."""
    assert process.stdin is not None
    assert process.stdout is not None
    spent, waits, answer = list[float](), list[float](), None
    for _ in range(rounds):
        process.stdin.write("0.3\n")
        time.sleep(0.1)
        begun = time.thread_time_ns()
        answer = way(process.pid)
        spent.append((time.thread_time_ns() - begun) / 1e6)
        waits.append(int(process.stdout.readline()) / 1e6)
    return {
        "cpu_ms": [min(spent), statistics.median(spent)],
        "longest_mmap_ms": [statistics.median(waits), max(waits)],
        "pages": answer,
    }


def main() -> None:
    """Measure, print, and write JSON where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="64,1024", help="MiB, comma separated")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pages.MOST_COUNTED = 1 << 40  # what the limit is there for is what is measured
    found: dict[str, Any] = {"load": os.getloadavg(), "look": looks(arguments.rounds)}
    for size in map(int, arguments.sizes.split(",")):
        for name, advice in (("4 KiB", mmap.MADV_NOHUGEPAGE), ("huge", mmap.MADV_HUGEPAGE)):
            found[f"{size} MiB, {name}"] = held(size, advice, arguments.rounds)
    print(json.dumps(found, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
