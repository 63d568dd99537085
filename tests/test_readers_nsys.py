"""Nsight Systems exports, built here and, where they are at hand, recorded ones."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from rca_llm import intervals
from rca_llm.errors import UnreadableInput
from rca_llm.quality import repair
from rca_llm.readers import nsys
from rca_llm.readers.files import source
from rca_llm.table import UNKNOWN
from rca_llm.trace import COPY_KINDS, GRAPH, KERNEL, MEMCPY, MEMORY_KINDS, MEMSET, Timeline
from tests.nsys_export import PID, TID, UTC, Export, global_id

DATA = Path(os.environ.get("RCA_LLM_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


def read(path: Path) -> Timeline:
    found = source(path)
    assert nsys.matches(found)
    return nsys.read(found).timelines[0]


def texts(timeline: Timeline, table: str, column: str) -> list[str | None]:
    return [timeline.text(code) for code in timeline[table][column].tolist()]


def findings(timeline: Timeline) -> dict[str, int]:
    return {finding.code: finding.count for finding in timeline.findings}


def busy() -> Export:
    """One of everything."""
    export = Export()
    export.kernel("void gemm<float>", 100, 200, 5)
    export.copy(200, 300, kind=1, memory=(0, 2))
    export.api("cudaLaunchKernel_v7000", 50, 60, 5)
    export.nvtx(59, 10, 400, text="prefill", domainId=0)
    return export


def test_kernels(tmp_path: Path) -> None:
    timeline = read(busy().write(tmp_path / "a"))
    row = {name: values[0] for name, values in timeline["gpu"].known.items()}
    assert row["kind"] == KERNEL
    assert (row["start"], row["end"]) == (UTC + 100, UTC + 200)
    assert timeline.text(row["name"]) == "void gemm<float>"
    assert (row["process"], row["device"], row["stream"], row["correlation"]) == (PID, 0, 7, 5)
    assert [row[f"{shape}_{axis}"] for shape in ("grid", "block") for axis in "xyz"] == [
        *(8, 1, 1),
        *(128, 1, 1),
    ]
    assert (row["registers"], row["shared"], row["graph_node"]) == (32, 1024, UNKNOWN)


def test_names_fall_back_from_demangled_to_short(tmp_path: Path) -> None:
    export = busy()
    export.drop = {"CUPTI_ACTIVITY_KIND_KERNEL.demangledName"}
    timeline = read(export.write(tmp_path / "a"))
    assert texts(timeline, "gpu", "name")[0] == "void gemm"


def test_mangled_names_read_as_in_other_tools(tmp_path: Path) -> None:
    export = Export()
    mangled = export.string("_ZN12_GLOBAL__N_14copyILi4EEEvPKf")
    export.kernel("void <unnamed>::copy<(int)4>(const float *)", 1, 2, 5, mangledName=mangled)
    export.kernel("triton_poi_fused", 3, 4, 6, mangledName=export.string("triton_poi_fused"))
    found = texts(read(export.write(tmp_path / "a")), "gpu", "name")
    assert found == ["void (anonymous namespace)::copy<4>(float const*)", "triton_poi_fused"]


@pytest.mark.parametrize(
    ("kind", "memory", "devices", "expected"),
    [
        (1, (0, 2), (None, None), ("H2D", "pageable", "device")),
        (2, (2, 1), (None, None), ("D2H", "device", "pinned")),
        (8, (2, 2), (0, 0), ("D2D", "device", "device")),
        (8, (2, 2), (0, 1), ("P2P", "device", "device")),
        (10, (2, 2), (0, 1), ("P2P", "device", "device")),
        (9, (0, 1), (None, None), ("H2H", "pageable", "pinned")),
        (3, (1, 3), (None, None), ("H2D", "pinned", "device")),
        (11, (4, 4), (None, None), ("H2D", "managed", "managed")),
    ],
)
def test_copies(
    tmp_path: Path,
    kind: int,
    memory: tuple[int, int],
    devices: tuple[int | None, int | None],
    expected: tuple[str, str, str],
) -> None:
    export = Export()
    export.copy(0, 10, kind, memory, srcDeviceId=devices[0], dstDeviceId=devices[1])
    gpu = read(export.write(tmp_path / "a"))["gpu"]
    found = COPY_KINDS[gpu["copy"][0]], MEMORY_KINDS[gpu["src"][0]], MEMORY_KINDS[gpu["dst"][0]]
    assert found == expected
    assert (gpu["kind"][0], gpu["bytes"][0]) == (MEMCPY, 4096)


def test_enumerations_of_the_export_come_first(tmp_path: Path) -> None:
    export = Export()
    export.copy(0, 10, 77, (2, 2))
    export.add("ENUM_CUDA_MEMCPY_OPER", id=77, name="CUDA_MEMCPY_KIND_DTOH")
    assert COPY_KINDS[read(export.write(tmp_path / "a"))["gpu"]["copy"][0]] == "D2H"


def test_copy_direction_without_its_column(tmp_path: Path) -> None:
    export = Export(drop={"CUPTI_ACTIVITY_KIND_MEMCPY.copyKind"})
    export.copy(0, 10, 0, (1, 2))
    export.copy(0, 10, 0, (2, 7))
    assert read(export.write(tmp_path / "a"))["gpu"]["copy"].tolist() == [0, -1]


def test_graph_replays_and_memsets(tmp_path: Path) -> None:
    export = busy()
    place = {"deviceId": 0, "streamId": 7, "globalPid": global_id(PID)}
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=1, end=9, correlationId=3, **place)
    export.add("CUPTI_ACTIVITY_KIND_MEMSET", start=1, end=9, bytes=64, memKind=2, **place)
    timeline = read(export.write(tmp_path / "a"))
    assert timeline["gpu"]["kind"].tolist() == [KERNEL, MEMCPY, MEMSET, GRAPH]
    assert timeline.header.graph_level is True


def test_node_level_graphs(tmp_path: Path) -> None:
    export = busy()
    export.kernel("k", 300, 400, 6, graphNodeId=11)
    timeline = read(export.write(tmp_path / "a"))
    assert timeline["gpu"]["graph_node"].tolist() == [UNKNOWN, 11, UNKNOWN]
    assert timeline.header.graph_level is False


def test_api_names_lose_their_version(tmp_path: Path) -> None:
    export = busy()
    names = ("cudaMemcpyAsync_ptsz_v7000", "cuMemcpyHtoD_v2", "cuLaunchKernelEx")
    for name in names:
        export.api(name, 1, 2, 0)
    timeline = read(export.write(tmp_path / "a"))
    assert texts(timeline, "api", "name")[1:] == ["cudaMemcpyAsync", *names[1:]]
    assert timeline["api"]["correlation"].tolist() == [5, *[UNKNOWN] * 3]
    assert timeline["api"]["thread"][0] == TID


def test_nvtx(tmp_path: Path) -> None:
    export = busy()
    export.nvtx(75, 0, None, text="NCCL", domainId=3)
    export.nvtx(60, 20, 30, textId=export.string("ncclAllReduce"), domainId=3)
    export.nvtx(59, 40, 50, text="aten::mm, seq = 4, op_id = 99", domainId=0)
    export.nvtx(59, 51, 59, text="decode, seq = 4", domainId=0)
    export.nvtx(34, 60, None, text="checkpoint")
    export.nvtx(33, 70, None, text="a category")
    export.nvtx(39, 70, None, text="scheduler")
    timeline = read(export.write(tmp_path / "a"))
    assert texts(timeline, "ranges", "name") == [
        *("prefill", "ncclAllReduce", "aten::mm", "decode, seq = 4"),
    ]
    assert texts(timeline, "ranges", "domain") == ["NVTX", "NCCL", "cpu_op", "NVTX"]
    assert texts(timeline, "marks", "name") == ["checkpoint"]
    assert texts(timeline, "threads", "name") == ["scheduler"]
    assert not timeline.findings


def test_a_domain_number_belongs_to_one_process(tmp_path: Path) -> None:
    export = busy()
    other = global_id(PID + 1, 1)
    export.nvtx(75, 0, None, text="NCCL", domainId=1)
    export.nvtx(75, 0, None, text="MPI", domainId=1, globalTid=other)
    export.nvtx(59, 1, 2, text="a", domainId=1)
    export.nvtx(59, 1, 2, text="b", domainId=1, globalTid=other)
    timeline = read(export.write(tmp_path / "a"))
    assert texts(timeline, "ranges", "domain") == ["NVTX", "NCCL", "MPI"]


def test_a_range_that_was_never_closed_ends_with_its_process(tmp_path: Path) -> None:
    export = busy()
    export.nvtx(59, 20, None, text="open")
    timeline = read(export.write(tmp_path / "a"))
    assert timeline["ranges"]["end"].tolist() == [UTC + 400, UTC + 400]
    assert findings(timeline) == {"repaired": 1}


@pytest.mark.parametrize(
    "dropped",
    [
        "CUPTI_ACTIVITY_KIND_KERNEL.graphNodeId",
        "CUPTI_ACTIVITY_KIND_KERNEL.greenContextId",
        "CUPTI_ACTIVITY_KIND_KERNEL.globalPid",
        "CUPTI_ACTIVITY_KIND_KERNEL.shortName",
        "CUPTI_ACTIVITY_KIND_KERNEL.gridX",
        "CUPTI_ACTIVITY_KIND_KERNEL.staticSharedMemory",
        "CUPTI_ACTIVITY_KIND_KERNEL.correlationId",
        "CUPTI_ACTIVITY_KIND_MEMCPY.srcDeviceId",
        "CUPTI_ACTIVITY_KIND_RUNTIME.nameId",
        "CUPTI_ACTIVITY_KIND_RUNTIME.globalTid",
        "NVTX_EVENTS.text",
        "NVTX_EVENTS.textId",
        "NVTX_EVENTS.domainId",
        "NVTX_EVENTS.eventType",
    ],
)
def test_columns_that_a_version_lacks(tmp_path: Path, dropped: str) -> None:
    export = busy()
    export.drop = {dropped}
    timeline = read(export.write(tmp_path / "a"))
    assert [len(timeline[table]) for table in ("gpu", "api", "ranges")] == [2, 1, 1]
    assert timeline["gpu"]["start"].tolist() == [UTC + 100, UTC + 200]


@pytest.mark.parametrize(
    "renamed",
    [
        {"NVTX_EVENTS": "NVTX_EVENTS_V3"},
        {"CUPTI_ACTIVITY_KIND_KERNEL": "CUPTI_ACTIVITY_KIND_KERNEL_V2"},
        {"META_DATA_EXPORT": "EXPORT_META_DATA"},
        {"META_DATA_EXPORT.name": "key"},
        {"CUPTI_ACTIVITY_KIND_KERNEL.deviceId": "DEVICE_ID"},
    ],
)
def test_tables_and_columns_under_other_names(tmp_path: Path, renamed: dict[str, str]) -> None:
    export = busy()
    export.rename = renamed
    timeline = read(export.write(tmp_path / "a"))
    assert [len(timeline[table]) for table in ("gpu", "api", "ranges")] == [2, 1, 1]
    assert timeline["gpu"]["device"].tolist() == [0, 0]
    assert timeline.input.tool_version == "2025.3.2.0"


def test_a_plain_table_name_comes_before_a_versioned_one(tmp_path: Path) -> None:
    path = busy().write(tmp_path / "a")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE NVTX_EVENTS_V2 AS SELECT * FROM NVTX_EVENTS LIMIT 0")
    connection.close()
    assert len(read(path)["ranges"]) == 1


def test_a_missing_process_is_that_of_the_launch(tmp_path: Path) -> None:
    export = busy()
    export.kernel("twice", 300, 400, 6)
    for pid in (PID, PID + 1):
        export.api("cudaLaunchKernel_v7000", 250, 260, 6, pid)
    export.drop = {"CUPTI_ACTIVITY_KIND_KERNEL.globalPid"}
    timeline = read(export.write(tmp_path / "a"))
    assert timeline["gpu"]["process"].tolist() == [PID, UNKNOWN, PID]


def test_equal_pids_of_two_machines_stay_apart(tmp_path: Path) -> None:
    export = busy()
    export.kernel("other", 300, 400, 5, globalPid=global_id(PID, vm=2))
    first, second, _ = read(export.write(tmp_path / "a"))["gpu"]["process"].tolist()
    assert first == PID
    assert second == global_id(PID, vm=2) >> 24


def test_pids_of_two_machines_that_differ_are_kept(tmp_path: Path) -> None:
    export = busy()
    export.kernel("other", 300, 400, 5, globalPid=global_id(77, vm=2))
    assert read(export.write(tmp_path / "a"))["gpu"]["process"].tolist() == [PID, 77, PID]


def test_without_a_session_start_the_clock_is_not_utc(tmp_path: Path) -> None:
    export = busy()
    del export.rows["TARGET_INFO_SESSION_START_TIME"]
    timeline = read(export.write(tmp_path / "a"))
    assert timeline.header.utc is False
    assert timeline["gpu"]["start"][0] == 100


def test_normalised_times_are_utc_already(tmp_path: Path) -> None:
    export = Export()
    export.add("META_DATA_EXPORT", name="EXPORT_PARAM_TIME_NORMALIZE", value="true")
    export.kernel("k", UTC + 5, UTC + 6, 1)
    timeline = read(export.write(tmp_path / "a"))
    assert (timeline.header.utc, timeline["gpu"]["start"][0]) == (True, UTC + 5)


def test_devices(tmp_path: Path) -> None:
    export = busy()
    export.add(
        "TARGET_INFO_GPU",
        id=3,
        name="NVIDIA H200",
        uuid="554a6988-03dd-6206-3dd1-f43fb60a3ed0",
        smCount=132,
        threadsPerWarp=32,
        maxWarpsPerSm=64,
        computeMajor=9,
        computeMinor=0,
        clockRate=0,
    )
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=3, cudaId=0, pid=PID)
    (device,) = read(export.write(tmp_path / "a")).devices
    assert (device.device, device.name, device.process) == (0, "NVIDIA H200", PID)
    assert device.uuid == "GPU-554a6988-03dd-6206-3dd1-f43fb60a3ed0"
    assert device.limits == {
        "sms": 132,
        "warp_size": 32,
        "max_threads_per_sm": 2048,
        "major": 9,
        "minor": 0,
    }


def test_system_calls_by_what_they_wait_for(tmp_path: Path) -> None:
    export = busy()
    calls = ("pread64", "recvfrom", "pthread_mutex_lock", "sem_wait", "ioctl", "fsync")
    for start, name in enumerate(calls):
        row = {"start": start, "end": start + 1, "nameId": export.string(name)}
        export.add("OSRT_API", globalTid=global_id(PID, TID), **row)
    timeline = read(export.write(tmp_path / "a"))
    assert texts(timeline, "ranges", "name") == ["pread64", *calls[1:3], "fsync", "prefill"]
    assert texts(timeline, "ranges", "kind") == ["file", "network", "sync", "file", None]


def test_loading_inside_of_api_calls(tmp_path: Path) -> None:
    export = busy()
    for type, name in ((6, "module"), (8, "buffer full"), (7, "function")):
        row = {"start": 1, "end": 2, "overheadType": type, "nameId": export.string(name)}
        export.add("CUPTI_ACTIVITY_KIND_OVERHEAD", globalTid=global_id(PID, TID), **row)
    timeline = read(export.write(tmp_path / "a"))
    assert texts(timeline, "ranges", "kind") == ["jit", "jit", None]


def test_thread_states(tmp_path: Path) -> None:
    export = busy()
    export.add("ENUM_SAMPLING_THREAD_STATE", id=2, name="Interruptible")
    for start, inside, state in ((30, 0, 0), (10, 1, 0), (20, 0, 2), (25, 1, 0), (40, 1, 0)):
        row = {"start": start, "isSchedIn": inside, "threadState": state}
        export.add("SCHED_EVENTS", globalTid=global_id(PID, TID), **row)
    export.add("SCHED_EVENTS", start=5, isSchedIn=1, globalTid=global_id(9999, 1))
    timeline = read(export.write(tmp_path / "a"))
    states = timeline["states"]
    spans = zip(states["start"].tolist(), states["end"].tolist(), strict=True)
    assert [(start - UTC, end - UTC) for start, end in spans] == [(10, 20), (20, 25), (25, 30)]
    assert texts(timeline, "states", "state") == ["running", "blocked", "running"]


def test_gpu_metrics_are_averaged(tmp_path: Path) -> None:
    export = busy()
    export.add("TARGET_INFO_GPU_METRICS", typeId=2**40 + 1, metricId=4, metricName="SM Active")
    for time, value in ((0, 10), (1_000_000, 30), (30_000_000, 7)):
        export.add("GPU_METRICS", timestamp=time, typeId=2**40 + 1, metricId=4, value=value)
    timeline = read(export.write(tmp_path / "a"))
    samples = timeline["samples"]
    assert samples["t"].tolist() == [UTC, UTC + 30_000_000]
    assert samples["value"].tolist() == [20.0, 7.0]
    assert samples["device"].tolist() == [1, 1]
    assert texts(timeline, "samples", "metric") == ["nsys.SM Active"] * 2


def test_what_the_recorder_says_of_itself(tmp_path: Path) -> None:
    export = busy()
    pid = global_id(PID)
    for severity, text in (
        (2, "Not all CUDA events might have been collected."),
        (1, "Number of CUDA events lost: 0"),
        (2, "No NVTX events collected."),
    ):
        export.add("DIAGNOSTIC_EVENT", severity=severity, text=text, globalPid=pid)
    for start, end in ((0, 100), (290, 5000), (-90, -80)):
        row = {"start": start, "end": end, "nameId": export.string("flush")}
        export.add("PROFILER_OVERHEAD", globalTid=global_id(PID, TID), **row)
    timeline = read(export.write(tmp_path / "a"))
    lost, overhead = timeline.findings
    assert (lost.code, lost.count, lost.where) == ("dropped_records", 1, f"process {PID}")
    assert (overhead.code, overhead.count) == ("tracer_overhead", 2)
    assert overhead.detail == "60 ns on its threads, 60 ns of it: flush"


def test_threads_that_did_nothing_are_left_out(tmp_path: Path) -> None:
    export = busy()
    for pid, name in ((PID, "VLLM::EngineCore"), (2, "kthreadd")):
        export.add("PROCESSES", globalPid=global_id(pid), pid=pid, name=name)
        row = {"nameId": export.string(name), "globalTid": global_id(pid, pid)}
        export.add("ThreadNames", **row)
    timeline = read(export.write(tmp_path / "a"))
    assert texts(timeline, "processes", "name") == ["VLLM::EngineCore"]
    assert timeline["threads"]["process"].tolist() == [PID]


def test_no_secret_is_read(tmp_path: Path) -> None:
    export = busy()
    export.string("HF_TOKEN=hf_secret")
    export.add("TARGET_INFO_SYSTEM_ENV", name="HF_TOKEN", value="hf_secret")
    timeline = read(export.write(tmp_path / "a"))
    assert not [text for text in timeline.strings.texts if "hf_secret" in text]


def test_undecodable_names(tmp_path: Path) -> None:
    path = busy().write(tmp_path / "a")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = CAST(x'6180' AS TEXT)")
    connection.close()
    timeline = read(path)
    assert texts(timeline, "ranges", "name") == ["a\ufffd"]
    assert findings(timeline) == {"bad_text": 1}


def test_changes_that_stand_in_the_journal_are_read(tmp_path: Path) -> None:
    path = busy().write(tmp_path / "a")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("INSERT INTO NVTX_EVENTS (start, end, eventType) VALUES (1, 2, 59)")
    connection.commit()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(before["a-wal"])
    assert len(read(path)["ranges"]) == 2
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    connection.close()


def test_compressed_and_unwritable(tmp_path: Path) -> None:
    plain = busy().write(tmp_path / "a")
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    packed.chmod(stat.S_IRUSR)
    assert read(packed)["gpu"]["start"].tolist() == read(plain)["gpu"]["start"].tolist()
    assert sorted(os.listdir(tmp_path)) == ["a", "a.gz"]


def many(tmp_path: Path) -> Path:
    export = Export()
    for number in range(20_000):
        export.kernel(f"kernel {number % 7}", 10 * number, 10 * number + 5, number + 1)
    return export.write(tmp_path / "many")


def test_a_database_cut_short(tmp_path: Path) -> None:
    path = many(tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    timeline = read(path)
    assert 5_000 < len(timeline["gpu"]) < 20_000
    assert [finding.code for finding in timeline.findings] == ["truncated"]


def test_a_database_cut_before_its_events(tmp_path: Path) -> None:
    path = many(tmp_path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UnreadableInput, match=r"many: byte 5000: expected .* pages of the"):
        read(path)


def test_a_cut_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(many(tmp_path).read_bytes())
    path = tmp_path / "cut.gz"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    timeline = read(path)
    assert 1_000 < len(timeline["gpu"]) < 20_000
    assert "truncated" in findings(timeline)


def test_refusals(tmp_path: Path) -> None:
    empty = Export().write(tmp_path / "empty")
    with pytest.raises(UnreadableInput, match="empty: table CUPTI_ACTIVITY_KIND_KERNEL: expected"):
        read(empty)
    other = tmp_path / "other"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE places (url TEXT)")
    connection.close()
    with pytest.raises(UnreadableInput, match=r"other: table StringIds: expected .* 'places'"):
        read(other)
    other.write_bytes(b"SQLite format 3\0 and no more")
    with pytest.raises(UnreadableInput, match="other: byte 0: expected"):
        read(other)


REPORT = b"NVIDIA Tegra Profiler Report 2025@3@2@1-1"


def test_a_report_without_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "a b.nsys-rep"
    path.write_bytes(REPORT)
    with pytest.raises(UnreadableInput) as caught:
        read(path)
    report, export = f"'{path}'", f"'{tmp_path}/a b.sqlite'"
    assert f"run: nsys export --type sqlite -o {export} {report}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_with_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = busy().write(tmp_path / "made.sqlite")
    tool = tmp_path / "bin" / "nsys"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\n[ "$1" = export ] && cp {export} "$7"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    path = tmp_path / "a.nsys-rep"
    path.write_bytes(REPORT)
    timeline = read(path)
    assert (len(timeline["gpu"]), timeline.input.path) == (2, str(path))
    tool.write_text("#!/bin/sh\necho one >&2; echo unsupported version >&2; exit 3\n")
    with pytest.raises(UnreadableInput, match="status 3: unsupported version"):
        read(path)
    assert sorted(os.listdir(tmp_path)) == ["a.nsys-rep", "bin", "made.sqlite"]


def recorded() -> list[dict[str, str]]:
    index = DATA / "INDEX.tsv"
    if not index.exists():
        return []
    with index.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [row for row in rows if row["kind"] == "nsys_sqlite"]


@pytest.mark.skipif(not DATA.exists(), reason="the recorded exports (../shared/data) are not here")
def test_recorded_exports() -> None:
    for row in recorded():
        expected = [int(row[kind]) for kind in ("kernels", "copies", "memsets")]
        if not sum(expected) and "6 tables" in row["tool version"]:
            with pytest.raises(UnreadableInput, match="expected events"):
                read(DATA / row["file"])
            continue
        timeline = read(DATA / row["file"])
        gpu = timeline["gpu"]
        counts = [int((gpu["kind"] == kind).sum()) for kind in (KERNEL, MEMCPY, MEMSET)]
        assert counts == expected, row["file"]
        assert busy_by_device(timeline) == json.loads(row["busy_ns by device"]), row["file"]
        assert (gpu["end"] >= gpu["start"]).all()


def busy_by_device(timeline: Timeline) -> dict[str, int]:
    gpu = timeline["gpu"]
    work = gpu.take((gpu["kind"] == KERNEL) | (gpu["kind"] == GRAPH))
    return {
        str(device): intervals.length(
            work["start"][work["device"] == device], work["end"][work["device"] == device]
        )
        for device in set(work["device"].tolist())
    }


def test_nothing_is_left_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(busy().write(tmp_path / "a").read_bytes()))
    read(packed)
    assert not list(folder.iterdir())
    shutil.rmtree(folder)


def test_records_that_came_twice(tmp_path: Path) -> None:
    export = busy()
    export.kernel("void gemm<float>", 100, 200, 5)
    export.kernel("void gemm<float>", 100, 200, 5, graphNodeId=4)
    timeline = read(export.write(tmp_path / "a"))
    repair(timeline)
    assert len(timeline["gpu"]) == 3
    assert findings(timeline)["duplicate_records"] == 1


def test_host_records_without_times(tmp_path: Path) -> None:
    export = busy()
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", end=5, globalTid=global_id(PID, TID))
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=9, end=5, globalTid=global_id(PID, TID))
    timeline = read(export.write(tmp_path / "a"))
    assert timeline["api"]["start"].tolist() == [UTC + 50, UTC + 9]
    assert timeline["api"]["end"].tolist() == [UTC + 60, UTC + 9]
    assert findings(timeline) == {"no_timestamp": 1, "negative_duration": 1}
