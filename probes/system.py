"""What the kernel tells about the processes of a run: run-queue delay, memory, IO, throttling.

Runs in the launcher, not in a traced process. A `System` is asked again and again and writes SCHED,
SAMPLE and INFO cells into the launcher's own segment. Everything that a machine does not offer
(cgroups, pressure files, schedstat) is left out. Standard library only.
"""

from __future__ import annotations

import os
import struct
from time import perf_counter_ns

from . import format as layout
from .neighbours import Neighbours
from .quotas import Quotas
from .recorder import WORDS_A_CELL, Recorder, command_name, process_start
from .watch import content, stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from mmap import mmap
    from typing import Any

    from .watch import Watch, look

    follow: Any = None
else:
    try:  # built for this very Python, or not at all
        from .native._watch import Watch, follow, look
    except ImportError:
        from .watch import Watch, look

        follow = None

# A thread that waited so long for a CPU in a second makes it worth looking who had it.
WAITED_NS = 5_000_000
# On a machine with several NUMA nodes a running thread is asked that often for the CPU it ran on.
CPU_NS = 100_000_000
# At most this many threads are followed closely; the others are looked at with every census.
MAX_THREADS = 128
# So often each of them is looked at between two visits of Python, at most.
MOST_LOOKS = 32
_DEVICE, _PROCESS = layout.SUBJECTS.index("device"), layout.SUBJECTS.index("process")
_CGROUP, _HOST = layout.SUBJECTS.index("cgroup"), layout.SUBJECTS.index("host")


