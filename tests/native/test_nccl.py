"""The profiler plugin for NCCL: the real library, called by a stand-in for NCCL's core."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rca_llm import launch, readers
from rca_llm.launch import Options, environment
from rca_llm.readers import nccl, nccl_rows
from rca_llm.run import Run
from rca_llm.table import Strings
from rca_llm.trace import Input, Timeline
from tests.native.conftest import HERE, Build, compile_c
from tests.native.segments import read_run
from tests.native.test_layout import _numbers_in, _offset, _offsets

VERSIONS = range(1, 7)
PLAIN = 2 | 4 | 1 << 11 | 1 << 12
"""The events that the plugin asks for: collectives, transfers, launches, copies."""


@dataclass(frozen=True)
class Nccl:
    """The stand-in, and the run that it is traced into."""

    program: Path
    library: Path
    run: Path

    def __call__(
        self, version: int, *actions: str, under: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Play some calls of a version of the interface."""
        env = {"RCA_LLM_RUN": str(self.run), "NCCL_PROFILER_PLUGIN": str(self.library)}
        return subprocess.run(
            [*under, str(self.program), str(version), *actions],
            env=os.environ | env | variables,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def rows(self) -> tuple[nccl_rows.Rows, Strings]:
        """What was recorded, over all threads."""
        found, strings = nccl_rows.Rows(), Strings()
        for segment in read_run(self.run):
            codes = np.full(max(segment.names, default=0) + 2, -1, np.int32)
            for number, text in segment.names.items():
                codes[number] = strings.code(text)
            for cell in segment.of(3):
                found.add(cell.c, cell.d, cell.payload, codes)
        return found, strings

    def tasks(self) -> list[dict[str, Any]]:
        """The tasks by start, as plain values."""
        rows, strings = self.rows()
        return [
            {name: _plain(strings, name, row[name]) for name in nccl_rows.TASK.names or ()}
            for row in rows.all_tasks()
        ]


def _plain(strings: Strings, name: str, value: Any) -> Any:
    texts = ("comm_name", "func", "datatype", "asked_type", "algo", "proto")
    if name not in texts:
        return value if name == "pad" else int(value)
    code = int(np.int32(np.uint32(value)))
    return strings[code] if code >= 0 else None


def play(built: Build, folder: Path, *flags: str) -> Nccl:
    """The stand-in built beside the library, and a fresh run."""
    program = built.folder / "fake_nccl"
    if not program.exists():
        compile_c(program, [HERE / "fake_nccl.c"], "-rdynamic", *flags)
    run = folder / "run"
    (run / "segments").mkdir(parents=True)
    (run / "control").write_bytes(b"\1".ljust(4096, b"\0"))
    return Nccl(program, built.collector, run)


@pytest.fixture
def fake(built: Build, tmp_path: Path) -> Nccl:
    """The stand-in in a run of its own."""
    return play(built, tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_tells_what_was_done(fake: Nccl, version: int) -> None:
    done = fake(version, "coll:3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"mask {6 if version <= 3 else PLAIN}\n"
    tasks = fake.tasks()
    assert [task["seq"] for task in tasks] == [0, 1, 2]
    assert len({task["plan"] for task in tasks}) == 3
    for task in tasks:
        assert (task["comm"], task["func"], task["count"]) == (77, "AllReduce", 1024)
        assert (task["datatype"], task["algo"], task["rank"]) == ("ncclBfloat16", "RING", 1)
        assert task["proto"] == ("LL" if version > 1 else None)  # version 1 plays an unknown number
        assert task["ranks"] == (4 if version > 3 else -1)
        assert task["channels"] == (8 if version > 3 else -1)
        assert task["comm_name"] == ("tp" if version <= 4 else None)
        assert task["start"] <= task["end"]
        assert task["capture"] == (1 if version >= 5 else 0)
        assert (task["launch"] > 0) == (version >= 5) and task["launch"] <= task["start"]


def test_interface_and_release_are_told(fake: Nccl) -> None:
    fake(5, "coll:1")
    facts = [info for segment in read_run(fake.run) for info in segment.infos()]
    assert facts == [("nccl.interface", 5, None), ("nccl.version", 22809, None)]


@pytest.mark.parametrize("version", [4, 5, 6])
def test_tasks_of_a_group_share_their_plan(fake: Nccl, version: int) -> None:
    fake(version, "group:40", "group:2")
    plans = [task["plan"] for task in fake.tasks()]
    assert [plans.count(plan) for plan in sorted(set(plans))] == [40, 2]


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
def test_transfers_name_their_peers(fake: Nccl, version: int) -> None:
    fake(version, "p2p:3")
    tasks = fake.tasks()
    assert {task["kind"] for task in tasks} == {nccl_rows.PEER}
    assert [(task["func"], task["peer"]) for task in tasks] == [
        (func, peer) for peer in range(3) for func in ("Send", "Recv")
    ]
    assert {(task["datatype"], task["count"], task["seq"]) for task in tasks} == {
        ("ncclFloat32", 256, -1)
    }


def test_captured_calls_are_told_apart(fake: Nccl) -> None:
    fake(5, "coll:1", "captured:2")
    assert [task["capture"] for task in fake.tasks()] == [1, nccl_rows.CAPTURED, nccl_rows.CAPTURED]


def test_the_type_that_was_asked_for_is_kept(fake: Nccl) -> None:
    fake(6, "coll:1", "copies")
    first, second = fake.tasks()
    assert (first["asked_type"], second["asked_type"]) == ("ncclBfloat16", None)
    assert (second["kind"], second["func"], second["seq"]) == (nccl_rows.COPIES, "AllGather", 3)


def test_channels_are_recorded_where_they_are_asked_for(fake: Nccl) -> None:
    done = fake(5, "coll:1", "channels:2", RCA_LLM_NCCL="channels")
    assert done.stdout == f"mask {PLAIN | 64}\n"
    rows = np.concatenate(fake.rows()[0].channels)
    (task,) = fake.tasks()
    assert set(rows["task"].tolist()) == {task["task"]}
    told = [(int(row["channel"]), int(row["begin"]), int(row["end"])) for row in rows]
    assert told == [(0, 1000, 0), (0, 0, 5000), (1, 1001, 0), (1, 0, 5001)]


@pytest.mark.parametrize(
    "variables", [{"RCA_LLM_NCCL": "off"}, {"RCA_LLM_RUN": ""}, {"RCA_LLM_GPU": "off"}]
)
@pytest.mark.parametrize("version", [3, 4, 5])
def test_nothing_is_asked_for_where_nothing_is_wanted(
    fake: Nccl, version: int, variables: dict[str, str]
) -> None:
    done = fake(version, "coll:2", "p2p:2", "odd", **variables)
    assert (done.returncode, done.stdout) == (0, "mask 0\n")
    assert not read_run(fake.run)


def test_nothing_is_recorded_while_paused(fake: Nccl) -> None:
    (fake.run / "control").write_bytes(bytes(4096))
    assert fake(5, "coll:2", "channels:2", RCA_LLM_NCCL="channels").returncode == 0
    assert fake.tasks() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_odd_and_late_events_do_no_harm(fake: Nccl, version: int) -> None:
    done = fake(version, "odd", "coll:1", "late", "odd", RCA_LLM_NCCL="channels")
    assert (done.returncode, done.stderr) == (0, "")


def test_plans_survive_a_kill(fake: Nccl) -> None:
    assert fake(5, "coll:5", "kill").returncode == -signal.SIGKILL
    assert len(fake.tasks()) == 5


def test_a_forked_child_writes_its_own_segment(fake: Nccl) -> None:
    fake(5, "coll:1", "fork:3", "coll:1")
    assert len(fake.tasks()) == 2 + 3 * 2
    assert len({segment.number("pid") for segment in read_run(fake.run)}) == 2


def test_a_full_disk_costs_records_alone(fake: Nccl) -> None:
    shutil.rmtree(fake.run / "segments")
    done = fake(5, "coll:5", "p2p:2")
    assert (done.returncode, done.stderr) == (0, "")


def _check(fake: Nccl, *more: str, **variables: str) -> None:
    actions = ("coll:10", "group:40", "p2p:4", "channels:4", "captured:2", "threads:8:50", "odd")
    for version in VERSIONS:
        done = fake(version, *actions, *more, RCA_LLM_NCCL="channels", **variables)
        assert done.returncode == 0, done.stderr
        assert "WARNING: " not in done.stderr and "ERROR: " not in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(
    sanitized: Callable[[str], Build], sanitizer: str, tmp_path: Path
) -> None:
    fake = play(sanitized(sanitizer), tmp_path, f"-fsanitize={sanitizer}")
    options = {"UBSAN_OPTIONS": "halt_on_error=1", "TSAN_OPTIONS": "halt_on_error=1"}
    _check(fake, "late", **options)
    # What the parent of a fork has in use is lost to its child by intent.
    _check(fake, "fork:3", "late", ASAN_OPTIONS="detect_leaks=0", **options)


@pytest.mark.slow
def test_valgrind_finds_nothing(fake: Nccl) -> None:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("valgrind is not installed")
    actions = ("coll:5", "group:40", "p2p:4", "channels:3", "threads:4:5", "odd", "fork:2", "late")
    for version in VERSIONS:
        checked = (valgrind, "-q", "--error-exitcode=9")
        done = fake(version, *actions, under=checked, RCA_LLM_NCCL="channels")
        assert done.returncode == 0, done.stderr


def test_rows_are_laid_out_alike(built: Build, tmp_path: Path) -> None:
    for name, dtype in (("RowNccl", nccl_rows.TASK), ("RowNcclChannel", nccl_rows.CHANNEL)):
        fields = list(dtype.names or ())
        found = _offsets(tmp_path, "rows.h", [(name, field) for field in fields])
        for field, (at, size) in zip(fields, found, strict=True):
            assert (at, size) == (_offset(dtype, field), dtype[field].itemsize), (name, field)
        assert dtype.itemsize == sum(found[-1])
    numbers = _numbers_in("rows.h")
    assert numbers["ROW_NCCL"] == nccl_rows.ROW_TASK
    assert numbers["ROW_NCCL_CHANNEL"] == nccl_rows.ROW_CHANNEL


REAL = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
p, n, i = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
lib.ncclGetUniqueId(ctypes.create_string_buffer(128))
lib.ncclAllReduce.argtypes = [p, p, n, i, i, p, p]
lib.ncclAllReduce(None, None, 1024, 9, 4, None, None)
lib.ncclReduceScatter.argtypes = [p, p, n, i, i, p, p]
lib.ncclReduceScatter(None, None, 512, 7, 2, None, None)
lib.ncclSend.argtypes = [p, n, i, i, p, p]
lib.ncclGroupStart()
lib.ncclSend(None, 16, 0, 3, None, None)
lib.ncclGroupEnd()
"""
"""Calls that NCCL refuses for want of a communicator, after it has told NVTX of them."""


def _real_library() -> Path | None:
    found = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    given = os.environ.get("RCA_TEST_LIBNCCL")
    paths = [Path(given)] if given else []
    paths += [
        Path(folder) / "lib/libnccl.so.2"
        for folder in (found and found.submodule_search_locations) or ()
    ]
    return next((path for path in paths if path.exists()), None)


def test_the_payloads_of_a_real_nccl(built: Build, tmp_path: Path) -> None:
    library = _real_library()
    if library is None:
        pytest.skip("no libnccl here (pip install nvidia-nccl-cu13, or RCA_TEST_LIBNCCL)")
    run = tmp_path / "run"
    (run / "segments").mkdir(parents=True)
    env = {"RCA_LLM_RUN": str(run), "NVTX_INJECTION64_PATH": str(built.collector)}
    command = [sys.executable, "-c", REAL, str(library)]
    subprocess.run(command, env=os.environ | env, check=True, timeout=120)
    ranges = readers.load(run).timelines[0]["ranges"]
    assert sorted(ranges["bytes"][ranges["bytes"] >= 0].tolist()) == [16, 2048, 2048]
    calls = [call for segment in _parsed(run) for call in nccl_rows.calls_of(segment)]
    told = {call.name: call.numbers for call in calls}
    assert told["ncclAllReduce"] == {
        nccl_rows.COMM: 0,
        nccl_rows.SIZE: 2048,
        "Reduction operation": 4,
    }
    assert told["ncclReduceScatter"]["Reduction operation"] == 2
    assert told["ncclSend"][nccl_rows.PEER_RANK] == 3


def _parsed(run: Path) -> list[Any]:
    from rca_llm.readers.segments import parse

    found = [parse(path.name, path.read_bytes()) for path in (run / "segments").glob("*.seg")]
    return [segment for segment in found if segment is not None]


def test_a_run_counts_what_has_no_kernel(fake: Nccl) -> None:
    fake(5, "coll:3", "captured:2")
    timeline = Timeline(Input("run", "run"))
    rows, strings = fake.rows()
    timeline.strings = strings
    nccl.add_rows(timeline, rows, 1)
    assert not len(timeline["collectives"])
    assert timeline.header.extra["nccl"]["plans"] == 5
    assert timeline.header.extra["nccl"]["captured"] == 2


def _traced(folder: Path, **base: str) -> dict[str, str]:
    return environment(base, Run(folder / "run.rca"), Options())


def test_the_launcher_names_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "librca_llm.so"
    monkeypatch.setattr(launch, "native_library", lambda: library)
    assert _traced(tmp_path)["NCCL_PROFILER_PLUGIN"] == str(library)


def test_another_plugin_keeps_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "native_library", lambda: tmp_path / "librca_llm.so")
    env = _traced(tmp_path, NCCL_PROFILER_PLUGIN="theirs")
    assert env["NCCL_PROFILER_PLUGIN"] == "theirs"


def test_a_path_that_nccl_would_cut_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "native_library", lambda: tmp_path / ("x" * 240) / "librca_llm.so")
    assert "NCCL_PROFILER_PLUGIN" not in _traced(tmp_path)
