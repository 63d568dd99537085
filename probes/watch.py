"""Looks at threads from outside: what the kernel counted for each since the last look.

Runs in the launcher. `native/_watch.c` does the same where a C compiler was found. Standard library
only.
"""

from __future__ import annotations

import os
from time import perf_counter_ns

from . import format as layout
from .recorder import WORDS_A_CELL, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# A thread that was blocked for so long since the last look is asked for its page faults: that costs
# more than the rest, and only then they matter.
BLOCKED_NS = 500_000
_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")


class Watch:
    """A thread: its schedstat file, kept open, and what it said last.

    After a look, `ran` says whether its numbers had changed and `ended` whether it is gone. While
    it runs it is asked for the CPU that it ran on last at least every so many ns, where that is not
    0; else it is told only with page faults.
    """

    __slots__ = ("_asked", "_descriptor", "_every", "_last", "_seen", "_told", "ended", "pid",
                 "ran", "tid")  # fmt: skip

    def __init__(self, pid: int, tid: int, every: int = 0) -> None:
        self.pid = pid
        self.tid = tid
        self._every = every
        self._told = 0
        self.ran = self.ended = self._asked = False
        self._last = (0, 0, 0)
        self._seen = perf_counter_ns()
        self._descriptor = os.open(f"/proc/{pid}/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def delay(self) -> int:
        """How long the thread was ready but without a CPU, ns, by the last look."""
        return self._last[1]

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)

    def look(self, words: memoryview[int], at: int) -> int:
        """Write two cells where the thread's numbers have changed; the words written."""
        self.ran = False
        try:
            on_cpu, delay, slices = map(int, os.pread(self._descriptor, 100, 0).split())
        except (OSError, ValueError):
            self.ended = True
            return 0
        if (on_cpu, delay, slices) == self._last:
            return 0
        now = perf_counter_ns()
        busy = on_cpu - self._last[0] + delay - self._last[1]
        ask = not self._asked or now - self._seen - busy >= BLOCKED_NS
        ask = ask or (self._every > 0 and now - self._told >= self._every)
        self._last, self._seen = (on_cpu, delay, slices), now
        self.ran = self._asked = True
        told = self._ask(now) if ask else None
        pages, kernel, cpu = told or (0, 0, -1)
        known = 0 if told is None else layout.SCHED_FAULTS
        put(words, at + WORDS_A_CELL, layout.MORE, delay, slices, pages, known, kernel)
        put(words, at, layout.SCHED, now, on_cpu, cpu + 1, self.pid, self.tid, layout.FLAG_MORE)
        return 2 * WORDS_A_CELL

    def _ask(self, now: int) -> tuple[int, int, int] | None:
        self._told = now
        return thread_stat(self.pid, self.tid)


def look(watches: Sequence[Watch], words: memoryview[int], at: int) -> int:
    """Look at threads and write what changed from word `at` on; the word behind it.

    Each takes two cells at most; those that there is no room for are not looked at.
    """
    for watch in watches:
        if at + 2 * WORDS_A_CELL > len(words):
            break
        at += watch.look(words, at)
    return at


def thread_stat(pid: int, tid: int) -> tuple[int, int, int] | None:
    """What a thread's `stat` says; None where it cannot be read.

    Its major page faults and its CPU time in the kernel, µs, both modulo 2^32, and the CPU that it
    ran on last.
    """
    words = stat(f"{pid}/task/{tid}")
    if len(words) < 37:
        return None
    return int(words[9]) & layout.ALL, int(words[12]) * _TICK_US & layout.ALL, int(words[36])


def stat(of: str) -> list[bytes]:
    """The words of a stat file behind the name; empty where it cannot be read."""
    words = content(f"/proc/{of}/stat").rpartition(b")")[2].split()
    return words if len(words) > 12 and words[9].isdigit() and words[12].isdigit() else []


def content(path: str) -> bytes:
    """A small file of /proc, empty where it cannot be read; with three system calls, not eight."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
