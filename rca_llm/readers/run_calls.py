"""What the interposer recorded of a run: system calls on files and sockets, waits for the GIL.

The interposer tells files, sockets and logs apart by what the descriptor is. What it cannot know
is decided here, by path and by caller: weights and KV caches have names of their own, and a write
that a log handler makes belongs to the log, whatever the file is called.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.probes import format as layout
from rca_llm.readers.segments import Codes, Segment, coded
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Strings, Table
from rca_llm.trace import RANGES, Timeline

DOMAIN = "osrt"
"""The domain of `ranges` that calls go to, as those of Nsight Systems do."""

_PATH_KINDS = (
    (
        "load",
        re.compile(
            r"\.(safetensors|gguf|ggml|ckpt|pth?|onnx|engine|plan)$"
            r"|(^|/)(pytorch_model|model|consolidated)[^/]*\.(bin|pt|pth)$",
            re.IGNORECASE,
        ),
    ),
    (
        "kv_transfer",
        re.compile(r"(^|[/_.-])(lmcache|kv[_-]?(cache|offload))([/_.-]|$)", re.I),
    ),
    ("log", re.compile(r"\.log(\.\d+)?$", re.IGNORECASE)),
)
"""What a file is for, by its path; the first that matches decides."""

_OWN = re.compile(r"/proc/(thread-self|\d+/task/\d+)/schedstat")
"""What our own looks at a thread read. A look that takes long was interrupted: the thread waited
for a CPU then, and for no file."""

_SEGMENT = re.compile(rf"/{layout.SEGMENTS_NAME}/\d+-\d+-\d+-\d+\{layout.SEGMENT_SUFFIX}$")
"""What our own recorder opens and writes, a file for each of its blocks."""

WAKING_BYTES = 8
"""A write of no more bytes to a pipe or local socket wakes somebody up, as event loops do with one
byte to a pair of their own and eventfd with eight: it is no message that took work to write."""

_CALLERS = {
    "file": ("log", "kv_transfer", "load"),
    "serialize": ("log", "kv_transfer", "network"),
    "network": ("log", "kv_transfer", "serialize"),
}
"""Kinds of calls, and the kinds of spans around them that know better what the call is for."""

FILE_SYSTEMS = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlay",
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x65735546: "fuse",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x00C36400: "ceph",
    0x2FC12FC1: "zfs",
    0x01021997: "9p",
}
"""The names of file systems by the number that statfs gives."""


def calls(segment: Segment, codes: Codes, strings: Strings) -> Table:
    """The CALL cells of a segment as rows of `ranges`."""
    cells, places = segment.cells, segment.of(layout.CALL)
    more, whole = segment.followers(places, layout.MORE)
    places, more = places[whole], more[whole]
    path = coded(codes, cells["c"][more])
    waking = _wakes(strings, coded(codes, cells["d"][places]), cells["b"][more])
    foreign = ~_is_own(strings, path) & ~waking
    places, more, path = places[foreign], more[foreign], path[foreign]
    kind = coded(codes, cells["d"][places])
    return Table(
        RANGES,
        {
            "start": cells["a"][places],
            "end": cells["b"][places],
            "name": coded(codes, cells["e"][places]),
            "domain": np.full(len(places), strings.code(DOMAIN)),
            "kind": _by_path(strings, kind, path),
            "process": np.full(len(places), segment.pid),
            "thread": cells["e"][more].astype(np.int64),
            "bytes": np.where(cells["b"][more] < 0, UNKNOWN, cells["b"][more]),
            "path": path,
            "fs": _file_systems(strings, cells["d"][more]),
        },
    )


def _by_path(strings: Strings, kind: Array, path: Array) -> Array:
    """The kinds of calls on files, as the paths say."""
    if not len(kind):
        return kind
    found = np.full(len(strings) + 1, NO_TEXT, np.int32)
    used = np.unique(path[(path >= 0) & (kind == strings.find("file"))])
    for code in used.tolist():
        found[code] = strings.code(kind_of_path(strings[code]))
    return np.where(found[path] >= 0, found[path], kind)


def _is_own(strings: Strings, path: Array) -> Array:
    """Which calls are those of our own looks and of our own recorder."""
    used = np.unique(path[path >= 0]).tolist()
    own = [code for code in used if is_own(strings[code])]
    return np.asarray(np.isin(path, own))


def is_own(path: str) -> bool:
    """Whether a path is one that only we read or write, none of the program's."""
    return bool(_OWN.fullmatch(path) or _SEGMENT.search(path))


def _wakes(strings: Strings, kind: Array, size: Array) -> Array:
    """Which calls send so little to a pipe or local socket that they only wake somebody up."""
    sent = (kind == strings.find("serialize")) & (kind >= 0)
    return np.asarray(sent & (size >= 0) & (size <= WAKING_BYTES))


def kind_of_path(path: str) -> str:
    """The span kind of a call on a regular file."""
    return next((kind for kind, pattern in _PATH_KINDS if pattern.search(path)), "file")


