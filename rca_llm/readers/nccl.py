"""Collectives as NCCL itself tells them: through its profiler plugin and its NVTX payloads.

Both speak of the host's call, which hands a plan to the device: one kernel for a task or several.
The times of a collective are those of its kernel; what is told without a kernel that can be found
(CUPTI did not record, the kernel was lost) is counted and becomes no collective.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rca_llm.readers.nccl_kernels import Work, from_calls, linked
from rca_llm.readers.nccl_plans import Plan, Told, plans_of
from rca_llm.readers.nccl_rows import Rows
from rca_llm.table import Table, integers
from rca_llm.trace import COLLECTIVES, Timeline


def add_rows(timeline: Timeline, rows: Rows, process: int) -> None:
    """Append the collectives of a process to the timeline's table.

    The plugin is believed before NVTX, which names no algorithm. How often each spoke, and how
    often they agreed, is added to `header.extra["nccl"]`.
    """
    work = Work.of(timeline, process)
    plans = plans_of(timeline, rows.all_tasks())
    by_plugin = linked(work, plans)
    by_nvtx = from_calls(work, rows.calls)
    _count(timeline, rows, plans, by_plugin, by_nvtx)
    found = {**by_nvtx, **by_plugin}
    if found:
        timeline.add("collectives", _table(timeline, work, found, process))


def _table(timeline: Timeline, work: Work, found: Mapping[int, Told], process: int) -> Table:
    places = sorted(found)
    told = [found[place] for place in places]
    gpu, rows = timeline["gpu"], work.row[places]
    strings = timeline.strings
    return Table(
        COLLECTIVES,
        {
            "comm": strings.codes(one.comm for one in told),
            "op": strings.codes(one.op for one in told),
            "seq": integers(one.seq for one in told),
            "process": np.full(len(places), process),
            "device": gpu["device"][rows],
            "bytes": integers(one.bytes for one in told),
            "dtype": strings.codes(one.dtype for one in told),
            "group_size": integers(one.ranks for one in told),
            "start": gpu["start"][rows],
            "end": gpu["end"][rows],
            "algo": strings.codes(_tidy(one.algo) for one in told),
            "proto": strings.codes(_tidy(one.proto) for one in told),
            "correlation": gpu["correlation"][rows],
            "issued": integers(one.issued for one in told),
        },
    )


def _tidy(text: str | None) -> str | None:
    """A name as the contract writes it; NCCL has an empty one for what it does not know."""
    return text or None


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
    plans: Sequence[Plan],
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