class Sink:
    """Writes the launcher's cells; numbers of devices and hosts as SAMPLE."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._told: dict[int, str] = {}

    def sample(self, metric: str, value: float, subject: int = _HOST, of: int = layout.ALL) -> None:
        """One value of ``metric`` now."""
        bits = struct.unpack("<q", struct.pack("<d", value))[0]
        name = self.recorder.ids[metric]
        self.recorder.cell(layout.SAMPLE, perf_counter_ns(), bits, name, of, subject)

    def device(self, metric: str, device: int, value: float) -> None:
        """One value of a GPU."""
        self.sample(metric, value, _DEVICE, device)

    def process(self, metric: str, pid: int, value: float) -> None:
        """One value of a process."""
        self.sample(metric, value, _PROCESS, pid)

    def neighbour(self, pid: int, name: str) -> None:
        """The name of a process outside of the run, once."""
        if name and self._told.get(pid) != name:
            self._told[pid] = name
            self.recorder.info("neighbour", name, 0, pid)


class System:
    """Samples the process tree that begins at ``root`` and the machine below it.

    ``tick`` is meant every 10 ms, ``census`` a few times a second, ``slow`` about once a second.
    """

    def __init__(self, recorder: Recorder, root: int, run: str, nodes: Sequence[int] = ()) -> None:
        self.sink = Sink(recorder)
        self.root = root
        self.run = run
        self._every = CPU_NS if len(nodes) > 1 else 0
        self.names: dict[int, str] = {}
        self.starts: dict[int, int] = {}
        self._threads: dict[tuple[int, int], Watch] = {}
        self._busy: list[Watch] = []
        self._found: list[int] = []
        self._last_id = b""
        self._changed = True
        self._quotas = Quotas()
        self._quotas.watch(root)
        self._thread_names: dict[tuple[int, int], str] = {}
        self._neighbours = Neighbours()
        self._delays: dict[tuple[int, int], int] = {}

    def tick(self) -> None:
        """Read the threads that ran since the last census."""
        self._look(self._busy)
        if self._quotas and self._quotas.grown():
            self._throttled()

    def follow(self, period_s: float, until: float, gate: mmap, ends: bytearray) -> None:
        """`tick` now and again and again until a time of `time.monotonic`, in C where it can be.

        It may end earlier, and does where the gate is shut or `ends` is set. What Python does at
        each look costs three times as much as the look: it must be woken, and finds its caches
        cold. Quotas are read in Python; where there are any, or no C, this is one `tick`.
        """
        if not follow or self._quotas:
            self.tick()
            return
        recorder, threads = self.sink.recorder, self._busy
        once, left = 2 * len(threads), (recorder.end - recorder.at) // WORDS_A_CELL
        room = recorder.reserve_always(max(once, min(once * MOST_LOOKS, left)))
        if room is not None:
            words, at = room
            period, end = int(period_s * 1e9), int(until * 1e9)
            recorder.at = follow(threads, words, at, gate, ends, period, end)
        self._forget_ended(threads)

    def _throttled(self) -> None:
        self.sink.sample("cpu.throttled_count", float(self._quotas.count), _CGROUP)
        if self._quotas.total_ns or not self._quotas.count:
            self.sink.sample("cpu.throttled_ns", float(self._quotas.total_ns), _CGROUP)

    def _look(self, threads: list[Watch]) -> None:
        """Write what changed of some threads, and forget those that have ended."""
        recorder = self.sink.recorder
        room = recorder.reserve_always(2 * len(threads)) if threads else None
        if room is not None:
            words, at = room
            recorder.at = look(threads, words, at)  # the rest of the room is free again
        self._forget_ended(threads)

    def _forget_ended(self, threads: list[Watch]) -> None:
        if any(thread.ended for thread in threads):
            for thread in threads:
                if thread.ended:
                    self._threads.pop((thread.pid, thread.tid), None)
            self._busy = [thread for thread in self._busy if not thread.ended]

    def census(self) -> None:
        """Find new processes and threads, and choose the threads to follow closely."""
        if self._may_be_more():
            self._discover()
        threads = list(self._threads.values())
        self._look(threads)
        self._busy = [thread for thread in threads if thread.ran and not thread.ended]
        del self._busy[MAX_THREADS:]

    def _may_be_more(self) -> bool:
        """Whether a process or thread was started lately, by the last id that the kernel gave.

        Once more after that, since a new process may not yet be what it becomes by `exec`. A
        container may show an id of its own making: `slow` looks in any case.
        """
        last = content("/proc/loadavg").rpartition(b" ")[2].strip()
        changed = last != self._last_id or last in (b"", b"0")
        again, self._changed = self._changed, changed
        self._last_id = last
        return changed or again

    def _discover(self) -> None:
        self._found = self._processes()
        for pid in self._found:
            is_new = pid not in self.starts
            self._describe(pid)
            for tid in _numbers(f"/proc/{pid}/task"):
                self._add(pid, tid)
            if is_new:
                self._measure(pid)

    def _measure(self, pid: int) -> None:
        self._quotas.watch(pid)
        self._memory(pid)

    def _add(self, pid: int, tid: int) -> None:
        if (pid, tid) in self._threads or len(self._threads) >= 4 * MAX_THREADS:
            return
        try:
            self._threads[pid, tid] = Watch(pid, tid, self._every)
        except OSError:
            return
        name = _line(f"/proc/{pid}/task/{tid}/comm")
        if name and self._thread_names.get((pid, tid)) != name:
            self._thread_names[pid, tid] = name
            self.sink.recorder.info("thread.name", name, tid, pid)

    def _processes(self) -> list[int]:
        """The living processes of the tree, those whose parents ended among them."""
        found = [self.root]
        for pid in self.starts:
            if pid != self.root and process_start(pid) == self.starts[pid]:
                found.append(pid)
        known = set(found)
        for pid in found:
            for child in _children(pid):
                if child not in known:
                    known.add(child)
                    found.append(child)
        found.extend(pid for pid in self._recording() if pid not in known)
        return found

    def _recording(self) -> Iterator[int]:
        """Living processes that write segments, however they were started."""
        for entry in _names(os.path.join(self.run, layout.SEGMENTS_NAME)):
            words = entry.split("-")
            if len(words) == 4 and words[0].isdigit() and int(words[0]) != os.getpid():
                pid = int(words[0])
                if str(process_start(pid)) == words[1] and pid not in self.starts:
                    yield pid

    def _describe(self, pid: int) -> None:
        """Write a process's name when it is new or was changed (setproctitle)."""
        begun = process_start(pid)
        if not begun:
            return
        self.starts[pid] = begun
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                argv = file.read(4096).decode("utf-8", "replace").split("\0")
        except OSError:
            return
        name = command_name([word for word in argv if word][:64])
        if name and self.names.get(pid) != name:
            self.names[pid] = name
            self.sink.recorder.info("process", name, begun, pid)

    def _memory(self, pid: int) -> None:
        status = _table(f"/proc/{pid}/status")
        for key, metric in _STATUS_METRICS.items():
            words = status.get(key, "").split()
            if words:
                self.sink.process(metric, pid, float(int(words[0]) * 1024))
        for key, value in _table(f"/proc/{pid}/io").items():
            if key in _IO_METRICS:
                self.sink.process(_IO_METRICS[key], pid, float(value))
        faults = _major_faults(pid)
        if faults is not None:
            self.sink.process("process.major_faults", pid, float(faults))

    def slow(self) -> None:
        """Read what belongs to processes, the cgroup and the machine.

        Memory, IO and faults; throttling; pressure and retransmits.
        """
        self._discover()
        for pid in self._found:
            self._measure(pid)
        for pid, name, cpus in self._neighbours.look(self.starts, self._waiting()):
            self.sink.process("cpu.neighbour", pid, cpus)
            self.sink.neighbour(pid, name)
        if self._quotas:
            self._throttled()
        for resource in ("cpu", "memory", "io"):
            for kind, total in _pressure(resource):
                self.sink.sample(f"pressure.{resource}_{kind}_ns", float(total * 1000))
        retransmits = _tcp_retransmits()
        if retransmits is not None:
            self.sink.sample("net.tcp_retransmits", float(retransmits))

    def _waiting(self) -> list[int]:
        """The threads that waited for a CPU since this was asked last."""
        before = self._delays
        self._delays = {key: thread.delay for key, thread in self._threads.items()}
        return [
            key[1]
            for key, delay in self._delays.items()
            if delay - before.get(key, delay) >= WAITED_NS
        ]

    def close(self) -> None:
        """Read every thread once more and give all descriptors back."""
        self._look(list(self._threads.values()))
        self._threads.clear()
        self._busy.clear()


