"""Reader of RCA events: JSON lines that any engine can write (`rca-llm/events/1`)."""

from __future__ import annotations

import io
from typing import Any

from rca_llm.errors import UnreadableInput
from rca_llm.readers.events_lines import Lines, mended
from rca_llm.readers.events_tables import TYPES, Builder
from rca_llm.readers.events_values import as_dict
from rca_llm.readers.files import Source
from rca_llm.trace import CUT, Trace

_SCHEMA = "rca-llm/events/"
_HEADER_LINES = 16
"""Lines of a file that are looked at to recognise it: its first may be damaged."""


def matches(source: Source) -> bool:
    """Whether the content is RCA events: a header, or lines of its types."""
    if source.directory:
        return False
    lines = source.head.split(b"\n")[:_HEADER_LINES]
    found = (Lines.decoded(line) or mended(line) for line in lines)
    return any(_is_ours(as_dict(record)) for record in found)


def _is_ours(record: dict[str, Any]) -> bool:
    if str(record.get("schema", "")).startswith(_SCHEMA):
        return True
    keys = TYPES.get(str(record.get("type")))
    return keys is not None and all(key in record for key in keys)


def read(source: Source) -> Trace:
    """The trace in an event file; lines that cannot be read are left out and counted."""
    builder = Builder(source.path)
    with source.open() as stream:
        lines = Lines(io.BufferedReader(stream, 1 << 20))
        for records in lines:
            builder.add(records)
        lines.note(builder.timeline, stream.truncated)
    early = any(finding.code == "truncated" for finding in builder.timeline.findings)
    timeline = builder.finished()
    if early and timeline.devices:  # only exports name devices, and hold one table after another
        timeline.header.extra[CUT] = True
    if not timeline.input.events:
        raise UnreadableInput(f"{source.path}: byte {lines.size}: expected events; found none")
    return Trace([timeline])
