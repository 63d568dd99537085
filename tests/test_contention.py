"""Two processes that take turns on one device: who waits for whom, and what that costs."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rca_llm import readers
from rca_llm.report import Report, build
from rca_llm.trace import Device, Trace
from rca_llm.whatif import whatif
from tests.scenes import GEMM, MS, US, Scene, hint, ids
from tests.test_attribution import check_partitions

DATA = Path(__file__).parent / "data/h200"
NEIGHBOUR = 2
SWITCH = 150 * US
"""How long the device takes to change hands, in every scene."""
USUAL = 10 * US
"""From the end of a launch call to its kernel on a device that is free, in every scene."""

STEP, OWN, THEIRS, STEPS = 4 * MS, 1 * MS, 600 * US, 12
CALL = 5 * US


class Turns(Scene):
    """An engine whose step is two kernels; between them the neighbour may have the device."""

    def serve_beside(
        self, *, neighbour: bool = True, process: int = NEIGHBOUR, uuids: tuple[str, ...] = ()
    ) -> None:
        self.row("processes", process=1, name="engine")
        if neighbour:
            self.row("processes", process=process, name="other\x1b job")
        told = (*uuids, None, None)
        self.timeline.devices += [
            Device(0, "NVIDIA H200", 1, uuid=told[0]),
            Device(0, "NVIDIA H200", process, uuid=told[1]),
        ]
        for i in range(STEPS):
            self._step(i, i * STEP, process if neighbour else None)
        times = [(i + 1) * STEP for i in range(STEPS)]
        self.request("R", 0, times, scheduled=0)

    def _step(self, number: int, start: int, neighbour: int | None) -> None:
        self.step(number, start, start + STEP, R="decode" if number else "prefill")
        first = start + CALL + USUAL
        self.launch(GEMM, (start, start + CALL), (first, first + OWN))
        second = first + OWN + 2 * US
        if neighbour is not None:
            begin = first + OWN + SWITCH
            self._theirs(neighbour, begin - 300 * US, begin)
            second = begin + THEIRS + SWITCH
        self.launch(GEMM, (start + CALL, start + 2 * CALL), (second, second + OWN))
        self.api("cudaStreamSynchronize", start + 3 * CALL, second + OWN)

    def _theirs(self, process: int, called: int, begin: int) -> None:
        self.calls += 1
        where: dict[str, Any] = {"process": process, "correlation": self.calls}
        self.api("cudaLaunchKernel", called, called + CALL, thread=process, **where)
        self.kernel("their_gemm", begin, begin + THEIRS, **where)

    def report(self) -> Report:
        return build(Trace([self.build()]))


WAIT = 2 * SWITCH + THEIRS
"""What a step of `Turns` waits for the neighbour."""


def test_own_kernels_are_compute_and_the_rest_is_a_named_neighbours() -> None:
    scene = Turns()
    scene.serve_beside()
    row = scene.summary()["requests"][0]
    assert row["parts"]["compute.gemm"] == 2 * OWN * STEPS
    assert row["parts"]["scheduling.queue"] == WAIT * STEPS
    assert row["interference"] == [
        {"step": None, "owner": ["other\x1b job (process 2)"], "ns": WAIT * STEPS}
    ]
    assert sum(row["parts"].values()) == row["latency_ns"]


@pytest.mark.parametrize("process", [NEIGHBOUR, 0], ids=["later pid", "earlier pid"])
def test_a_neighbour_runs_no_step_and_is_charged_with_no_request(process: int) -> None:
    scene = Turns()
    scene.serve_beside(process=process)
    report = scene.report()
    row = report.summary["requests"][0]
    assert row["parts"]["compute.gemm"] == 2 * OWN * STEPS
    model = report.model
    assert model is not None
    assert [one.rank.processes for _, one in model.job.ranks] == [(1,)]
    assert len(report.summary["ranks"]) == 2
    assert {step["rank"] for step in report.summary["steps"]} == {int(process == 0)}


def test_the_hint_names_the_neighbour_and_what_it_costs() -> None:
    scene = Turns()
    scene.serve_beside(uuids=("GPU-a", "GPU-a"))
    summary = scene.summary()
    found = summary["hints"][0]
    assert found["id"] == "R29"
    assert found["confidence"] == "high"
    assert found["share"] == pytest.approx(WAIT / STEP)
    # Without the neighbour the second kernel would begin when the first has ended.
    assert found["saving_ns"] == pytest.approx(WAIT * STEPS, rel=0.01)
    assert found["evidence"]["neighbour"] == "other\ufffd job (process 2)"
    assert found["evidence"]["waits"] == STEPS
    assert found["evidence"]["neighbour_kernels_ns"] == THEIRS * STEPS


def test_without_uuids_the_turns_themselves_say_that_it_is_one_device() -> None:
    scene = Turns()
    scene.serve_beside()
    assert hint(scene.summary(), "R29")["confidence"] == "medium"


def test_two_devices_that_processes_call_by_one_number_are_not_shared() -> None:
    """As where each worker sees its own device alone (CUDA_VISIBLE_DEVICES)."""
    scene = Turns()
    scene.serve_beside(uuids=("GPU-a", "GPU-b"))
    summary = scene.summary()
    assert "R29" not in ids(summary)
    assert "scheduling.queue" not in {k for k, ns in summary["parts"].items() if ns}


def test_kernels_that_run_together_are_not_turns_on_one_device() -> None:
    scene = Turns()
    scene.serve_beside()
    scene.kernel("their_gemm", 0, STEP * STEPS, process=NEIGHBOUR, stream=9)
    assert "scheduling.queue" not in scene.summary()["requests"][0]["parts"]


def test_before_it_is_launched_work_waits_for_nobody() -> None:
    """The host launches while the neighbour computes: what came before that is the host's."""
    scene = Scene()
    for i in range(STEPS):
        start = i * STEP
        scene.step(i, start, start + STEP, R="decode" if i else "prefill")
        scene.launch(GEMM, (start, start + CALL), (start + CALL + USUAL, start + MS))
        scene.kernel("their_gemm", start + MS + SWITCH, start + 2 * MS, process=NEIGHBOUR)
        called = start + 1_500 * US
        scene.span("host", start + MS, called)
        scene.launch(GEMM, (called, called + CALL), (start + 2 * MS + SWITCH, start + STEP))
    scene.request("R", 0, [(i + 1) * STEP for i in range(STEPS)], scheduled=0)
    parts = scene.summary()["requests"][0]["parts"]
    assert parts["scheduling.host"] == 500 * US * STEPS
    waited = 2 * MS + SWITCH - (1_500 * US + CALL + USUAL)
    assert parts["scheduling.queue"] == waited * STEPS


