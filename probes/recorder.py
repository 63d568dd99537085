"""The recorder: one segment file a thread, mapped into memory, that survives SIGKILL.

``current()`` gives the calling thread's recorder. Recording stores 8-byte words into the mapping;
no system call a record. Nothing here raises into the program or prints. Standard library only,
Python >= 3.7; modules that are slow to import (typing, threading, json, ctypes) are avoided.
"""

from __future__ import annotations

import errno
import os
import sys
from _thread import _local, get_ident  # pyright: ignore[reportPrivateUsage]  # needs no imports
from _weakref import ref
from mmap import ACCESS_READ, mmap
from time import perf_counter_ns, time_ns

from . import format as layout
from .plain import text as plain_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .native._recorder import Room

    fast: Any = None
else:
    try:  # built for this very Python, or not at all
        from .native import _recorder as fast
        from .native._recorder import Room
    except ImportError:
        fast, Room = None, object

# What recording may raise by itself. Not Exception: a signal handler of the program may raise
# inside our code (a timeout, say), and that exception belongs to the program.
FAULTS = (
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)

WORDS_A_CELL = layout.CELL_BYTES // 8
MAX_NAME_BYTES = 4096
FEW_RECORDERS = 8  # threads that may always record, whatever the limit on descriptors
MOST_MAKING = 2  # recorders that one thread makes at a time, one inside the other
# Names made from data (request ids, f-strings) never end: the table starts anew at this size, and
# strings still in use get a second id.
MAX_NAMES = 65536
# The gate is read, and the write position checked, once in this many cells.
GATE_WORDS = 32 * WORDS_A_CELL

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")

if TYPE_CHECKING:
    _Ids = dict[object, int]
else:
    _Ids = dict  # which cannot be subscripted before Python 3.9


class Names(_Ids):
    """Strings to NAME ids of one segment, shifted into place for the word they go to.

    A missing string is written to the segment first. None is 0.
    """

    __slots__ = ("recorder", "shift")

    def __init__(self, recorder: Recorder, shift: int = 0) -> None:
        self.recorder = recorder
        self.shift = shift

    def __missing__(self, name: object) -> int:
        if len(self) >= MAX_NAMES:
            self.clear()
        found = 0 if name is None else self.recorder.name_id(plain_text(name))
        word = self[name] = found << self.shift
        return word


# What ``Room`` has where it is in C.
_ROOM = ("at", "begin", "end", "ids", "kinds", "last", "marks", "path", "spans", "words")


