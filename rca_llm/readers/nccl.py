"""Collectives as NCCL itself tells them: through its profiler plugin and its NVTX payloads.

Both speak of the host's call, which hands a plan to the device: one kernel for a task or several.
The times of a collective are those of its kernel; what is told without a kernel that can be found
(CUPTI did not record, the kernel was lost) is counted and becomes no collective.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rca_llm.probes import format as layout
from rca_llm.readers.cupti import Codes
from rca_llm.readers.segments import Segment
from rca_llm.table import UNKNOWN, Array, Ints, Table, known
from rca_llm.trace import COLLECTIVES, KERNEL, Timeline

ROW_TASK, ROW_CHANNEL = 32, 33
"""Kinds of rows, as `RowKind` in `probes/native/rows.h`."""

_TEXTS = ("comm_name", "func", "datatype", "asked_type", "algo", "proto")

_WAY = ("func", "algo", "proto")

TASK = np.dtype(
    [(name, "<u8") for name in ("start", "end", "launch", "comm", "count")]
    + [("seq", "<i8")]
    + [(name, "<u4") for name in ("plan", "task", *_TEXTS)]
    + [(name, "<i4") for name in ("ranks", "rank", "root", "peer", "channels")]
    + [("thread", "<u4"), ("kind", "u1"), ("capture", "u1"), ("pad", "u1", 6)]
)
"""The layout of `RowNccl`."""

CHANNEL = np.dtype([("begin", "<u8"), ("end", "<u8"), ("task", "<u4"), ("channel", "<u4")])
"""The layout of `RowNcclChannel`."""

_LAYOUTS = {ROW_TASK: TASK, ROW_CHANNEL: CHANNEL}

COLLECTIVE, PEER, COPIES = range(3)
"""`kind` of a task: by a kernel, between two ranks, by copies without a kernel."""

CAPTURED = 2
"""`capture` of a task whose call was captured into a CUDA graph."""

DOMAIN = "NCCL"
"""The NVTX domain of NCCL's own ranges."""

_KERNEL = re.compile(r"\bnccl(?:Dev)?Kernel|\bncclSym")
_TYPES = {
    "Int8": ("int8", 1),
    "Uint8": ("uint8", 1),
    "Int32": ("int32", 4),
    "Uint32": ("uint32", 4),
    "Int64": ("int64", 8),
    "Uint64": ("uint64", 8),
    "Float16": ("fp16", 2),
    "Half": ("fp16", 2),
    "Bfloat16": ("bf16", 2),
    "Float32": ("fp32", 4),
    "Float": ("fp32", 4),
    "Float64": ("fp64", 8),
    "Double": ("fp64", 8),
    "Float8e4m3": ("fp8_e4m3", 1),
    "Float8e5m2": ("fp8_e5m2", 1),
}
"""The short name and the size in bytes of NCCL's types, without its prefix."""

_OPS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AlltoAll": "all_to_all",
    "Broadcast": "broadcast",
    "Bcast": "broadcast",
    "Reduce": "reduce",
    "Gather": "gather",
    "Scatter": "scatter",
    "Send": "send",
    "Recv": "recv",
    "SendRecv": "send_recv",
}
"""Operations by NCCL's names of them."""

_OP_IN_KERNEL = re.compile("AllReduce|AllGather|ReduceScatter|SendRecv|Broadcast|Reduce")
_PAIRWISE = ("send", "recv", "send_recv")

COMM, SIZE, ROOT, PEER_RANK, RANKS, RANK = (
    "NCCL communicator ID",
    "Message size [bytes]",
    "Root",
    "Peer rank",
    "No. of ranks",
    "Rank",
)
"""The fields of NCCL's NVTX payloads that are read, as NCCL names them."""


@dataclass(frozen=True)
class Told:
    """What is known of the work of one kernel; None where it is not."""

    comm: str | None
    op: str | None
    bytes: int | None
    seq: int | None = None
    dtype: str | None = None
    ranks: int | None = None
    algo: str | None = None
    proto: str | None = None
    issued: int | None = None


