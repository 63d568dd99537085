"""Hints about launching: gaps between launches, eager batches, late compilation, streams."""

from __future__ import annotations

import pytest

from tests.scenes import GEMM, MS, US, S, Scene, hint, ids
from tests.timelines import THREAD, findings

PERIOD = 10 * MS


def eager(
    kernels: int = 400, kernel: int = 10 * US, gap: int = 10 * US, *, steps: int = 12, call: int = 0
) -> Scene:
    """Steps of small kernels; before each the host takes `gap`, launching in all of it."""
    scene, t, tokens = Scene(), 0, list[int]()
    call = call or gap
    for i in range(steps):
        start = t
        for _ in range(kernels):
            scene.launch(
                "elementwise_kernel", (t + gap - call, t + gap), (t + gap, t + gap + kernel)
            )
            t += gap + kernel
        scene.step(i, start, t, R="decode" if i else "prefill")
        tokens.append(t)
    scene.request("R", 0, tokens)
    return scene


def test_launches_one_by_one() -> None:
    found = hint(eager().summary(), "R03")
    assert found["class"] == "scheduling"
    assert found["confidence"] == "medium"
    assert found["evidence"]["launches_per_step"] == 400
    assert found["evidence"]["idle_share"] == pytest.approx(0.5)
    assert found["saving_ns"] == 12 * 400 * 10 * US


@pytest.mark.parametrize(
    "scene",
    [
        eager(kernel=25 * US),
        eager(kernels=190),
        eager(kernel=30 * US, gap=25 * US),
        eager(kernel=1_500, gap=1_500),
    ],
    ids=["29 % idle", "190 launches", "gaps of 25 us", "gaps of 1.5 us"],
)
def test_launching_below_its_thresholds(scene: Scene) -> None:
    assert "R03" not in ids(scene.summary())


def test_without_records_of_the_host_it_is_only_possible() -> None:
    found = hint(eager(call=3 * US).summary(), "R03")
    assert found["confidence"] == "low"
    assert "ossible" in found["title"]


def uncalled(scene: Scene, state: str | None = "running") -> Scene:
    """The same with the calls of its thread left out, as in the default mode, and its state."""
    scene.rows.pop("api", None)
    for row in scene.rows["gpu"]:
        row.pop("correlation", None)
    end = scene.rows["requests"][0]["finished"]
    scene.span(None, 0, end, name="engine loop")
    if state:
        scene.state(state, 0, end)
    return scene


def test_launching_is_possible_by_kernels_alone() -> None:
    summary = uncalled(eager()).summary()
    found = hint(summary, "R03")
    assert found["confidence"] == "low"
    assert found["title"].startswith("Possible: ")
    assert found["evidence"]["launches_per_step"] == 400
    assert found["evidence"]["idle_share"] == pytest.approx(0.5)
    assert found["evidence"]["calls_recorded"] is False
    assert found["saving_ns"] == pytest.approx(12 * 400 * 10 * US, rel=0.01)
    assert any("--gpu full" in text for text in found["advice"])
    assert [row["count"] for row in findings(summary, "calls_not_recorded")] == [12 * 400]


def graphs(scene: Scene) -> Scene:
    for row in scene.rows["gpu"]:
        row["graph_node"] = 1
    return scene


def spanned(scene: Scene, kind: str, share: float) -> Scene:
    """With spans of a kind over a share of every gap."""
    for row in scene.rows["gpu"]:
        lasting = round(10 * US * share)
        scene.span(kind, row["start"] - lasting, row["start"])
    return scene


def reading(scene: Scene, every: int, gap: int) -> Scene:
    """Every so many kernels, a copy of 4 bytes to the host and a longer gap."""
    moved = 0
    for n, row in enumerate(scene.rows["gpu"][:]):
        row["start"], row["end"] = row["start"] + moved, row["end"] + moved
        if n % every == every - 1:
            scene.copy(1, row["end"], row["end"] + 2 * US, bytes=4)
            moved += gap
    return scene


