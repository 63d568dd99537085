"""Device records of what was launched while a run was paused are left out, and counted."""

from __future__ import annotations

from rca_llm.readers.run_pauses import leave_out
from rca_llm.trace import CALLS_OFF, DEVICE_OFF, Timeline
from tests.timelines import Builder
from tests.traced import texts

PAUSE = [(100, 200)]


def _counted(timeline: Timeline) -> dict[str, int]:
    assert {finding.code for finding in timeline.findings} == {"dropped_records"}
    return {finding.detail: finding.count for finding in timeline.findings}


def test_what_decides_is_when_work_was_launched() -> None:
    scene = Builder()
    scene.launch("launched before", (90, 95), (110, 120))
    scene.launch("launched meanwhile", (150, 155), (160, 170))
    scene.launch("launched meanwhile, ran late", (195, 199), (210, 220))
    scene.launch("launched at the start", (200, 205), (230, 240))
    timeline = scene.build()
    leave_out(timeline, PAUSE)
    assert texts(timeline, "gpu", "name") == ["launched before", "launched at the start"]
    assert timeline["api"]["start"].tolist() == [90, 200]
    assert _counted(timeline) == {DEVICE_OFF: 2, CALLS_OFF: 2}


def test_work_without_a_launch_counts_by_its_own_start() -> None:
    scene = Builder()
    scene.kernel("meanwhile", 100, 250)
    scene.kernel("before", 99, 250, correlation=7)
    scene.kernel("after", 200, 250)
    timeline = scene.build()
    leave_out(timeline, PAUSE)
    assert texts(timeline, "gpu", "name") == ["before", "after"]
    assert _counted(timeline) == {DEVICE_OFF: 1}


def test_a_pause_that_never_ended_and_none() -> None:
    scene = Builder()
    scene.launch("kernel", (90, 95), (110, 120))
    timeline = scene.build()
    leave_out(timeline, [])
    leave_out(timeline, [(96, 2**62)])
    assert (len(timeline["gpu"]), timeline.findings) == (1, [])
    leave_out(timeline, [(90, 2**62)])
    assert (len(timeline["gpu"]), len(timeline["api"])) == (0, 0)
