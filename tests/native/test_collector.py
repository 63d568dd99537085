"""The collector end to end: real processes, the real library, a stand-in libcupti."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rca_llm import saved
from rca_llm.finish import finish
from rca_llm.probes import format as layout
from rca_llm.readers.files import source
from rca_llm.readers.run import read_segments
from rca_llm.run import Run
from rca_llm.table import NEVER, UNKNOWN
from rca_llm.trace import GRAPH, KERNEL, MEMCPY, MEMSET, PAUSES, Timeline
from tests.native.conftest import Build, Traced, traced
from tests.native.segments import collector_segments, read_run, texts, timeline_of

RELEASES = {
    "12.0": "18",
    "12.4": "22",
    "12.8": "26",
    "13.0": "130001",
    "13.1": "130101",
    "13.3": "130301",
    "13.5": "130500",
}


def kinds(timeline: Timeline) -> Counter[int]:
    """How many records of each kind the device table has."""
    return Counter(timeline["gpu"]["kind"].tolist())


def notes(timeline: Timeline) -> dict[str, int]:
    """Findings as counts by code."""
    found: dict[str, int] = {}
    for finding in timeline.findings:
        found[finding.code] = found.get(finding.code, 0) + finding.count
    return found


def info(run: Path, key: str) -> list[tuple[int, str | None]]:
    """The facts of one key, over all of the collector's segments."""
    return [
        (number, text)
        for segment in collector_segments(run)
        for name, number, text in segment.infos()
        if name == key
    ]


def test_it_is_silent_and_the_program_keeps_its_status(app: Traced) -> None:
    done = app("init", "kernels:10", "nvtx")
    assert (done.returncode, done.stdout, done.stderr) == (0, "levels 0 1 -1\n", "")


def test_outside_a_run_it_does_nothing(app: Traced) -> None:
    done = app("init", "status", RCA_LLM_RUN="")
    assert (done.returncode, done.stdout) == (0, "status 0\n")
    assert not read_run(app.run)


def test_every_launch_has_its_real_shape(app: Traced) -> None:
    assert app("init", "kernels:1000").returncode == 0
    timeline = timeline_of(app.run)
    gpu = timeline["gpu"]
    assert kinds(timeline) == {KERNEL: 1000}
    assert Counter(texts(timeline, "gpu", "name")) == {
        f"kernel_{i}(float*)": 143 if i < 6 else 142 for i in range(7)
    }
    expected = {"grid_x": 4, "grid_y": 5, "grid_z": 6, "block_x": 128, "block_y": 2, "block_z": 1}
    expected |= {"registers": 40, "shared": 1040, "stream": 7, "device": 1}
    for column, value in expected.items():
        assert set(gpu[column].tolist()) == {value}, column
    assert set(gpu["graph_node"].tolist()) == {UNKNOWN}
    assert set((gpu["end"] - gpu["start"]).tolist()) == {1000}


def test_launches_and_kernels_share_their_correlation(app: Traced) -> None:
    app("init", "kernels:100")
    timeline = timeline_of(app.run)
    api = timeline["api"]
    assert set(texts(timeline, "api", "name")) == {"cudaLaunchKernel"}
    assert sorted(api["correlation"].tolist()) == sorted(timeline["gpu"]["correlation"].tolist())
    assert len(set(api["thread"].tolist())) == 1
    assert set(api["process"].tolist()) == set(timeline["gpu"]["process"].tolist())


def test_times_are_on_the_monotonic_clock(app: Traced) -> None:
    before = time.monotonic_ns()
    app("init", "kernels:100")
    gpu = timeline_of(app.run)["gpu"]
    assert before < gpu["start"].min() < gpu["end"].max() < time.monotonic_ns() + 1000


@pytest.mark.parametrize("release", RELEASES)
def test_records_of_every_release_are_read(app: Traced, release: str) -> None:
    everything = ("kernels:500", "nodes:3", "copies", "memset", "sync", "overhead", "device")
    assert app("init", *everything, FAKE_CUPTI_VERSION=RELEASES[release]).returncode == 0
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {KERNEL: 503, MEMCPY: 3, MEMSET: 1}
    assert info(app.run, "gpu.cupti")[0][0] == int(RELEASES[release])
    assert not info(app.run, "gpu.unknown_kind")
    assert Counter(texts(timeline, "api", "name")) == {
        "cudaLaunchKernel": 500,
        "cudaGraphLaunch": 3,
        "cudaMemcpyAsync": 3,
        "cudaMemsetAsync": 1,
        "cudaStreamSynchronize": 1,
    }


