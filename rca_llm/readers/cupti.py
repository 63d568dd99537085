"""Recordings of raw CUPTI activity buffers, as CUPTI 13.0 returned them.

A recording is a sequence of headers (u32 tag, u32 length, u64 pointer), each followed by `length`
bytes: tag 1 is the name that kernels refer to by `pointer`, tag 2 an activity buffer.
"""

from __future__ import annotations

from rca_llm.errors import UnreadableInput
from rca_llm.readers import cupti_raw
from rca_llm.readers.cupti_rows import ROWS, Rows, codes_of
from rca_llm.readers.cupti_tables import add_rows
from rca_llm.readers.files import Source
from rca_llm.trace import Header, Input, Timeline, Trace


def matches(source: Source) -> bool:
    """Whether the content is a sequence of names and activity buffers."""
    return not source.directory and cupti_raw.matches(source.head)


def read(source: Source) -> Trace:
    """The records of a raw recording, on the clock of the machine that made it."""
    with source.open() as stream:
        data = stream.readall()
    raw = cupti_raw.parse(memoryview(data))
    timeline = Timeline(Input(source.path, "cupti", tool="CUPTI"), Header(utc=False))
    found = list(cupti_raw.rows(raw, ROWS))  # which also names the API functions
    codes = codes_of(timeline, raw.names)
    rows = Rows()
    for kind, values in found:
        rows.append(kind, values, codes)
    add_rows(timeline, rows, raw.process)
    if raw.damaged or stream.truncated:
        timeline.note("truncated", 1, source.path, f"byte {raw.end}: expected a whole record")
    events = len(timeline["gpu"]) + len(timeline["api"])
    if not events:
        raise UnreadableInput(f"{source.path}: byte {raw.end}: expected CUPTI activity records")
    timeline.input = Input(source.path, "cupti", tool="CUPTI", events=events)
    return Trace([timeline])
