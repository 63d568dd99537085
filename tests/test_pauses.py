"""Time in which a run was paused is unknown: nobody recorded what was done then."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rca_llm import load
from rca_llm.align import shift
from rca_llm.attribute import pauses
from rca_llm.attribute.parts import CODE, PARTS
from rca_llm.exporters import events as exported
from rca_llm.report import RankSegments, Report, RequestSegments
from rca_llm.table import NEVER
from rca_llm.trace import PAUSES, SWITCHED_OFF, Finding, Trace
from rca_llm.whatif import whatif
from tests.scenes import GEMM, MS, US, Scene, hint, ids
from tests.test_attribution import BASE, check_partitions, events
from tests.timelines import Builder
from tests.traced import environment, trace_ready

Segments = RankSegments | RequestSegments

UNRECORDED = "unknown.not_recorded"


def paused(scene: Builder, *found: tuple[int, int]) -> Builder:
    scene.timeline.header.extra[PAUSES] = [*found]
    return scene


def report_of(scene: Builder) -> Report:
    return Trace([scene.build()]).attribute()


def _launches() -> Builder:
    """Two kernels, 80 of idle time between them, of which the host tells 40."""
    scene = Builder()
    scene.launch("gemm_x", (BASE, BASE + 5), (BASE + 10, BASE + 20))
    scene.span("gc", BASE + 40, BASE + 80)
    scene.launch("gemm_x", (BASE + 100, BASE + 105), (BASE + 110, BASE + 120))
    return scene


def test_idle_time_of_a_pause_is_unknown_and_device_work_is_not() -> None:
    before = _launches().summary()["parts"]
    after = paused(_launches(), (BASE + 15, BASE + 60)).summary()["parts"]
    assert after[UNRECORDED] == 40
    assert after["compute.gemm"] == before["compute.gemm"] == 20
    assert (before["scheduling.gc"], after["scheduling.gc"]) == (40, 20)
    assert sum(after.values()) == sum(before.values()) == 120


def test_an_engine_without_a_gpu_knows_nothing_of_a_pause_either() -> None:
    scene = paused(Builder(), (BASE + 50, BASE + 130), (BASE + 120, BASE + 150))
    scene.span("compute", BASE, BASE + 200)
    scene.span("file", BASE + 40, BASE + 60)
    summary = scene.summary()
    assert summary["parts"] == {"compute.cpu": 90, "io.file": 10, UNRECORDED: 100}
    assert summary["hidden"]["io"] == 0


def test_records_that_go_on_through_a_pause_are_not_hidden_by_it() -> None:
    scene = paused(_launches(), (BASE + 20, BASE + 100))
    assert scene.summary()["hidden"]["scheduling"] == _launches().summary()["hidden"]["scheduling"]


def test_a_request_that_was_there_has_an_unknown_time_whatever_it_waits_for() -> None:
    scene = paused(Builder(), (BASE - 20, BASE + 40), (BASE + 210, BASE + 260))
    scene.row("requests", id="A", arrival=BASE, scheduled=BASE + 100, finished=BASE + 300)
    scene.step(0, BASE + 100, BASE + 200, A="prefill")
    scene.launch("gemm_x", (BASE + 105, BASE + 110), (BASE + 120, BASE + 200))
    scene.step(1, BASE + 200, BASE + 280, B="decode")
    scene.launch("gemm_x", (BASE + 202, BASE + 204), (BASE + 205, BASE + 220))
    scene.step(2, BASE + 280, BASE + 300, A="decode")
    [request] = scene.summary()["requests"]
    parts = request["parts"]
    assert parts["scheduling.queue"] == 60
    assert parts["scheduling.prefill_interference"] == 80 - 40
    assert parts[UNRECORDED] == 40 + 40
    assert sum(parts.values()) == request["latency_ns"] == 300


def test_a_pause_that_never_ended_lasts_until_the_end() -> None:
    scene = paused(_launches(), (BASE + 90, NEVER))
    assert scene.summary()["parts"][UNRECORDED] == 20


@pytest.mark.parametrize("told", [7, None, "x", [3], [[1]], [["a", 2]], [[5, 5]], [[True, 2]], {}])
def test_what_is_no_pause_is_none(told: Any) -> None:
    scene = _launches()
    scene.timeline.header.extra[PAUSES] = told
    assert scene.summary()["parts"] == _launches().summary()["parts"]


def test_pauses_move_with_the_clock() -> None:
    scene = Builder(utc=False, anchors=[(0, BASE)])
    scene.launch("gemm_x", (1, 5), (10, 20))
    scene.launch("gemm_x", (100, 105), (110, 120))
    paused(scene, (30, 50), (115, NEVER))
    told = scene.timeline.header.extra[PAUSES]
    report = report_of(scene)
    assert report.summary["parts"][UNRECORDED] == 20
    moved = report.trace.timelines[0].header.extra[PAUSES]
    assert moved == [(BASE + 30, BASE + 50), (BASE + 115, NEVER)]
    assert scene.timeline.header.extra[PAUSES] is told
    assert told == [(30, 50), (115, NEVER)]


def test_pauses_are_saved_and_exported(tmp_path: Path) -> None:
    scene = paused(Builder(utc=False, anchors=[(0, BASE)]), (30, 50), (115, NEVER))
    scene.launch("gemm_x", (1, 5), (10, 20))
    scene.launch("gemm_x", (100, 105), (110, 120))
    report = report_of(scene)
    exported.write(report, tmp_path / "out.jsonl")
    report.trace.save(tmp_path / "saved")
    for target in ("out.jsonl", "saved"):
        again = load(tmp_path / target).attribute().summary
        for key in ("parts", "ranks", "window"):
            assert again[key] == report.summary[key], (target, key)


def test_pauses_of_a_side_file_count_too() -> None:
    main, side = _launches().build(), paused(Builder(same_rank_as="test"), (BASE + 20, BASE + 30))
    side.span("host", BASE, BASE + 120, thread=9)
    summary = Trace([main, side.build()]).attribute().summary
    assert summary["parts"][UNRECORDED] == 10
    assert sum(summary["parts"].values()) == 120


SPANS = st.lists(st.tuples(st.integers(-50, 600), st.integers(1, 200)), min_size=1, max_size=3)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events(), SPANS, st.booleans())
def test_a_pause_makes_idle_time_in_it_unknown_and_changes_nothing_else(
    found: list[tuple[str, dict[str, Any]]], spans: list[tuple[int, int]], endless: bool
) -> None:
    told = [(BASE + start * US, BASE + (start + length) * US) for start, length in spans]
    told += [(BASE + 500 * US, NEVER)] * endless
    plain, scene = Builder(), paused(Builder(), *told)
    for method, arguments in found:
        getattr(plain, method)(**arguments)
        getattr(scene, method)(**arguments)
    one, other = report_of(plain), report_of(scene)
    _same_but_for(told, one, other)
    check_partitions(other.summary)
    for row, now in zip(one.summary["steps"], other.summary["steps"], strict=True):
        meets = any(row["start_ns"] < b and a < row["end_ns"] for a, b in told)
        assert meets or row == now


_OF_HOST = (
    *("scheduling", "io.file", "io.network", "compute.cpu"),
    *("communication.serialization", "communication.kv_transfer"),
)
"""The parts that records of the host tell, in these scenes."""


def _same_but_for(told: list[tuple[int, int]], one: Report, other: Report) -> None:
    """Each instant outside of pauses has its part, and inside device work has."""
    [rank] = other.segments
    for before, after, _ in _instants(told, one.segments[0], rank):
        assert after == before or (after == UNRECORDED and before.startswith(_OF_HOST))
    for id, life in one.request_segments.items():
        for before, after, begin in _instants(told, life, other.request_segments[id]):
            seen = _part(rank, begin) or UNRECORDED
            assert after == (before if seen != UNRECORDED else UNRECORDED)


def _instants(
    told: list[tuple[int, int]], one: Segments, other: Segments
) -> Iterator[tuple[str, str, int]]:
    """The parts of every stretch in a pause, before and with it; outside they are the same."""
    edges = [time for pair in told for time in pair]
    columns = [one.start, one.end, other.start, other.end, np.array(edges, np.int64)]
    for start, end in pairwise(np.unique(np.concatenate(columns)).tolist()):
        before, after = _part(one, start), _part(other, start)
        if before is None or after is None or not any(a <= start and end <= b for a, b in told):
            assert before == after
        else:
            yield before, after, start


def _part(segments: Segments, time: int) -> str | None:
    row = int(np.searchsorted(segments.start, time, "right")) - 1
    inside = row >= 0 and time < segments.end[row]
    return PARTS[int(segments.part[row])] if inside else None


def served(*found: tuple[int, int]) -> Scene:
    """Twenty steps of 10 ms with 2 ms of host work each, and pauses."""
    scene = Scene()
    scene.serve()
    for i in range(1, 20):
        scene.span("host", i * 10 * MS + 4 * MS, i * 10 * MS + 6 * MS, name="sample")
    paused(scene, *found)
    return scene


def test_an_unchanged_replay_of_a_paused_trace_is_the_measurement() -> None:
    for told in ((35 * MS, 52 * MS), (-10 * MS, 3 * MS), (195 * MS, NEVER)):
        found = whatif(report_of(served(told)), {})
        assert found["latency"]["mean"]["saved_ns"] == 0
        assert found["steps"]["saved_ns"] == 0
        assert found["window"]["saved_ns"] == 0


def test_a_pause_is_no_hint_that_work_was_lost() -> None:
    scene = served((35 * MS, 52 * MS))
    scene.timeline.findings.append(Finding("dropped_records", 1, "run", SWITCHED_OFF))
    assert not {"G1", "G2"} & {*ids(scene.summary())}


def test_work_that_was_lost_is_not_charged_with_pauses() -> None:
    def lost(scene: Builder) -> Any:
        scene.timeline.findings.append(Finding("dropped_records", 3, "run", "CUPTI dropped some"))
        summary = scene.summary()
        return hint(summary, "G2"), summary["parts"][UNRECORDED]

    def scene() -> Builder:
        found = Builder()
        for i in range(4):
            at = BASE + i * MS
            found.api("cudaGraphLaunch", at, at + 10, correlation=1000 + i)
            found.launch(GEMM, (at + 100, at + 110), (at + 200, at + 500))
        return found

    plain, unknown = lost(scene())
    charged, more = lost(paused(scene(), (BASE + 600, BASE + MS - 600)))
    assert more == unknown + MS - 1200
    assert charged["share"] == plain["share"] > 0


def test_a_real_pause_is_unknown_to_the_nanosecond(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = (
        "import sys, time, rca_llm\n"
        "with rca_llm.span('before', 'compute'): time.sleep(0.05)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "with rca_llm.span('after', 'compute'): time.sleep(0.05)\n"
    )
    launcher = trace_ready(run, sys.executable, "-c", code)
    assert launcher.stdin is not None
    for word in ("stop", "start"):
        time.sleep(0.3)
        command = [sys.executable, "-m", "rca_llm", "ctl", str(run), word]
        subprocess.run(command, env=environment(), capture_output=True, check=True)
    time.sleep(0.3)
    launcher.stdin.write(b"\n")
    launcher.stdin.close()
    assert launcher.wait(timeout=60) == 0
    trace = load(run)
    [(start, end)] = trace.timelines[0].header.extra[PAUSES]
    summary = trace.attribute().summary
    check_partitions(summary)
    assert end > start
    assert summary["parts"][UNRECORDED] == end - start
    assert summary["parts"]["compute.cpu"] > 0


def test_a_shift_leaves_a_header_without_pauses_as_it_is() -> None:
    timeline = _launches().build()
    shift(timeline, 5)
    assert PAUSES not in timeline.header.extra
    assert pauses.unknown(timeline).label.tolist() == []
    assert CODE[UNRECORDED] == pauses.NOT_RECORDED
