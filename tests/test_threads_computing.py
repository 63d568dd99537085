"""On an engine that computes on the CPU, compute spans of every thread count, as far as it ran."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm.trace import Trace
from tests.scenes import MS, Scene
from tests.traced import trace_code

Parts = dict[str, int]


def _life(scene: Scene, id: str, start: int, end: int) -> None:
    times = {"arrival": start, "scheduled": start, "finished": end}
    scene.row("requests", id=id, **{name: ms * MS for name, ms in times.items()})


def _span(scene: Scene, kind: str, start: int, end: int, thread: int = 1, **more: Any) -> None:
    scene.span(kind, start * MS, end * MS, thread=thread, **more)


def _told(scene: Scene) -> tuple[dict[str, Parts], Parts]:
    """The parts of every request, and of the whole trace, ms."""
    summary = Trace([scene.build()]).attribute().summary
    for row in summary["requests"]:
        assert sum(row["parts"].values()) == row["latency_ns"]
    requests = {row["id"]: _ms(row["parts"]) for row in summary["requests"]}
    return requests, _ms(summary["parts"])


def _ms(parts: Parts) -> Parts:
    return {part: ns // MS for part, ns in parts.items() if ns}


def test_a_thread_for_each_request_computes_for_each() -> None:
    scene = Scene()
    for number in range(4):
        _life(scene, f"r{number}", number * 10, number * 10 + 10)
        _span(scene, "compute", number * 10, number * 10 + 10, number + 1, request=f"r{number}")
    requests, whole = _told(scene)
    assert requests == {f"r{number}": {"compute.cpu": 10} for number in range(4)}
    assert whole == {"compute.cpu": 40}


def test_a_thread_computes_while_the_one_that_drives_the_rank_runs_host_code() -> None:
    scene = Scene()
    _span(scene, "compute", 0, 30)
    _span(scene, "host", 30, 60)
    _span(scene, "compute", 40, 50, thread=2)
    assert _told(scene)[1] == {"compute.cpu": 40, "scheduling.host": 20}


def test_a_step_computes_on_whatever_thread_runs_it() -> None:
    scene = Scene()
    for number in range(2):
        start, end = number * 10, number * 10 + 10
        scene.step(number, start * MS, end * MS, **{f"r{number}": "prefill"})
        _life(scene, f"r{number}", start, end)
        _span(scene, "host", start, end, number + 1)
        _span(scene, "compute", start, end - 2, number + 1, request=f"r{number}")
    told = {"compute.cpu": 8, "scheduling.host": 2}
    first, second = _told(scene)[0].values()
    assert first == told
    assert second["compute.cpu"] == 8


def test_what_its_own_thread_does_comes_before_what_those_of_others_compute() -> None:
    scene = Scene()
    for id in "AB":
        _life(scene, id, 0, 20)
    _span(scene, "compute", 0, 20, request="A")
    _span(scene, "compute", 0, 5, thread=2, request="B")
    _span(scene, "file", 5, 15, thread=2, request="B")
    requests, whole = _told(scene)
    assert requests["A"] == whole == {"compute.cpu": 20}
    # Where its own thread tells nothing it is idle: A's computing is none of its.
    assert requests["B"] == {"compute.cpu": 5, "io.file": 10, "scheduling.other": 5}


def test_what_its_own_thread_computes_for_another_first_delays_it() -> None:
    scene = Scene()
    for id in "AB":
        _life(scene, id, 0, 20)
    _span(scene, "compute", 0, 10, request="A")
    _span(scene, "compute", 10, 20, request="B")
    assert _told(scene)[0]["B"] == {"scheduling.queue": 10, "compute.cpu": 10}


@pytest.mark.parametrize("process", [1, 2])
def test_waiting_for_a_cpu_is_no_computing_in_any_thread(process: int) -> None:
    scene = Scene()
    _span(scene, "compute", 0, 30)
    _span(scene, "compute", 30, 50, thread=2, process=process)
    where = {"process": process, "thread": 2, "state": "runnable"}
    scene.row("states", start=35 * MS, end=45 * MS, **where)
    assert _told(scene)[1] == {"compute.cpu": 40, "scheduling.cpu_wait": 10}


def test_a_wait_for_a_cpu_beside_computing_delays_its_own_request_only() -> None:
    scene = Scene()
    for number, id in enumerate("AB", 1):
        _life(scene, id, 0, 20)
        _span(scene, "compute", 0, 20, thread=number, request=id)
    scene.state("runnable", 5 * MS, 10 * MS, thread=2)
    requests, whole = _told(scene)
    assert requests["A"] == whole == {"compute.cpu": 20}
    assert requests["B"] == {"compute.cpu": 15, "scheduling.cpu_wait": 5}


def test_steps_of_a_second_process_wait_for_a_cpu_as_those_of_the_first() -> None:
    scene = Scene()
    for number, process in enumerate((1, 2)):
        start = number * 20
        scene.step(number, start * MS, (start + 20) * MS, **{f"r{number}": "prefill"})
        scene.rows["steps"][-1]["process"] = process
        _life(scene, f"r{number}", start, start + 20)
        _span(scene, "compute", start, start + 20, process, process=process)
        where = {"process": process, "thread": process, "state": "runnable"}
        scene.row("states", start=(start + 5) * MS, end=(start + 10) * MS, **where)
    told = {"compute.cpu": 15, "scheduling.cpu_wait": 5}
    assert _told(scene)[0] == {"r0": told, "r1": told}


spans = st.tuples(
    st.sampled_from(["compute", "file", "host", "gc", "queue", "work"]),
    st.integers(0, 40),
    st.integers(0, 20),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([None, "A", "B"]),
)
waits = st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(1, 3), st.integers(1, 2))


@settings(max_examples=60, deadline=None)
@given(st.lists(spans, max_size=8), st.lists(waits, max_size=4))
def test_lives_stay_partitions_in_which_own_computing_counts(
    records: list[tuple[str, int, int, int, int, str | None]], states: list[tuple[int, ...]]
) -> None:
    scene = Scene()
    for id in "AB":
        _life(scene, id, 0, 50)
    for kind, start, lasting, thread, process, owner in records:
        more = {"request": owner} if owner else {}
        _span(scene, kind, start, start + lasting, thread, process=process, **more)
    for start, lasting, thread, process in states:
        where = {"process": process, "thread": thread, "state": "runnable"}
        scene.row("states", start=start * MS, end=(start + lasting) * MS, **where)
    requests, _ = _told(scene)
    for id, parts in requests.items():
        assert parts.get("compute.cpu", 0) >= len(_certain(id, records, states))


def _certain(
    id: str, records: list[tuple[str, int, int, int, int, str | None]], states: list[Any]
) -> set[int]:
    """When compute spans of a request ran on threads that recorded nothing else, ms."""
    owners = {(row[3:5], row[0], row[5]) for row in records}
    busy = {where for where, kind, owner in owners if (kind, owner) != ("compute", id)}
    busy |= {(thread, process) for _, _, thread, process in states}
    own = [row for row in records if row[3:5] not in busy]
    return {ms for _, start, lasting, *_ in own for ms in range(start, min(start + lasting, 50))}


SERVER = """
import threading, time
from rca_llm import request, span
def one(number):
    with request(f"r{number}"), span("forward", kind="compute"):
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
for number in range(5):
    thread = threading.Thread(target=one, args=(number,))
    thread.start()
    thread.join()
"""


@pytest.mark.clocks
def test_every_request_of_a_thread_of_its_own_computes(tmp_path: Path) -> None:
    timeline = trace_code(tmp_path, SERVER).timeline()
    rows = Trace([timeline]).attribute().summary["requests"]
    assert len(rows) == 5
    computed = [row["parts"]["compute.cpu"] for row in rows]
    # What it computed it computed in spans; that it waited for a CPU is no host code.
    assert all(ns >= 50 * MS for ns in computed), json.dumps(rows)
    assert statistics.median(computed) >= 90 * MS
    host = [row["parts"].get("scheduling.host", 0) / row["latency_ns"] for row in rows]
    assert statistics.median(host) < 0.1
