"""RCA events, JSON lines: the whole trace, aligned and repaired, to be read again as it is.

A trace of one input is one file; one of several is a folder with a file for each, which
`rca-llm report` reads as the ranks of one job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rca_llm.exporters.records import Record, records
from rca_llm.quality import repair
from rca_llm.trace import (
    COPY_KINDS,
    CUT,
    MEMORY_KINDS,
    NODES,
    PARTIAL,
    PAUSES,
    Finding,
    Header,
    Timeline,
    Trace,
)

if TYPE_CHECKING:
    from rca_llm.report import Report

suffix = ".jsonl"

SCHEMA = "rca-llm/events/1"

_KINDS = ("kernel", "memcpy", "memset", "graph")
_AXES = ("x", "y", "z")
_IDS = {"process": "pid", "thread": "tid"}
"""Columns that the format gives another name."""

_TYPES = {
    "processes": "process",
    "marks": "event",
    "ranges": "span",
    "gpu": "gpu",
    "api": "api",
    "collectives": "collective",
    "threads": "thread",
    "states": "thread",
    "samples": "sample",
}
"""The tables whose rows are records of their own, and the type of those."""

_BUFFER = 4096
"""Lines that are written at a time."""


def write(report: Report, target: Path) -> None:
    """Write one file, or a folder with a file for every input of the trace."""
    trace = report.trace
    if len(trace.timelines) == 1:
        _write_file(trace.timelines[0], target, of_job(trace))
        return
    target.mkdir()
    for number, timeline in enumerate(trace.timelines):
        findings = [] if number else of_job(trace)
        _write_file(timeline, target / f"{number:05}{suffix}", findings)


def of_job(trace: Trace) -> list[Finding]:
    """The findings about the job as a whole that reading the output will not find again."""
    return [finding for finding in trace.findings if finding.code != "missing_rank"]


def _write_file(timeline: Timeline, target: Path, findings: list[Finding]) -> None:
    import msgspec

    encoder = msgspec.json.Encoder()
    with target.open("wb") as file:
        lines: list[Record] = []
        for record in lines_of(timeline, findings):
            lines.append(record)
            if len(lines) == _BUFFER:
                file.write(encoder.encode_lines(lines))
                lines.clear()
        file.write(encoder.encode_lines(lines))


def lines_of(timeline: Timeline, findings: list[Finding]) -> Iterator[Record]:
    """All records of one input, the header first."""
    yield header_of(timeline, findings)
    yield from _requests(timeline)
    yield from _steps(timeline)
    for name, type in _TYPES.items():
        for record in records(timeline, name):
            told = _gpu(record) if name == "gpu" else record
            # A span without a domain would be taken for one of a probe.
            extra = {"domain": None} if name == "ranges" else {}
            yield {"type": type, **extra, **_renamed(told)}


def _renamed(record: Record) -> Record:
    return {_IDS.get(key, key): value for key, value in record.items()}


def header_of(timeline: Timeline, findings: list[Finding]) -> Record:
    """The first record: whose recording it is, on which clock; findings no reading makes."""
    header = timeline.header
    told: dict[str, Any] = {
        "type": "header",
        "schema": SCHEMA,
        "clock": "utc" if header.utc else "monotonic",
        "devices": [vars(device) for device in timeline.devices],
        "findings": [vars(finding) for finding in [*findings, *_lasting(timeline)]],
        "graph_level": header.graph_level,
        **{key: header.extra[key] for key in (PAUSES, NODES) if header.extra.get(key)},
        "tool": timeline.input.tool,
        "tool_version": timeline.input.tool_version,
    }
    incomplete = {name: True for name in (CUT, PARTIAL) if header.extra.get(name)}
    return told | incomplete | _identity(header, timeline)


def _identity(header: Header, timeline: Timeline) -> Record:
    """Whose recording it is, as far as that is known."""
    names = ("job", "host", "world_size", "nccl", "engine")
    told = {name: getattr(header, name) for name in names} | {"rank": header.rank}
    return {name: value for name, value in told.items() if value is not None}


def _lasting(timeline: Timeline) -> list[Finding]:
    """The findings that reading the output will not make again."""
    again = Timeline(timeline.input, timeline.header, timeline.strings, dict(timeline.tables))
    repair(again)
    return [finding for finding in timeline.findings if finding not in again.findings]


def _requests(timeline: Timeline) -> Iterator[Record]:
    times: dict[str, list[int]] = defaultdict(list)
    for token in records(timeline, "tokens"):
        times[token.get("request", "")].append(token["t"])
    for request in records(timeline, "requests"):
        tokens = times.get(request["id"])
        yield {"type": "request", **request, **({"token_times": tokens} if tokens else {})}


def _steps(timeline: Timeline) -> Iterator[Record]:
    work: dict[int, Record] = defaultdict(dict)
    for row in records(timeline, "batch"):
        told = {key: row[key] for key in ("phase", "tokens") if key in row}
        work[row["step"]][row["request"]] = told
    for number, step in enumerate(records(timeline, "steps")):
        requests = {"requests": work[number]} if number in work else {}
        yield {"type": "step", **_renamed(step), **requests}


def _gpu(record: Record) -> Record:
    """A device record with its kinds as words and its shapes as lists."""
    told = {key: value for key, value in record.items() if not key.startswith(("grid_", "block_"))}
    for name in ("grid", "block"):
        sizes = [record.get(f"{name}_{axis}") for axis in _AXES]
        if sizes[0] is not None:
            told[name] = sizes
    told["kind"] = _KINDS[record["kind"]]
    for name, texts in (("copy", COPY_KINDS), ("src", MEMORY_KINDS), ("dst", MEMORY_KINDS)):
        if name in told:
            told[name] = texts[told[name]]
    return told