def test_copies_say_what_went_where(app: Traced) -> None:
    app("init", "copies", "memset")
    gpu = timeline_of(app.run)["gpu"]
    rows = {
        int(gpu["bytes"][i]): tuple(int(gpu[name][i]) for name in ("kind", "copy", "src", "dst"))
        for i in range(len(gpu))
    }
    assert rows == {
        4096: (MEMCPY, 0, 0, 2),
        8192: (MEMCPY, 1, 2, 1),
        16384: (MEMCPY, 3, 2, 2),
        512: (MEMSET, -1, -1, 2),
    }


def test_a_device_brings_its_limits(app: Traced) -> None:
    app("init", "device", "kernels:1")
    (device,) = timeline_of(app.run).devices
    assert (device.device, device.name) == (1, "Stand-in GPU")
    assert device.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert device.node is None  # nobody told where it is
    assert device.limits["sms"] == 132
    assert device.limits["max_threads_per_sm"] == 2048
    assert device.limits["memory_bytes_s"] == 4_800_000_000_000
    assert (device.limits["major"], device.limits["minor"]) == (9, 0)


def test_nodes_of_a_graph_keep_their_ids(app: Traced) -> None:
    app("init", "nodes:5")
    assert timeline_of(app.run)["gpu"]["graph_node"].tolist() == [1000, 1001, 1002, 1003, 1004]


def test_graph_level_records_launches_as_one_piece(app: Traced) -> None:
    app("init", "graph:9", RCA_LLM_GRAPH="graph")
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {GRAPH: 1}
    assert texts(timeline, "gpu", "name") == ["CUDA graph 9"]
    assert timeline.header.graph_level is True


def test_node_level_is_told_too(app: Traced) -> None:
    app("init", "graph:9")
    timeline = timeline_of(app.run)
    assert not kinds(timeline)
    assert timeline.header.graph_level is False


def test_a_run_is_finished_into_tables(app: Traced) -> None:
    app("init", "device", "kernels:1000", RCA_LLM_GPU="kernels")
    segments = timeline_of(app.run)["gpu"]
    finish(Run(app.run), {})
    tables = saved.load(app.run / "tables")["gpu"]
    for column in ("start", "grid_x", "grid_y", "grid_z", "block_x", "registers"):
        assert tables[column].tolist() == segments[column].tolist(), column


def test_kernels_mode_asks_for_no_calls(app: Traced) -> None:
    app("init", "kernels:10", "sync", RCA_LLM_GPU="kernels")
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {KERNEL: 10}
    assert not len(timeline["api"])


@pytest.mark.parametrize("mode", ["kernels", "full"])
def test_kernels_say_when_they_were_queued_where_that_is_asked(app: Traced, mode: str) -> None:
    app("init", "kernels:10", RCA_LLM_GPU=mode, RCA_LLM_QUEUED="on")
    gpu = timeline_of(app.run)["gpu"]
    assert ((gpu["queued"] > 0) & (gpu["queued"] <= gpu["start"])).all()
    assert (gpu["start"] - gpu["queued"] < 1_000_000_000).all()  # the same clock


@pytest.mark.parametrize("mode", ["kernels", "full"])
def test_when_kernels_were_queued_is_not_asked_by_itself(app: Traced, mode: str) -> None:
    app("init", "kernels:10", RCA_LLM_GPU=mode)
    assert (timeline_of(app.run)["gpu"]["queued"] == UNKNOWN).all()


def test_recording_ends_before_times_of_queueing_use_up_the_buffers(app: Traced) -> None:
    app(
        *("init", "kernels:20", "sync", "sleep:1500", "kernels:10", "sync"),
        RCA_LLM_GPU="kernels",
        RCA_LLM_QUEUED="on",
        RCA_LLM_QUEUED_MOST="15",
    )
    timeline = read_segments(source(str(app.run)))
    assert kinds(timeline) == {KERNEL: 20}
    assert info(app.run, "gpu.queued_limit") == [(20, None)]
    (gap,) = timeline.header.extra[PAUSES]
    assert gap[0] > timeline["gpu"]["end"].max()
    assert gap[1] == NEVER
    (told,) = [f.detail for f in timeline.findings if f.code == "dropped_records"]
    assert "times of queueing" in told


def test_launches_mode_asks_for_launches_and_waits_alone(app: Traced) -> None:
    app("init", "kernels:10", "copies", "memset", "sync", RCA_LLM_GPU="launches")
    timeline = timeline_of(app.run)
    assert kinds(timeline)[KERNEL] == 10
    calls = Counter(texts(timeline, "api", "name"))
    assert calls == {"cudaLaunchKernel": 10, "cudaStreamSynchronize": 1}
    assert info(app.run, "gpu.mode") == [(0, "launches")]


