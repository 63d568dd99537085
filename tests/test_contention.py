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
from rca_llm.attribute.contention import contended
from rca_llm.attribute.job import attribute
from rca_llm.attribute.links import link
from rca_llm.attribute.neighbours import shared_devices
from rca_llm.attribute.parts import CODE
from rca_llm.attribute.ranks import Rank
from rca_llm.report import Report, build
from rca_llm.trace import Device, Trace
from rca_llm.whatif import whatif
from rca_llm.whatif.arrivals import admission
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
ONE = ("GPU-a", "GPU-a")
"""The UUIDs of two processes that have one device."""


class Turns(Scene):
    """An engine whose step is two kernels; between them the neighbour may have the device."""

    theirs = THEIRS

    def serve_beside(
        self, *, process: int = NEIGHBOUR, uuids: tuple[str, ...] = (), waits: bool = True
    ) -> None:
        """All steps; `waits` says whether the host synchronises, or ends a step without a call."""
        self.row("processes", process=1, name="engine")
        self.row("processes", process=process, name="other\x1b job")
        self.known(uuids, process)
        for i in range(STEPS):
            self.one(i, i * STEP, process, waits=waits)
        times = [(i + 1) * STEP for i in range(STEPS)]
        self.request("R", 0, times, scheduled=0)

    def known(self, uuids: tuple[str, ...], process: int = NEIGHBOUR) -> None:
        """What device each process has, as far as it is known."""
        for own, uuid in zip((1, process), (*uuids, None, None), strict=False):
            self.timeline.devices.append(Device(0, "NVIDIA H200", own, uuid=uuid))

    def one(self, number: int, start: int, neighbour: int, *, waits: bool) -> None:
        """One step, with the turn of the neighbour in it."""
        self.step(number, start, start + STEP, R="decode" if number else "prefill")
        first = start + CALL + USUAL
        self.launch(GEMM, (start, start + CALL), (first, first + OWN))
        begin = first + OWN + SWITCH
        self._theirs(neighbour, begin - 300 * US, begin)
        second = begin + self.theirs + SWITCH
        self.launch(GEMM, (start + CALL, start + 2 * CALL), (second, second + OWN))
        if waits:
            self.api("cudaStreamSynchronize", start + 3 * CALL, second + OWN)

    def _theirs(self, process: int, called: int, begin: int) -> None:
        self.calls += 1
        where: dict[str, Any] = {"process": process, "correlation": self.calls}
        self.api("cudaLaunchKernel", called, called + CALL, thread=process, **where)
        self.kernel("their_gemm", begin, begin + self.theirs, **where)

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
    scene.serve_beside(uuids=ONE)
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
        scene.kernel(GEMM, start + 2 * MS + SWITCH, start + 3 * MS, queued=start)
        scene.kernel(GEMM, start + 3 * MS + US, start + STEP, queued=start)
    scene.request("R", 0, [(i + 1) * STEP for i in range(STEPS)], scheduled=0)
    scene.state("running", 0, STEP * STEPS)
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


def waits_of(scene: Scene) -> list[tuple[int, int, int]]:
    """When work of process 1 waited, and for whom."""
    job = attribute([scene.build()])
    found = next(one.contended for _, one in job.ranks if one.rank.processes == (1,))
    return list(zip(found.start.tolist(), found.end.tolist(), found.label.tolist(), strict=True))


def asked(scene: Scene, called: int, start: int, end: int, stream: int = 7) -> None:
    """Work of process 1 with the end of its call."""
    scene.launch(GEMM, (called - CALL, called), (start, end), stream=stream)


def test_a_wait_begins_when_own_work_has_left_the_device() -> None:
    """However long before work was asked for; the longest of own work counts."""
    scene = Turns()
    scene.known(ONE)
    asked(scene, 10 * US, 20 * US, 3 * MS)
    asked(scene, 20 * US, 1 * MS, 1_500 * US, stream=8)
    asked(scene, 30 * US, 5 * MS, 6 * MS)
    scene.kernel("their_gemm", 2 * MS, 4 * MS, process=NEIGHBOUR)
    assert waits_of(scene) == [(3 * MS, 5 * MS, NEIGHBOUR)]


def test_work_that_begins_late_while_the_neighbour_rests_waits_for_nobody() -> None:
    scene = Turns()
    scene.known(ONE)
    asked(scene, 10 * US, 20 * US, 1 * MS)
    asked(scene, 20 * US, 5 * MS, 6 * MS)
    scene.kernel("their_gemm", 6 * MS, 7 * MS, process=NEIGHBOUR)
    assert waits_of(scene) == []


