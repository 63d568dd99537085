"""Requests of programs that name their phases, whose own work goes on after the model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rca_llm

MS = 1_000_000
Row = dict[str, object]
HEADER: Row = {"type": "header", "schema": "rca-llm/events/1", "clock": "monotonic"}
REQUEST: Row = {"type": "request", "id": "A", "arrival": 0, "finished": 40 * MS}
OWN: Row = {"A": {"phase": "prefill", "tokens": 8}}
STEP: Row = {"type": "step", "id": 1, "pid": 1, "start": 0, "end": 20 * MS, "requests": OWN}


def _span(name: str, kind: str, start: int, end: int) -> Row:
    row: Row = {"type": "span", "pid": 1, "tid": 1, "name": name, "kind": kind}
    return row | {"start": start * MS, "end": end * MS}


def _parts(tmp_path: Path, *rows: Row) -> dict[str, int]:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (HEADER, REQUEST, *rows)))
    (request,) = rca_llm.load(path).attribute().summary["requests"]
    return {part: ns for part, ns in request["parts"].items() if ns}


@pytest.mark.parametrize("name", ["forward", "model.forward", "anything"])
@pytest.mark.parametrize("steps", [(), (STEP,)])
def test_what_comes_after_the_model_counts_whatever_that_is_called(
    tmp_path: Path, name: str, steps: tuple[Row, ...]
) -> None:
    model, file = _span(name, "compute", 0, 20), _span("write", "file", 20, 35)
    parts = _parts(tmp_path, *steps, model, file)
    assert parts == {"compute.cpu": 20 * MS, "io.file": 15 * MS, "scheduling.other": 5 * MS}


def test_steps_of_others_after_the_last_of_its_own_are_not_its_own(tmp_path: Path) -> None:
    other = STEP | {"id": 2, "start": 20 * MS, "end": 30 * MS, "requests": {"B": {"tokens": 1}}}
    parts = _parts(tmp_path, STEP, other, _span("forward", "compute", 0, 30))
    assert parts == {"compute.cpu": 20 * MS, "scheduling.other": 20 * MS}