@pytest.mark.parametrize(("api", "calls"), [("runtime", 10), ("driver", 0), ("off", 0)])
def test_calls_of_one_api_can_be_left_out(app: Traced, api: str, calls: int) -> None:
    app("init", "kernels:10", RCA_LLM_API=api)
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {KERNEL: 10}
    assert len(timeline["api"]) == calls


def test_off_mode_writes_nothing(app: Traced) -> None:
    assert app("init", "kernels:10", "status", RCA_LLM_GPU="off").stdout == "status 0\n"
    assert not read_run(app.run)


def test_a_wait_without_its_call_becomes_one(app: Traced) -> None:
    """Before CUDA 12.6 single functions cannot be switched off, so calls are not recorded."""
    app("init", "sync", FAKE_CUPTI_REFUSES="5")
    assert texts(timeline_of(app.run), "api", "name") == ["cudaStreamSynchronize"]


def test_steps_mark_the_work_of_their_calls(app: Traced) -> None:
    app("init", "step:42", "kernels:3", "nostep", "kernels:2", RCA_LLM_EXTERNAL="on")
    steps = timeline_of(app.run)["gpu"]["step"].tolist()
    assert sorted(steps) == [UNKNOWN, UNKNOWN, 42, 42, 42]


LATE = {"RCA_LLM_GPU": "kernels", "FAKE_CUPTI_LAG": "300000000", "RCA_LLM_STEPS": "on"}
"""Calls are not recorded, and kernels start so much later that their start tells nothing."""


def marked(run: Path) -> Counter[int]:
    """How many records of device work each step has, by markers; `UNKNOWN` those of none."""
    timeline = timeline_of(run)
    assert not len(timeline["api"])
    return Counter(timeline["gpu"]["step"].tolist())


def test_markers_tell_the_step_where_calls_are_not_recorded(app: Traced) -> None:
    steps = ("step:7", "kernels:3", "replay:5", "nostep", "kernels:2")
    app("init", "kernels:4", *steps, "step:8", "copies", "memset", "nostep", **LATE)
    assert marked(app.run) == {UNKNOWN: 6, 7: 8, 8: 4}
    (replayed,) = {  # the nodes of one launch
        int(timeline_of(app.run)["gpu"]["correlation"][row])
        for row in np.flatnonzero(timeline_of(app.run)["gpu"]["graph_node"] > 0)
    }
    assert replayed
    assert info(app.run, "gpu.steps") == [(1, None)]


def test_markers_can_be_switched_off_and_are_not_made_beside_calls(app: Traced) -> None:
    app("init", "step:7", "kernels:3", "nostep", **LATE | {"RCA_LLM_STEPS": "off"})
    assert marked(app.run) == {UNKNOWN: 3}
    assert info(app.run, "gpu.steps") == [(0, None)]


def test_markers_begin_with_the_first_step_that_is_marked(app: Traced) -> None:
    """Programs without steps are asked for nothing; the collector looks every 50 ms."""
    steps = ("step:1", "kernels:2", "nostep", "sleep:300", "step:2", "kernels:3", "nostep")
    app("init", "kernels:4", *steps, **{name: LATE[name] for name in LATE if "STEPS" not in name})
    assert marked(app.run) == {UNKNOWN: 6, 2: 3}


@pytest.mark.parametrize("by", ["RCA_LLM_STEPS", "RCA_LLM_EXTERNAL"])
@pytest.mark.parametrize("mode", ["launches", "full"])
def test_markers_beside_calls_tell_what_ids_of_calls_tell(app: Traced, mode: str, by: str) -> None:
    steps = [word for step in range(1, 9) for word in (f"step:{step}", "kernels:3", "nostep")]
    app("init", *steps, "version", RCA_LLM_GPU=mode, **{by: "on"})
    timeline = timeline_of(app.run)
    assert set(texts(timeline, "api", "name")) == {"cudaLaunchKernel"}  # no marker is a call
    gpu = timeline["gpu"].sorted_by("start")
    assert gpu["step"].tolist() == np.repeat(np.arange(1, 9), 3).tolist()


def test_the_inner_step_is_the_one(app: Traced) -> None:
    inner = ("step:2", "kernels:2", "nostep", "kernels:1", "nostep", "kernels:1", "nostep")
    app("init", "step:1", "kernels:1", *inner, "step:3", "kernels:1", **LATE)
    assert marked(app.run) == {1: 2, 2: 2, UNKNOWN: 1, 3: 1}


