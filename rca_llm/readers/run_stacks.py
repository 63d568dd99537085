"""Sampled stacks of a run (`--stacks`): functions of Python by thread, as ranges.

A sample says which functions a thread was in at one instant; py-spy lets each last until the sample
that shows it no more. A time is right to one sampling period and a few ms. Idle threads are not
sampled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from rca_llm.errors import RcaError
from rca_llm.readers.files import entries, source
from rca_llm.table import Table
from rca_llm.trace import RANGES, Timeline

DOMAIN = "stack"
_THREAD = re.compile(r"thread \((\d+)\)")

Frame = tuple[int, int, int, str]
"""Start and end, µs of py-spy's clock, the thread's own number, and the function's name."""


def add(timeline: Timeline, path: str) -> None:
    """Add the stacks beside a run's segments, where there are any."""
    for file in _stack_files(path):
        pid = int(re.sub(r"\D", "", file.rsplit("/", 1)[-1].partition(".")[0]) or 0)
        begun = _number(file[: -len(".json")] + ".start")
        events = _events(file)
        if begun is not None and events:
            # Outer functions first: of equal times the later row counts as the inner one.
            timeline.add("ranges", _ranges(timeline, pid, begun, list(_frames(events))[::-1]))


def _stack_files(path: str) -> list[str]:
    try:
        found = entries(f"{path.rstrip('/')}/stacks")
    except (RcaError, OSError):
        return []
    return [file for file in found if file.endswith(".json")]


def _number(path: str) -> int | None:
    try:
        with source(path).open() as stream:
            return int(stream.readall())
    except (RcaError, OSError, ValueError):
        return None


def _events(path: str) -> list[dict[str, Any]]:
    try:
        with source(path).open() as stream:
            found = json.loads(stream.readall())
    except (RcaError, OSError, ValueError, RecursionError):  # py-spy was killed while it wrote
        return []
    return cast("list[dict[str, Any]]", found) if isinstance(found, list) else []


def _frames(events: list[dict[str, Any]]) -> Iterator[Frame]:
    """The functions that begin and end events enclose, inner ones first.

    The outermost event names the thread.
    """
    stacks: dict[int, list[tuple[str, int]]] = {}
    kernel: dict[int, int] = {}
    for event in events:
        thread, name, time = int(event["tid"]), str(event["name"]), int(event["ts"])
        stack = stacks.setdefault(thread, [])
        if event["ph"] == "B":
            match = _THREAD.match(name)
            if match and not stack:
                kernel[thread] = int(match.group(1))
            file = str(event.get("args", {}).get("filename", "")).rsplit("/", 1)[-1]
            stack.append((f"{name} ({file})" if file else "", time))
        elif event["ph"] == "E" and stack:
            text, begun = stack.pop()
            if text:
                yield begun, time, kernel.get(thread, 0), text


def _ranges(timeline: Timeline, pid: int, begun: int, frames: list[Frame]) -> Table:
    strings = timeline.strings
    return Table(
        RANGES,
        {
            "start": [begun + start * 1000 for start, _, _, _ in frames],
            "end": [begun + end * 1000 for _, end, _, _ in frames],
            "name": strings.codes(text for _, _, _, text in frames),
            "domain": [strings.code(DOMAIN)] * len(frames),
            "process": [pid] * len(frames),
            "thread": [thread or pid for _, _, thread, _ in frames],
        },
    )
