"""What the collector says of itself: findings and header fields from its INFO cells `gpu.*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rca_llm.readers.segments import Fact
from rca_llm.trace import Timeline

_FALLBACK = (
    "no C compiler when installed: records came through cupti-python, which made an eager decode "
    "step 26 times as long where it was measured"
)


def add_facts(timeline: Timeline, facts: Iterable[Fact], process: int) -> None:
    """Add what the cells of one process say to its timeline."""
    counts: dict[str, int] = {}
    texts: dict[str, str] = {}
    for key, number, text in facts:
        counts[key] = counts.get(key, 0) + number
        if text is not None:
            texts[key] = text
    where = f"process {process}"
    _note_losses(timeline, counts, where)
    if "gpu.competitor" in texts:
        who = texts["gpu.competitor"] or "another client of CUPTI"
        timeline.note("competing_profiler", 1, where, f"{who} holds CUPTI: kernels not recorded")
    elif texts.get("gpu.status") in ("refused", "no libcupti"):
        why = texts.get("gpu.error", texts["gpu.status"])
        timeline.note(
            "not_traced", 1, where, f"GPU collector: {why} ({counts.get('gpu.error', 0)})"
        )
    if texts.get("gpu.status") == "cupti-python":
        timeline.note("tracer_overhead", 1, where, _FALLBACK)
    if texts.get("gpu.graph") == "graph":
        timeline.header.graph_level = True
    elif "gpu.graph" in texts and timeline.header.graph_level is None:
        timeline.header.graph_level = False
    if counts.get("gpu.cupti"):
        timeline.header.extra.setdefault("cupti", counts["gpu.cupti"])


def _note_losses(timeline: Timeline, counts: Mapping[str, int], where: str) -> None:
    note = timeline.note
    note("dropped_records", counts.get("gpu.dropped", 0), where, "dropped by CUPTI")
    note(
        "dropped_records", counts.get("gpu.foreign_buffers", 0), where, "buffers of another client"
    )
    note("dropped_records", counts.get("gpu.foreign_time", 0), where, "records on another clock")
    note("dropped_records", counts.get("gpu.overrun_bytes", 0), where, "bytes: writer held up")
    overflow = counts.get("gpu.counters_overflow", 0)
    note("dropped_records", overflow, where, "times that the GPU's counters overflowed")