class Recorder(Room):
    """The writer of one segment; belongs to one thread of one process.

    ``words`` is the current block as int64 words, which begins at byte ``begin`` of the file
    ``path``, and ``at`` the next free word in it; ``last`` is where the gate is looked at again.
    The fast paths in ``span.py`` read them; those in C find them in ``Room``.
    """

    __slots__ = (
        "_block",
        "_busy",
        "_header",
        "_next_id",
        "_size",
        "_stopped",
        "_views",
    ) + (() if fast else _ROOM)

    def __init__(self, path: str, header: bytes) -> None:
        self.path = path
        self.at = self.last = self.end = self._size = 0
        self._next_id = 1
        self._busy = self._stopped = False
        self._views: list[ref[memoryview]] = []
        self._map(layout.FIRST_BLOCK_BYTES)
        self._header = self.words
        self._block[8 : len(header)] = header[8:]
        self._block[:8] = header[:8]
        self.at = layout.HEADER_BYTES // 8
        self.last = min(self.at + GATE_WORDS, self.end)
        self.spans: dict[str, int] = {}
        self.marks: dict[str, int] = {}
        self.ids = Names(self)
        self.kinds = Names(self, 32)
        self.kinds["host"] = 0

    def _map(self, size: int) -> None:
        """Append a block of ``size`` bytes and make it the current one; OSError on a full disk."""
        # By path, not by a descriptor kept open: programs that become daemons close descriptors
        # they do not know, and the number would then mean one of their own files.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _allocate(descriptor, self._size, size)
            block = mmap(descriptor, size, offset=self._size, **_MAP_OPTIONS)
        finally:
            os.close(descriptor)
        if self._size:
            self._let_go()
        self._block = block
        words, end = memoryview(block).cast("q"), size // 8
        self._views = [view for view in self._views if view() is not None]
        self._views.append(ref(words))
        # No call between these lines: what records in one must find a block and its place in it.
        self.begin = self._size
        self.at = self.last = 0
        self.end = end
        self.words = words
        self._size += size

    def _let_go(self) -> None:
        """Keep the current block mapped for ever if closing it could close a file of the program.

        Before Python 3.13 ``mmap`` holds a duplicate descriptor; if the program closed that number,
        it may be in use for something else, which shows in its size.
        """
        try:
            if _MAP_OPTIONS or self._block.size() == self._size:
                return
        except (OSError, ValueError):
            pass
        _kept.append(self._block)

    def refill(self, cells: int = 1) -> bool:
        """Look at the gate and let the fast paths go on; whether they may write the next cells."""
        beyond = self.at + cells * WORDS_A_CELL > self.end
        if not gate[0] or (beyond and not self._grow(cells * layout.CELL_BYTES)):
            return False
        self.last = min(self.at + GATE_WORDS, self.end)
        return True

    def reserve(self, cells: int) -> tuple[memoryview[int], int] | None:
        """Room for ``cells`` adjacent cells: the block and the word where they begin.

        None where the gate is shut or nothing more can be written.
        """
        return self.reserve_always(cells) if gate[0] else None

    def reserve_always(self, cells: int) -> tuple[memoryview[int], int] | None:
        """As ``reserve``, but with the gate shut too (names, facts about the process)."""
        need = cells * WORDS_A_CELL
        if self.at + need > self.end and not self._grow(need * 8):
            return None
        # No call between these lines: a signal handler or the collector may record in a call.
        words = self.words
        at = self.at
        self.at = end = at + need
        self.last = min(end + GATE_WORDS, self.end)
        return words, at

    def place(self, at: int) -> int:
        """The cell at word ``at`` of the current block, counted from the first of the file."""
        return (self.begin // 8 + at) // WORDS_A_CELL

    def _grow(self, need: int) -> bool:
        # Busy: the garbage collector or a signal handler came in while this thread was growing.
        if self._stopped or self._busy:
            self.miss(1)
            return False
        self._busy = True
        try:
            unit = layout.FIRST_BLOCK_BYTES
            self._map(max(layout.BLOCK_BYTES, -(-need // unit) * unit))
        except OSError as error:
            self._stop(error.errno or 0)
            return False
        finally:
            self._busy = False
        return True

    def _stop(self, number: int) -> None:
        """End recording of this thread for good, and leave why in the header."""
        self._stopped = True
        self.last = self.end = -1
        self.lose(number)

    def lose(self, number: int) -> None:
        """Leave in the header that something could not be written, and the error number why."""
        header = self._header
        header[layout.STOPPED_OFFSET // 8] = perf_counter_ns()
        header[layout.ERRNO_OFFSET // 8] = number
        header[layout.DROPPED_OFFSET // 8] += 1

    def miss(self, count: int) -> None:
        """Count records that were not written."""
        self._header[layout.DROPPED_OFFSET // 8] += count

    def close(self) -> None:
        """Note a clean end in the header; records may still follow."""
        self._header[layout.CLOSED_OFFSET // 8] = perf_counter_ns()

    def release(self) -> None:
        """Make every mapped block unwritable: in a forked child they are the parent's."""
        self._stopped = True
        self.last = self.end = -1
        for view in self._views:
            words = view()
            if words is not None:
                words.release()

    def name_id(self, text: str) -> int:
        """Write a NAME cell for ``text``; its new id, or 0 where nothing can be written."""
        number = self._next_id
        self._next_id = number + 1
        # Half a character (a lone surrogate) is written out: two such ids stay two.
        payload = text[:MAX_NAME_BYTES].encode("utf-8", "backslashreplace")[:MAX_NAME_BYTES]
        return number if self.payload(layout.NAME, payload, 0, number) else 0

    def word(self, known: dict[str, int], name: str, tag: int) -> int:
        """The last word of a cell called ``name`` with ``tag``; ``known`` holds those made before.

        A plain dictionary that the fast paths look into themselves: ``Names`` would take twice as
        long there.
        """
        found = known.get(name)
        if found is None:
            if len(known) >= MAX_NAMES:
                known.clear()
            found = known[name] = self.name_id(plain_text(name)) | tag << 32
        return found

    def payload(self, kind: int, data: bytes, a: int, c: int, d: int = 0, e: int = 0) -> bool:
        """Write a cell of type ``kind`` with ``data`` behind it; whether there was room."""
        room = self.reserve_always(1 + layout.payload_cells(len(data)))
        if room is None:
            return False
        words, at = room
        put(words, at, layout.PENDING, a, len(data), c, d, e)
        start = (at + WORDS_A_CELL) * 8
        block: mmap = words.obj  # type: ignore[assignment]  # the mapping below the view
        block[start : start + len(data)] = data
        words[at + 3] = e | layout.tag(kind) << 32
        return True

    def cell(self, kind: int, a: int, b: int = 0, c: int = 0, d: int = 0, e: int = 0) -> None:
        """Write one cell, whatever the gate says."""
        room = self.reserve_always(1)
        if room is not None:
            put(room[0], room[1], kind, a, b, c, d, e)

    def info(self, key: str, value: object = None, number: int = 0, pid: int = 0) -> None:
        """Write a fact about process ``pid`` (0: this one) as text, number or both."""
        self.cell(layout.INFO, perf_counter_ns(), number, self.ids[key], self.ids[value], pid)


def put(
    words: memoryview[int],
    at: int,
    kind: int,
    a: int,
    b: int = 0,
    c: int = 0,
    d: int = 0,
    e: int = 0,
    flags: int = 0,
) -> None:
    """Store a cell at word ``at``, its tag last."""
    words[at] = a
    words[at + 1] = b
    words[at + 2] = pair(c, d)
    words[at + 3] = e | layout.tag(kind, flags) << 32


def pair(low: int, high: int) -> int:
    """Two u32 as one int64."""
    return low | (high - ((high & 0x80000000) << 1)) << 32


def _allocate(descriptor: int, offset: int, size: int) -> None:
    """Give the file real room for ``size`` bytes at ``offset``; OSError where there is none."""
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is not None:
        try:
            allocate(descriptor, offset, size)
            return
        except OSError as error:
            if error.errno not in (22, 95):  # EINVAL, EOPNOTSUPP: a file system without it
                raise
    os.lseek(descriptor, offset, os.SEEK_SET)
    zeros = bytes(65536)
    while size > 0:
        size -= os.write(descriptor, zeros[:size])


# ------------------------------------------------------------------------------------ process

_MAP_OPTIONS: dict[str, bool] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
run = ""  # the run directory; empty: not in a trace
gate = memoryview(b"\0")  # the control file; gate[0] is 1 while recording
local = _local()
_recorders: list[Recorder] = []
_spare: list[Recorder] = []  # of threads that ended, to be taken over by new ones
_kept: list[mmap] = []


class Lease:
    """A thread's hold on its recorder: when the thread ends, the next new thread takes it over.

    Without this a server that starts a thread a request would leave a file a request.
    """

    __slots__ = ("recorder",)

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __del__(self, spare: list[Recorder] = _spare) -> None:
        # Bound early: at the end of the interpreter the name of the list is gone.
        spare.append(self.recorder)


def start(directory: str) -> bool:
    """Join the run in ``directory``; whether this process now records."""
    global run, gate
    try:
        control = os.path.join(directory, layout.CONTROL_NAME)
        descriptor = os.open(control, os.O_RDONLY | os.O_CLOEXEC)
        try:
            gate = memoryview(mmap(descriptor, layout.CONTROL_BYTES, access=ACCESS_READ))
        finally:
            os.close(descriptor)
        run = directory
        if fast:
            fast.watch_gate(gate)
        os.register_at_fork(after_in_child=_after_fork)
        _open_main()
        return True
    except (OSError, ValueError):
        run = ""
        return False


def current() -> Recorder:
    """The calling thread's recorder, opened on first use; AttributeError where it cannot be."""
    try:
        return local.recorder  # type: ignore[no-any-return]
    except AttributeError:
        return _open()


def _open_main() -> None:
    try:
        recorder = _open()
        recorder.info("python", "%d.%d.%d" % sys.version_info[:3])
    except AttributeError:
        pass


def _open() -> Recorder:
    """Open this thread's segment. A failed thread is not tried again."""
    mine = local.__dict__
    if not run or "failed" in mine:
        raise AttributeError("not recording")
    recorder = _make(mine)
    kept: Recorder = mine.setdefault("recorder", recorder)
    if kept is not recorder:  # what came in while it was made has opened one, and recorded there
        _spare.append(recorder)
        return kept
    local.lease = Lease(recorder)
    if fast:
        fast.adopt(recorder)
    recorder.miss(mine.pop("missed", 0))
    return recorder


def _make(mine: dict[str, Any]) -> Recorder:
    """A recorder for the calling thread, which keeps ``mine``.

    The garbage collector or a signal handler may come in here and record: then it makes one too,
    but not signal in signal without end.
    """
    depth = mine.get("making", 0)
    if depth >= MOST_MAKING:
        mine["missed"] = mine.get("missed", 0) + 1
        raise AttributeError("being opened")
    mine["making"] = depth + 1
    try:
        return _take_over() or _create()
    except FAULTS:
        mine["failed"] = True
        raise
    finally:
        mine["making"] = depth


def _take_over() -> Recorder | None:
    """A recorder of a thread that ended, marked as this thread's from here on."""
    try:
        recorder = _spare.pop()
    except IndexError:
        return None
    name = recorder.ids[_thread_name()]
    recorder.cell(layout.THREAD, perf_counter_ns(), native_id(), name)
    return recorder


def _create() -> Recorder:
    try:
        if len(_recorders) >= FEW_RECORDERS and len(_recorders) >= _most_recorders():
            raise OSError(errno.EMFILE, "descriptors are the program's")
        recorder = Recorder(*new_segment(run))
    except (OSError, ValueError, ImportError) as error:
        for first in _recorders[:1]:
            first.lose(getattr(error, "errno", None) or 0)
        raise AttributeError("no segment") from None
    _recorders.append(recorder)
    return recorder


def _most_recorders() -> int:
    """How many threads may record at a time.

    Before Python 3.13 each mapping holds a descriptor; at two a thread this leaves the program
    three quarters of what it may open.
    """
    if _MAP_OPTIONS:
        return 1 << 30
    from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit

    soft = getrlimit(RLIMIT_NOFILE)[0]
    return 1 << 30 if soft == RLIM_INFINITY else soft // 8


def new_segment(directory: str, writer: int = layout.WRITER_PYTHON) -> tuple[str, bytes]:
    """Create an empty segment file of a free name; its path and its header."""
    pid, tid, begun = os.getpid(), native_id(), process_start()
    sequence = 0
    while True:
        name = layout.segment_name(pid, begun, tid, sequence)
        path = os.path.join(directory, layout.SEGMENTS_NAME, name)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            sequence += 1
            continue
        return path, _header(writer, pid, tid, begun, sequence)


def _header(writer: int, pid: int, tid: int, begun: int, sequence: int) -> bytes:
    monotonic, utc, width = anchor()
    packed = layout.HEADER.pack(
        layout.VERSION,
        layout.HEADER_BYTES,
        layout.CELL_BYTES,
        writer,
        pid,
        os.getppid(),
        tid,
        begun,
        monotonic,
        utc,
        width,
        layout.CLOCK_MONOTONIC,
        sequence,
        _number(_RANK_VARIABLES),
        _number(_LOCAL_RANK_VARIABLES),
        _number(_WORLD_VARIABLES),
        0,
        0,
        0,
        0,
        0,
        0,
        _text(os.uname().nodename, 64),
        _text(_thread_name(), 32),
        _text(process_name(), 128),
    )
    return layout.MAGIC + packed


def anchor() -> tuple[int, int, int]:
    """One reading of both clocks: monotonic ns, UTC ns, and the ns between the outer readings.

    The best of three, because a thread may lose the processor in between.
    """
    best = (0, 0, 1 << 62)
    for _ in range(3):
        before = perf_counter_ns()
        utc = time_ns()
        width = perf_counter_ns() - before
        if width < best[2]:
            best = (before + width // 2, utc, width)
    return best


def native_id() -> int:
    """The kernel's id of the calling thread."""
    try:
        from _thread import get_native_id  # Python >= 3.8
    except ImportError:
        try:
            return int(os.readlink("/proc/thread-self").rsplit("/", 1)[1])
        except OSError:
            return get_ident() & 0xFFFFFFFF
    return get_native_id()


def process_start(pid: object = "self") -> int:
    """When a process began, in clock ticks after boot; 0 where unknown."""
    try:
        with open("/proc/%s/stat" % pid, "rb") as file:
            # The name, in parentheses, may hold anything; field 22 is the 20th after it.
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def process_name() -> str:
    """Base names of the interpreter and the script or module; no other argument."""
    argv: list[str] = list(getattr(sys, "orig_argv", ()))
    return command_name(argv or _command_line())


def _command_line() -> list[str]:
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return file.read().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []


def command_name(argv: list[str]) -> str:
    """A short name for a command: its program, and the script or module a Python runs."""
    if not argv:
        return ""
    parts = [os.path.basename(argv[0])]
    for index, word in enumerate(argv[1:], 1):
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            continue
        if argv[index - 1] in ("-W", "-X", "--check-hash-based-pycs"):
            continue
        if word in ("-m", "-c"):
            parts.append("-c" if word == "-c" else "-m " + "".join(argv[index + 1 : index + 2]))
            break
        if not word.startswith("-"):
            parts.append(os.path.basename(word))
            break
    return " ".join(parts)


def _thread_name() -> str:
    """The thread's name as threading knows it, without importing or registering anything."""
    active = getattr(sys.modules.get("threading"), "_active", {})
    thread = active.get(get_ident())
    if thread is not None:
        return str(getattr(thread, "_name", ""))
    return "MainThread" if native_id() == os.getpid() else ""


def _number(variables: tuple[str, ...]) -> int:
    """The first of the environment variables that is a number; -1 where none is."""
    for name in variables:
        value = os.environ.get(name, "")
        if value.isdigit() and len(value) < 10:
            return int(value)
    return -1


def _text(value: str, size: int) -> bytes:
    return value.encode("utf-8", "replace")[:size]


def _after_fork() -> None:
    """Give the child a segment of its own; the parent's mappings must not be written any more."""
    lease = local.__dict__.pop("lease", None)
    local.__dict__.clear()
    del lease
    for recorder in _recorders:
        recorder.release()
    _recorders.clear()
    _spare.clear()
    if run:
        _open_main()


def close() -> None:
    """Note a clean end in every segment of this process."""
    for recorder in _recorders:
        try:
            recorder.close()
        except FAULTS:
            pass
