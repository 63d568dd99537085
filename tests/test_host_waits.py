"""Waits for a CPU, whose instants are estimates, against spans that begin within them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rca_llm

MS = 1_000_000
Row = dict[str, object]


def _parts(tmp_path: Path, *rows: Row) -> dict[str, int]:
    """The parts of a step of 20 ms that computes on the CPU, with these records beside."""
    step: Row = {"type": "step", "id": 1, "pid": 1, "start": 10 * MS, "end": 30 * MS}
    whole: Row = {"type": "span", "pid": 1, "tid": 1, "name": "forward", "kind": "compute"}
    whole |= {"start": 10 * MS, "end": 30 * MS}
    header: Row = {"type": "header", "schema": "rca-llm/events/1", "clock": "monotonic"}
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (header, step, whole, *rows)))
    (window,) = rca_llm.load(path).attribute().summary["windows"]
    return {part: ns for part, ns in window["parts"].items() if ns}


def _state(start: float, end: float, state: str = "runnable") -> Row:
    row: Row = {"type": "thread", "pid": 1, "tid": 1, "state": state}
    return row | {"start": int(start * MS), "end": int(end * MS)}


def _span(start: float, end: float, kind: str) -> Row:
    row: Row = {"type": "span", "pid": 1, "tid": 1, "name": kind, "kind": kind}
    return row | {"start": int(start * MS), "end": int(end * MS)}


@pytest.mark.parametrize("state", ["runnable", "throttled"])
def test_a_wait_that_began_before_a_span_is_not_hidden_by_it(tmp_path: Path, state: str) -> None:
    parts = _parts(tmp_path, _state(9.9, 18, state))
    assert parts == {"scheduling.cpu_wait": 8 * MS, "compute.cpu": 12 * MS}


def test_a_wait_inside_a_span_is_a_wait(tmp_path: Path) -> None:
    parts = _parts(tmp_path, _state(12, 18))
    assert parts == {"scheduling.cpu_wait": 6 * MS, "compute.cpu": 14 * MS}


def test_a_span_that_lies_within_a_wait_keeps_its_time(tmp_path: Path) -> None:
    parts = _parts(tmp_path, _state(12, 18), _span(13, 15, "file"))
    assert parts == {
        "scheduling.cpu_wait": 4 * MS,
        "io.file": 2 * MS,
        "compute.cpu": 14 * MS,
    }


def test_of_two_spans_that_begin_in_a_wait_both_may_hold_it(tmp_path: Path) -> None:
    parts = _parts(tmp_path, _state(9, 18), _span(12, 25, "tokenize"))
    assert parts == {
        "scheduling.cpu_wait": 8 * MS,
        "scheduling.tokenize": 7 * MS,
        "compute.cpu": 5 * MS,
    }
