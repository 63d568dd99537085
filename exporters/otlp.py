"""OpenTelemetry spans as OTLP/JSON: every request a trace with its phases, every step a span.

Attributes follow the GenAI semantic conventions where they have a name, `rca_llm.*` otherwise.
Ids are derived from job and request, so that the same trace exported twice is the same. Format:
opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding": ids are hex, 64-bit numbers are text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rca_llm import __version__
from rca_llm.exporters.records import Record, records
from rca_llm.exporters.text import visible
from rca_llm.exporters.verdict import given
from rca_llm.trace import Timeline

if TYPE_CHECKING:
    from rca_llm.report import Report

suffix = ".json"

_INTERNAL, _SERVER = 1, 2
_OK, _ERROR = 1, 2
LONGEST = 1_000
"""Characters of a text attribute."""


def write(report: Report, target: Path) -> None:
    """Write one `ExportTraceServiceRequest`."""
    groups = [
        {
            "resource": {"attributes": attributes(_resource(timeline))},
            "scopeSpans": [{"scope": {"name": "rca-llm", "version": __version__}, "spans": spans}],
        }
        for timeline in report.trace.timelines
        if (spans := list(_spans(report, timeline)))
    ]
    target.write_text(json.dumps({"resourceSpans": groups}, ensure_ascii=False) + "\n", "utf-8")


def attributes(values: Mapping[str, Any]) -> list[Record]:
    """Attributes in OTLP's form; what is unknown is left out."""
    return [{"key": key, "value": _value(v)} for key, v in values.items() if v is not None]


def _value(value: object) -> Record:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": visible(str(value)[:LONGEST])}


def _resource(timeline: Timeline) -> Record:
    header = timeline.header
    return {
        "service.name": header.engine or "llm-inference",
        "service.namespace": header.job,
        "host.name": header.host,
        "rca_llm.rank": header.rank,
        "rca_llm.clock": "utc" if header.utc else "monotonic",
    }


def _spans(report: Report, timeline: Timeline) -> Iterator[Record]:
    """The spans of one input: its requests, then its steps."""
    judged = {row["id"]: row for row in report.summary["requests"]}
    for request in records(timeline, "requests"):
        if "arrival" in request and "finished" in request:
            yield from _request(timeline, request, judged.get(request["id"], {}))
    yield from _steps(report, timeline)


def _id(timeline: Timeline, text: str, digits: int) -> str:
    """A hex id that depends on the job, or else the file, and a text alone."""
    job = timeline.header.job or Path(timeline.input.path).name
    digest = hashlib.sha256(f"{job}\0{text}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:digits]


def _ids(timeline: Timeline, request: str) -> Record:
    """The trace and root span of a request."""
    trace = _id(timeline, f"request {request}", 32)
    return {"traceId": trace, "spanId": _id(timeline, f"root {request}", 16)}


def _times(start: int, end: int) -> Record:
    return {"startTimeUnixNano": str(start), "endTimeUnixNano": str(end)}


def _request(timeline: Timeline, request: Record, judged: Mapping[str, Any]) -> Iterator[Record]:
    """The root span of a request and a span for each of its phases."""
    ids, aborted = _ids(timeline, request["id"]), request.get("status") == "aborted"
    yield {
        **ids,
        "name": "text_completion",
        "kind": _SERVER,
        **_times(request["arrival"], request["finished"]),
        "attributes": attributes(_said_of(request, judged)),
        "events": _events(request),
        "status": {"code": _ERROR, "message": "aborted"} if aborted else {"code": _OK},
    }
    for name, start, end in _phases(request):
        yield {
            "traceId": ids["traceId"],
            "spanId": _id(timeline, f"{name} {request['id']}", 16),
            "parentSpanId": ids["spanId"],
            "name": name,
            "kind": _INTERNAL,
            **_times(start, end),
        }


def _said_of(request: Record, judged: Mapping[str, Any]) -> Record:
    """A request's attributes: tokens and times under their common names, and its shares."""
    ttft, latency = judged.get("ttft_ns"), judged.get("latency_ns")
    shares = given(judged.get("shares"))
    return {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.response.id": request["id"],
        "gen_ai.usage.input_tokens": request.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": request.get("output_tokens"),
        "gen_ai.latency.time_to_first_token": None if ttft is None else ttft / 1e9,
        "gen_ai.latency.e2e": None if latency is None else latency / 1e9,
        "rca_llm.cause": judged.get("cause"),
        **{f"rca_llm.{name}_ns": ns for name, ns in shares.items()},
    }


def _events(request: Record) -> list[Record]:
    if "first_token" not in request:
        return []
    return [{"timeUnixNano": str(request["first_token"]), "name": "first_token"}]


def _phases(request: Record) -> Iterator[tuple[str, int, int]]:
    """Queue, prefill and decode, as far as their bounds are known and in order."""
    names = ("arrival", "scheduled", "first_token", "finished")
    phases = {"arrival": "queue", "scheduled": "prefill", "first_token": "decode"}
    bounds = [(name, request[name]) for name in names if name in request]
    for (name, start), (_, end) in pairwise(bounds):
        if start <= end:
            yield phases[name], start, end


def _steps(report: Report, timeline: Timeline) -> Iterator[Record]:
    """The steps of the input's ranks, each linked to the requests it served."""
    served: dict[int, list[str]] = {}
    for row in records(timeline, "batch"):
        served.setdefault(row["step"], []).append(row.get("request", ""))
    judged = {(row["id"], row["start_ns"]): row for row in report.summary["steps"]}
    for number, step in enumerate(records(timeline, "steps")):
        if "start" in step and "end" in step:
            found = judged.get((step.get("id"), step["start"]), {})
            yield _step(timeline, step, found, served.get(number, []))


def _step(
    timeline: Timeline, step: Record, judged: Mapping[str, Any], requests: list[str]
) -> Record:
    key = f"{step.get('process')} {step.get('id')} {step['start']}"
    shares = given(judged.get("shares"))
    told = {
        "rca_llm.step": step.get("id"),
        "rca_llm.mode": step.get("mode"),
        "rca_llm.prefill_tokens": judged.get("prefill_tokens"),
        "rca_llm.decode_tokens": judged.get("decode_tokens"),
        **{f"rca_llm.{name}_ns": ns for name, ns in shares.items()},
    }
    return {
        "traceId": _id(timeline, f"step {key}", 32),
        "spanId": _id(timeline, f"step {key}", 16),
        "name": "engine step",
        "kind": _INTERNAL,
        **_times(step["start"], step["end"]),
        "attributes": attributes(told),
        "links": [_ids(timeline, request) for request in requests],
    }
