"""What a page fault costs this machine's processor: measured, since the kernel does not tell.

The kernel counts a thread's major faults, and how long it was blocked. What it worked for them it
samples at ticks, at which a thread that was just woken hardly ever runs.
"""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_THREAD, getrusage

WORK_METRIC = "page_fault.work_ns"
PAGES = 64
WORTH = 100
"""Fewer major faults of the command are not worth the measurement."""


def happened() -> bool:
    """Whether the processes that this one started and that ended had faults worth mentioning."""
    return getrusage(RUSAGE_CHILDREN).ru_majflt >= WORTH


def work_ns(folder: Path) -> int | None:
    """CPU time that a major fault of one page takes, ns; None where a folder's files have none.

    Touches the pages of a file of its own, on disk and out of memory, in random order.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(PAGES * mmap.PAGESIZE))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
                pages.madvise(mmap.MADV_RANDOM)
                return _touched(pages)
    except OSError:
        return None


def _touched(pages: mmap.mmap) -> int | None:
    order = list(range(PAGES))
    random.Random(0).shuffle(order)
    faults, began = getrusage(RUSAGE_THREAD).ru_majflt, time.thread_time_ns()
    for page in order:
        pages[page * mmap.PAGESIZE]
    spent, faults = time.thread_time_ns() - began, getrusage(RUSAGE_THREAD).ru_majflt - faults
    return spent // faults if faults >= PAGES // 2 else None
