"""How far what was recorded of a server's requests is from what vLLM itself says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rca_llm.trace import Timeline

Rows = Mapping[str, Mapping[str, Any]]


def differences(
    timeline: Timeline, ids: Iterable[str], rows: Rows, stamps: Rows
) -> dict[str, list[int]]:
    """Between `rows` of a summary and vLLM's stamps, by what it is: of each request, ns, sorted.

    vLLM's span of a request begins at its arrival and ends once the last output is detokenised.
    """
    found: dict[str, list[int]] = {}
    for id in ids:
        row, told = rows[id], stamps[id]
        end = row["start_ns"] + row["latency_ns"]
        queued, prefill = between(timeline, id)
        own = {
            "arrival": row["start_ns"] - told["start"],
            "queue": queued - told["gen_ai.latency.time_in_queue"] * 1e9,
            "first token": prefill - told["gen_ai.latency.time_in_model_prefill"] * 1e9,
            "finish": end - told["end"],
        }
        for name, difference in own.items():
            found.setdefault(name, []).append(abs(round(difference)))
    return {name: sorted(values) for name, values in found.items()}


def worst(timeline: Timeline, ids: Iterable[str], rows: Rows, stamps: Rows) -> dict[str, int]:
    """The largest of the `differences`, ns."""
    found = differences(timeline, ids, rows, stamps)
    return {name: values[-1] for name, values in found.items()}


def between(timeline: Timeline, id: str) -> tuple[int, int]:
    """From a request's queueing to its scheduling, and from there to its first token, ns."""
    code = timeline.strings.find(id)
    table, marks = timeline["requests"], timeline["marks"]
    row = int((table["id"] == code).argmax())
    queued = (marks["request"] == code) & (marks["name"] == timeline.strings.find("queued"))
    scheduled, first = int(table["scheduled"][row]), int(table["first_token"][row])
    return scheduled - int(marks["t"][queued].min()), first - scheduled