def test_steps_nested_too_deeply_and_numbers_too_large_are_not_known(app: Traced) -> None:
    deep = [f"step:{step}" for step in range(1, 18)]
    ended = ("nostep", "kernels:2", *["nostep"] * 16, "step:99999999999999", "kernels:4")
    app("init", *deep, "kernels:1", *ended, **LATE)
    assert marked(app.run) == {UNKNOWN: 5, 16: 2}


def test_steps_of_two_threads_at_once_are_not_told_apart(app: Traced) -> None:
    app(
        "init", "step:1", "kernels:1", "beside:2", "kernels:2", "nostep", "kernels:4", "joined",
        "kernels:8", "step:3", "beside:3", "kernels:16", "joined", "kernels:1", **LATE,
    )  # fmt: skip
    # While both are in the same step, it is that one.
    assert marked(app.run) == {1: 1, 2: 4, UNKNOWN: 10, 3: 17}


def test_markers_go_on_where_correlation_ids_begin_anew(app: Traced) -> None:
    steps = [word for step in range(1, 200) for word in (f"step:{step}", "kernels:3", "nostep")]
    app("init", *steps, **LATE, FAKE_CUPTI_CORRELATION=str(2**32 - 1000))
    assert len(timeline_of(app.run)["gpu"]) == 597
    assert marked(app.run) == dict.fromkeys(range(1, 200), 3)
    ids = timeline_of(app.run)["gpu"]["correlation"]
    assert ids.min() < 1000
    assert ids.max() > 2**32 - 1000


def test_calls_of_the_program_are_no_markers(app: Traced) -> None:
    app("init", "version", "step:1", "version", "kernels:2", "version", "nostep", **LATE)
    assert marked(app.run) == {1: 2}


def test_markers_end_with_a_session_of_another_client_and_begin_anew(app: Traced) -> None:
    away = ("release", "displace", "nostep", "step:2", "kernels:1", "reclaim")
    app(
        "init", "step:1", "kernels:2", *away, "kernels:4", "nostep", "kernels:8", "step:3",
        "kernels:16", "flush", RCA_LLM_GPU="kernels", RCA_LLM_STEPS="on",
    )  # fmt: skip
    # What step it is after it is known from the thread's next marker on.
    assert marked(app.run) == {1: 2, UNKNOWN: 12, 3: 16}


@pytest.mark.parametrize("pause", ["", "gate"])
def test_steps_that_changed_in_a_pause_are_not_taken_for_those_before(
    app: Traced, pause: str
) -> None:
    def gate(is_open: bool, words: int) -> None:
        said_by(said, words)
        Run(app.run).set_gate(is_open)

    said = app.run / "said"
    with app.start(
        "init", "step:1", "kernels:2", "flush", "status", "sleep:700", "nostep", "step:2", "status",
        "sleep:700", "kernels:4", "nostep", "step:3", "kernels:8", "flush",
        RCA_LLM_GPU="kernels", RCA_LLM_STEPS="on", RCA_LLM_PAUSE=pause, output=said,
    ) as process:  # fmt: skip
        gate(False, 2)
        gate(True, 4)
        assert process.wait(30) == 0
    # Where markers go on in a pause, the step that it ends in is known.
    assert marked(app.run) == {1: 2, 2 if pause else UNKNOWN: 4, 3: 8}


def test_a_trace_that_begins_paused_does_not_know_the_steps_under_way(app: Traced) -> None:
    Run(app.run).set_gate(False)
    said = app.run / "said"
    with app.start(
        "init", "step:1", "beside:2", "status", "sleep:900", "kernels:1", "nostep", "kernels:2",
        "joined", "step:3", "kernels:4", "flush", RCA_LLM_GPU="kernels", output=said,
    ) as process:  # fmt: skip
        said_by(said, 2)
        Run(app.run).set_gate(True)
        assert process.wait(30) == 0
    assert marked(app.run) == {UNKNOWN: 3, 3: 4}


def test_a_forked_child_makes_no_markers(app: Traced) -> None:
    app("init", "step:1", "kernels:1", "fork:5", "kernels:1", "nostep", **LATE)
    assert marked(app.run) == {1: 2}


@pytest.mark.parametrize("refused", ["4", "39"])
def test_where_markers_are_refused_kernels_are_recorded_without(app: Traced, refused: str) -> None:
    done = app("init", "step:1", "kernels:3", **LATE, FAKE_CUPTI_REFUSES=refused)
    assert (done.returncode, done.stderr) == (0, "")
    assert marked(app.run) == {UNKNOWN: 3}


