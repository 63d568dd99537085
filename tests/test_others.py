"""Computing that names its request is that request's alone: others wait for it, or do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rca_llm.trace import Trace
from tests.scenes import MS, Scene
from tests.traced import trace_code

LOOP, POOL = 1, 2


def _life(scene: Scene, id: str, home: int | None = LOOP) -> None:
    times = {"arrival": 0, "scheduled": 0, "finished": 40 * MS}
    where = {} if home is None else {"home_process": 1, "home_thread": home}
    scene.row("requests", id=id, **times, **where)


def _span(scene: Scene, kind: str, start: int, end: int, thread: int, **more: Any) -> None:
    scene.span(kind, start * MS, end * MS, thread=thread, **more)


def _requests(scene: Scene) -> dict[str, dict[str, Any]]:
    rows = Trace([scene.build()]).attribute().summary["requests"]
    for row in rows:
        assert sum(row["parts"].values()) == row["latency_ns"]
    return {row["id"]: row for row in rows}


def _parts(row: dict[str, Any]) -> dict[str, int]:
    return {part: ns // MS for part, ns in row["parts"].items() if ns}


def test_a_request_that_sleeps_is_idle_while_a_pool_computes_for_another() -> None:
    scene = Scene()
    _life(scene, "A")
    _life(scene, "B")
    _span(scene, "gc", 0, 2, LOOP)
    for start in (5, 20):
        _span(scene, "work", start, start + 10, POOL, request="B")
        _span(scene, "compute", start, start + 10, POOL, request="B")
    _span(scene, "file", 31, 33, POOL)
    scene.state("runnable", 6 * MS, 9 * MS, thread=POOL)
    rows = _requests(scene)
    assert _parts(rows["A"]) == {"scheduling.gc": 2, "scheduling.other": 38}
    assert rows["A"]["interference"] == []
    assert _parts(rows["B"])["compute.cpu"] == 17


def test_a_request_waits_while_its_event_loop_computes_for_another() -> None:
    scene = Scene()
    for id in ("small", "BIG"):
        _life(scene, id)
    for start in (0, 20):
        _span(scene, "compute", start, start + 2, LOOP, request="small")
        _span(scene, "compute", start + 2, start + 20, LOOP, request="BIG")
    scene.state("runnable", 5 * MS, 9 * MS, thread=LOOP)
    rows = _requests(scene)
    assert _parts(rows["small"]) == {"scheduling.queue": 36, "compute.cpu": 4}
    waits = {"scheduling.queue": 4, "compute.cpu": 32, "scheduling.cpu_wait": 4}
    assert _parts(rows["BIG"]) == waits
    assert rows["small"]["interference"] == [{"step": None, "owner": ["BIG"], "ns": 36 * MS}]
    assert rows["BIG"]["interference"] == [{"step": None, "owner": ["small"], "ns": 4 * MS}]


@pytest.mark.parametrize("kind", ["host", "compute"])
def test_a_span_that_stays_open_while_its_loop_works_for_another_is_no_work(kind: str) -> None:
    scene = Scene()
    for id in "AB":
        _life(scene, id)
    _span(scene, kind, 0, 40, LOOP, request="A")
    _span(scene, "compute", 10, 30, LOOP, request="B")
    part = {"host": "scheduling.host", "compute": "compute.cpu"}[kind]
    assert _parts(_requests(scene)["A"]) == {"scheduling.queue": 20, part: 20}


def test_a_thread_that_was_given_its_work_goes_on_while_its_loop_is_busy() -> None:
    scene = Scene()
    for id in "AB":
        _life(scene, id)
    _span(scene, "work", 0, 20, POOL, request="A")
    _span(scene, "file", 5, 15, POOL)
    _span(scene, "compute", 0, 40, LOOP, request="B")
    row = _requests(scene)["A"]
    assert _parts(row) == {"io.file": 10, "scheduling.other": 10, "scheduling.queue": 20}


def test_work_that_a_pool_does_for_another_within_its_own_is_none_of_its() -> None:
    scene = Scene()
    for id in "AB":
        _life(scene, id)
    _span(scene, "work", 0, 40, POOL, request="A")
    _span(scene, "compute", 10, 30, POOL, request="B")
    assert _parts(_requests(scene)["A"]) == {"scheduling.other": 40}


def test_computing_for_nobody_named_stays_the_ranks() -> None:
    scene = Scene()
    for id in "AB":
        _life(scene, id)
    _span(scene, "compute", 0, 30, POOL)
    _span(scene, "compute", 0, 40, LOOP, request="B")
    assert _parts(_requests(scene)["A"]) == {"compute.cpu": 30, "scheduling.queue": 10}


def test_a_request_of_which_no_thread_is_known_does_not_compute_for_others() -> None:
    scene = Scene()
    _life(scene, "A", home=None)
    _life(scene, "B")
    _span(scene, "compute", 0, 30, LOOP, request="B")
    assert _parts(_requests(scene)["A"]) == {"scheduling.other": 40}


BURN = """
import asyncio, time
from rca_llm import request, span
def burn(s):
    with span("forward", kind="compute"):
        until = time.thread_time() + s
        while time.thread_time() < until:
            pass
"""

SLEEPER = (
    BURN
    + """
async def a():
    with request("A"):
        await asyncio.to_thread(time.time)
        await asyncio.sleep(1)
async def b():
    await asyncio.sleep(0.1)
    with request("B"):
        for _ in range(4):
            await asyncio.to_thread(burn, 0.05)
async def main():
    await asyncio.gather(a(), b())
asyncio.run(main())
"""
)

SHARED_LOOP = (
    BURN
    + """
async def serve(id, s):
    with request(id):
        for _ in range(10):
            burn(s)
            await asyncio.sleep(0)
async def main():
    await asyncio.gather(serve("small", 0.002), serve("BIG", 0.02))
asyncio.run(main())
"""
)


def _traced(tmp_path: Path, code: str) -> dict[str, dict[str, Any]]:
    rows = Trace([trace_code(tmp_path, code).timeline()]).attribute().summary["requests"]
    return {row["id"]: row for row in rows}


@pytest.mark.clocks
def test_asleep_in_an_event_loop_is_idle_in_a_real_program(tmp_path: Path) -> None:
    rows = _traced(tmp_path, SLEEPER)
    assert rows["A"]["parts"].get("compute.cpu", 0) == 0
    assert rows["A"]["parts"]["scheduling.other"] >= 0.8 * rows["A"]["latency_ns"], rows["A"]
    assert rows["B"]["parts"]["compute.cpu"] >= 100 * MS


@pytest.mark.clocks
def test_a_real_event_loop_keeps_requests_waiting_for_each_other(tmp_path: Path) -> None:
    rows = _traced(tmp_path, SHARED_LOOP)
    small = rows["small"]["parts"]
    assert 10 * MS <= small["compute.cpu"] <= 40 * MS, small
    assert small["scheduling.queue"] >= 150 * MS, small
    (lost,) = rows["small"]["interference"]
    assert lost["owner"] == ["BIG"]
    assert lost["ns"] == small["scheduling.queue"]
