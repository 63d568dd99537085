"""Hints on an engine that computes on the CPU: the same causes, without any device record."""

from __future__ import annotations

import pytest

from tests.scenes import MS, Scene, hint, ids, job

PERIOD = 100 * MS
OFFSET = 20 * MS


def engine(lost: int, *, rank: int = 0, steps: int = 20) -> Scene:
    """Steps that compute, except for `lost` at 20 ms in each but the first."""
    scene = Scene(rank=rank, world_size=1, host="h0")
    tokens = []
    for i in range(steps):
        start, end = i * PERIOD, (i + 1) * PERIOD
        scene.step(i, start, end, R="decode" if i else "prefill")
        if i and lost:
            scene.span("compute", start, start + OFFSET, name="forward")
            scene.span("compute", start + OFFSET + lost, end, name="forward")
        else:
            scene.span("compute", start, end, name="forward")
        tokens.append(end)
    scene.request("R", 0, tokens)
    return scene


def gaps(lost: int) -> list[tuple[int, int]]:
    """The times that the engine loses."""
    return [(i * PERIOD + OFFSET, i * PERIOD + OFFSET + lost) for i in range(1, 20)]


def test_computing_alone_gives_no_hint() -> None:
    assert ids(engine(0).summary()) == set()


@pytest.mark.parametrize(
    ("kind", "rule", "class_"),
    [
        ("gc", "R08", "scheduling"),
        ("gil", "R10", "scheduling"),
        ("file", "R49", "io"),
        ("page_fault", "R49", "io"),
        ("log", "R37", "io"),
        ("serialize", "R48", "communication"),
        ("jit", "R12", "scheduling"),
    ],
)
def test_spans_name_their_cause_first(kind: str, rule: str, class_: str) -> None:
    scene = engine(30 * MS)
    for start, end in gaps(30 * MS):
        scene.span(kind, start, end, name="gc gen 2" if kind == "gc" else kind)
    summary = scene.summary()
    first = summary["hints"][0]
    assert (first["id"], first["class"]) == (rule, class_)
    assert first["saving_ns"] == 19 * 30 * MS
    assert ids(summary) == {rule}


@pytest.mark.parametrize(
    ("state", "rule"), [("throttled", "R07"), ("runnable", "R07"), ("gil", "R10")]
)
def test_thread_states_name_their_cause_first(state: str, rule: str) -> None:
    scene = engine(30 * MS)
    for start, end in gaps(30 * MS):
        scene.state(state, start, end)
    summary = scene.summary()
    assert [row["id"] for row in summary["hints"]] == [rule]
    assert summary["hints"][0]["saving_ns"] == 19 * 30 * MS


def test_a_straggler_without_any_device() -> None:
    scenes = [Scene(rank=rank, world_size=2, host="h0") for rank in (0, 1)]
    for i in range(20):
        start, meet = i * PERIOD, i * PERIOD + 90 * MS
        for rank, scene in enumerate(scenes):
            own = 80 * MS if rank else 40 * MS
            scene.step(i, start, start + PERIOD, R="decode" if i else "prefill")
            scene.span("compute", start, start + own, name="forward")
            scene.meet(i, start + own, meet, device=-1)
            scene.span("compute", meet, start + PERIOD, name="forward")
    scenes[0].request("R", 0, [(i + 1) * PERIOD for i in range(20)])
    found = hint(job(*scenes), "R05")
    assert "waiting for rank 1" in found["title"]
    assert found["saving_ns"] == 20 * 40 * MS