def test_every_kernel_of_steps_in_turn_is_told_its_step(app: Traced) -> None:
    """One thread after another, each with markers of its own, across buffers."""
    app("init", *["stepping:1:300"] * 4, **LATE, RCA_LLM_BUFFER_BYTES="65536")
    assert marked(app.run) == dict.fromkeys(range(1, 301), 8)


def test_no_kernel_gets_another_step_while_threads_and_pauses_come_and_go(app: Traced) -> None:
    """Nodes tell the truth, which markers may not know."""
    turns = ["stepping:3:300", "stepping:1:300", "sleep:60"] * 10
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(app, "init", *turns, RCA_LLM_GPU="kernels")
        while not running.done():
            for is_open in (False, True):
                Run(app.run).set_gate(is_open)
                time.sleep(0.1)
    assert running.result().returncode == 0
    gpu = timeline_of(app.run)["gpu"]
    told = gpu["step"] != UNKNOWN
    assert told.any()
    assert gpu["step"][told].tolist() == gpu["graph_node"][told].tolist()


def test_dropped_and_missing_times_are_counted(app: Traced) -> None:
    app("init", "kernels:100", "dropped:7", "flush", "dropped:4", FAKE_CUPTI_ZERO="10")
    timeline = timeline_of(app.run)
    assert notes(timeline)["dropped_records"] == 11
    assert sum(number for number, _ in info(app.run, "gpu.no_timestamp")) == 10
    assert kinds(timeline) == {KERNEL: 100}
    assert int((timeline["gpu"]["start"] == UNKNOWN).sum()) == 10


def test_full_buffers_lose_nothing(app: Traced) -> None:
    app("init", "kernels:20000", RCA_LLM_BUFFER_BYTES="65536")
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {KERNEL: 20000}
    assert len(set(timeline["gpu"]["correlation"].tolist())) == 20000
    assert "dropped_records" not in notes(timeline)


def test_64_threads_lose_nothing(app: Traced) -> None:
    assert app("init", "threads:64:500", RCA_LLM_BUFFER_BYTES="65536").returncode == 0
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {KERNEL: 32000}
    assert len(set(timeline["gpu"]["correlation"].tolist())) == 32000
    assert len(set(timeline["api"]["thread"].tolist())) == 64


def test_sigkill_leaves_what_was_delivered(app: Traced) -> None:
    done = app("init", "kernels:5000", "sleep:1300", "kernels:300", "kill")
    assert done.returncode == -signal.SIGKILL
    timeline = timeline_of(app.run)
    assert 5000 <= kinds(timeline)[KERNEL] <= 5300
    assert None not in texts(timeline, "gpu", "name")
    (segment,) = collector_segments(app.run)
    assert segment.number("closed_ns") == 0


@pytest.mark.parametrize("cut", [1, 100, 512, 700, 5000, 30000])
def test_a_cut_file_is_read_up_to_the_last_whole_cell(app: Traced, cut: int) -> None:
    app("init", "kernels:1000")
    (path,) = (app.run / "segments").glob("*.seg")
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole[: len(whole) - cut])
    timeline = timeline_of(app.run)
    assert kinds(timeline)[KERNEL] in (*range(0, 1000, 409), 1000, 591, 182)


def test_a_forked_child_records_nothing_and_harms_nothing(app: Traced) -> None:
    assert app("init", "kernels:100", "fork:50", "kernels:100").returncode == 0
    assert kinds(timeline_of(app.run)) == {KERNEL: 200}
    assert len(collector_segments(app.run)) == 1


def test_a_competitor_is_named_and_left_alone(app: Traced) -> None:
    done = app("init", "kernels:10", "status", FAKE_CUPTI_COMPETITOR="Nsight Systems")
    assert (done.returncode, done.stdout, done.stderr) == (0, "status 0\n", "")
    timeline = timeline_of(app.run)
    assert not len(timeline["gpu"])
    (finding,) = timeline.findings
    assert finding.code == "competing_profiler"
    assert "Nsight Systems" in finding.detail


def test_a_refusal_is_told(app: Traced) -> None:
    app("init", "kernels:10", FAKE_CUPTI_REFUSES="10")
    (finding,) = timeline_of(app.run).findings
    assert finding.code == "not_traced"
    assert "CONCURRENT_KERNEL" in finding.detail
    assert "999" in finding.detail


def test_without_libcupti_the_program_runs_on(app: Traced) -> None:
    """The variable names a library that is no CUPTI."""
    done = app("init", "status", RCA_LLM_CUPTI=str(app.built.collector))
    assert (done.returncode, done.stdout, done.stderr) == (0, "status 0\n", "")
    assert "not_traced" in notes(timeline_of(app.run))


