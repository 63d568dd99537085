"""NCCL's plans: what each kernel does, from the tasks that the profiler plugin told of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rca_llm.attribute.collective_names import PAIRWISE, element_type, operation
from rca_llm.readers.nccl_rows import CAPTURED, PEER
from rca_llm.table import Array
from rca_llm.trace import Timeline


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


@dataclass(frozen=True)
class Plan:
    """The tasks of one kernel: when they were handed over, by which thread, what they are."""

    time: int
    launch: int
    thread: int
    captured: bool
    told: Told


NO_PLAN = Plan(0, 0, -1, False, Told(None, None, None))


def plans_of(timeline: Timeline, tasks: Array) -> list[Plan]:
    """The plans of a process in the order in which they were handed over."""
    grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, (plan, task) in enumerate(
        zip(tasks["plan"].tolist(), tasks["task"].tolist(), strict=True)
    ):
        grouped[(plan, 0) if plan else (0, task)].append(place)
    found = [_plan(timeline, tasks[places]) for places in grouped.values()]
    return sorted(found, key=lambda plan: plan.time)


def _plan(timeline: Timeline, tasks: Array) -> Plan:
    first = tasks[0]
    captured = bool((tasks["capture"] == CAPTURED).any())
    peers = bool((tasks["kind"] == PEER).all())
    told = _exchange(timeline, tasks) if peers else _collective(timeline, tasks)
    time, launch = int(first["start"]), int(first["launch"])
    # NCCL does not count captured calls, and each replay is issued anew.
    seq, issued = (None, None) if captured else (told.seq, launch or time)
    told = replace(told, seq=seq, issued=issued)
    return Plan(time, launch, int(first["thread"]), captured, told)


def _text(timeline: Timeline, code: Any) -> str | None:
    return timeline.text(int(np.int32(np.uint32(code))))


def _comm(task: np.void) -> str:
    return f"{int(task['comm']):#x}"


def _type(timeline: Timeline, code: Any) -> tuple[str | None, int | None]:
    """The short name and the size of a type by NCCL's name of it."""
    return element_type(_text(timeline, code))


def _size(timeline: Timeline, task: np.void) -> int | None:
    width = _type(timeline, task["datatype"])[1]
    return None if width is None else int(task["count"]) * width


def _dtype(timeline: Timeline, task: np.void) -> str | None:
    """The type that the call was made with, where NCCL moves bytes in its place."""
    return _type(timeline, task["asked_type"])[0] or _type(timeline, task["datatype"])[0]


def _positive(value: Any) -> int | None:
    return int(value) if value >= 0 else None


def agreed(values: Iterable[str | None]) -> str | None:
    """The value that all agree on."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _collective(timeline: Timeline, tasks: Array) -> Told:
    """One collective, or several that were grouped into one kernel: their sizes add up."""
    texts = {
        name: agreed(_text(timeline, code) for code in tasks[name])
        for name in ("func", "algo", "proto")
    }
    sizes = [_size(timeline, task) for task in tasks]
    return Told(
        agreed(_comm(task) for task in tasks),
        operation(texts["func"]),
        None if None in sizes else sum(size or 0 for size in sizes),
        _positive(tasks[0]["seq"]),
        agreed(_dtype(timeline, task) for task in tasks),
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
    op, comm, size = exchange_op(sides, ranks), _comm(tasks[0]), ranks
    others = (sides["Send"] | sides["Recv"]) - {int(tasks[0]["rank"])}
    if op in PAIRWISE and len(others) == 1:
        pair = sorted((*others, int(tasks[0]["rank"])))
        comm, size = f"{comm} {pair[0]}-{pair[1]}", 2
    dtype = agreed(_dtype(timeline, task) for task in tasks)
    return Told(comm, op, max(sizes, default=None), None, dtype, size)


def exchange_op(sides: Mapping[str, set[int]], ranks: int | None) -> str:
    """The operation of sends and receives in one kernel, by the peers of each side."""
    everybody = set(range(ranks or 0))
    if everybody and sides.get("Send") == everybody == sides.get("Recv"):
        return "all_to_all"
    if sides.get("Send") and sides.get("Recv"):
        return "send_recv"
    return "send" if sides.get("Send") else "recv"
