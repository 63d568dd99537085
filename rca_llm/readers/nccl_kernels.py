"""Which NCCL kernel is that of which plan, or of which NVTX range of a call."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rca_llm.attribute.collective_names import OPERATIONS, PAIRWISE, operation, operation_in
from rca_llm.readers.nccl_plans import NO_PLAN, Plan, Told, agreed, exchange_op
from rca_llm.readers.nccl_rows import COMM, PEER_RANK, RANKS, SIZE, Call
from rca_llm.table import Array, Ints, first_rows, known
from rca_llm.trace import KERNEL, Timeline

_KERNEL = re.compile(r"\bnccl(?:Dev)?Kernel|\bncclSym")


@dataclass(frozen=True)
class Work:
    """The NCCL kernels of a process by start.

    `row` leads to `gpu`; `launch` and `thread` are -1 where no call was recorded.
    """

    row: Ints
    start: Ints
    correlation: Ints
    node: Ints
    op: list[str | None]
    launch: Ints
    thread: Ints

    @classmethod
    def of(cls, timeline: Timeline, process: int) -> Work:
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
            found[code] = operation_in(text)
    return found


def _launches(timeline: Timeline, process: int, correlation: Ints) -> tuple[Ints, Ints]:
    """When and by which thread each kernel was launched."""
    api = timeline["api"]
    calls = np.flatnonzero((api["process"] == process) & known(api["correlation"]))
    place = first_rows(api["correlation"][calls], correlation)
    start, thread = (np.append(api[name][calls], -1)[place] for name in ("start", "thread"))
    return start, thread


def linked(work: Work, plans: Sequence[Plan]) -> dict[int, Told]:
    """What the plugin tells of each kernel, by its place in `work`."""
    eager = np.flatnonzero(~known(work.node))
    waiting = [plan for plan in plans if not plan.captured]
    found = _by_launch(work, eager, waiting)
    if not found:
        found = _by_order(work, eager, waiting)
    return found | _in_graphs(work, [plan for plan in plans if plan.captured])


def _by_launch(work: Work, eager: Ints, plans: Sequence[Plan]) -> dict[int, Told]:
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


def _by_order(work: Work, eager: Ints, plans: Sequence[Plan]) -> dict[int, Told]:
    """By order, where launches were not recorded: plans and kernels in the order of launching.

    Kernels may be missing at both ends. Of all ways to lay the kernels over the plans in which
    operations agree and no kernel begins before it was launched (before NCCL 2.28, which does not
    tell: before the plan before was handed over), the latest plans are taken: at the first moment
    at which the device waits for a launch, any later way is impossible.
    """
    order = eager[np.argsort(work.correlation[eager], kind="stable")]
    starts, count = work.start[order], len(order)
    earliest = np.array(
        [own.launch or before.time for before, own in zip([NO_PLAN, *plans], plans, strict=False)],
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


def _kernel_op(plan: Plan) -> str | None:
    """The operation of the kernel that does a plan: every exchange is done by the same one."""
    asked = plan.told.op
    return "send_recv" if asked in (*PAIRWISE, "all_to_all") else asked


def _codes(ops: Iterable[str | None]) -> Ints:
    """Operations as numbers, -1 for one that nobody knows."""
    numbers = {op: number for number, op in enumerate(sorted({*OPERATIONS.values()}))}
    return np.array([-1 if op is None else numbers.get(op, -2) for op in ops], np.int64)


def _in_graphs(work: Work, plans: Sequence[Plan]) -> dict[int, Told]:
    """Of the kernels of replayed graphs, whose nodes are numbered in the order of capture.

    A graph takes the first run of captured plans with its operations that no earlier graph took;
    its nodes have one number in their upper half.
    """
    places: list[int] = np.flatnonzero(known(work.node)).tolist()
    node_of = {place: int(work.node[place]) for place in places}
    ops = {node: work.op[place] for place, node in node_of.items()}
    graphs: dict[int, list[int]] = defaultdict(list)
    for node in sorted(ops):
        graphs[node >> 32].append(node)
    told: dict[int, Told] = {}
    at = 0
    for own in graphs.values():
        begin = _first_run([ops[node] for node in own], plans, at)
        if begin is None:
            continue
        at = begin + len(own)
        told |= {node: plan.told for node, plan in zip(own, plans[begin:at], strict=True)}
    return {place: told[node] for place, node in node_of.items() if node in told}


def _first_run(ops: Sequence[str | None], plans: Sequence[Plan], at: int) -> int | None:
    """Where, from `at` on, plans with these operations follow each other; None where nowhere."""
    for begin in range(at, len(plans) - len(ops) + 1):
        chosen = plans[begin : begin + len(ops)]
        if all(op in (None, _kernel_op(plan)) for op, plan in zip(ops, chosen, strict=True)):
            return begin
    return None


def from_calls(work: Work, calls: Sequence[Call]) -> dict[int, Told]:
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
    work: Work, order: Ints, calls: list[Call], ranks: Mapping[int, int], found: dict[int, Told]
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
        return Told(_hex(comm), exchange_op(sides, size), max(sizes), ranks=size)
    return Told(_hex(comm), operation(agreed(names)), sum(sizes), ranks=size)


def _hex(comm: int | None) -> str | None:
    return None if comm is None else f"{comm & (1 << 64) - 1:#x}"
