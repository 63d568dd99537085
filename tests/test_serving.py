"""What threads do for one request explains no other's time, whatever the kind of the span."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm import load
from rca_llm.attribute.codes import SPAN_PART
from rca_llm.distributed import job
from rca_llm.output import json_text
from rca_llm.scheduler import Workers, workers
from rca_llm.trace import Trace
from rca_llm.whatif import whatif
from tests.scenes import MS, Scene
from tests.traced import trace_code

LOOP, POOL, MORE = 1, 2, 3
PART = SPAN_PART | {"compute": "compute.cpu"}


def _life(scene: Scene, id: str, home: int | None, arrival: int = 0, finished: int = 100) -> None:
    where = {} if home is None else {"home_process": 1, "home_thread": home}
    scene.row("requests", id=id, arrival=arrival * MS, finished=finished * MS, **where)


def _span(scene: Scene, kind: str, start: int, end: int, thread: int, **more: Any) -> None:
    scene.span(kind, start * MS, end * MS, thread=thread, **more)


def _rows(scene: Scene) -> dict[str, dict[str, Any]]:
    found = {row["id"]: row for row in Trace([scene.build()]).attribute().summary["requests"]}
    for row in found.values():
        assert sum(row["parts"].values()) == row["latency_ns"]
        row["parts"] = {part: ns // MS for part, ns in row["parts"].items() if ns}
    return found


def _apart() -> Scene:
    """Two requests that have a thread each; most is computed on that of A."""
    scene = Scene()
    _life(scene, "A", POOL)
    _life(scene, "B", MORE, 40, 140)
    _span(scene, "compute", 0, 40, POOL, request="A")
    _span(scene, "file", 40, 100, POOL, request="A")
    _span(scene, "tokenize", 41, 60, MORE, request="B")
    _span(scene, "compute", 61, 100, MORE, request="B")
    _span(scene, "file", 100, 140, MORE, request="B")
    return scene


def test_what_the_thread_of_another_request_does_is_none_of_this_ones() -> None:
    rows = _rows(_apart())
    assert rows["A"]["parts"] == {"compute.cpu": 40, "io.file": 60}
    told = {"scheduling.tokenize": 19, "compute.cpu": 39, "io.file": 40, "scheduling.other": 2}
    assert rows["B"]["parts"] == told


def test_a_prediction_takes_only_what_is_the_requests_own() -> None:
    """Without its own files B ends 40 ms earlier, not 61."""
    report = Trace([_apart().build()]).attribute()
    answer = whatif(report, {"io.file": 0.0})
    latency = {row["id"]: row["new_latency_ns"] for row in answer["requests"]}
    assert latency == {"A": 40 * MS, "B": 60 * MS}


@pytest.mark.parametrize("kind", sorted({*PART} - {"compute", "gc"}))
def test_a_worker_of_another_explains_nothing(kind: str) -> None:
    """A sleeps in the loop, beside a worker that is the thread with most on it."""
    scene = Scene()
    _life(scene, "A", LOOP)
    _life(scene, "B", LOOP)
    _span(scene, "work", 0, 90, POOL, request="B")
    _span(scene, kind, 0, 90, POOL, request="B")
    rows = _rows(scene)
    assert rows["A"]["parts"] == {"scheduling.other": 100}
    assert rows["B"]["parts"] == {PART[kind]: 90, "scheduling.other": 10}


def test_calls_of_a_worker_at_work_for_another_explain_nothing() -> None:
    scene = Scene()
    _life(scene, "A", LOOP)
    _life(scene, "B", LOOP)
    _span(scene, "work", 0, 60, POOL, request="B")
    _span(scene, "file", 10, 50, POOL, domain="osrt")
    rows = _rows(scene)
    assert rows["A"]["parts"] == {"scheduling.other": 100}
    assert rows["B"]["parts"]["io.file"] == 40


def test_calls_of_a_thread_that_another_request_is_on_explain_nothing() -> None:
    scene = Scene()
    _life(scene, "A", POOL)
    _life(scene, "B", MORE)
    _span(scene, "file", 10, 60, POOL)
    _span(scene, "network", 20, 40, MORE)
    rows = _rows(scene)
    assert rows["B"]["parts"] == {"io.network": 20, "scheduling.other": 80}
    assert rows["A"]["parts"] == {"io.file": 50, "scheduling.other": 50}


@pytest.mark.parametrize("kind", ["file", "tokenize", "serialize", "log"])
def test_a_loop_that_a_span_of_another_holds_is_waited_for(kind: str) -> None:
    scene = Scene()
    _life(scene, "A", LOOP)
    _life(scene, "B", LOOP)
    _span(scene, kind, 10, 40, LOOP, request="B")
    row = _rows(scene)["A"]
    assert row["parts"] == {"scheduling.queue": 30, "scheduling.other": 70}
    assert row["interference"] == [{"step": None, "owner": ["B"], "ns": 30 * MS}]


@pytest.mark.parametrize("kind", ["file", "tokenize"])
def test_a_span_in_which_its_loop_went_on_with_others_held_nobody_up(kind: str) -> None:
    """It was awaited, as spans around `await asyncio.to_thread(…)` are."""
    scene = Scene()
    _life(scene, "A", LOOP)
    _life(scene, "B", LOOP)
    _span(scene, kind, 10, 60, LOOP, request="B")
    _span(scene, "serialize", 50, 70, LOOP, request="A")
    rows = _rows(scene)
    part = PART["serialize"]
    assert rows["A"]["parts"] == {part: 20, "scheduling.other": 80}
    assert rows["A"]["interference"] == []


@pytest.mark.parametrize("kind", ["network", "queue", "kv_transfer"])
def test_waits_of_another_hold_no_loop(kind: str) -> None:
    scene = Scene()
    _life(scene, "A", LOOP)
    _life(scene, "B", LOOP)
    _span(scene, kind, 10, 60, LOOP, request="B")
    assert _rows(scene)["A"]["parts"] == {"scheduling.other": 100}


KINDS = sorted({*PART} - {"queue"})
TIMES = st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda one: (one[0], sum(one)))
SPANS = st.lists(
    st.tuples(st.sampled_from([*KINDS, "work"]), TIMES, st.integers(1, 3), st.sampled_from("ABC")),
    max_size=12,
)
LIVES = st.fixed_dictionaries(
    {id: st.tuples(st.one_of(st.none(), st.integers(1, 3)), TIMES) for id in "ABC"}
)


@given(SPANS, LIVES)
@settings(max_examples=150, deadline=None)
def test_no_request_is_charged_with_a_kind_that_only_others_have(
    spans: list[tuple[str, tuple[int, int], int, str]],
    lives: dict[str, tuple[int | None, tuple[int, int]]],
) -> None:
    """Nor with more of a part than its own spans of that part last."""
    scene = Scene()
    for id, (home, (arrival, finished)) in lives.items():
        _life(scene, id, home, arrival, finished)
    for kind, (start, end), thread, id in spans:
        _span(scene, kind, start, end, thread, request=id)
    for id, row in _rows(scene).items():
        for part, ms in row["parts"].items():
            own = [t for kind, t, _, whose in spans if whose == id and PART.get(kind) == part]
            most = len({ms for start, end in own for ms in range(start, end)})
            if part not in ("scheduling.other", "scheduling.queue"):
                assert ms <= most, (id, part)
        owners = {owner for one in row["interference"] for owner in one["owner"]}
        assert owners <= {*"ABC"} - {id}


TWO = """
import asyncio, os, time
from rca_llm import request, span
def tokenise():
    with span("tokenize", kind="tokenize"):
        time.sleep(0.2)