def test_the_gate_keeps_records_out(app: Traced) -> None:
    (app.run / "control").write_bytes(bytes(layout.CONTROL_BYTES))
    app("init", "kernels:100", "nvtx", "device")
    timeline = timeline_of(app.run)
    assert not len(timeline["gpu"])
    assert len(timeline.devices) == 1
    assert not [cell for segment in read_run(app.run) for cell in segment.of(layout.SPAN)]


def test_the_gate_opens_and_closes_in_a_running_process(app: Traced) -> None:
    def gate(value: bytes) -> None:
        with (app.run / "control").open("r+b") as file:
            file.write(value)

    with app.start(
        "init", "kernels:10", "sleep:600", "kernels:20", "sleep:1200", "kernels:40"
    ) as process:
        time.sleep(0.3)
        gate(b"\0")
        time.sleep(0.9)
        gate(b"\1")
        assert process.wait(30) == 0
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {KERNEL: 50}
    (segment,) = collector_segments(app.run)
    (gap,) = segment.of(layout.GAP)
    assert segment.names[gap.c] == "paused"
    assert 0 < gap.a < gap.b


def test_a_pause_counts_from_the_change_not_from_when_it_is_noticed(app: Traced) -> None:
    changes: list[int] = []

    def gate(is_open: bool) -> None:
        Run(app.run).set_gate(is_open)
        control = (app.run / "control").read_bytes()[layout.CONTROL_CHANGED_OFFSET :]
        changes.append(int.from_bytes(control[:8], "little"))

    with app.start("init", "sleep:900") as process:
        time.sleep(0.3)
        gate(False)
        time.sleep(0.2)
        gate(True)
        assert process.wait(30) == 0
    (segment,) = collector_segments(app.run)
    assert [(gap.a, gap.b) for gap in segment.of(layout.GAP)] == [tuple(changes)]


@pytest.mark.clocks
def test_what_cupti_still_holds_is_judged_by_when_the_gate_changed(app: Traced) -> None:
    """The gate is found shut since before the kernels, which were not handed over by then."""
    shut = bytearray(layout.CONTROL_BYTES)
    place = layout.CONTROL_CHANGED_OFFSET
    shut[place : place + 8] = time.perf_counter_ns().to_bytes(8, "little")
    output = app.run / "said"
    with app.start("init", "kernels:20", "status", "sleep:1200", output=output) as process:
        said_by(output, 2)
        with (app.run / "control").open("r+b") as file:
            file.write(shut)
        assert process.wait(30) == 0
    assert not len(timeline_of(app.run)["gpu"])


def said_by(path: Path, words: int) -> list[str]:
    """What a program has said, once it has said so many words."""
    deadline = time.monotonic() + 30
    while len(path.read_text().split()) < words:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text().split()


@pytest.mark.parametrize(
    ("mode", "pause", "left_on"),
    [("kernels", "", "0"), ("kernels", "gate", "1"), ("launches", "", "1"), ("full", "", "1")],
)
def test_a_closed_gate_lets_cupti_rest(app: Traced, mode: str, pause: str, left_on: str) -> None:
    """Kinds go off and on with the gate, except where calls are recorded too."""

    def gate(value: bytes) -> None:
        with (app.run / "control").open("r+b") as file:
            file.write(value)

    gate(b"\0")
    said = app.run / "said"
    # Flushed, so that the collector has seen the gate closed before it opens.
    activity = ("init", "flush", "device", "kernels:10", "enabled:10", "sleep:1500", "kernels:20")
    with app.start(
        *activity, "enabled:10", "sleep:2000", "kernels:40", "enabled:10",
        RCA_LLM_GPU=mode, RCA_LLM_PAUSE=pause, output=said,
    ) as process:  # fmt: skip
        said_by(said, 2)
        gate(b"\1")
        said_by(said, 4)
        time.sleep(0.5)
        gate(b"\0")
        assert process.wait(30) == 0
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {KERNEL: 20}
    assert len(timeline.devices) == 1  # told when the context was made, before the gate opened
    assert said_by(said, 6) == ["enabled", left_on, "enabled", "1", "enabled", left_on]


def test_a_large_segment_is_followed_by_another(app: Traced) -> None:
    app("init", "kernels:30000", "flush", "kernels:30000", "flush", RCA_LLM_SEGMENT_BYTES="2000000")
    segments = collector_segments(app.run)
    assert [segment.number("sequence") for segment in segments] == list(range(len(segments)))
    assert len(segments) >= 3
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {KERNEL: 60000}
    assert None not in texts(timeline, "gpu", "name")


