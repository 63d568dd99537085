"""Gates: what is wrong with the data is said first, and silences what it would mislead."""

from __future__ import annotations

import pytest

from rca_llm.trace import BY_INTENT, DEVICE_RECORDS, HOST_RECORDS
from tests.scenes import GEMM, MS, US, Scene, hint, ids, job

PERIOD = 10 * MS


def replays(counts: list[int]) -> Scene:
    """Graph launches, each followed by some of its twenty kernels of 10 us."""
    scene = Scene()
    for i, count in enumerate(counts):
        start = i * MS
        scene.calls += 1
        scene.api("cudaGraphLaunch", start, start + 20 * US, correlation=scene.calls)
        for j in range(count):
            at = start + (30 + 12 * j) * US
            scene.kernel(
                "layer_kernel", at, at + 10 * US, correlation=scene.calls, graph_node=j + 1
            )
    return scene


def test_launches_without_kernels_are_not_traced_and_not_idle() -> None:
    scene = Scene()
    for i in range(20):
        scene.api("cudaLaunchKernel", i * MS, i * MS + 10 * US, correlation=i)
    found = hint(scene.summary(), "G1")
    assert found["class"] == "unknown"
    assert found["saving_ns"] is None
    assert "not idle" in found["title"]


def test_a_busy_device_without_kernels() -> None:
    scene = Scene()
    scene.span("host", 0, 100 * MS)
    for i in range(10):
        scene.sample("gpu.utilization", i * PERIOD, 0.9, device=0)
    assert "G1" in ids(scene.summary())


def test_replays_with_too_few_kernels() -> None:
    found = hint(replays([20] * 20 + [5] + [20] * 5).summary(), "G2")
    assert found["evidence"]["replays_with_too_few_kernels"] == 1


def test_the_last_replay_may_be_cut_off_by_the_end() -> None:
    assert "G2" not in ids(replays([20] * 20 + [5]).summary())


def test_whole_replays_are_complete() -> None:
    assert "G2" not in ids(replays([20] * 20).summary())


def test_idle_time_says_nothing_while_replays_are_lost() -> None:
    scene = Scene()
    scene.serve(idle={i: [(7 * MS, 3 * MS)] for i in range(20)})
    for i in range(20):
        scene.span("host", i * PERIOD + 7 * MS, (i + 1) * PERIOD, name="schedule")
    assert "R09" in ids(scene.summary())
    for i in range(4):
        scene.api("cudaGraphLaunch", 50 * MS + i * US, 50 * MS + i * US + 500, correlation=9000 + i)
    summary = scene.summary()
    assert "G2" in ids(summary)
    assert "R09" not in ids(summary)


def test_launches_that_left_no_kernel() -> None:
    scene = Scene()
    scene.serve(graph=False)
    scene.api("cudaLaunchKernel", 50 * MS, 50 * MS + US, correlation=9000)
    found = hint(scene.summary(), "G2")
    assert found["evidence"]["launches_without_kernel"] == 1


def test_launches_during_capture_run_nothing() -> None:
    scene = Scene()
    scene.serve(graph=False)
    scene.api("cudaStreamBeginCapture", 50 * MS, 50 * MS + US)
    scene.api("cudaLaunchKernel", 50 * MS + 2 * US, 50 * MS + 3 * US, correlation=9000)
    scene.api("cudaStreamEndCapture", 50 * MS + 4 * US, 50 * MS + 5 * US)
    assert "G2" not in ids(scene.summary())


def test_impossible_times_are_told_with_both_values() -> None:
    scene = Scene()
    for i in range(1000):
        start = i * 20 * US
        scene.kernel("norm", start, start + (3_400 * MS if i == 500 else 10 * US))
    found = hint(scene.summary(), "G3")
    assert "3400000000 ns" in found["title"]
    assert "20000 ns" in found["title"]


@pytest.mark.parametrize(("skew", "fires"), [(10 * US, True), (3 * US, False)])
def test_ends_of_collectives_tell_that_clocks_differ(skew: int, fires: bool) -> None:
    scenes = []
    for rank in (0, 1):
        scene = Scene(rank=rank, world_size=2, host=f"h{rank}")
        for i in range(30):
            start = i * PERIOD + rank * skew
            scene.work(GEMM, start, start + 5 * MS)
            scene.meet(i, start + 5 * MS, start + 6 * MS)
        scenes.append(scene)
    scenes[1].timeline.findings.clear()
    summary = job(*scenes)
    if "G4" in ids(summary):
        assert fires
        assert "R05" not in ids(summary)