@dataclass
class Call:
    """One NVTX range of an NCCL call: when and where it was made, and its numbers by field."""

    name: str
    start: int
    end: int
    thread: int
    numbers: Mapping[str, int]


@dataclass
class Rows:
    """What was recorded of NCCL in one process."""

    tasks: list[Array] = field(default_factory=list[Array])
    channels: list[Array] = field(default_factory=list[Array])
    calls: list[Call] = field(default_factory=list[Call])

    def add(self, kind: int, row_bytes: int, payload: bytes | memoryview, codes: Codes) -> None:
        """Append a BUFFER cell's rows; `codes` translates NAME ids. Other kinds are passed over."""
        dtype = _LAYOUTS.get(kind)
        if dtype is None or row_bytes < dtype.itemsize:
            return
        count = len(payload) // row_bytes
        wide = np.frombuffer(payload, np.uint8, count * row_bytes).reshape(count, row_bytes)
        rows = np.zeros(count, dtype)
        rows.view(np.uint8).reshape(count, dtype.itemsize)[:] = wide[:, : dtype.itemsize]
        if kind == ROW_CHANNEL:
            self.channels.append(rows)
            return
        for name in _TEXTS:
            rows[name] = codes[np.minimum(rows[name], len(codes) - 1)].astype(np.uint32)
        self.tasks.append(rows)

    def all_tasks(self) -> Array:
        """All tasks by the time at which they were handed over."""
        rows = np.concatenate(self.tasks) if self.tasks else np.zeros(0, TASK)
        return rows[np.argsort(rows["start"], kind="stable")]


def calls_of(segment: Segment, threads: Ints) -> list[Call]:
    """NCCL's NVTX ranges in a segment; `threads` is the thread of each of its SPAN cells."""
    if DOMAIN not in segment.names.values():
        return []
    places = segment.of(layout.SPAN)
    more, whole = segment.followers(places, layout.MORE)
    domains = [segment.names.get(number) for number in segment.cells["d"][more].tolist()]
    chosen = whole & (np.array(domains, object) == DOMAIN)
    chosen &= (segment.flags[places] & layout.FLAG_NVTX) != 0
    pairs = zip(places[chosen].tolist(), threads[chosen].tolist(), strict=True)
    return [_call(segment, place, thread) for place, thread in pairs]


def _call(segment: Segment, place: int, thread: int) -> Call:
    cells = segment.cells
    numbers: dict[str, int] = {}
    at = place + 2
    while at < len(cells) and segment.kinds[at] == layout.NUMBER:
        numbers[segment.names.get(int(cells["e"][at]), "")] = int(cells["b"][at])
        at += 1
    start, end = int(cells["a"][place]), int(cells["b"][place])
    name = segment.names.get(int(cells["e"][place]), "")
    return Call(name, start, end or start, thread, numbers)


def add_rows(timeline: Timeline, rows: Rows, process: int) -> None:
    """Append the collectives of a process to the timeline's table.

    The plugin is believed before NVTX, which names no algorithm. How often each spoke, and how
    often they agreed, is added to `header.extra["nccl"]`.
    """
    work = _Work.of(timeline, process)
    plans = _plans(timeline, rows.all_tasks())
    by_plugin = _linked(timeline, work, plans)
    by_nvtx = _from_calls(timeline, work, rows.calls)
    _count(timeline, rows, plans, by_plugin, by_nvtx)
    found = {**by_nvtx, **by_plugin}
    if found:
        timeline.add("collectives", _table(timeline, work, found, process))


# ------------------------------------------------------------------ kernels