def test_the_size_limit_ends_recording_and_is_told(app: Traced) -> None:
    limits = {"RCA_LLM_SEGMENT_BYTES": "1000000", "RCA_LLM_MAX_BYTES": "2000000"}
    done = app("init", *(["kernels:20000", "flush"] * 4), **limits)
    assert done.returncode == 0
    assert info(app.run, "gpu.size_limit")
    *_, last = collector_segments(app.run)
    assert last.number("stopped_ns") > 0
    assert last.number("dropped") > 0


def test_a_full_disk_stops_recording_and_not_the_program(app: Traced) -> None:
    limit = ["sh", "-c", 'ulimit -f 1500; exec "$@"', "sh"]
    done = app.under(limit, "init", *(["kernels:20000", "flush"] * 3))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (segment,) = collector_segments(app.run)
    assert segment.number("stop_errno") in (errno.EFBIG, errno.ENOSPC)
    kept = kinds(timeline_of(app.run))[KERNEL]
    assert 0 < kept < 60000
    assert segment.number("dropped") > 0


def test_a_run_directory_that_vanishes_is_no_error(app: Traced) -> None:
    shutil.rmtree(app.run / "segments")
    done = app("init", "kernels:1000", "nvtx", "flush")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_collector_gives_way_and_comes_back(app: Traced) -> None:
    """What our Python side does around torch.profiler, which replaces buffers and clock."""
    session = ("release", "displace", "kernels:5", "reclaim", "kernels:20", "flush")
    before = time.monotonic_ns()
    done = app("init", "kernels:10", *session, *session, "status")
    assert done.stdout == "subscribed 0\nleft on 0\nleft on 0\nstatus 1\n"
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {KERNEL: 50}
    (segment,) = collector_segments(app.run)
    gaps = segment.of(layout.GAP)
    assert [segment.names[gap.c] for gap in gaps] == ["displaced", "displaced"]
    assert all(gap.b > gap.a for gap in gaps)
    whole = read_segments(source(str(app.run)))
    assert whole.header.extra[PAUSES] == [(gap.a, gap.b) for gap in gaps]  # idle time: unknown
    assert any("another profiler" in f.detail and f.count == 2 for f in whole.findings)
    _check_times_on_a_foreign_clock(timeline, before)


def _check_times_on_a_foreign_clock(timeline: Timeline, before: int) -> None:
    """The other client's clock stays, and times come out on ours: ticks of a third of a ns."""
    gpu = timeline["gpu"].sorted_by("start")
    assert gpu["start"][0] > before
    assert gpu["end"][-1] < time.monotonic_ns()
    durations = (gpu["end"] - gpu["start"]).tolist()
    assert durations[:10] == [1000] * 10
    assert all(abs(duration - 333) < 10 for duration in durations[10:])


def test_a_silent_takeover_is_noticed_by_its_clock(app: Traced) -> None:
    done = app("init", "kernels:10", "flush", "displace", "sleep:2300", "kernels:5")
    assert done.stdout == "subscribed 0\nleft on 1\n"
    timeline = timeline_of(app.run)
    assert kinds(timeline) == {KERNEL: 10}
    assert notes(timeline)["competing_profiler"] == 1


def nvtx_spans(run: Path) -> list[dict[str, object]]:
    """Ranges of the NVTX handler, with what follows them."""
    spans: list[dict[str, object]] = []
    for segment in read_run(run):
        names = segment.names
        for cell in segment.cells:
            if cell.kind == layout.SPAN:
                spans.append({"name": names[cell.e], "a": cell.a, "b": cell.b, "flags": cell.flags})
            elif cell.kind == layout.MORE:
                spans[-1] |= {"domain": names.get(cell.d), "bytes": cell.b, "step": cell.a}
            elif cell.kind == layout.NUMBER and spans:
                spans[-1][names[cell.e]] = cell.b
    return spans


def test_nvtx_ranges_nest_and_carry_their_numbers(app: Traced) -> None:
    assert app("nvtx").returncode == 0
    spans = {str(span["name"]): span for span in nvtx_spans(app.run)}
    assert set(spans) == {"outer", "inner ü🚀", "ncclAllReduce", "started"}
    times = {name: (int(str(span["a"])), int(str(span["b"]))) for name, span in spans.items()}
    outer, inner = times["outer"], times["inner ü🚀"]
    assert outer[0] < inner[0] < times["ncclAllReduce"][0] < times["ncclAllReduce"][1] < inner[1]
    assert inner[1] < outer[1] < times["started"][1]
    nccl = spans["ncclAllReduce"]
    assert (nccl["domain"], nccl["bytes"]) == ("NCCL", 1048576)
    assert nccl["NCCL communicator ID"] == 0xC0FFEE
    assert nccl["Reduction operation"] == -1
    assert int(str(spans["started"]["flags"])) & layout.FLAG_ASYNC
    assert all(int(str(span["flags"])) & layout.FLAG_NVTX for span in spans.values())