@pytest.mark.parametrize(
    "scene",
    [
        uncalled(eager(), state=None),
        uncalled(eager(), state="blocked"),
        uncalled(graphs(eager())),
        uncalled(eager(kernels=190)),
        uncalled(eager(kernel=25 * US)),
        uncalled(spanned(eager(), "gc", 0.5)),
        uncalled(spanned(eager(), "file", 0.5)),
    ],
    ids=["nothing known", "blocked", "graphs", "190 kernels", "29 % idle", "collections", "files"],
)
def test_kernels_alone_do_not_tell_of_launching(scene: Scene) -> None:
    assert "R03" not in ids(scene.summary())


def reads(
    gap: int, other: int = 5 * US, *, size: int = 4, last: bool = False, called: bool = False
) -> Scene:
    """Steps of ten kernels of 1 ms; after each (`last`: the last) a copy, and `gap` until the next.

    Without copies the gap is `other`. No calls are recorded unless `called`.
    """
    scene, t, tokens = Scene(), 0, list[int]()
    for i in range(12):
        start = t
        for n in range(10):
            scene.kernel(GEMM, t, t + 1 * MS)
            t += 1 * MS
            if not last or n == 9:
                scene.copy(1, t, t + 2 * US, bytes=size)
            t += gap if not last or n == 9 else other
        scene.step(i, start, t, R="decode" if i else "prefill")
        tokens.append(t)
    if called:
        scene.api("cudaLaunchKernel", 0, 1 * US)
    scene.request("R", 0, tokens)
    scene.state("running", 0, t)
    return scene


def test_reads_inside_steps_are_possible_by_copies_alone() -> None:
    summary = reads(60 * US).summary()
    found = hint(summary, "R15")
    assert found["confidence"] == "low"
    assert found["evidence"]["median_gap_ns"] == 58 * US
    assert found["saving_ns"] == pytest.approx(12 * 9 * 58 * US, rel=0.02)
    assert any("--gpu full" in text for text in found["advice"])


@pytest.mark.parametrize(
    "scene",
    [
        reads(20 * US),
        reads(60 * US, size=1 << 20),
        reads(60 * US, last=True),
        reads(60 * US, called=True),
        reading(uncalled(eager(kernel=30 * US)), 10, 3 * US),
    ],
    ids=["2 % idle", "large copies", "the step's end", "calls were recorded", "gaps everywhere"],
)
def test_copies_alone_do_not_tell_of_waits(scene: Scene) -> None:
    assert "R15" not in ids(scene.summary())


def test_gaps_after_reads_are_not_launching_too() -> None:
    summary = reading(uncalled(eager(kernel=30 * US, gap=4 * US)), 1, 12 * US).summary()
    assert "R03" not in ids(summary)


def test_replayed_graphs_are_not_launched_one_by_one() -> None:
    scene = eager()
    for row in scene.rows["gpu"]:
        row["graph_node"] = 1
    assert "R03" not in ids(scene.summary())


