"""Operations, sizes, types and ways of every call, and how long they took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from rca_llm.attribute.collective_names import PAIRWISE
from rca_llm.attribute.collectives import summary_row
from tests.nccl_truth.truth import TOLERANCE, Findings, Recording, Truth

JUDGED_US = 100.0
"""From this time on, inside a graph: below it, what lies between two events besides the collective
(launching, the way to the next kernel) is more than 5 %."""

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "uint8": "uint8",
    "int8": "int8",
}


def side_less(op: str | None) -> str | None:
    """A send and its receive as one operation."""
    return "send_recv" if op in PAIRWISE else op


def compare_calls(
    found: Findings, recorded: Recording, told: Sequence[Truth], sizes_known: bool = True
) -> None:
    """Every phase of every rank: the same operations, sizes and types in the same order."""
    totals: Counter[str] = Counter()
    wrong: list[Any] = []
    for truth in told:
        for phase in truth.phases:
            calls = phase["calls"]
            parts = [part for part, _ in recorded.within(truth.rank, phase["name"])]
            totals["asked"] += len(calls)
            totals["recorded"] += len(parts)
            for (op, size, dtype), part in zip(calls, parts, strict=False):
                totals["op"] += side_less(part.op) == side_less(op)
                totals["bytes"] += part.bytes == size
                totals["dtype"] += part.dtype == DTYPES.get(dtype, dtype)
                totals["algo"] += part.algo is not None
                totals["proto"] += part.proto is not None
                if side_less(part.op) != side_less(op) or part.bytes not in (size, None):
                    wrong.append([phase["name"], truth.rank, op, size, part.op, part.bytes])
            if len(calls) != len(parts):
                wrong.append([phase["name"], truth.rank, len(calls), len(parts)])
    found.facts["calls"] = dict(totals)
    found.facts["wrong"] = wrong[:12]
    found.hold("no call is told wrongly", not wrong, len(wrong), 0)
    for name in ("recorded", "op", *(("bytes", "dtype") if sizes_known else ())):
        found.hold(
            f"every call: {name}", totals[name] == totals["asked"], totals[name], totals["asked"]
        )


def compare_ranks(found: Findings, recorded: Recording, told: Sequence[Truth]) -> None:
    """Every collective of a phase has a part of every rank, and they agree on how it was done."""
    whole = total = agreed = 0
    algos: Counter[str] = Counter()
    for phase in told[0].phases:
        for part, one in recorded.within(0, phase["name"]):
            total += 1
            whole += one.complete
            ways = {(p.algo, p.proto) for p in one.parts}
            agreed += len(ways) == 1
            algos[f"{side_less(part.op)} {part.algo} {part.proto}"] += 1
    found.facts["ways"] = dict(algos)
    found.hold("matched across ranks", whole == total and total > 0, whole, total)
    found.hold("algorithm and protocol alike on all ranks", agreed == total, agreed, total)


def compare_bandwidth(found: Findings, recorded: Recording, told: Sequence[Truth]) -> None:
    """Bus bandwidth by the recording against the program's own events."""
    rows: list[list[Any]] = []
    off: list[float] = []
    by_events = {
        phase["name"]: median(
            min(side) / phase.get("each", 1)
            for side in zip(*(t.phase(phase["name"])["times_us"] for t in told), strict=True)
        )
        for phase in told[0].phases
        if "op" in phase
    }
    for phase in told[0].phases:
        if "op" not in phase:
            continue
        measured = by_events[phase["name"]]
        ours = [one.transfer for _, one in recorded.within(0, phase["name"]) if one.transfer]
        if not ours:
            rows.append([phase["name"], None, measured])
            continue
        speeds = [summary_row(one)["busbw_bytes_s"] for _, one in recorded.within(0, phase["name"])]
        speed = median(int(str(s)) for s in speeds if s) if any(speeds) else None
        ratio = median(ours) / 1000 / measured
        rows.append([phase["name"], median(ours) / 1000, measured, ratio, speed])
        in_graph = by_events.get(f"{phase['op']} {phase['size']} graph", 0.0)
        if in_graph >= JUDGED_US:
            off.append(abs(ratio - 1))
    found.facts["bandwidth"] = rows
    within = sum(value <= TOLERANCE for value in off)
    found.hold("bus bandwidth within 5 %", bool(off) and within == len(off), within, len(off))


def compare_sources(found: Findings, recorded: Recording) -> None:
    """The profiler plugin and the NVTX payloads of NCCL say the same where both speak."""
    counts = [timeline.header.extra.get("nccl", {}) for timeline in recorded.trace.timelines]
    found.facts["sources"] = counts
    found.facts["nccl"] = [timeline.header.nccl for timeline in recorded.trace.timelines]
    both, agree = (sum(one.get(key, 0) for one in counts) for key in ("by_both", "agree"))
    found.hold("plugin and NVTX agree on operation and size", agree == both > 0, agree, both)


def check_one(recorded: Recording, told: Sequence[Truth]) -> Findings:
    """One rank: what NCCL's NVTX payloads say of every call, since there need be no kernel."""
    found = Findings()
    found.facts["sources"] = [t.header.extra.get("nccl") for t in recorded.trace.timelines]
    found.facts["nccl"] = [t.header.nccl for t in recorded.trace.timelines]
    timeline = recorded.trace.timelines[0]
    table = timeline["ranges"]
    domain = table["domain"] == timeline.strings.find("NCCL")
    seen: Counter[str] = Counter()
    for phase in told[0].phases:
        begin, end = recorded.window(0, phase["name"])
        rows = np.flatnonzero(domain & (table["start"] >= begin) & (table["start"] < end))
        for row in rows.tolist():
            seen[f"{timeline.text(int(table['name'][row]))} {int(table['bytes'][row])}"] += 1
    asked = Counter(
        f"{op} {size}"
        for phase in told[0].phases
        if phase.get("mode") != "graph"
        for op, size, _ in phase["calls"]
    )
    found.facts["seen"], found.facts["asked"] = dict(seen), dict(asked)
    reduced = {key: count for key, count in asked.items() if key.startswith("all_reduce ")}
    ours = {key: seen[key.replace("all_reduce", "ncclAllReduce")] for key in reduced}
    found.hold("NVTX payloads of every all-reduce", ours == reduced and reduced, ours, reduced)
    found.facts["kernels"] = sum(len(r.timeline["collectives"]) for r in recorded.job.recordings)
    return found


def expect(
    found: Findings, recorded: Recording, told: Sequence[Truth], what: str, value: str
) -> None:
    """That NCCL did all collectives by the way that it was told to."""
    ways = Counter(
        getattr(part, what.lower())
        for phase in told[0].phases
        for part, _ in recorded.within(0, phase["name"])
        if part.op not in PAIRWISE
    )
    found.hold(f"{what} as forced", set(ways) == {value}, dict(ways), value)