def test_an_nvtx_mark_keeps_its_payload(app: Traced) -> None:
    app("nvtx")
    (segment,) = read_run(app.run)
    (mark,) = segment.of(layout.MARK)
    assert segment.names[mark.e] == "marked"
    number = segment.cells[segment.cells.index(mark) + 1]
    assert number.kind == layout.NUMBER
    assert number.flags & layout.FLAG_FLOAT
    assert np.int64(number.b).view(np.float64) == 1.5


def test_nvtx_off_leaves_no_segment(app: Traced) -> None:
    assert app("nvtx", RCA_LLM_NVTX="off").returncode == 0
    assert not read_run(app.run)


def test_an_nvtx_range_is_open_until_its_end(app: Traced) -> None:
    assert app("nvtxopen", "kill").returncode == -signal.SIGKILL
    (span,) = nvtx_spans(app.run)
    assert span["name"] == "never ended"
    assert span["b"] == 0


def test_nvtx_threads_hand_their_segments_on(app: Traced) -> None:
    done = app("nvtxthreads:16:500", "nvtxthreads:16:500")
    assert done.returncode == 0
    spans = nvtx_spans(app.run)
    assert len(spans) == 2 * 16 * 500 * 2
    assert all(int(str(span["b"])) >= int(str(span["a"])) > 0 for span in spans)
    segments = read_run(app.run)
    assert len(segments) <= 17
    assert sum(len(segment.of(layout.THREAD)) for segment in segments) == 32 - len(segments)


def _check_sanitized(built: Build, run: Path, **options: str) -> None:
    app = traced(built, run)
    activity = ("init", "device", "threads:16:300", "nvtx", "nvtxthreads:8:200", "copies", "flush")
    done = app(*activity, "release", "displace", "reclaim", "kernels:50", "fork:5", **options)
    assert done.returncode == 0, done.stderr
    assert "WARNING: " not in done.stderr and "ERROR: " not in done.stderr, done.stderr
    assert kinds(timeline_of(run))[KERNEL] == 16 * 300 + 50


def _check_gate_sanitized(built: Build, run: Path, **options: str) -> None:
    """The gate opens and closes while threads launch, and CUPTI's kinds with it."""
    app = traced(built, run)
    activity = ("init", *(["threads:8:200", "stepping:4:50", "sleep:120"] * 8), "flush")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(app, *activity, RCA_LLM_GPU="kernels", **options)
        while not running.done():
            for value in (b"\0", b"\1"):
                with (run / "control").open("r+b") as file:
                    file.write(value)
                time.sleep(0.07)
    done = running.result()
    assert done.returncode == 0, done.stderr
    assert "WARNING: " not in done.stderr and "ERROR: " not in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(
    sanitized: Callable[[str], Build], sanitizer: str, tmp_path: Path
) -> None:
    options = {
        "RCA_LLM_BUFFER_BYTES": "65536",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    _check_sanitized(sanitized(sanitizer), tmp_path / "run", **options)
    _check_gate_sanitized(sanitized(sanitizer), tmp_path / "gate", **options)
    steps = traced(sanitized(sanitizer), tmp_path / "steps")
    done = steps("init", "stepping:8:300", "flush", RCA_LLM_GPU="kernels", **options)
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(marked(steps.run).values()) == 8 * 300 * 2


@pytest.mark.slow
def test_valgrind_finds_nothing(app: Traced) -> None:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("valgrind is not installed")
    done = app.under(
        [valgrind, "-q", "--error-exitcode=9"],
        *("init", "device", "threads:4:100", "nvtx", "copies", "flush", "fork:5", "kernels:20"),
        *("stepping:4:100",),
        RCA_LLM_BUFFER_BYTES="65536",
        RCA_LLM_STEPS="on",
    )
    assert done.returncode == 0, done.stderr
    assert kinds(timeline_of(app.run))[KERNEL] == 420 + 800


def test_the_library_needs_no_cuda_to_build_and_only_libc_to_run(built: Build) -> None:
    listed = subprocess.run(
        ["ldd", str(built.collector)], capture_output=True, text=True, check=True
    )
    needed = {
        os.path.basename(line.split()[0]).split(".")[0] for line in listed.stdout.splitlines()
    }
    assert needed <= {
        "linux-vdso",
        "libc",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
        "libdl",
        "libpthread",
    }
