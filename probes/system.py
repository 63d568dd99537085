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
from .quotas import Quotas
from .recorder import WORDS_A_CELL, Recorder, command_name, process_start, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# At most this many threads are followed closely; the others are looked at with every census.
MAX_THREADS = 128
# A thread that was blocked for so long since the last look is asked for its page faults.
BLOCKED_NS = 500_000
_DEVICE, _PROCESS = layout.SUBJECTS.index("device"), layout.SUBJECTS.index("process")
_CGROUP, _HOST = layout.SUBJECTS.index("cgroup"), layout.SUBJECTS.index("host")


class Sink:
    """Writes the launcher's cells; numbers of devices and hosts as SAMPLE."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

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

    def sched(
        self,
        pid: int,
        tid: int,
        now: int,
        counters: tuple[int, int, int],
        faults: tuple[int, int] | None,
    ) -> None:
        """A thread's time on CPU and on the run queue, and its time slices so far.

        ``faults``: its major page faults and its time in the kernel, µs, where those were asked.
        """
        on_cpu, delay, slices = counters
        room = self.recorder.reserve_always(2)
        if room is not None:
            words, at = room
            pages, kernel = faults or (0, 0)
            known = 0 if faults is None else layout.SCHED_FAULTS
            more = at + WORDS_A_CELL
            put(words, more, layout.MORE, delay, slices, pages & layout.ALL, known, kernel)
            put(words, at, layout.SCHED, now, on_cpu, 0, pid, tid, layout.FLAG_MORE)


class Thread:
    """A thread of the run: its schedstat file, kept open, and what it said last.

    Its faults are asked for where it was blocked for a while, since only then they matter: that
    file costs several times as much to read.
    """

    __slots__ = ("descriptor", "last", "name", "pid", "seen", "tid")

    def __init__(self, pid: int, tid: int) -> None:
        self.pid = pid
        self.tid = tid
        self.last = b""
        self.name = ""
        self.seen = (perf_counter_ns(), 0)
        self.descriptor = os.open(f"/proc/{pid}/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)

    def read(self, sink: Sink) -> bool:
        """Write the thread's numbers if they changed; OSError once it has ended."""
        text = os.pread(self.descriptor, 100, 0)
        if text == self.last or not text:
            return False
        self.last = text
        words = text.split()
        counters = int(words[0]), int(words[1]), int(words[2])
        now, busy = perf_counter_ns(), counters[0] + counters[1]
        blocked = (now - self.seen[0]) - (busy - self.seen[1])
        self.seen = now, busy
        faults = _thread_faults(self.pid, self.tid) if blocked >= BLOCKED_NS else None
        sink.sched(self.pid, self.tid, now, counters, faults)
        return True


class System:
    """Samples the process tree that begins at ``root`` and the machine below it.

    ``tick`` is meant every 10 ms, ``census`` a few times a second, ``slow`` about once a second.
    """

    def __init__(self, recorder: Recorder, root: int, run: str) -> None:
        self.sink = Sink(recorder)
        self.root = root
        self.run = run
        self.names: dict[int, str] = {}
        self.starts: dict[int, int] = {}
        self._threads: dict[tuple[int, int], Thread] = {}
        self._busy: list[Thread] = []
        self._quotas = Quotas()
        self._quotas.watch(root)
        self._thread_names: dict[tuple[int, int], str] = {}

    def tick(self) -> None:
        """Read the threads that ran since the last census."""
        for thread in list(self._busy):
            self._read(thread)
        if self._quotas and self._quotas.grown():
            self._throttled()

    def _throttled(self) -> None:
        self.sink.sample("cpu.throttled_count", float(self._quotas.count), _CGROUP)
        if self._quotas.total_ns or not self._quotas.count:
            self.sink.sample("cpu.throttled_ns", float(self._quotas.total_ns), _CGROUP)

    def _read(self, thread: Thread) -> bool:
        try:
            return thread.read(self.sink)
        except (OSError, ValueError):
            self._forget(thread)
            return False

    def _forget(self, thread: Thread) -> None:
        self._threads.pop((thread.pid, thread.tid), None)
        if thread in self._busy:
            self._busy.remove(thread)
        thread.close()

    def census(self) -> None:
        """Find new processes and threads, and choose the threads to follow closely."""
        for pid in self._processes():
            self._describe(pid)
            self._quotas.watch(pid)
            for tid in _numbers(f"/proc/{pid}/task"):
                self._add(pid, tid)
            self._memory(pid)
        ran = [thread for thread in list(self._threads.values()) if self._read(thread)]
        self._busy = ran[:MAX_THREADS]

    def _add(self, pid: int, tid: int) -> None:
        if (pid, tid) in self._threads or len(self._threads) >= 4 * MAX_THREADS:
            return
        try:
            self._threads[pid, tid] = Thread(pid, tid)
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
        """Read what belongs to the cgroup and the machine: throttling, pressure, retransmits."""
        if self._quotas:
            self._throttled()
        for resource in ("cpu", "memory", "io"):
            for kind, total in _pressure(resource):
                self.sink.sample(f"pressure.{resource}_{kind}_ns", float(total * 1000))
        retransmits = _tcp_retransmits()
        if retransmits is not None:
            self.sink.sample("net.tcp_retransmits", float(retransmits))

    def close(self) -> None:
        """Read every thread once more and give all descriptors back."""
        for thread in list(self._threads.values()):
            if self._read(thread) or (thread.pid, thread.tid) in self._threads:
                self._forget(thread)


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


_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")


def _thread_faults(pid: int, tid: int) -> tuple[int, int] | None:
    """Major page faults of a thread, and its CPU time in the kernel, µs modulo 2^32."""
    words = _stat(f"{pid}/task/{tid}")
    return (int(words[9]), int(words[12]) * _TICK_US & layout.ALL) if words else None


def _major_faults(pid: int) -> int | None:
    words = _stat(str(pid))
    return int(words[9]) if words else None


def _stat(of: str) -> list[bytes]:
    """The words of a stat file behind the name; empty where it cannot be read."""
    try:
        with open(f"/proc/{of}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return []
    return words if len(words) > 12 and words[9].isdigit() and words[12].isdigit() else []


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
