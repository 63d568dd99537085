"""Prints what vLLM itself says of its requests, from the OTLP messages in a folder, as JSON.

Runs in the environment of the engine: python stamps.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def main(folder: Path) -> None:
    """One row a request: its id, start and end in UTC ns, and its attributes."""
    rows: list[dict[str, object]] = []
    for path in sorted(folder.iterdir()):
        message = ExportTraceServiceRequest.FromString(path.read_bytes())
        spans = [s for r in message.resource_spans for c in r.scope_spans for s in c.spans]
        for span in spans:
            if span.name != "llm_request":
                continue
            told = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
            times = {"start": span.start_time_unix_nano, "end": span.end_time_unix_nano}
            rows.append(told | times)
    print(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
