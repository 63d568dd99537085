"""What hints and what-if cost on top of attribution, on a service of a million events.

Builds a timeline of requests, steps, launches and kernels with several causes in it, attributes it
once, and times the rules with their replays (`hints.explain`) and one replay with a changed part
(`whatif`) again and again in this process. `benchmarks/analysis.py --hints` prints both, the median
and the spread.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np

from rca_llm import hints
from rca_llm.hints import thresholds
from rca_llm.report import Report
from rca_llm.table import Array, Table
from rca_llm.trace import TABLES, Device, Header, Input, Timeline, Trace
from rca_llm.whatif import whatif

Answer = TypeVar("Answer")

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
PROCESS = THREAD = 1
KERNELS, BATCH, TOKENS = 240, 8, 50
"""Kernels of a step, requests of a batch, and tokens of a request."""
CALL_NS, LAG_NS, WORK_NS, BETWEEN_NS = 4_000, 6_000, 7_000, 400_000


@dataclass(frozen=True)
class Spent:
    """Seconds of several repeats of one thing."""

    what: str
    seconds: list[float]

    def __str__(self) -> str:
        low, high = min(self.seconds), max(self.seconds)
        return f"| {self.what} | {median(self.seconds):.2f} | {low:.2f} to {high:.2f} |"


def service(events: int) -> Trace:
    """A service that is bound by launching, with collections and a queue: so many records."""
    steps = max(events // (2 * KERNELS + BATCH + 2), 2)
    timeline = Timeline(Input("made", "events"), Header())
    timeline.devices.append(Device(0, "NVIDIA H200", PROCESS, {"sms": 132}))
    period = KERNELS * (CALL_NS + LAG_NS) + BETWEEN_NS
    begin = np.arange(steps, dtype=np.int64) * period
    call = (begin[:, None] + np.arange(KERNELS) * (CALL_NS + LAG_NS)).reshape(-1)
    rank = {"process": PROCESS}
    _put(timeline, "api", name="cudaLaunchKernel", start=call, end=call + CALL_NS, **rank)
    _put(timeline, "gpu", name=GEMM, start=call + LAG_NS, end=call + LAG_NS + WORK_NS, **rank)
    timeline.tables["api"] = timeline["api"].with_columns(
        thread=np.full(len(call), THREAD), correlation=np.arange(len(call))
    )
    timeline.tables["gpu"] = timeline["gpu"].with_columns(
        correlation=np.arange(len(call)), kind=np.zeros(len(call), np.int32)
    )
    ends = begin + KERNELS * (CALL_NS + LAG_NS) + WORK_NS
    _put(timeline, "steps", start=begin, end=ends, id=np.arange(steps), **rank)
    slow = begin[::10] + period - BETWEEN_NS
    _put(timeline, "ranges", kind="gc", name="gc gen 2", start=slow, end=slow + 300_000, **rank)
    _requests(timeline, begin, ends)
    return Trace([timeline])


def _requests(timeline: Timeline, begin: Array, ends: Array) -> None:
    """Requests that are served in batches, one batch after another, and wait for one."""
    count = len(begin) // TOKENS * BATCH
    number = np.arange(count)
    first = number // BATCH * TOKENS
    served = np.repeat(number, TOKENS)
    step = first[served] + np.tile(np.arange(TOKENS), count)
    texts = [timeline.strings.code(f"r{one}") for one in number.tolist()]
    ids, phases = np.array(texts), [timeline.strings.code(one) for one in ("prefill", "decode")]
    phase = np.where(np.arange(len(step)) % TOKENS == 0, *phases)
    tokens = np.where(phase == phases[0], 512, 1)
    _put(timeline, "batch", step=step, request=ids[served], phase=phase, tokens=tokens)
    _put(timeline, "tokens", request=ids[served], t=ends[step])
    last, arrival = ends[first + TOKENS - 1], np.maximum(begin[first] - 30_000_000, 0)
    _put(
        timeline,
        "requests",
        id=ids,
        arrival=arrival,
        scheduled=begin[first],
        status="finished",
        first_token=ends[first],
        finished=last,
        output_tokens=TOKENS,
    )


def _put(timeline: Timeline, table: str, **columns: Any) -> None:
    """Fill a table; a text or number stands for a whole column."""
    schema = TABLES[table]
    size = max(np.size(value) for value in columns.values())
    found: dict[str, Array] = {}
    for name, value in columns.items():
        one = timeline.strings.code(value) if isinstance(value, str) else value
        found[name] = one if isinstance(one, np.ndarray) else np.full(size, one)
    timeline.tables[table] = Table(schema, found)


def measured(trace: Trace, repeats: int) -> tuple[Report, list[Spent]]:
    """The report of a trace, and what attribution, hints and a replay took."""
    attributed: list[float] = []
    report = _timed(trace.attribute, attributed)
    spent: dict[str, list[float]] = {"hints": [], "what-if": [], "both": []}
    limits = thresholds.load()
    changed = {"scheduling.launch": 0.0, "scheduling.gc": 0.0}
    for _ in range(repeats):
        summary = copy.copy(report.summary)
        if report.model is not None:
            # A graph not built yet, which both then share, as in a run of `rca-llm whatif`.
            report = replace(report, model=replace(report.model))
        _timed(partial(_explain, report, summary, limits), spent["hints"])
        _timed(partial(whatif, report, changed), spent["what-if"])
        spent["both"].append(spent["hints"][-1] + spent["what-if"][-1])
    whole = [Spent("report in all, hints included, once", attributed)]
    return report, whole + [Spent(what, seconds) for what, seconds in spent.items()]


def _explain(
    report: Report, summary: dict[str, Any], limits: Mapping[str, Mapping[str, float]]
) -> None:
    if report.model is not None:
        hints.explain(summary, report.model, limits)


def _timed(call: Callable[[], Answer], seconds: list[float]) -> Answer:
    begun = time.perf_counter()
    answer = call()
    seconds.append(time.perf_counter() - begun)
    return answer


def table(trace: Trace, repeats: int) -> str:
    """What it took as a Markdown table."""
    events = sum(len(rows) for timeline in trace.timelines for rows in timeline.tables.values())
    report, spent = measured(trace, repeats)
    said = ", ".join(hint["id"] for hint in report.summary["hints"])
    lines = [f"{events:,} records, {len(report.lives):,} requests; hints: {said}", ""]
    lines += ["| what | seconds, median | spread |", "|---|--:|--:|"]
    return "\n".join([*lines, *map(str, spent)])