def test_when_it_was_queued_stands_for_a_call_that_was_not_recorded() -> None:
    scene = Scene()
    for i in range(STEPS):
        start = i * STEP
        scene.step(i, start, start + STEP, R="decode" if i else "prefill")
        scene.kernel(GEMM, start + USUAL, start + MS, queued=start)
        scene.kernel("their_gemm", start + MS + SWITCH, start + 2 * MS, process=NEIGHBOUR)
        scene.kernel(GEMM, start + 2 * MS + SWITCH, start + STEP, queued=start)
    scene.request("R", 0, [(i + 1) * STEP for i in range(STEPS)], scheduled=0)
    summary = scene.summary()
    assert summary["requests"][0]["parts"]["scheduling.queue"] == (MS + SWITCH) * STEPS
    assert hint(summary, "R29")["saving_ns"] == (MS + SWITCH) * STEPS


def test_where_nothing_says_when_work_was_queued_nobody_is_charged() -> None:
    scene = Scene()
    for i in range(STEPS):
        start = i * STEP
        scene.step(i, start, start + STEP, R="decode" if i else "prefill")
        scene.kernel(GEMM, start, start + MS)
        scene.kernel("their_gemm", start + MS + SWITCH, start + 2 * MS, process=NEIGHBOUR)
        scene.kernel(GEMM, start + 2 * MS + SWITCH, start + STEP - US)
    scene.request("R", 0, [(i + 1) * STEP for i in range(STEPS)], scheduled=0)
    summary = scene.summary()
    assert "scheduling.queue" not in summary["requests"][0]["parts"]
    assert hint(summary, "R29")["evidence"]["switches"] == 2 * STEPS


