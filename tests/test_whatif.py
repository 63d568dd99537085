"""Replay: unchanged it gives the measured times back; changed it follows the dependencies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm.cli import main
from rca_llm.errors import RcaError
from rca_llm.exporters import prediction
from rca_llm.trace import Trace
from rca_llm.whatif import factors, whatif
from tests.scenes import GEMM, MS, US, Scene, hint, job, spread

PERIOD = 10 * MS


def answer(*scenes: Scene, **changed: float) -> dict[str, Any]:
    """What a replay of some ranks says; names of parts with __ for the dot."""
    names = {name.replace("__", "."): factor for name, factor in changed.items()}
    report = Trace([scene.build() for scene in scenes]).attribute()
    return whatif(report, factors([f"{name}={factor}" for name, factor in names.items()]))


def saved(found: dict[str, Any]) -> int:
    """What the mean latency loses."""
    number = found["latency"]["mean"]["saved_ns"]
    assert isinstance(number, int)
    return number


def serving() -> Scene:
    """Twenty steps with two milliseconds of host work in each but the first."""
    scene = Scene()
    scene.serve(idle=spread(range(1, 20), 4 * MS, 2 * MS))
    for i in range(1, 20):
        scene.span("host", i * PERIOD + 4 * MS, i * PERIOD + 6 * MS, name="sample")
    return scene


def test_nothing_changed_is_what_was_measured() -> None:
    found = answer(serving())
    assert saved(found) == 0
    assert found["steps"]["saved_ns"] == 0
    assert found["window"]["saved_ns"] == 0
    assert found["requests"][0]["new_ttft_ns"] == found["requests"][0]["ttft_ns"]


def test_host_work_on_the_way_is_saved() -> None:
    assert saved(answer(serving(), scheduling__host=0)) == 19 * 2 * MS
    assert saved(answer(serving(), scheduling__host=0.5)) == 19 * 1 * MS


def test_host_work_under_device_work_is_not() -> None:
    scene = Scene()
    scene.serve()
    for i in range(20):
        scene.span("host", i * PERIOD + 4 * MS, i * PERIOD + 6 * MS, name="prepare")
    assert saved(answer(scene, scheduling__host=0)) == 0


def test_quicker_kernels_end_steps_earlier_until_the_host_is_the_limit() -> None:
    scene = Scene()
    scene.serve()
    for i in range(20):
        scene.span("host", i * PERIOD + 1 * MS, i * PERIOD + 6 * MS, name="prepare")
    half = answer(scene, compute=0.5)
    none = answer(scene, compute=0)
    device = 10 * MS - 10 * US
    assert saved(half) == pytest.approx(20 * (10 * MS - 6 * MS), rel=0.001)
    assert saved(none) == pytest.approx(20 * (10 * MS - 6 * MS), rel=0.001)
    assert saved(answer(scene, compute=0.8)) == pytest.approx(20 * device * 0.2, rel=0.001)


def test_slower_kernels_cost_what_they_last() -> None:
    assert saved(answer(serving(), compute=2)) < -19 * 5 * MS


def synchronised() -> Scene:
    """Steps of two kernels with a synchronisation between, after which the host needs 1 ms."""
    scene, t, tokens = Scene(), 0, []
    for i in range(20):
        scene.step(i, t, t + 8 * MS, R="decode" if i else "prefill")
        scene.work(GEMM, t, t + 4 * MS)
        scene.api("cudaStreamSynchronize", t + 20 * US, t + 4 * MS)
        scene.span("host", t + 4 * MS, t + 5 * MS, name="sample")
        scene.work(GEMM, t + 5 * MS, t + 8 * MS)
        t += 8 * MS
        tokens.append(t)
    scene.request("R", 0, tokens)
    return scene


def test_without_synchronisation_the_host_runs_ahead() -> None:
    assert saved(answer(synchronised())) == 0
    gain = saved(answer(synchronised(), scheduling__sync=0))
    assert gain == pytest.approx(20 * 1 * MS, rel=0.02)


def handed_over() -> Scene:
    """Ten steps; in the first, behind 4 ms of work, the KV cache comes back in copies of 3 ms."""
    scene, tokens = Scene(), list[int]()
    for i in range(10):
        t = i * 8 * MS + (3 * MS if i else 0)
        loads = 0 if i else 3 * MS
        scene.step(i, t, t + 8 * MS + loads, R="decode" if i else "prefill")
        scene.work(GEMM, t, t + 4 * MS)
        if loads:
            scene.span("kv_transfer", t + 1 * MS, t + 7 * MS, bytes=1 << 20)
            for piece in range(3):
                call = 100 + piece
                scene.api("cudaMemcpyAsync", *at(t + 1 * MS, piece), correlation=call)
                begin = t + (4 + piece) * MS
                scene.copy(0, begin + 5 * US, begin + MS, correlation=call, bytes=1 << 20)
            scene.api("cudaStreamSynchronize", t + 2 * MS, t + 7 * MS)
        scene.work(GEMM, t + 4 * MS + loads, t + 8 * MS + loads)
        tokens.append(t + 8 * MS + loads)
    scene.request("R", 0, tokens)
    return scene


def at(begin: int, piece: int) -> tuple[int, int]:
    """The call of a copy."""
    return begin + piece * 20 * US, begin + piece * 20 * US + 10 * US


def test_without_a_hand_over_neither_its_copies_nor_its_waits_remain() -> None:
    assert saved(answer(handed_over())) == 0
    gone = saved(answer(handed_over(), communication__kv_transfer=0))
    assert gone == pytest.approx(3 * MS, rel=0.02)
    half = saved(answer(handed_over(), communication__kv_transfer=0.5))
    assert half == pytest.approx(1.5 * MS, rel=0.05)
    # Its copies are the hand-over: without the time of copies there is still all of it.
    assert saved(answer(handed_over(), io=0)) == 0


def test_waits_outside_a_hand_over_stay() -> None:
    scene = handed_over()
    scene.api("cudaStreamSynchronize", 9 * MS, 11 * MS)
    gone = saved(answer(scene, communication__kv_transfer=0))
    assert gone == pytest.approx(3 * MS, rel=0.02)


def ranks(late: int) -> list[Scene]:
    """Two ranks that meet in an all-reduce; rank 1 comes late because of a collection."""
    scenes = []
    for rank in (0, 1):
        scene, t, tokens = Scene(rank=rank, world_size=2, host="h0"), 0, []
        for i in range(10):
            meet = t + 4 * MS + late
            arrive = meet if rank else t + 4 * MS
            done, end = meet + 500 * US, meet + 3 * MS
            scene.step(i, t, end, R="decode" if i else "prefill")
            begin = arrive - 4 * MS
            if rank:
                scene.span("gc", t, begin, name="gc gen 2")
            scene.work(GEMM, begin, arrive)
            scene.meet(i, arrive, done)
            call = begin + 20 * US
            scene.launch(GEMM, (call, call + 5 * US), (done, end))
            t = end
            tokens.append(t)
        if not rank:
            scene.request("R", 0, tokens)
        scenes.append(scene)
    return scenes


def test_a_late_rank_holds_the_others_up_in_the_replay_too() -> None:
    assert saved(answer(*ranks(3 * MS))) == 0
    assert saved(answer(*ranks(3 * MS), scheduling__gc=0)) == 10 * 3 * MS
    assert saved(answer(*ranks(3 * MS), communication=0)) == pytest.approx(10 * 500 * US, rel=0.05)


def test_a_hint_over_several_ranks_saves_what_the_replay_does() -> None:
    found = hint(job(*ranks(25 * MS)), "R08")
    assert found["saving_ns"] == pytest.approx(saved(answer(*ranks(25 * MS), scheduling__gc=0)))


def test_ranks_that_nothing_ties_save_what_is_charged() -> None:
    alone = Scene(rank=2, world_size=3, host="h0")
    alone.kernel(GEMM, 0, 1 * MS)
    found = hint(job(*ranks(25 * MS), alone), "R08")
    assert found["saving_ns"] == found["evidence"]["charged_ns"]


def test_an_engine_that_is_quicker_still_waits_for_arrivals() -> None:
    scene = Scene()
    for n in range(3):
        start = n * 100 * MS
        scene.step(n, start, start + 20 * MS, **{f"r{n}": "prefill"})
        scene.work(GEMM, start, start + 20 * MS)
        scene.request(f"r{n}", start, [start + 20 * MS])
    found = answer(scene, compute=0.5)
    assert [row["new_latency_ns"] for row in found["requests"]] == [10_005 * US] * 3


def test_a_shorter_service_shortens_the_queue() -> None:
    scene = Scene()
    for n in range(4):
        start = n * 20 * MS
        scene.step(n, start, start + 20 * MS, **{f"r{n}": "prefill"})
        scene.work(GEMM, start, start + 20 * MS)
        scene.request(f"r{n}", 0, [start + 20 * MS], scheduled=start)
    rows = answer(scene, compute=0.5)["requests"]
    assert rows[3]["latency_ns"] == 80 * MS
    assert rows[3]["new_latency_ns"] == pytest.approx(40 * MS, rel=0.001)


def test_a_request_that_joins_others_waits_for_a_shorter_step() -> None:
    scene = Scene()
    for n in range(10):
        batch = {"a": "decode" if n else "prefill"} | ({"b": "decode"} if n > 6 else {})
        scene.step(n, n * 20 * MS, (n + 1) * 20 * MS, **batch)
        scene.span("host", n * 20 * MS, (n * 20 + 10) * MS, name="prepare")
        scene.work(GEMM, (n * 20 + 10) * MS, (n + 1) * 20 * MS)
    scene.request("a", 0, [(n + 1) * 20 * MS for n in range(10)])
    tokens = [(n + 1) * 20 * MS for n in range(7, 10)]
    scene.request("b", 124 * MS, tokens, scheduled=140 * MS)
    _, late = answer(scene, scheduling__host=0)["requests"]
    assert late["latency_ns"] == 76 * MS
    assert late["new_latency_ns"] == pytest.approx(36 * MS, rel=0.001)


def test_requests_that_find_the_last_step_of_others_do_not_wait_for_an_idle_engine() -> None:
    scene = Scene()
    for n in range(10):
        ids = ["a"] if n < 8 else ["b", "c"]
        scene.step(
            n,
            n * 20 * MS,
            (n + 1) * 20 * MS,
            **dict.fromkeys(ids, "decode" if n % 8 else "prefill"),
        )
        scene.span("host", n * 20 * MS, (n * 20 + 10) * MS, name="prepare")
        scene.work(GEMM, (n * 20 + 10) * MS, (n + 1) * 20 * MS)
    scene.request("a", 0, [(n + 1) * 20 * MS for n in range(8)])
    for id, arrival in (("b", 152 * MS), ("c", 153 * MS)):
        scene.request(id, arrival, [180 * MS, 200 * MS], scheduled=160 * MS)
    _, first, second = answer(scene, scheduling__host=0)["requests"]
    assert first["new_latency_ns"] == pytest.approx(21 * MS, rel=0.001)
    assert 20 * MS <= second["new_latency_ns"] <= 30 * MS


def test_detokenising_after_the_last_token_scales_with_it() -> None:
    scene = Scene()
    scene.serve()
    scene.rows["requests"][0]["finished"] = 280 * MS
    scene.span("detokenize", 200 * MS, 280 * MS, request="R", thread=5)
    assert saved(answer(scene, scheduling__detokenize=0)) == 80 * MS


def waiting_for_each_other() -> Scene:
    """Two requests that the program itself lets in one after the other, told by spans alone."""
    scene = Scene()
    for id, begin in (("A", 0), ("B", 50 * MS)):
        scene.row("requests", id=id, arrival=0, finished=begin + 50 * MS, status="finished")
        scene.span("compute", begin, begin + 50 * MS, request=id, thread=5)
    scene.span("queue", 0, 50 * MS, request="B", thread=6)
    return scene


def test_queues_of_the_programs_own_are_said_to_stay_as_measured() -> None:
    found = answer(waiting_for_each_other(), compute=0.5)
    assert found["kept_as_measured"] == {"scheduling.queue": 50 * MS}
    told = prediction.kept(found)
    assert told.startswith("Kept as measured: scheduling.queue (50.0 ms of 150 ms of the requests'")
    assert "lower bound" in told


def test_a_queue_for_steps_is_replayed() -> None:
    scene = Scene()
    scene.serve(arrival=-5 * MS)
    found = answer(scene, compute=0.5)
    assert found["kept_as_measured"] == {}
    assert prediction.kept(found) == ""


def test_next_to_nothing_in_a_queue_is_not_worth_a_line() -> None:
    found: dict[str, Any] = {"requests": [{"latency_ns": 1000}]}
    assert prediction.kept(found | {"kept_as_measured": {"scheduling.queue": 9}}) == ""
    assert prediction.kept(found | {"kept_as_measured": {"scheduling.queue": 10}})


@pytest.mark.parametrize(
    "setting",
    [
        "nothing=1",
        "compute=-1",
        "compute=1e308",
        "compute=x",
        "compute",
        "scheduling.queue=0",
        "=1",
    ],
)
def test_wrong_settings_are_one_line(setting: str) -> None:
    with pytest.raises(RcaError) as caught:
        factors([setting])
    assert "\n" not in str(caught.value)


def test_a_name_is_set_once_and_a_part_before_its_class() -> None:
    with pytest.raises(RcaError, match="compute is set twice"):
        factors(["compute=0", "io=0", "compute=1"])
    given = ["scheduling.host=1", "scheduling=0"]
    assert factors(given) == factors(given[::-1])
    assert factors(given)["scheduling.host"] == 1
    assert factors(given)["scheduling.launch"] == 0


def test_a_class_stands_for_the_parts_that_can_be_set() -> None:
    found = factors(["communication=0"])
    assert "communication.collective" in found
    assert "communication.wait" not in found


TIMES = st.integers(0, 400).map(lambda t: t * 100_000)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_unchanged_replay_is_the_measurement_whatever_it_was(data: st.DataObject) -> None:
    scene = Scene(rank=0, world_size=1)
    for _ in range(data.draw(st.integers(1, 15))):
        call, delay = data.draw(TIMES), data.draw(st.integers(0, 2 * MS))
        length = data.draw(st.integers(0, 9 * MS))
        begin = call + delay
        scene.launch(
            GEMM,
            (call, call + 5 * US),
            (begin, begin + length),
            stream=data.draw(st.integers(0, 2)),
        )
    for _ in range(data.draw(st.integers(0, 6))):
        start = data.draw(TIMES)
        scene.api("cudaStreamSynchronize", start, start + data.draw(st.integers(0, 5 * MS)))
        scene.span("host", start, start + data.draw(st.integers(0, 3 * MS)))
    for i in range(data.draw(st.integers(0, 5))):
        scene.step(i, i * 8 * MS, (i + 1) * 8 * MS, R="decode" if i else "prefill")
    tokens = sorted(data.draw(st.lists(TIMES, min_size=1, max_size=4)))
    scene.request("R", min(tokens[0], data.draw(TIMES)), tokens)
    found = answer(scene)
    assert abs(saved(found)) <= 1
    assert abs(found["window"]["saved_ns"]) <= 1


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, target = tmp_path / "a.jsonl", tmp_path / "w.json"
    lines: list[dict[str, Any]] = [{"type": "header", "schema": "rca-llm/events/1", "clock": "utc"}]
    base = 10**18
    lines += [
        {"type": "step", "id": 0, "pid": 1, "start": base, "end": base + 9 * MS},
        {
            "type": "gpu",
            "kind": "kernel",
            "pid": 1,
            "device": 0,
            "stream": 7,
            "name": GEMM,
            "start": base + MS,
            "end": base + 9 * MS,
        },
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    call = ["whatif", str(file), "--set", "compute=0.5", "io=0", "--json", str(target)]
    assert main(call) == 0
    assert json.loads(target.read_text())["window"]["saved_ns"] == 4 * MS
    assert "compute=0.5, io=0" in capsys.readouterr().out
    assert main(["whatif", str(file), "--set", "nonsense=1"]) == 2


def test_a_setting_without_a_name_is_named() -> None:
    with pytest.raises(RcaError, match=r"^--set =1: expected NAME=FACTOR; the name is missing$"):
        factors(["=1"])