@dataclass(frozen=True)
class _Work:
    """The NCCL kernels of a process by start; `row` leads to `gpu`, `launch` and `thread` are -1
    where no call was recorded."""

    row: Ints
    start: Ints
    correlation: Ints
    node: Ints
    op: list[str | None]
    launch: Ints
    thread: Ints

    @classmethod
    def of(cls, timeline: Timeline, process: int) -> _Work:
        """Those among the process's device records."""
        gpu = timeline["gpu"]
        ops = _kernel_ops(timeline, gpu["name"])
        mine = (gpu["process"] == process) & (gpu["kind"] == KERNEL) & known(gpu["start"])
        rows = np.flatnonzero(mine & np.isin(gpu["name"], list(ops)))
        rows = rows[np.argsort(gpu["start"][rows], kind="stable")]
        launch, thread = _launches(timeline, process, gpu["correlation"][rows])
        return cls(
            rows,
            gpu["start"][rows],
            gpu["correlation"][rows],
            gpu["graph_node"][rows],
            [ops[code] for code in gpu["name"][rows].tolist()],
            launch,
            thread,
        )


def _kernel_ops(timeline: Timeline, names: Array) -> dict[int, str | None]:
    """The operation of every kernel name that is NCCL's, by text code."""
    found: dict[int, str | None] = {}
    for code in np.unique(names).tolist():
        text = timeline.text(code) or ""
        if _KERNEL.search(text):
            match = _OP_IN_KERNEL.search(text)
            found[code] = _OPS[match.group()] if match else None
    return found


def _launches(timeline: Timeline, process: int, correlation: Ints) -> tuple[Ints, Ints]:
    """When and by which thread each kernel was launched."""
    api = timeline["api"]
    calls = np.flatnonzero((api["process"] == process) & known(api["correlation"]))
    calls = calls[np.argsort(api["correlation"][calls], kind="stable")]
    ids = api["correlation"][calls]
    if not len(ids):
        none = np.full(len(correlation), -1, np.int64)
        return none, none
    place = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    hit = known(correlation) & (ids[place] == correlation)
    return (
        np.where(hit, api["start"][calls[place]], -1),
        np.where(hit, api["thread"][calls[place]], -1),
    )


# ------------------------------------------------------------------ the plugin


@dataclass(frozen=True)
class _Plan:
    """The tasks of one kernel: when they were handed over, by which thread, what they are."""

    time: int
    launch: int
    thread: int
    captured: bool
    told: Told


_NO_PLAN = _Plan(0, 0, -1, False, Told(None, None, None))


def _plans(timeline: Timeline, tasks: Array) -> list[_Plan]:
    """The plans of a process in the order in which they were handed over."""
    grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, (plan, task) in enumerate(
        zip(tasks["plan"].tolist(), tasks["task"].tolist(), strict=True)
    ):
        grouped[(plan, 0) if plan else (0, task)].append(place)
    found = [_plan(timeline, tasks[places]) for places in grouped.values()]
    return sorted(found, key=lambda plan: plan.time)


def _plan(timeline: Timeline, tasks: Array) -> _Plan:
    first = tasks[0]
    captured = bool((tasks["capture"] == CAPTURED).any())
    peers = bool((tasks["kind"] == PEER).all())
    told = _exchange(timeline, tasks) if peers else _collective(timeline, tasks)
    time, launch = int(first["start"]), int(first["launch"])
    # NCCL does not count captured calls, and each replay is issued anew.
    seq, issued = (None, None) if captured else (told.seq, launch or time)
    told = replace(told, seq=seq, issued=issued)
    return _Plan(time, launch, int(first["thread"]), captured, told)


def _text(timeline: Timeline, code: Any) -> str | None:
    return timeline.text(int(np.int32(np.uint32(code))))


def _comm(task: np.void) -> str:
    return f"{int(task['comm']):#x}"


def _type(timeline: Timeline, code: Any) -> tuple[str | None, int | None]:
    """The short name and the size of a type by NCCL's name of it."""
    text = _text(timeline, code)
    return _TYPES.get((text or "").removeprefix("nccl"), (text, None))


def _size(timeline: Timeline, task: np.void) -> int | None:
    width = _type(timeline, task["datatype"])[1]
    return None if width is None else int(task["count"]) * width


def _dtype(timeline: Timeline, task: np.void) -> str | None:
    """The type that the call was made with, where NCCL moves bytes in its place."""
    return _type(timeline, task["asked_type"])[0] or _type(timeline, task["datatype"])[0]


def _positive(value: Any) -> int | None:
    return int(value) if value >= 0 else None


