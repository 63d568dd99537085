"""The layout of segment files: one description that recorders (Python, C) and readers share.

A segment is a 512 byte header followed by cells of 32 bytes. A cell's last word is its tag and is
stored last, so that a process which dies at any instruction leaves either a whole cell or a cell
whose tag is 0; cells with tag 0 are skipped. All numbers are little endian, all times ns of
CLOCK_MONOTONIC. ``docs/format.md`` describes every cell. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

import struct

VERSION = 1
MAGIC = b"RCASEG1\n"
HEADER_BYTES = 512
CELL_BYTES = 32

# A segment grows by blocks; the first is small because most threads record little. Both are
# multiples of 64 KiB, the largest page size in use, since every block is mapped by itself.
FIRST_BLOCK_BYTES = 64 * 1024
BLOCK_BYTES = 1024 * 1024

# Header: offset 8 up to the strings; the magic at offset 0 is written last.
HEADER = struct.Struct("<IIIIIIQQqqqIIiiiIQqqII64s32s128s")
HEADER_FIELDS: tuple[str, ...] = (
    "version",  # 8: u32
    "header_bytes",  # 12: u32
    "cell_bytes",  # 16: u32
    "writer",  # 20: u32, one of WRITER_*
    "pid",  # 24: u32
    "ppid",  # 28: u32
    "tid",  # 32: u64, kernel thread id
    "process_start",  # 40: u64, clock ticks after boot, field 22 of /proc/self/stat
    "anchor_monotonic_ns",  # 48: i64
    "anchor_utc_ns",  # 56: i64
    "anchor_width_ns",  # 64: i64, time between the two monotonic readings around the UTC one
    "clock",  # 72: u32, one of CLOCK_*
    "sequence",  # 76: u32, the n of the file name
    "rank",  # 80: i32, -1 unknown (so the next two)
    "local_rank",  # 84: i32
    "world_size",  # 88: i32
    "flags",  # 92: u32, reserved, 0
    "dropped",  # 96: u64, records not written, patched in place
    "closed_ns",  # 104: i64, set at a clean end, else 0
    "stopped_ns",  # 112: i64, when recording ended early, else 0
    "stop_errno",  # 120: u32, why (ENOSPC ...), else 0
    "reserved",  # 124: u32, 0
    "host",  # 128: 64 bytes, UTF-8, zero padded (so the next two)
    "thread_name",  # 192: 32 bytes
    "process_name",  # 224: 128 bytes
)
DROPPED_OFFSET = 96
CLOSED_OFFSET = 104
STOPPED_OFFSET = 112
ERRNO_OFFSET = 120

WRITER_PYTHON, WRITER_NATIVE, WRITER_LAUNCHER, WRITER_PRELOAD = 1, 2, 3, 4
CLOCK_MONOTONIC = 1

# Behind those fields: u64, the length of the file once it was cut behind its last record, else 0.
LENGTH_OFFSET = 352

# Cell: a i64, b i64, c u32, d u32, e u32, tag u32.
CELL = struct.Struct("<qqIIII")
CELL_FLOAT = struct.Struct("<qdIIII")  # b as float64: SAMPLE, and NUMBER with FLAG_FLOAT
CELL_FIELDS = (
    ("a", "<i8"),
    ("b", "<i8"),
    ("c", "<u4"),
    ("d", "<u4"),
    ("e", "<u4"),
    ("tag", "<u4"),
)

# Tag: 0x5243 ("CR" in memory) in the upper half, then 8 bits of flags, then 8 bits of type.
TAG = 0x52430000
TAG_MASK = 0xFFFF0000
FLAG_SHIFT = 8

# Cells with a payload: `b` is its length in bytes; it fills the next ceil(b / 32) cells.
# While the payload is being written the header's type is PENDING; the real tag comes last.
PENDING = 1
NAME = 2  # c id >= 1, a key (0 none; a pointer of the process), payload UTF-8
BUFFER = 3  # a time, c tag of the writer's choice, d and e of its choice, payload opaque

# Cells of 32 bytes. Ids are NAME ids of the same segment, 0 = none; steps and bytes -1 = none.
SPAN = 16  # a start (0 = never entered), b end (0 = open), c request, d kind (0 = host), e name
MORE = 17  # of the cell before: a step, b bytes, c path, d NVTX domain, e task
END = 18  # closes what lies in an unmapped block: a end, b file offset of its cell, d tid, e n
MARK = 19  # a time, c request, e name
NUMBER = 20  # of the SPAN, MARK before: b value (int64, with FLAG_FLOAT float64), e name
REQUEST = 21  # a time, b count, c one of REQUEST_EVENTS, d request
# e: how many cells back the STEP stands whose batch it has, 0 its own; then d is 0, and b of its
# MORE the tokens out of each.
STEP = 22  # a start, b end (0 = open), c one of STEP_MODES, d number of STEP_REQUEST cells
STEP_REQUEST = 23  # a tokens (-1 unknown), b tokens out, c one of PHASES, d request
STATE = 24  # a start, b end, c one of THREAD_STATES, d pid, e tid
SCHED = 25  # a time, b ns on CPU so far, d pid, e tid; MORE: a run-queue delay so far, b slices
SAMPLE = 26  # a time, b float64 value, c metric, d pid or device (ALL = none), e one of SUBJECTS
ANCHOR = 27  # a monotonic, b UTC, c width ns
INFO = 28  # a time, b number, c key, d value (name; 0 = only the number b), e pid (0 = own)
GAP = 29  # a start, b end (0 = open), c reason (name): nothing was recorded by intent
THREAD = 30  # a time, b tid, c thread name: from here on the segment is written by this thread
CALL = 31  # a start, b end, c request, d kind, e name; MORE: b bytes, c path, d fs, e tid
SUM = 32  # of calls too short for a CALL: a time, b ns, d kind; MORE: a calls, b bytes, c path

# Types of cells whose `a` is a time, and those whose `b` is one too.
ENDED = (SPAN, STEP, STATE, GAP, CALL)
TIMED = (
    *ENDED,
    *(END, MARK, REQUEST, SCHED, SAMPLE, ANCHOR, INFO, THREAD, SUM),
)

TYPE_NAMES = {
    PENDING: "pending",
    NAME: "name",
    BUFFER: "buffer",
    SPAN: "span",
    MORE: "more",
    END: "end",
    MARK: "mark",
    NUMBER: "number",
    REQUEST: "request",
    STEP: "step",
    STEP_REQUEST: "step_request",
    STATE: "state",
    SCHED: "sched",
    SAMPLE: "sample",
    ANCHOR: "anchor",
    INFO: "info",
    GAP: "gap",
    THREAD: "thread",
    CALL: "call",
    SUM: "sum",
}

FLAG_MORE = 1  # SPAN, STEP: a MORE cell follows
FLAG_ASYNC = 2  # SPAN: may overlap others of its thread (coroutine, NVTX start/end range)
FLAG_NVTX = 4  # SPAN, MARK: from NVTX, not from our own span
FLAG_FLOAT = 8  # NUMBER: b is a float64
FLAG_ERROR = 16  # SPAN: left by an exception (with END: set on the END cell)

ALL = 0xFFFFFFFF

SCHED_FAULTS = 1  # `d` of a SCHED's MORE cell: `c` major faults so far, `e` system CPU time, µs

# Codes are places in these tuples; append only.
REQUEST_EVENTS = (
    "client_submit",
    "arrival",
    "queued",
    "scheduled",
    "first_token",
    "token",  # b: tokens in this piece
    "finished",
    "aborted",
    "preempted",
    "resumed",
    "prompt_tokens",  # b: count (so the next)
    "output_tokens",
    "alias",  # b: name id of the request's id outside the engine
)
STEP_MODES = ("unknown", "eager", "graph", "mixed")
PHASES = ("unknown", "prefill", "decode", "recompute")
THREAD_STATES = ("unknown", "running", "runnable", "blocked", "throttled", "gil")
SUBJECTS = ("none", "device", "process", "cgroup", "host")

# The control file: 4096 bytes that every process of the run maps.
CONTROL_NAME = "control"
CONTROL_BYTES = 4096
CONTROL_GATE_OFFSET = 0  # u8: 1 record, 0 do not
CONTROL_CHANGES_OFFSET = 8  # u64: counts gate changes
CONTROL_CHANGED_OFFSET = 16  # u64: when the gate changed last, 0 = never; written before it changes

# INFO of the launcher: process `e`, which began at clock tick `b`, ended at `a`.
PROCESS_END = "process.end"

SEGMENTS_NAME = "segments"
SEGMENT_SUFFIX = ".seg"


def tag(kind: int, flags: int = 0) -> int:
    """The tag word of a cell of type ``kind`` with ``flags``."""
    return TAG | flags << FLAG_SHIFT | kind


def payload_cells(length: int) -> int:
    """How many cells a payload of ``length`` bytes fills."""
    return (length + CELL_BYTES - 1) // CELL_BYTES


def segment_name(pid: int, start: int, tid: int, sequence: int) -> str:
    """The file name of a segment; ``sequence`` is the first free one."""
    return "%d-%d-%d-%d%s" % (pid, start, tid, sequence, SEGMENT_SUFFIX)