def test_a_thread_off_the_cpu_is_not_launching() -> None:
    scene = eager()
    end = scene.rows["requests"][0]["finished"]
    scene.state("running", 0, end // 2)
    scene.state("blocked", end // 2, end)
    assert "R03" not in ids(scene.summary())


def test_gaps_that_a_starved_thread_explains_are_not_launching() -> None:
    scene = eager()
    end = scene.rows["requests"][0]["finished"]
    for row in scene.rows["api"]:
        row["end"] = row["start"] + 1 * US
    scene.state("runnable", 0, end)
    summary = scene.summary()
    assert "R07" in ids(summary)
    assert "R03" not in ids(summary)


def mixed(eager_batch: int, eager_ns: int, steps: int = 30) -> Scene:
    """Graph steps of eight requests, and every third step eager with more requests."""
    scene, t, tokens = Scene(), 0, list[int]()
    for i in range(steps):
        large = i % 3 == 2
        lasting, batch = (eager_ns, eager_batch) if large else (PERIOD, 8)
        scene.step(i, t, t + lasting, **{f"r{n}": "decode" for n in range(batch)})
        scene.rows["steps"][-1]["mode"] = scene.timeline.strings.code("eager" if large else "graph")
        scene.work(GEMM, t, t + lasting, graph=not large)
        t += lasting
        tokens.append(t)
    scene.request("r0", 0, tokens)
    return scene


def test_batches_beyond_the_captured_sizes() -> None:
    found = hint(mixed(12, 18 * MS).summary(), "R04")
    assert "Batches above 8" in found["title"]
    assert found["evidence"]["median_eager_step_ns"] == 18 * MS
    assert found["requests"] == ["r0"]
    assert found["saving_ns"] == 9 * 8 * MS  # one eager step belongs to the warm-up


@pytest.mark.parametrize(
    ("batch", "ns"), [(12, 14 * MS), (8, 18 * MS), (4, 18 * MS)], ids=["1.4x", "same", "smaller"]
)
def test_eager_steps_that_graphs_would_not_help(batch: int, ns: int) -> None:
    assert "R04" not in ids(mixed(batch, ns).summary())


def test_eager_steps_are_told_by_their_own_launches_where_the_next_is_scheduled_ahead() -> None:
    """Its worker's spans say which step launches, since the next one has begun by then."""
    scene = mixed(12, 40 * MS)
    for number, row in enumerate(scene.rows["steps"]):
        scene.span("compute", row["start"], row["start"] + 1 * MS, name="execute", step=number)
        row["start"] = max(row["start"] - 12 * MS, 0)
        del row["mode"]
    found = hint(scene.summary(), "R04")
    assert found["evidence"]["smallest_eager_batch"] == 12
    assert found["evidence"]["largest_graph_batch"] == 8


@pytest.mark.parametrize(("length", "fires"), [(6 * MS, True), (4 * MS, False)])
def test_compilation_inside_a_request(length: int, fires: bool) -> None:
    scene = Scene()
    scene.serve(idle={9: [(2 * MS, length)]})
    scene.span("jit", 92 * MS, 92 * MS + length, name="triton compile")
    summary = scene.summary()
    assert ("R12" in ids(summary)) == fires
    if fires:
        assert hint(summary, "R12")["saving_ns"] == length
        assert hint(summary, "R12")["confidence"] == "high"
        assert not ids(summary) & {"R09", "R03"}


def test_compilation_before_any_request_is_start_up() -> None:
    scene = Scene()
    scene.serve()
    scene.span("jit", -1 * S, -900 * MS, name="triton compile")
    assert "R12" not in ids(scene.summary())


def test_compilation_on_another_thread_delays_nothing() -> None:
    scene = Scene()
    scene.serve(idle={9: [(2 * MS, 6 * MS)]})
    scene.span("jit", 92 * MS, 98 * MS, thread=THREAD + 1)
    assert "R12" not in ids(scene.summary())


def test_module_loads_and_captures_are_calls() -> None:
    for call in ("cuModuleLoadData", "cudaGraphInstantiate"):
        scene = Scene()
        scene.serve(idle={9: [(1 * MS, 8 * MS)]})
        scene.api(call, 91 * MS, 99 * MS)
        assert hint(scene.summary(), "R12")["saving_ns"] == 8 * MS


def test_a_slow_first_launch_loads_its_kernel() -> None:
    scene = Scene()
    scene.serve(idle={9: [(1 * MS, 8 * MS)]}, graph=False)
    row = next(r for r in scene.rows["api"] if r["start"] == 99 * MS)
    row["start"] = 91 * MS
    first = next(r for r in scene.rows["gpu"] if r["correlation"] == row["correlation"])
    first["name"] = scene.timeline.strings.code("lazy_kernel")
    for i in (12, 14):
        scene.work("lazy_kernel", i * PERIOD + 1 * MS, i * PERIOD + 2 * MS)
    found = hint(scene.summary(), "R12")
    assert found["evidence"]["first_launches_slow"] == 1


def streams(*, blocking: bool, together: bool = False) -> Scene:
    """Kernels on two streams in turn."""
    scene, t = Scene(), 0
    for i in range(40):
        start = t if not together else (i // 2) * 100 * US
        returned = start + 100 * US if blocking else start + 5 * US
        scene.launch(
            "elementwise_kernel", (start, returned), (start + 5 * US, start + 95 * US), stream=i % 2
        )
        t += 100 * US
    return scene


def test_streams_that_launch_blocking_serialises() -> None:
    found = hint(streams(blocking=True).summary(), "R42")
    assert found["evidence"]["streams"] == 2
    assert found["evidence"]["overlap_share"] == 0


def test_streams_in_turn_may_depend_on_each_other() -> None:
    assert "R42" not in ids(streams(blocking=False).summary())


def test_streams_that_overlap_are_fine() -> None:
    assert "R42" not in ids(streams(blocking=True, together=True).summary())
