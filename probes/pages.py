"""Where the memory of processes lies: the NUMA nodes of the pages that they made for themselves.

Runs in the launcher, on machines with several nodes. Of each process a few thousand pages, spread
evenly over its anonymous and shared memory, are asked for their node (`move_pages` without a
target moves nothing): what that costs does not grow with the process. Where that system call is
forbidden, as in most containers, `numa_maps` counts all pages; since it walks the page tables with
the process's memory map locked, only small processes are looked at so. Pages of files are left
out: the page cache put them where they are. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
from time import monotonic

from .nodes import MOST
from .watch import content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from .system import Sink

METRIC = "process.numa_pages."
"""With the number of a node: how many of the pages looked at lie there."""
SAMPLED = 2048
"""Pages that are looked at: a tenth of them is told to within 1.3 points, nineteen times in 20."""
MOST_COUNTED = 1 << 30
"""Bytes of memory of its own up to which `numa_maps` of a process is read. In pages of 4 KiB and
one mapping that took 22 ms on a VM, for which an `mmap` of the process waited."""
FIRST_S, LAST_S = 1.0, 60.0
"""After so long a process is looked at, then after twice as long, and so on up to the second."""
PAGE = os.sysconf("SC_PAGE_SIZE")
"""Bytes of a page of the usual size."""
_MOVE_PAGES = {"x86_64": 279, "aarch64": 239}.get(os.uname().machine)
_OWN = (b"[heap", b"[stack", b"[anon", b"/dev/shm/", b"/dev/zero", b"/memfd:", b"/SYSV",
        b"/anon_hugepage")  # fmt: skip


class Pages:
    """Looks at processes, one at a time, each ever more rarely."""

    def __init__(self, sink: Sink, nodes: Iterable[int]) -> None:
        self._sink = sink
        self._nodes = list(nodes)
        self._due: dict[int, tuple[float, float]] = {}  # when next, and how long after the last

    def look(self, pids: Collection[int]) -> int | None:
        """Look at the process that is due longest, and say which that was."""
        now = monotonic()
        for pid in [*self._due]:
            if pid not in pids:
                del self._due[pid]
        for pid in pids:
            self._due.setdefault(pid, (now + FIRST_S, FIRST_S))
        due = [(when, pid) for pid, (when, _) in self._due.items() if when <= now]
        if not due:
            return None
        _, pid = min(due)
        pause = min(2 * self._due[pid][1], LAST_S)
        self._due[pid] = now + pause, pause
        found = pages_by_node(pid)
        for node in sorted({*self._nodes, *found}) if found else []:
            self._sink.process(f"{METRIC}{node}", pid, float(found.get(node, 0)))
        return pid


def pages_by_node(pid: int) -> dict[int, int]:
    """How many pages of those looked at lie on each node; empty where nobody may know."""
    try:
        found = sampled(pid)
        return counted(pid) if found is None else found
    except (OSError, ValueError):
        return {}


def sampled(pid: int) -> dict[int, int] | None:
    """The nodes of pages spread over a process's memory; None where that is forbidden."""
    places = spread(list(_areas(pid)), SAMPLED)
    if _MOVE_PAGES is None or not places:
        return None if places else {}
    pages = (ctypes.c_void_p * len(places))(*places)
    status = (ctypes.c_int * len(places))()
    count, flags = ctypes.c_ulong(len(places)), ctypes.c_int(0)
    if ctypes.CDLL(None).syscall(_MOVE_PAGES, pid, count, pages, None, status, flags):
        return None
    return _tally((node, 1) for node in status)


def _areas(pid: int) -> Iterator[tuple[int, int]]:
    """From where to where a process has writable memory that is no file's, in bytes."""
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            words = line.split(None, 5)
            if len(words) > 4 and words[1][:2] == b"rw" and _own(words[5:]):
                first, _, last = words[0].partition(b"-")
                yield int(first, 16), int(last, 16)


def _own(path: list[bytes]) -> bool:
    return not path or path[0].startswith(_OWN)


def spread(areas: list[tuple[int, int]], most: int) -> list[int]:
    """Addresses of pages at even distances over some areas."""
    total = sum(last - first for first, last in areas) // PAGE
    count = min(total, most)
    places: list[int] = []
    before = 0
    for first, last in areas:
        pages = (last - first) // PAGE
        while len(places) < count and (at := len(places) * total // count) < before + pages:
            places.append(first + (at - before) * PAGE)
        before += pages
    return places


def counted(pid: int) -> dict[int, int]:
    """All pages of a small process by node, as `numa_maps` says."""
    if (own := _bytes(pid)) is None or own > MOST_COUNTED:
        return {}
    with open(f"/proc/{pid}/numa_maps", "rb") as file:
        return _tally(pair for line in file for pair in line_pages(line))


def _bytes(pid: int) -> int | None:
    """How much memory that is no file's a process has; None where nobody says."""
    lines = content(f"/proc/{pid}/status").splitlines()
    sizes = [line.split()[1] for line in lines if line.startswith((b"RssAnon:", b"RssShmem:"))]
    return sum(map(int, sizes)) * 1024 if sizes else None


def line_pages(line: bytes) -> Iterator[tuple[int, int]]:
    """The nodes of one mapping, each with its pages of the usual size; none of a file's."""
    words = line.split()
    if not _own([word[5:] for word in words if word.startswith(b"file=")]):
        return
    sizes = [int(word[18:]) for word in words if word.startswith(b"kernelpagesize_kB=")]
    usual = max(sizes[0] * 1024 // PAGE, 1) if sizes else 1
    for word in words:
        node, _, count = word[1:].partition(b"=")
        if word.startswith(b"N") and node.isdigit() and count.isdigit():
            yield int(node), int(count) * usual


def _tally(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Sums by node; what is no node's (a page that is not there) has a number below 0."""
    found: dict[int, int] = {}
    for node, count in pairs:
        if 0 <= node < MOST:
            found[node] = found.get(node, 0) + count
    return found
