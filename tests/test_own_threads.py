"""Requests that threads of their own serve, without any step: R07, R10 and predictions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm.attribute.parts import PARTS
from rca_llm.exporters import prediction
from rca_llm.readers import load
from rca_llm.trace import Trace
from rca_llm.whatif import DERIVED, whatif
from tests.scenes import MS, S, Scene, hint, ids

POOL = 50
"""The first thread of a pool, in these timelines."""
STATES = {"running": "scheduling.host", "runnable": "scheduling.cpu_wait", "gil": "scheduling.gil"}

Work = list[tuple[str, int]]
"""What a thread does, one after another: its states and how long each lasts, ns."""


def served(*requests: Work, idle: int = 0, every: int = 0) -> Scene:
    """Requests one after another, each on a thread of its own, while the main thread sleeps.

    `idle` is how long nobody asks before, `every` from one arrival to the next, ns.
    """
    scene, t = Scene(), idle
    scene.state("running", 0, 1 * MS)
    for n, work in enumerate(requests):
        arrival = t
        for state, ns in work:
            scene.state(state, t, t + ns, thread=POOL + n)
            t += ns
        scene.span("work", arrival, t, thread=POOL + n, request=f"R{n}")
        scene.row("requests", id=f"R{n}", arrival=arrival, finished=t, status="finished")
        t = arrival + every if every else t + MS
    scene.state("blocked", 1 * MS, t)
    return scene


def starved(state: str = "runnable", *, share: float = 0.7, idle: int = 0) -> Scene:
    """Eight requests of 100 ms that wait in a state for a share of it."""
    waiting = round(100 * MS * share)
    return served(*[[("running", 100 * MS - waiting), (state, waiting)]] * 8, idle=idle)


def answer(scene: Scene, **changed: float) -> dict[str, Any]:
    """What a replay says; names of parts with __ for the dot."""
    found = {name.replace("__", "."): factor for name, factor in changed.items()}
    return whatif(Trace([scene.build()]).attribute(), found)


@pytest.mark.parametrize("idle", [0, 60 * S])
@pytest.mark.parametrize(("state", "rule"), [("runnable", "R07"), ("gil", "R10")])
def test_requests_that_wait_are_judged_over_requests_however_long_nobody_asked(
    idle: int, state: str, rule: str
) -> None:
    found = hint(starved(state, idle=idle).summary(), rule)
    assert found["title"].startswith("Threads that serve requests")
    assert found["evidence"]["request_share"] == pytest.approx(0.7)
    assert found["evidence"]["request_ns"] == 8 * 100 * MS
    assert found["saving_ns"] == 8 * 70 * MS


@pytest.mark.parametrize(
    ("state", "rule", "share"), [("runnable", "R07", 0.19), ("gil", "R10", 0.14)]
)
def test_below_its_share_of_the_requests_nothing_is_said(
    state: str, rule: str, share: float
) -> None:
    assert rule not in ids(starved(state, share=share).summary())


def test_what_a_request_waits_for_a_cpu_is_saved_and_nothing_said_of_the_window() -> None:
    found = answer(starved(), scheduling__cpu_wait=0)
    assert found["latency"]["mean"]["saved_ns"] == 70 * MS
    assert found["not_predicted"] == []
    # The main thread, whose time the window is, slept meanwhile: for how long it would is unknown.
    assert found["window"]["replayed_ns"] is None
    assert found["window"]["measured_ns"] is not None


def test_requests_at_once_save_what_each_was_charged_with() -> None:
    scene = served(*[[("running", 30 * MS), ("runnable", 70 * MS)]] * 6, every=10 * MS)
    found = answer(scene, scheduling__host=2)
    assert {row["new_latency_ns"] for row in found["requests"]} == {130 * MS}


work = st.lists(st.tuples(st.sampled_from([*STATES, "blocked"]), st.integers(1, 9)), min_size=1)


@given(st.lists(work, min_size=1, max_size=4), st.integers(0, 20), st.sampled_from([0, 3]))
@settings(max_examples=25, deadline=None)
def test_without_a_part_every_request_is_as_much_shorter(
    requests: list[Work], idle: int, every: int
) -> None:
    long = [[(state, ns * MS) for state, ns in one] for one in requests]
    report = Trace([served(*long, idle=idle * MS, every=every * MS).build()]).attribute()
    rows = {row["id"]: row for row in report.summary["requests"]}
    for part in {part for row in rows.values() for part in row["parts"]} - {*DERIVED}:
        for factor in (0.0, 0.5, 1.0, 2.0):
            for row in whatif(report, {part: factor})["requests"]:
                charged = rows[row["id"]]["parts"].get(part, 0)
                assert row["latency_ns"] - row["new_latency_ns"] == round((1 - factor) * charged)


@given(st.lists(work, min_size=1, max_size=4), st.sampled_from([0, 3]))
@settings(max_examples=15, deadline=None)
def test_nothing_changed_is_what_was_measured(requests: list[Work], every: int) -> None:
    long = [[(state, ns * MS) for state, ns in one] for one in requests]
    scene = served(*long, every=every * MS)
    found = answer(scene, **{part: 1.0 for part in PARTS if part not in DERIVED})
    assert all(row["latency_ns"] == row["new_latency_ns"] for row in found["requests"])
    assert found["window"]["saved_ns"] == 0


def beside_steps() -> Scene:
    """A request in steps, for half of which another thread reads a file for it."""
    scene = Scene()
    scene.serve(idle={i: [(2 * MS, 5 * MS)] for i in range(1, 20)})
    for i in range(1, 20):
        begin = i * 10 * MS + 2 * MS
        scene.span("work", begin, begin + 5 * MS, thread=POOL, request="R")
        scene.span("file", begin, begin + 5 * MS, thread=POOL, request="R")
    return scene


def test_what_no_thread_of_the_replay_did_is_not_predicted() -> None:
    parts = Trace([beside_steps().build()]).attribute().summary["requests"][0]["parts"]
    assert parts["io.file"] == 19 * 5 * MS
    found = answer(beside_steps(), io__file=0)
    assert found["not_predicted"] == ["io.file"]
    assert found["latency"]["mean"]["replayed_ns"] is None
    assert found["requests"][0]["new_latency_ns"] is None
    told = {name: cells for name, *cells in prediction.rows(found)}
    assert told["latency, mean"][1:] == ["not predicted", "", ""]
    both = answer(beside_steps(), io__file=0, compute__gemm=0.5)
    assert both["not_predicted"] == ["io.file"]
    assert both["latency"]["mean"]["saved_ns"] > 0
    assert answer(beside_steps(), scheduling__gc=0)["latency"]["mean"]["saved_ns"] == 0


PROGRAM = """
import asyncio, os, time
from rca_llm import request

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
child = os.fork()
while not child:
    pass

def burn():
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass

async def serve():
    for n in range(6):
        with request(f"R{n}"):
            await asyncio.to_thread(burn)

time.sleep(0.5)
try:
    asyncio.run(serve())
finally:
    os.kill(child, 9)
    os.wait()
"""
"""Worker threads that share a CPU with a busy process, without any step or compute span."""


@pytest.mark.clocks
def test_worker_threads_beside_a_neighbour_in_a_real_program(tmp_path: Path) -> None:
    program, run = tmp_path / "program.py", tmp_path / "run.rca"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "rca_llm", "trace", "-o", str(run), "--", sys.executable]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = load(run).attribute()
    rows = {row["id"]: row for row in report.summary["requests"]}
    assert len(rows) == 6
    told = hint(report.summary, "R07")
    assert told["title"].startswith("Threads that serve requests were ready but not running")
    found = whatif(report, {"scheduling.cpu_wait": 0.0})
    for row in found["requests"]:
        waited = rows[row["id"]]["parts"].get("scheduling.cpu_wait", 0)
        assert row["latency_ns"] - row["new_latency_ns"] == pytest.approx(waited, abs=1)
    assert told["saving_ns"] == pytest.approx(told["evidence"]["charged_ns"], abs=6)