_STATUS_METRICS = {"RssAnon": "process.rss_anon_bytes", "VmSwap": "process.swap_bytes"}
_IO_METRICS = {"read_bytes": "process.read_bytes", "write_bytes": "process.write_bytes"}


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _numbers(folder: str) -> list[int]:
    return [int(name) for name in _names(folder) if name.isdigit()]


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _table(path: str) -> dict[str, str]:
    """A file of ``key value`` or ``key: value`` lines."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            pairs = (line.split(None, 1) for line in file)
            return {pair[0].rstrip(":"): pair[1].strip() for pair in pairs if len(pair) == 2}
    except OSError:
        return {}


def _children(pid: int) -> Iterator[int]:
    for tid in _numbers(f"/proc/{pid}/task"):
        for word in _line(f"/proc/{pid}/task/{tid}/children").split():
            yield int(word)


def _major_faults(pid: int) -> int | None:
    words = stat(str(pid))
    return int(words[9]) if words else None


def _pressure(resource: str) -> Iterator[tuple[str, int]]:
    """Total microseconds that some or all tasks waited for a resource."""
    try:
        with open(f"/proc/pressure/{resource}", encoding="ascii") as file:
            for line in file:
                kind, _, rest = line.partition(" ")
                total = rest.rpartition("total=")[2].strip()
                if total.isdigit():
                    yield kind, int(total)
    except OSError:
        return


def _tcp_retransmits() -> int | None:
    try:
        with open("/proc/net/snmp", encoding="ascii") as file:
            rows = [line.split() for line in file if line.startswith("Tcp:")]
        return int(rows[1][rows[0].index("RetransSegs")])
    except (OSError, IndexError, ValueError):
        return None