def test_kernels_before_their_launch() -> None:
    scene = Scene()
    for i in range(100):
        scene.launch(GEMM, (i * MS, i * MS + 10 * US), (i * MS - (i == 5) * US, i * MS + 500 * US))
    assert hint(scene.summary(), "G4")["evidence"]["early_kernels"] == 1


def test_the_price_of_tracing_lowers_what_is_said_of_the_host() -> None:
    scene = Scene()
    scene.serve(idle={i: [(7 * MS, 3 * MS)] for i in range(20)})
    for i in range(20):
        scene.span("host", i * PERIOD + 7 * MS, (i + 1) * PERIOD, name="schedule")
    before = hint(scene.summary(), "R09")["confidence"]
    scene.timeline.note("tracer_overhead", 1, "rank 0", "steps last 1.2 times as long")
    summary = scene.summary()
    assert "G5" in ids(summary)
    assert before == "medium"
    assert hint(summary, "R09")["confidence"] == "low"


def test_steps_without_device_work() -> None:
    scene = Scene()
    for i in range(20):
        start = i * PERIOD
        scene.step(i, start, start + PERIOD, R="decode")
        for j in range(0 if i == 9 else 20):
            scene.launch(
                GEMM,
                (start + j * 400 * US, start + j * 400 * US + 9 * US),
                (start + j * 400 * US + 10 * US, start + (j + 1) * 400 * US),
            )
    assert hint(scene.summary(), "G6")["evidence"]["steps_without_gpu"] == 1


def test_recording_that_was_switched_off_on_purpose_is_no_loss() -> None:
    scene = Scene()
    scene.step(0, 0, PERIOD, R="decode")
    for told in BY_INTENT:
        scene.timeline.note("dropped_records", 1, "run", told)
    assert "G2" not in ids(scene.summary())


def test_a_warning_that_something_might_be_missing_is_no_loss_that_was_seen() -> None:
    scene = Scene()
    scene.step(0, 0, PERIOD, R="decode")
    scene.timeline.note("dropped_records", 2, "process 7", "Not all NVTX events might be there.")
    assert "G2" not in ids(scene.summary())  # ranges are not device work
    scene.timeline.note("dropped_records", 1, "process 7", "Not all CUDA events might be there.")
    found = hint(scene.summary(), "G2")
    assert found["confidence"] == "medium"
    assert found["title"].startswith(
        "GPU work may not have been recorded: 1 × Not all CUDA events might be there;"
    )


def test_a_loss_is_told_in_the_recorders_own_units() -> None:
    scene = Scene()
    scene.step(0, 0, PERIOD, R="decode")
    scene.timeline.note("dropped_records", 4096, "process 7", "bytes: writer held up")
    found = hint(scene.summary(), "G2")
    assert found["confidence"] == "high"
    assert "not recorded: 4,096 × bytes: writer held up;" in found["title"]


def test_lost_records_of_the_host_are_no_lost_work_of_a_device() -> None:
    scene = Scene()
    scene.row("requests", id="A", arrival=0, finished=10 * MS)
    why = f"{HOST_RECORDS} were not written: recording ended: File too large"
    scene.timeline.note("dropped_records", 9, "process 7", why)
    found = hint(scene.summary(), "G2")
    assert found["title"] == (
        "9 records of the host were lost, of process 7 (recording ended: File too large); time"
        " there that nothing explains may be work whose record was lost"
    )
    assert found["evidence"]["dropped_host_records"] == 9


def test_records_of_both_are_told_apart() -> None:
    scene = Scene()
    scene.step(0, 0, PERIOD, R="decode")
    for what, process in ((HOST_RECORDS, 7), (HOST_RECORDS, 8), (DEVICE_RECORDS, 7)):
        told = f"{what} were not written, recording went on"
        scene.timeline.note("dropped_records", 1, f"process {process}", told)
    title = hint(scene.summary(), "G2")["title"]
    assert title.startswith("GPU work was not recorded: 1 × records of a device were not written")
    assert ". 2 records of the host were lost, of 2 processes; " in title


def test_the_cost_of_tracing_is_told_in_units_that_suit() -> None:
    scene = Scene()
    scene.step(0, 0, PERIOD, R="decode")
    scene.timeline.note("tracer_overhead", 1, "rank 0", "9123456 ns on the program's threads")
    assert hint(scene.summary(), "G5")["title"].endswith("9.123 ms on the program's threads")


def test_titles_agree_in_number() -> None:
    scene = Scene()
    scene.step(0, 0, PERIOD, R="decode")
    scene.timeline.note("negative_duration", 1, "rank 0", "ends before its start")
    title = hint(scene.summary(), "G3")["title"]
    assert title.startswith("1 record has impossible times and was repaired")