def _one(values: Iterable[str | None]) -> str | None:
    """The value that all agree on."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _collective(timeline: Timeline, tasks: Array) -> Told:
    """One collective, or several that were grouped into one kernel: their sizes add up."""
    texts = {
        name: _one(_text(timeline, code) for code in tasks[name])
        for name in ("func", "algo", "proto")
    }
    sizes = [_size(timeline, task) for task in tasks]
    func = texts["func"]
    return Told(
        _one(_comm(task) for task in tasks),
        _OPS.get(func or "", func),
        None if None in sizes else sum(size or 0 for size in sizes),
        _positive(tasks[0]["seq"]),
        _one(_dtype(timeline, task) for task in tasks),
        _positive(tasks[0]["ranks"]),
        texts["algo"],
        texts["proto"],
    )


def _exchange(timeline: Timeline, tasks: Array) -> Told:
    """Sends and receives in one kernel: an all-to-all where they reach every rank.

    The two sides of a pair share a name of their own, so that they find each other in a larger
    communicator. Bytes are those of the largest message.
    """
    sides: dict[str, set[int]] = defaultdict(set)
    for task in tasks:
        sides[_text(timeline, task["func"]) or ""].add(int(task["peer"]))
    ranks = _positive(tasks[0]["ranks"])
    sizes = [size for size in (_size(timeline, task) for task in tasks) if size is not None]
    op, comm, size = _exchange_op(sides, ranks), _comm(tasks[0]), ranks
    others = (sides["Send"] | sides["Recv"]) - {int(tasks[0]["rank"])}
    if op in _PAIRWISE and len(others) == 1:
        pair = sorted((*others, int(tasks[0]["rank"])))
        comm, size = f"{comm} {pair[0]}-{pair[1]}", 2
    dtype = _one(_dtype(timeline, task) for task in tasks)
    return Told(comm, op, max(sizes, default=None), None, dtype, size)


def _exchange_op(sides: Mapping[str, set[int]], ranks: int | None) -> str:
    everybody = set(range(ranks or 0))
    if everybody and sides.get("Send") == everybody == sides.get("Recv"):
        return "all_to_all"
    if sides.get("Send") and sides.get("Recv"):
        return "send_recv"
    return "send" if sides.get("Send") else "recv"


def _linked(timeline: Timeline, work: _Work, plans: Sequence[_Plan]) -> dict[int, Told]:
    """What the plugin tells of each kernel, by its place in `work`."""
    eager = np.flatnonzero(~known(work.node))
    waiting = [plan for plan in plans if not plan.captured]
    found = _by_launch(work, eager, waiting)
    if not found:
        found = _by_order(work, eager, waiting)
    return found | _in_graphs(work, [plan for plan in plans if plan.captured])


def _by_launch(work: _Work, eager: Ints, plans: Sequence[_Plan]) -> dict[int, Told]:
    """By the launch: NCCL hands the tasks over right after it, on the same thread."""
    found: dict[int, Told] = {}
    threads: dict[int, list[int]] = defaultdict(list)
    for place in eager[work.launch[eager] >= 0].tolist():
        threads[int(work.thread[place])].append(place)
    for thread, places in threads.items():
        order = sorted(places, key=lambda place: int(work.launch[place]))
        times = [int(work.launch[place]) for place in order]
        previous = -1
        for plan in (plan for plan in plans if plan.thread == thread):
            last = int(np.searchsorted(times, plan.time, "right")) - 1
            if last >= 0 and times[last] > max(previous, plan.launch - 1):
                found[order[last]] = plan.told
            previous = plan.time
    return found


def _by_order(work: _Work, eager: Ints, plans: Sequence[_Plan]) -> dict[int, Told]:
    """By order, where launches were not recorded: plans and kernels in the order of launching.

    Kernels may be missing at both ends. Of all ways to lay the kernels over the plans in which
    operations agree and no kernel begins before it was launched (before NCCL 2.28, which does not
    tell: before the plan before was handed over), the latest plans are taken: at the first moment
    at which the device waits for a launch, any later way is impossible.
    """
    order = eager[np.argsort(work.correlation[eager], kind="stable")]
    starts, count = work.start[order], len(order)
    earliest = np.array(
        [own.launch or before.time for before, own in zip([_NO_PLAN, *plans], plans, strict=False)],
        np.int64,
    )
    places: list[int] = order.tolist()
    kernels = _codes(work.op[place] for place in places)
    asked = _codes(_kernel_op(plan) for plan in plans)
    for skipped in range(len(plans) - count, -1, -1):
        there = slice(skipped, skipped + count)
        fits = (kernels < 0) | (kernels == asked[there])
        if np.all(fits & (starts >= earliest[there])):
            return {place: own.told for place, own in zip(places, plans[there], strict=True)}
    return {}


def _kernel_op(plan: _Plan) -> str | None:
    """The operation of the kernel that does a plan: every exchange is done by the same one."""
    asked = plan.told.op
    return "send_recv" if asked in (*_PAIRWISE, "all_to_all") else asked


def _codes(ops: Iterable[str | None]) -> Ints:
    """Operations as numbers, -1 for one that nobody knows."""
    numbers = {op: number for number, op in enumerate(sorted({*_OPS.values()}))}
    return np.array([-1 if op is None else numbers.get(op, -2) for op in ops], np.int64)


def _in_graphs(work: _Work, plans: Sequence[_Plan]) -> dict[int, Told]:
    """Of the kernels of replayed graphs, whose nodes are numbered in the order of capture.

    A graph takes the first run of captured plans with its operations that no earlier graph took;
    its nodes have one number in their upper half.
    """
    found: dict[int, Told] = {}
    nodes: dict[int, str | None] = {}
    for place in np.flatnonzero(known(work.node)).tolist():
        nodes[int(work.node[place])] = work.op[place]
    graphs: dict[int, list[int]] = defaultdict(list)
    for node in sorted(nodes):
        graphs[node >> 32].append(node)
    told: dict[int, Told] = {}
    at = 0
    for own in graphs.values():
        begin = _first_run([nodes[node] for node in own], plans, at)
        if begin is None:
            continue
        at = begin + len(own)
        told |= {node: plan.told for node, plan in zip(own, plans[begin:at], strict=True)}
    for place in np.flatnonzero(known(work.node)).tolist():
        if int(work.node[place]) in told:
            found[place] = told[int(work.node[place])]
    return found


def _first_run(ops: Sequence[str | None], plans: Sequence[_Plan], at: int) -> int | None:
    for begin in range(at, len(plans) - len(ops) + 1):
        chosen = plans[begin : begin + len(ops)]
        if all(op in (None, _kernel_op(plan)) for op, plan in zip(ops, chosen, strict=True)):
            return begin
    return None


# ------------------------------------------------------------------ NVTX


def _from_calls(timeline: Timeline, work: _Work, calls: Sequence[Call]) -> dict[int, Told]:
    """What NVTX ranges tell of the kernels that were launched inside them, or at a group's end."""
    ranks = {
        call.numbers[COMM]: call.numbers[RANKS]
        for call in calls
        if COMM in call.numbers and RANKS in call.numbers
    }
    found: dict[int, Told] = {}
    by_thread: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_thread[call.thread].append(call)
    for thread, own in by_thread.items():
        launched = np.flatnonzero((work.thread == thread) & (work.launch >= 0))
        order = launched[np.argsort(work.launch[launched], kind="stable")]
        _on_thread(work, order, sorted(own, key=lambda call: call.start), ranks, found)
    return found


