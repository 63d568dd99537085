"""Looks at the calling thread: how long it has run, waited for a CPU, and how often it faulted.

The launcher looks at every thread from outside, each 10 ms. A step must be told apart from what
comes before and after it more sharply than that, so its own thread looks when it begins and when it
ends, and where spans inside begin and end: a microsecond each, or a few without the fast paths.
Standard library only, Python >= 3.7.
"""

from __future__ import annotations

import os
from time import perf_counter_ns

from . import format as layout
from .recorder import FAULTS, WORDS_A_CELL, current, fast, local, native_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NEAR_NS = 20_000_000
"""By how much the kernel's count of time on CPU may lag: it is brought up to date at ticks."""

_SCHED = layout.tag(layout.SCHED, layout.FLAG_MORE) << 32
_MORE = layout.tag(layout.MORE) << 32


def look(within: bool) -> None:
    """Write what the kernel says of the calling thread; nothing where it does not say.

    ``within`` says that a step begins: then the edges of its spans are looked at too, each 2 ms at
    most, where the fast paths are built.
    """
    if _fast_look is None or not _fast_look(within):
        python_look()


def python_look() -> None:
    """``look`` without the fast paths, and where a block is full."""
    try:
        from resource import RUSAGE_THREAD, getrusage

        here = current()
        on_cpu = _thread_time()
        run_delay, slices = _schedstat(on_cpu)
        usage = getrusage(RUSAGE_THREAD)
        room = here.reserve(2)
        if room is None:
            return
        words, at = room
        more = at + WORDS_A_CELL
        words[more] = run_delay
        words[more + 1] = slices
        words[more + 2] = usage.ru_majflt & layout.ALL | layout.SCHED_FAULTS << 32
        words[more + 3] = int(usage.ru_stime * 1e6) & layout.ALL | _MORE
        words[at] = perf_counter_ns()
        words[at + 1] = on_cpu
        words[at + 2] = os.getpid() << 32
        words[at + 3] = native_id() | _SCHED
    except (OSError, ImportError, *FAULTS):
        pass


def _schedstat(on_cpu: int) -> tuple[int, int]:
    """The thread's run-queue delay so far, ns, and its time slices.

    Opening the file costs twenty times as much as reading it, so it stays open. A program may close
    descriptors that it does not know and get the number again for a file of its own; what is read
    must therefore agree with the thread's clock, and a descriptor that fails is let go of, never
    closed: it is not ours any more.
    """
    descriptor = local.__dict__.pop("schedstat", None)
    if descriptor is None:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    words = os.pread(descriptor, 100, 0).split()
    told = int(words[0])
    if not told <= on_cpu + NEAR_NS or on_cpu - told > NEAR_NS:
        raise ValueError("the descriptor of another file")
    local.schedstat = descriptor
    return int(words[1]), int(words[2])


def _no_time() -> int:
    raise OSError("no clock of threads")


def _clock() -> Callable[[], int]:
    try:
        from time import thread_time_ns

        return thread_time_ns
    except ImportError:
        return _no_time


_thread_time = _clock()


def _no_edge() -> None:
    """Nothing: without the fast paths a look costs more than it tells."""


_fast_look = getattr(fast, "look", None)
edge: Callable[[], None] = getattr(fast, "edge", _no_edge)
"""Looks where something long begins or ends inside of a step, each 2 ms at most, as spans do."""