def test_a_launch_that_takes_a_little_longer_waits_for_nobody() -> None:
    """Kernels of both run together, as MPS allows: what a launch takes is no wait for the other."""
    scene = Turns()
    scene.known(ONE)
    for i in range(9):
        late = 7 * US if i == 5 else 0
        asked(scene, i * MS + 10 * US, i * MS + 20 * US + late, i * MS + 500 * US)
    scene.kernel("their_gemm", 5 * MS, 6 * MS, process=NEIGHBOUR)
    assert waits_of(scene) == []


def test_processes_of_one_rank_do_not_wait_for_each_other() -> None:
    scene = Turns()
    scene.serve_beside(uuids=ONE)
    timeline = scene.build()
    shared, links = shared_devices(timeline), link(timeline["gpu"], timeline["api"])
    assert len(shared) == 2
    alone, both = (Rank(0, own, 0, STEP * STEPS, True, 0) for own in ((1,), (1, NEIGHBOUR)))
    assert len(contended(timeline, links, alone, shared)) == STEPS
    assert len(contended(timeline, links, both, shared)) == 0


def test_of_workers_that_say_nothing_of_steps_none_is_a_neighbour() -> None:
    """They share a device, and the engine, which makes the steps, has none."""
    scene = Scene()
    for i in range(STEPS):
        start = i * STEP
        scene.step(i, start, start + STEP, R="decode" if i else "prefill")
        scene.kernel(GEMM, start, start + MS, process=11)
        scene.kernel(GEMM, start + 2 * MS, start + 3 * MS, process=12)
    scene.request("R", 0, [(i + 1) * STEP for i in range(STEPS)], scheduled=0)
    job = attribute([scene.build()])
    assert [len(one.steps) for _, one in job.ranks] == [STEPS, STEPS]


def test_a_request_in_no_step_is_not_told_by_a_neighbour() -> None:
    scene = Turns()
    scene.serve_beside(process=0)
    scene.row("requests", id="S", arrival=0, scheduled=0, finished=STEP, status="finished")
    rows = {row["id"]: row["parts"] for row in scene.summary()["requests"]}
    assert rows["S"] == {"scheduling.prefill_interference": STEP}


def test_a_wait_for_a_neighbour_is_no_queue_for_admission() -> None:
    """Of R01's queue larger batches would help; and a replay holds back no admitted request."""
    scene = Turns()
    scene.theirs = 5 * OWN
    period = 2 * OWN + scene.theirs + 2 * SWITCH + 100 * US
    scene.row("processes", process=NEIGHBOUR, name="other")
    scene.known(ONE)
    for i in range(STEPS):
        scene.one(i, i * period, NEIGHBOUR, waits=True)
    times = [(i + 1) * period for i in range(STEPS)]
    scene.request("R", OWN + SWITCH, times, scheduled=OWN + SWITCH)
    report = scene.report()
    assert "R01" not in ids(report.summary)
    assert hint(report.summary, "R29")["share"] > 0.6
    assert report.model is not None
    (life,) = report.model.lives
    admitted = admission(life)
    assert admitted is not None
    assert admitted.at == life.request.arrival


@pytest.mark.parametrize("waits", [True, False], ids=["synchronises", "spins"])
def test_what_is_saved_does_not_hang_on_how_the_host_waits(waits: bool) -> None:
    scene = Turns()
    scene.theirs = 1_500 * US
    scene.serve_beside(uuids=ONE, waits=waits)
    wait = 2 * SWITCH + scene.theirs
    assert hint(scene.summary(), "R29")["saving_ns"] == pytest.approx(wait * STEPS, rel=0.01)


def test_while_its_work_waits_the_thread_does_what_its_records_tell() -> None:
    """A replay can make the host quicker meanwhile: it is the device's work that waits."""
    scene = Turns()
    scene.serve_beside(uuids=ONE)
    model = scene.report().model
    assert model is not None
    (thread,) = model.graph.threads
    assert CODE["scheduling.queue"] not in thread.label
    assert CODE["scheduling.sync"] in thread.label


def test_no_work_was_held_for_longer_than_it_was_delayed() -> None:
    scene = Turns()
    scene.serve_beside(uuids=ONE)
    gpu = scene.rows["gpu"]
    for row in gpu:
        row["queued"] = row["start"] - 2 * MS
    del scene.rows["api"]
    model = scene.report().model
    assert model is not None
    work = model.graph.work
    assert work.held.sum() > 0
    assert (work.held <= work.lag).all()


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