def read():
    with span("load", kind="file"):
        time.sleep(0.2)
def forward():
    with span("forward", kind="compute"):
        time.sleep(0.05)
async def a():
    with request("A"):
        await asyncio.to_thread(read)
        await asyncio.to_thread(forward)
async def b():
    with request("B"):
        await asyncio.to_thread(tokenise)
async def main():
    await asyncio.gather(a(), b())
asyncio.run(main())
"""


@pytest.mark.clocks
def test_two_workers_of_a_real_program_read_and_tokenise_each_for_their_own(tmp_path: Path) -> None:
    report = Trace([trace_code(tmp_path, TWO).timeline()]).attribute()
    rows = {row["id"]: row["parts"] for row in report.summary["requests"]}
    assert rows["A"].get("scheduling.tokenize", 0) == 0, rows["A"]
    assert rows["A"]["io.file"] >= 190 * MS, rows["A"]
    assert rows["B"].get("io.file", 0) <= 20 * MS, rows["B"]
    assert rows["B"]["scheduling.tokenize"] >= 190 * MS, rows["B"]
    saved = [hint["saving_ns"] for hint in report.summary["hints"] if hint["id"] == "R11"]
    assert saved and saved[0] <= rows["B"]["scheduling.tokenize"]


BASE = 1_700_000_000_000_000_000


def _event(type: str, start: int, end: int, thread: int = LOOP, **more: Any) -> dict[str, Any]:
    times = {"start": BASE + start * MS, "end": BASE + end * MS}
    return {"type": type, "pid": 1, "tid": thread, "name": type, **times, **more}


def _served(*spans: tuple[str, int, int, int, str | None]) -> list[dict[str, Any]]:
    """Events of two requests with a thread each, and these spans."""
    rows: list[dict[str, Any]] = [
        {"type": "header", "schema": "rca-llm/events/1", "clock": "utc"},
        {"type": "process", "pid": 1},
    ]
    for id, home, arrival, finished in (("A", POOL, 0, 100), ("B", MORE, 40, 140)):
        times = {"arrival": BASE + arrival * MS, "finished": BASE + finished * MS}
        rows.append({"type": "request", "id": id, **times, "home_process": 1, "home_thread": home})
    for kind, start, end, thread, whose in spans:
        named = {} if whose is None else {"request": whose}
        rows.append(_event("span", start, end, thread, kind=kind, **named))
    return rows


def _threads() -> list[dict[str, Any]]:
    return _served(
        ("compute", 0, 40, POOL, "A"),
        ("file", 40, 100, POOL, "A"),
        ("tokenize", 41, 60, MORE, "B"),
        ("compute", 61, 100, MORE, "B"),
        ("work", 100, 140, LOOP, "B"),
        ("file", 110, 130, LOOP, None),
    )


def _steps() -> list[dict[str, Any]]:
    """The threads of an engine without a GPU that steps of A; B is in no step."""
    steps = [_event("step", n, n + 9, id=n, requests=["A"]) for n in range(0, 100, 10)]
    return _threads() + steps


def _device() -> list[dict[str, Any]]:
    """An engine with a GPU, whose requests have work done by threads between its steps."""
    rows = _threads()
    for n in range(1, 130, 10):
        both = ["A"] if n < 40 else ["A", "B"] if n < 100 else ["B"]
        rows.append(_event("step", n, n + 6, LOOP + 9, id=n, requests=both))
        rows.append(_event("gpu", n + 1, n + 5, kind="kernel", device=0, stream=7, correlation=n))
        call = _event("api", n, n + 1, LOOP + 9, correlation=n)
        rows.append(call | {"name": "cudaLaunchKernel"})
    rows += [_event("span", 7, 11, POOL, kind="work", request="A")]
    return rows


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with workers(2) as found:
        yield found


@pytest.mark.parametrize("rows", [_threads, _steps])
def test_requests_told_by_threads_are_the_same_where_ranks_are_analysed_apart(
    rows: Callable[[], list[dict[str, Any]]], tmp_path: Path, pool: Workers
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, rows())), encoding="utf-8")
    one = load(path).attribute().summary
    other = job.report(job.inputs([str(path)]), pool).summary
    assert [row["id"] for row in one["requests"]] == ["A", "B"]
    assert json_text(one) == json_text(other)


def test_threads_that_steps_hand_work_to_tell_the_same_apart(tmp_path: Path, pool: Workers) -> None:
    """All but the hints, which are told from folded pieces where devices work."""
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, _device())), encoding="utf-8")
    one = load(path).attribute().summary
    other = job.report(job.inputs([str(path)]), pool).summary
    assert any("io.file" in row["parts"] for row in one["requests"])
    for name, rows in one.items():
        if name != "hints":
            assert other[name] == rows, name