def test_workers_of_an_engine_that_makes_steps_elsewhere_are_no_neighbours() -> None:
    """The engine's process has no device: both workers run its steps."""
    scene = Scene()
    for i in range(STEPS):
        start = i * STEP
        scene.step(i, start, start + STEP, R="decode" if i else "prefill")
        for worker in (11, 12):
            where = {"process": worker, "device": worker - 11}
            scene.kernel(GEMM, start, start + 3 * MS, **where)
    scene.request("R", 0, [(i + 1) * STEP for i in range(STEPS)], scheduled=0)
    report = build(Trace([scene.build()]))
    model = report.model
    assert model is not None
    assert [len(one.steps) for _, one in model.job.ranks] == [STEPS, STEPS]


def test_beside_a_worker_whose_spans_carry_steps_a_process_without_is_a_neighbour() -> None:
    scene = Scene()
    for i in range(STEPS):
        start = i * STEP
        scene.step(i, start, start + STEP, R="decode" if i else "prefill")
        scene.span("host", start, start + US, process=11, step=i)
        scene.kernel(GEMM, start, start + MS, process=11)
        scene.kernel("their_gemm", start + 2 * MS, start + 3 * MS, process=12)
    scene.request("R", 0, [(i + 1) * STEP for i in range(STEPS)], scheduled=0)
    model = build(Trace([scene.build()])).model
    assert model is not None
    assert [one.rank.processes for _, one in model.job.ranks] == [(11,)]


def test_two_engines_on_one_device_serve_their_own_requests() -> None:
    scene = Scene()
    for i in range(STEPS):
        for process, request, offset in ((1, "A", 0), (2, "B", 2 * MS)):
            start = i * STEP + offset
            number = len(scene.rows.get("steps", []))
            scene.row("steps", id=i, start=start, end=start + 2 * MS, process=process)
            phase = "decode" if i else "prefill"
            scene.row("batch", step=number, request=request, phase=phase, tokens=1)
            scene.kernel(GEMM, start, start + process * 500 * US, process=process)
    for request, offset in (("A", 0), ("B", 2 * MS)):
        times = [i * STEP + offset + 2 * MS for i in range(STEPS)]
        scene.request(request, offset, times, scheduled=offset)
    rows = {row["id"]: row["parts"] for row in scene.summary()["requests"]}
    assert rows["A"]["compute.gemm"] == 500 * US * STEPS
    assert rows["B"]["compute.gemm"] == 1_000 * US * STEPS


def test_an_unchanged_replay_gives_the_measured_times_back() -> None:
    scene = Turns()
    scene.serve_beside()
    answer = whatif(scene.report(), {})
    assert answer["window"]["saved_ns"] == 0
    assert [row["new_latency_ns"] for row in answer["requests"]] == [STEP * STEPS]


def test_launching_sooner_does_not_take_a_neighbour_away() -> None:
    scene = Turns()
    scene.serve_beside()
    answer = whatif(scene.report(), {"scheduling.launch": 0.0})
    new = answer["requests"][0]["new_latency_ns"]
    assert new >= (2 * OWN + WAIT) * STEPS


turns = st.lists(
    st.tuples(st.booleans(), st.integers(1, 400), st.integers(0, 300), st.integers(0, 900)),
    min_size=1,
    max_size=25,
)
"""Device work in order: whose it is, how long it lasts, the pause before it, how long before it
was launched; µs."""


