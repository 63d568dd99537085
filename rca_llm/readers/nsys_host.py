"""What the host did, from an Nsight Systems export: API and system calls, threads, processes."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from rca_llm.readers.nsys_store import Export, nonzero, process, thread
from rca_llm.table import NO_TEXT, Array, Ints, Mask, Table
from rca_llm.trace import API, PROCESSES, RANGES, STATES, THREADS, Timeline

_WAITS = {
    "file": "f?p?(read|write)v?2?(64)?|pread64|pwrite64|f?(gets|puts|getc|putc|gets_unlocked"
    "|puts_unlocked)|f?(open|openat|close)(64)?|f?(sync|datasync|flush|truncate)(64)?"
    "|msync|sync_file_range|lseek(64)?|fseek(o)?",
    "network": "p?poll|p?select6?|pselect6|epoll_p?wait2?|(recv|send)(from|to|msg|mmsg)?"
    "|accept4?|connect",
    "sync": "pthread_(mutex|rwlock|spin)_(lock|(timed)?(rd|wr)lock|timedlock)|flock|flockfile",
}
"""System and library calls by what a thread in them waits for. A wait for a condition, a semaphore
or the end of a thread does not say why it lasts, so those calls are left out."""

_JIT = (2, 6, 7)
"""`overheadType`: CUDA compiles, loads a module, loads a function lazily."""

_WAITING = ("Interruptible", "Uninterruptible", "Waiting")
_READY = ("Preempted", "ReadyToRun")


def add(export: Export, timeline: Timeline) -> None:
    """Add `api`, `states`, `processes`, `threads`, and calls and CUDA's own work to `ranges`."""
    timeline.add("api", _api(export))
    for table in ("OSRT_API", "SYSCALL"):
        timeline.add("ranges", _calls(export, table))
    timeline.add("ranges", _jit(export))
    timeline.add("states", _states(export))
    timeline.add("threads", _threads(export))
    timeline.add("processes", _processes(export))


def _api(export: Export) -> Table:
    raw = export.columns(
        "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "end", "globalTid", "correlationId", "nameId"
    )
    name = export.texts(raw["nameId"], _unversioned)
    return Table(
        API,
        _placed(export, raw) | {"name": name, "correlation": nonzero(raw["correlationId"])},
    )


def _unversioned(name: str) -> str:
    """An API function's name without the version that exports put behind it (`_v7000`)."""
    return re.sub(r"(_ptsz|_ptds)?_v\d{4,5}$", "", name)


def _placed(export: Export, raw: dict[str, Ints]) -> dict[str, Array]:
    """When and on which thread something was."""
    return {
        "start": export.time(raw["start"]),
        "end": export.time(raw["end"]),
        "process": process(raw["globalTid"]),
        "thread": thread(raw["globalTid"]),
    }


def _calls(export: Export, table: str) -> Table:
    """System and library calls that wait for files, the network or locks."""
    raw = export.columns(table, "start", "end", "globalTid", "nameId")
    name = export.texts(raw["nameId"])
    return _classified(export, raw, name, _wait_of, "osrt")


def _wait_of(call: str) -> str | None:
    """The span kind of a call, None for one that tells nothing."""
    return next((kind for kind, pattern in _WAITS.items() if re.fullmatch(pattern, call)), None)


def _classified(
    export: Export,
    raw: dict[str, Ints],
    name: Array,
    kind_of: Callable[[str], str | None],
    domain: str,
) -> Table:
    """The rows whose name has a span kind, as ranges of that kind."""
    kinds = {code: kind_of(export.strings[code]) for code in np.unique(name).tolist() if code >= 0}
    codes = {code: export.strings.code(kind) for code, kind in kinds.items() if kind}
    table = export.strings.lookup([codes.get(n, NO_TEXT) for n in range(len(export.strings))])
    kind = table[name]
    rows = np.flatnonzero(kind != NO_TEXT)
    if not len(rows):
        return Table(RANGES)
    columns = _placed(export, raw) | {"name": name, "kind": kind}
    return Table(
        RANGES,
        {column: values[rows] for column, values in columns.items()}
        | {"domain": np.full(len(rows), export.strings.code(domain))},
    )


def _jit(export: Export) -> Table:
    """CUDA's compiling and loading, which it does inside of API calls."""
    raw = export.columns(
        "CUPTI_ACTIVITY_KIND_OVERHEAD", "start", "end", "globalTid", "nameId", "overheadType"
    )
    rows = np.isin(raw["overheadType"], _JIT)
    raw = {name: values[rows] for name, values in raw.items()}
    return _classified(export, raw, export.texts(raw["nameId"]), lambda _: "jit", "cuda")


def _states(export: Export) -> Table:
    """When threads ran on a processor, and what they were between, where that was recorded."""
    raw = export.columns(
        "SCHED_EVENTS", "start", "isSchedIn", "globalTid", "threadState", "threadBlock"
    )
    order = np.lexsort([raw["start"], raw["globalTid"]])
    raw = {name: values[order] for name, values in raw.items()}
    follows = raw["globalTid"][:-1] == raw["globalTid"][1:]
    state = _state_codes(export, raw)[:-1]
    rows = np.flatnonzero(follows & (state != NO_TEXT))
    ends = {"start": raw["start"][rows], "end": raw["start"][rows + 1]}
    spans = ends | {"globalTid": raw["globalTid"][rows]}
    return Table(STATES, _placed(export, spans) | {"state": state[rows]})


def _state_codes(export: Export, raw: dict[str, Ints]) -> Array:
    """The state that each scheduling event begins; `NO_TEXT` for one that is not told."""
    inside = raw["isSchedIn"] == 1
    out = raw["isSchedIn"] == 0
    waiting = _named(export, "ENUM_SAMPLING_THREAD_STATE", raw["threadState"], _WAITING)
    ready = _named(export, "ENUM_SCHEDULING_THREAD_BLOCK", raw["threadBlock"], _READY)
    state = np.full(len(inside), NO_TEXT, np.int32)
    for name, rows in (("running", inside), ("blocked", out & waiting), ("runnable", out & ready)):
        if np.any(rows):
            state[rows] = export.strings.code(name)
    return state


def _named(export: Export, table: str, values: Ints, names: tuple[str, ...]) -> Mask:
    """Where values of an enumeration have one of these names."""
    rows = export.records(table, ["id"], ["name"])
    ids = [row["id"] for row, texts in rows if texts.get("name") in names and "id" in row]
    return np.isin(values, ids)


def _threads(export: Export) -> Table:
    raw = export.columns("ThreadNames", "globalTid", "nameId")
    tid = raw["globalTid"]
    name = export.texts(raw["nameId"])
    return Table(THREADS, {"process": process(tid), "thread": thread(tid), "name": name})


def _processes(export: Export) -> Table:
    rows = [
        (row["globalPid"], export.strings.code(texts.get("name")))
        for row, texts in export.records("PROCESSES", ["globalPid"], ["name"])
        if "globalPid" in row
    ]
    pids = np.array([pid for pid, _ in rows], np.int64)
    return Table(PROCESSES, {"process": process(pids), "name": [name for _, name in rows]})