def _on_thread(
    work: _Work, order: Ints, calls: list[Call], ranks: Mapping[int, int], found: dict[int, Told]
) -> None:
    """Give each launch the calls that it is for: its own, or all of the group that ends."""
    launches = work.launch[order]
    pending: list[Call] = []
    depth = 0
    for call in calls:
        depth += call.name == "ncclGroupStart"
        if SIZE in call.numbers:
            pending.append(call)
        ends = call.name == "ncclGroupEnd"
        depth = max(depth - ends, 0)
        if depth or not (ends or pending):
            continue
        first, last = np.searchsorted(launches, [call.start, call.end])
        if last - first == 1 and pending:  # of several launches nobody knows which is whose
            found[int(order[first])] = _told(pending, ranks)
        pending = []


def _told(calls: Sequence[Call], ranks: Mapping[int, int]) -> Told:
    """What some calls in one kernel say."""
    ids = {call.numbers.get(COMM) for call in calls}
    comm = ids.pop() if len(ids) == 1 else None
    names = [call.name.removeprefix("nccl") for call in calls]
    sizes = [call.numbers[SIZE] for call in calls]
    size = ranks.get(comm) if comm is not None else None
    if all(name in ("Send", "Recv") for name in names):
        sides: dict[str, set[int]] = defaultdict(set)
        for name, call in zip(names, calls, strict=True):
            sides[name].add(call.numbers.get(PEER_RANK, -1))
        return Told(_hex(comm), _exchange_op(sides, size), max(sizes), ranks=size)
    op = _one(names)
    return Told(_hex(comm), _OPS.get(op or "", op), sum(sizes), ranks=size)


