"""Device records of a run: the rows that the native collector wrote, process by process."""

from __future__ import annotations

from collections.abc import Sequence

from rca_llm.readers import cupti_facts, cupti_rows, cupti_tables, nccl, nccl_rows
from rca_llm.readers.segments import Segment
from rca_llm.trace import Timeline


def add(timeline: Timeline, segments: Sequence[Segment]) -> None:
    """Append the kernels, calls and collectives that the segments tell of."""
    for pid in dict.fromkeys(segment.pid for segment in segments):
        _add_process(timeline, pid, [segment for segment in segments if segment.pid == pid])


def _add_process(timeline: Timeline, pid: int, segments: Sequence[Segment]) -> None:
    rows, tasks = cupti_rows.Rows(), nccl_rows.Rows()
    for segment in segments:
        nccl.add_facts(timeline, segment.facts("nccl."))
        tasks.calls += nccl_rows.calls_of(segment)
        if segment.buffers:
            codes = cupti_rows.codes_of(timeline, segment.names)
            for buffer in segment.buffers:
                kind, size = int(buffer.cell["c"]), int(buffer.cell["d"])
                rows.add(kind, size, buffer.data, codes)
                tasks.add(kind, size, buffer.data, codes)
    if rows.parts:
        cupti_tables.add_rows(timeline, rows, pid)
    facts = [fact for segment in segments for fact in segment.facts("gpu.")]
    if facts:
        cupti_facts.add_facts(timeline, facts, pid)
    if tasks.tasks or tasks.calls:
        nccl.add_rows(timeline, tasks, pid)