def _file_systems(strings: Strings, numbers: Array) -> Array:
    found = np.full(len(numbers), NO_TEXT, np.int32)
    for number in np.unique(numbers[numbers != 0]).tolist():
        text = FILE_SYSTEMS.get(number, f"0x{number:x}")
        found[numbers == number] = strings.code(text)
    return found


def spans(
    timeline: Timeline, kind: str | None = None, names: re.Pattern[str] | None = None
) -> dict[tuple[int, int], tuple[Ints, Ints]]:
    """When each thread was in a recorded call, by process and thread: disjoint and ascending.

    `kind` takes the calls of one kind alone, `names` those with a name that it finds.
    """
    ranges = timeline["ranges"]
    wanted = ranges["domain"] == timeline.strings.code(DOMAIN)
    if kind is not None:
        wanted &= ranges["kind"] == timeline.strings.code(kind)
    rows = np.flatnonzero(wanted)
    if names is not None:
        used = np.unique(ranges["name"][rows][ranges["name"][rows] >= 0]).tolist()
        told = [code for code in used if names.search(timeline.strings[code])]
        rows = rows[np.isin(ranges["name"][rows], told)]
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows.tolist():
        found[int(ranges["process"][row]), int(ranges["thread"][row])].append(row)
    start, end = ranges["start"], ranges["end"]
    return {key: intervals.union(start[own], end[own]) for key, own in found.items()}


def edges(timeline: Timeline) -> dict[tuple[int, int], Ints]:
    """When records of each thread begin and end, by process and thread: distinct and ascending."""
    ranges = timeline["ranges"]
    rows = np.flatnonzero((ranges["thread"] != UNKNOWN) & (ranges["end"] != UNKNOWN))
    process, thread = ranges["process"][rows], ranges["thread"][rows]
    order = np.lexsort((thread, process))
    rows, process, thread = rows[order], process[order], thread[order]
    changes = np.flatnonzero((np.diff(process) != 0) | (np.diff(thread) != 0)) + 1
    return {
        (int(ranges["process"][own[0]]), int(ranges["thread"][own[0]])): intervals.distinct(
            np.concatenate([ranges["start"][own], ranges["end"][own]])
        )
        for own in np.split(rows, changes)
        if len(own)
    }


def short_calls(segments: list[Segment]) -> list[dict[str, Any]]:
    """What calls too short for a record of their own came to, by process, kind and path.

    Each has `process`, `kind`, `path` (None where not known), `calls`, `bytes` and `ns`; the
    longest come first. A lower bound: what a process had not yet written when it was killed is
    missing, and of threads that used one descriptor at once some calls may be.
    """
    sums: dict[tuple[int, str, str | None], list[int]] = defaultdict(lambda: [0, 0, 0])
    for segment in segments:
        places = segment.of(layout.SUM)
        more, whole = segment.followers(places, layout.MORE)
        for place, behind in zip(places[whole].tolist(), more[whole].tolist(), strict=True):
            cell, rest = segment.cells[place], segment.cells[behind]
            kind = segment.names.get(int(cell["d"]), "")
            path = segment.names.get(int(rest["c"]))
            if is_own(path or ""):
                continue
            key = segment.pid, kind, path
            values = int(rest["a"]), int(rest["b"]), int(cell["b"])
            sums[key] = [a + b for a, b in zip(sums[key], values, strict=True)]
    rows = [
        {"process": pid, "kind": kind, "path": path, "calls": n, "bytes": size, "ns": ns}
        for (pid, kind, path), (n, size, ns) in sums.items()
    ]
    return sorted(rows, key=lambda row: -int(str(row["ns"])))


def take_callers(timeline: Timeline) -> None:
    """Give calls the kind of a span around them, on their thread, that says what they are for."""
    ranges, strings = timeline["ranges"], timeline.strings
    own = ranges["domain"] == strings.code(DOMAIN)
    told, kind = ranges["kind"], np.array(ranges["kind"])
    for call, callers in _CALLERS.items():
        calls_of_kind = np.flatnonzero(own & (told == strings.code(call)))
        for caller in callers:
            around = np.flatnonzero(~own & (told == strings.code(caller)))
            if len(around) and len(calls_of_kind):
                kind[_inside(ranges, calls_of_kind, around)] = strings.code(caller)
    timeline.tables["ranges"] = ranges.with_columns(kind=kind)


def _inside(ranges: Table, rows: Ints, around: Ints) -> Ints:
    """Those of some rows that lie in one of other rows of their thread."""
    found: list[Ints] = []
    for thread in np.unique(ranges["thread"][around]).tolist():
        outer = around[ranges["thread"][around] == thread]
        inner = rows[ranges["thread"][rows] == thread]
        outer = outer[np.argsort(ranges["start"][outer], kind="stable")]
        reach = np.maximum.accumulate(ranges["end"][outer])
        last = np.searchsorted(ranges["start"][outer], ranges["start"][inner], "right") - 1
        within = (last >= 0) & (ranges["end"][inner] <= reach[np.maximum(last, 0)])
        found.append(inner[within])
    return np.concatenate(found)
