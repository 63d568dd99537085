"""Processes outside of a run that use the CPUs its threads wait for.

Looked for once a second at most, and only while threads wait. Names only: command lines may hold
secrets. Runs in the launcher. Standard library only.
"""

from __future__ import annotations

import os
from time import perf_counter_ns

from .watch import content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import NamedTuple

    class Neighbour(NamedTuple):
        """A process: its id, its name, and how many CPUs it kept busy."""

        pid: int
        name: str
        cpus: float

else:
    from collections import namedtuple

    Neighbour = namedtuple("Neighbour", "pid name cpus")

# Less of a CPU than this keeps nobody waiting.
LEAST_CPUS = 0.05
MOST = 5
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_KERNEL = 0x200000  # the flag of the kernel's own threads: looked at once and then left out


class Neighbours:
    """What every process had used of the CPUs when it was looked at last; `most` are told."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._time = 0
        self._spent: dict[tuple[int, int], int] = {}
        self._kernel: set[int] = set()

    def look(self, own: Collection[int], waiting: Collection[int]) -> list[Neighbour]:
        """The processes that used most since the last look, on CPUs that `waiting` may use.

        `own` are the processes of the run, `waiting` the threads that had to wait. Nothing while
        nobody waits, and at the first look after that.
        """
        before, began = self._spent, self._time
        self._spent, self._time = {}, perf_counter_ns()
        if not waiting:
            return []
        found: list[Neighbour] = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) not in own and int(entry) not in self._kernel:
                told = self._read(int(entry), before, self._time - began)
                if told is not None and told.cpus >= LEAST_CPUS:
                    found.append(told)
        allowed: set[int] = set()
        allowed.update(*map(_cpus_of, waiting))
        rivals = [one for one in found if _cpus_of(one.pid) & allowed]
        return sorted(rivals, key=lambda one: -one.cpus)[: self._most]

    def _read(self, pid: int, before: dict[tuple[int, int], int], passed: int) -> Neighbour | None:
        name, _, rest = content(f"/proc/{pid}/stat").partition(b"(")[2].rpartition(b")")
        words = rest.split()
        try:
            spent = (int(words[11]) + int(words[12])) * _TICK_NS
            key = pid, int(words[19])
            if int(words[6]) & _KERNEL:
                self._kernel.add(pid)
        except (ValueError, IndexError):
            return None
        self._spent[key] = spent
        if key not in before:
            return None
        return Neighbour(pid, name.decode("utf-8", "replace"), (spent - before[key]) / passed)


def _cpus_of(tid: int) -> set[int]:
    """The CPUs that a thread may use; none where it has ended."""
    try:
        return os.sched_getaffinity(tid)
    except OSError:
        return set()


def name_of(pid: int) -> str:
    """The name of a process, empty where it cannot be read."""
    return content(f"/proc/{pid}/comm").rstrip(b"\n").decode("utf-8", "replace")