def _hex(comm: int | None) -> str | None:
    return None if comm is None else f"{comm & (1 << 64) - 1:#x}"


# ------------------------------------------------------------------ tables


def _table(timeline: Timeline, work: _Work, found: Mapping[int, Told], process: int) -> Table:
    places = sorted(found)
    told = [found[place] for place in places]
    gpu, rows = timeline["gpu"], work.row[places]
    strings = timeline.strings
    return Table(
        COLLECTIVES,
        {
            "comm": strings.codes(one.comm for one in told),
            "op": strings.codes(one.op for one in told),
            "seq": _numbers(one.seq for one in told),
            "process": np.full(len(places), process),
            "device": gpu["device"][rows],
            "bytes": _numbers(one.bytes for one in told),
            "dtype": strings.codes(one.dtype for one in told),
            "group_size": _numbers(one.ranks for one in told),
            "start": gpu["start"][rows],
            "end": gpu["end"][rows],
            "algo": strings.codes(_tidy(one.algo) for one in told),
            "proto": strings.codes(_tidy(one.proto) for one in told),
            "correlation": gpu["correlation"][rows],
            "issued": _numbers(one.issued for one in told),
        },
    )


def _tidy(text: str | None) -> str | None:
    """A name as the contract writes it; NCCL has an empty one for what it does not know."""
    return text or None


def _numbers(values: Iterable[int | None]) -> Ints:
    return np.array([UNKNOWN if value is None else value for value in values], np.int64)


def add_facts(timeline: Timeline, facts: Iterable[tuple[str, int, str | None]]) -> None:
    """The release of NCCL from the INFO cells `nccl.*` of a process."""
    for key, number, _ in facts:
        if key == "nccl.version" and number > 0:
            timeline.header.nccl = _release(number)


def _release(number: int) -> str:
    """`ncclGetVersion`'s number in words: 22809 is 2.28.9 (2.9 and later)."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _count(
    timeline: Timeline,
    rows: Rows,
    plans: Sequence[_Plan],
    by_plugin: Mapping[int, Told],
    by_nvtx: Mapping[int, Told],
) -> None:
    """Add up how often each source spoke, and how often both did and agreed."""
    both = by_plugin.keys() & by_nvtx.keys()
    counts = {
        "plans": len(plans),
        "captured": sum(plan.captured for plan in plans),
        "calls": len(rows.calls),
        "by_plugin": len(by_plugin),
        "by_nvtx": len(by_nvtx),
        "by_both": len(both),
        "agree": sum(_agree(by_plugin[place], by_nvtx[place]) for place in both),
        "channels": sum(len(part) for part in rows.channels),
    }
    extra = timeline.header.extra.setdefault("nccl", dict.fromkeys(counts, 0))
    for key, value in counts.items():
        extra[key] += value


def _agree(plugin: Told, nvtx: Told) -> bool:
    return (plugin.op, plugin.bytes) == (nvtx.op, nvtx.bytes)
