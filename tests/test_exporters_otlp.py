from __future__ import annotations

import base64
import concurrent.futures
import itertools
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rca_llm.exporters import otlp
from rca_llm.report import Report
from tests.sample_trace import Shape, trace

service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="the official protos are not installed (pip install opentelemetry-proto)",
)

json_format = pytest.importorskip("google.protobuf.json_format")


def with_bytes(value: Any, key: str = "") -> Any:
    """OTLP/JSON writes ids in hex, plain protobuf JSON in base64: the one as the other."""
    if isinstance(value, dict):
        return {name: with_bytes(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_bytes(inner, key) for inner in value]
    if key in ("traceId", "spanId", "parentSpanId"):
        return base64.b64encode(bytes.fromhex(value)).decode()
    return value


def received(report: Report, tmp_path: Path) -> list[Any]:
    """The spans as a receiver of the official protos understands them."""
    target = tmp_path / "out.json"
    otlp.write(report, target)
    found = with_bytes(json.loads(target.read_text(encoding="utf-8")))
    message = json_format.ParseDict(found, service.ExportTraceServiceRequest())
    return spans_of(message)


def attribute(span: Any, key: str) -> Any:
    for found in span.attributes:
        if found.key == key:
            return getattr(found.value, found.value.WhichOneof("value"))
    return None


def test_requests_are_spans_with_their_figures(tmp_path: Path) -> None:
    report = trace().attribute()
    spans = {
        attribute(span, "gen_ai.response.id"): span
        for span in received(report, tmp_path)
        if span.name == "text_completion"
    }
    for row in report.summary["requests"]:
        span = spans[row["id"]]
        assert span.end_time_unix_nano - span.start_time_unix_nano == row["latency_ns"]
        assert attribute(span, "gen_ai.usage.input_tokens") == row["prompt_tokens"]
        assert attribute(span, "rca_llm.compute_ns") == row["shares"]["compute"]
        assert span.events[0].time_unix_nano - span.start_time_unix_nano == row["ttft_ns"]


def test_phases_cover_a_request(tmp_path: Path) -> None:
    spans = received(trace().attribute(), tmp_path)
    for root in (span for span in spans if span.name == "text_completion"):
        phases = [span for span in spans if span.parent_span_id == root.span_id]
        assert [span.name for span in phases] == ["queue", "prefill", "decode"]
        assert phases[0].start_time_unix_nano == root.start_time_unix_nano
        assert phases[-1].end_time_unix_nano == root.end_time_unix_nano
        for before, after in itertools.pairwise(phases):
            assert before.end_time_unix_nano == after.start_time_unix_nano


def test_steps_link_to_the_requests_they_served(tmp_path: Path) -> None:
    report = trace().attribute()
    spans = received(report, tmp_path)
    roots = {span.span_id for span in spans if span.name == "text_completion"}
    steps = [span for span in spans if span.name == "engine step"]
    assert len(steps) == len(report.summary["steps"])
    assert {link.span_id for step in steps for link in step.links} == roots
    assert all(attribute(step, "rca_llm.compute_ns") is not None for step in steps)


def test_ids_are_unique_and_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = received(trace().attribute(), tmp_path / "a")
    second = received(trace().attribute(), tmp_path / "b")
    ids = [span.span_id for span in first]
    assert len(set(ids)) == len(ids)
    assert all(len(span.trace_id) == 16 and len(span.span_id) == 8 for span in first)
    assert ids == [span.span_id for span in second]


def test_hostile_names_are_text(tmp_path: Path) -> None:
    spans = received(trace(Shape(prefix='\ud800\u202e\x00"<')).attribute(), tmp_path)
    ids = [attribute(span, "gen_ai.response.id") or "" for span in spans]
    assert any(text.startswith('\ufffd⟨U+202E⟩⟨U+0000⟩"<') for text in ids)


class Collector(BaseHTTPRequestHandler):
    """The HTTP half of a receiver: OTLP/JSON in, the official message out."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        found = with_bytes(json.loads(body))
        message = json_format.ParseDict(found, service.ExportTraceServiceRequest())
        self.server.messages.append((self.path, self.headers["Content-Type"], message))
        answer = json_format.MessageToJson(service.ExportTraceServiceResponse()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


def spans_of(message: Any) -> list[Any]:
    return [
        span
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_a_receiver_takes_the_file_over_http_as_documented(tmp_path: Path) -> None:
    report, target = trace().attribute(), tmp_path / "requests.json"
    otlp.write(report, target)
    server = HTTPServer(("127.0.0.1", 0), Collector)
    server.messages = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.server_port}/v1/traces",
        data=target.read_bytes(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
    server.shutdown()
    server.server_close()
    [(path, kind, message)] = server.messages  # type: ignore[attr-defined]
    assert (path, kind) == ("/v1/traces", "application/json")
    roots = [span for span in spans_of(message) if span.name == "text_completion"]
    figures = {attribute(s, "gen_ai.response.id"): s.end_time_unix_nano for s in roots}
    assert len(figures) == len(report.summary["requests"])
    steps = [span for span in spans_of(message) if span.name == "engine step"]
    assert len(steps) == report.summary["totals"]["steps"]


def test_a_receiver_takes_the_spans_over_grpc(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed (pip install .[dev])")
    stubs = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")
    taken: list[Any] = []

    class Traces(stubs.TraceServiceServicer):  # type: ignore[misc, name-defined]
        def Export(self, request: Any, context: Any) -> Any:
            taken.append(request)
            return service.ExportTraceServiceResponse()

    target = tmp_path / "requests.json"
    otlp.write(trace().attribute(), target)
    found = with_bytes(json.loads(target.read_text(encoding="utf-8")))
    message = json_format.ParseDict(found, service.ExportTraceServiceRequest())
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    stubs.add_TraceServiceServicer_to_server(Traces(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stubs.TraceServiceStub(channel).Export(message, timeout=60)
    server.stop(None)
    assert [len(spans_of(request)) for request in taken] == [len(spans_of(message))]
    assert len(spans_of(message)) > 10