def taken_in_turns(found: list[tuple[bool, int, int, int]], *, neighbour: bool = True) -> Scene:
    """A request of an engine that shares its device, by turns as drawn."""
    scene, now, called = Scene(), 0, {1: 0, 2: 0}
    for own, lasting, pause, ahead in found:
        now += pause * US
        process = 1 if own else NEIGHBOUR
        call = max(now - ahead * US, called[process])
        called[process] = min(call, now) + US
        if own or neighbour:
            times = (min(call, now), min(call, now) + US), (now, now + lasting * US)
            scene.calls += 1
            where: dict[str, Any] = {"process": process, "correlation": scene.calls}
            scene.api("cudaLaunchKernel", *times[0], thread=process, **where)
            scene.kernel(GEMM if own else "their_gemm", *times[1], **where)
        now += lasting * US
    scene.step(0, 0, now, R="prefill")
    scene.span("host", 0, 1)  # the engine's process is there whoever works
    scene.request("R", 0, [now], scheduled=0)
    return scene


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(turns)
def test_whatever_the_turns_the_parts_add_up(found: list[tuple[bool, int, int, int]]) -> None:
    report = build(Trace([taken_in_turns(found).build()]))
    check_partitions(report.summary)
    model = report.model
    assert model is not None
    for _, one in model.job.ranks:
        waits = one.contended
        assert (waits.end > waits.start).all()
        assert (waits.start[1:] >= waits.end[:-1]).all()
    row = report.summary["requests"][0]
    theirs = [part["ns"] for part in row["interference"] if part["step"] is None]
    assert sum(theirs) == row["parts"].get("scheduling.queue", 0)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(turns)
def test_a_neighbour_takes_nothing_of_own_computing(
    found: list[tuple[bool, int, int, int]],
) -> None:
    if not any(own for own, *_ in found):
        return
    rows = [
        taken_in_turns(found, neighbour=there).summary()["requests"][0] for there in (True, False)
    ]
    assert rows[0]["shares"]["compute"] == rows[1]["shares"]["compute"]
    assert rows[0]["latency_ns"] == rows[1]["latency_ns"]
    assert "scheduling.queue" not in rows[1]["parts"]


def recorded(size: str) -> tuple[Report, dict[str, Any]]:
    """What an H200 recorded of `inject two_processes`, and its truth."""
    truths = json.loads((DATA / "two_processes.truths.json").read_text(encoding="utf-8"))
    truth = next(one for one in truths if f"{one['magnitude']:g}" == size)
    return build(readers.load(DATA / f"two_processes-{size}.events.jsonl.gz")), truth


@pytest.mark.parametrize("size", ["0.3", "0.9"])
def test_an_h200_that_two_processes_share(size: str) -> None:
    """Their kernels never ran together; 12 products of a step are the request's own."""
    report, truth = recorded(size)
    found = report.summary["hints"][0]
    assert found["id"] == "R29"
    assert found["share"] == pytest.approx(truth["share"], abs=0.02)
    assert found["saving_ns"] == pytest.approx(truth["injected_ns"], rel=0.05)
    spent = sum(row["parts"]["compute.gemm"] for row in report.summary["requests"])
    gpu = report.trace.timelines[0]["gpu"]
    own = (gpu["process"] == 839) & (gpu["kind"] == 0)
    assert spent == int((gpu["end"] - gpu["start"])[own].sum())
    for row in report.summary["requests"]:
        assert sum(row["parts"].values()) == row["latency_ns"]
        assert {one["owner"][0] for one in row["interference"]} == {"python3 -c (process 866)"}


@pytest.mark.parametrize("size", ["0.3", "0.9"])
def test_the_recording_holds_nothing_of_the_machine_it_was_made_on(size: str) -> None:
    with gzip.open(DATA / f"two_processes-{size}.events.jsonl.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    assert '"host":"h200"' in text
    assert not re.search(r'"[^"]*(/tmp|/opt|/home|/root|/usr|://|@[a-z]|[A-Z_]{3,}=)', text)
