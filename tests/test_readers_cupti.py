"""CUPTI recordings: the one from the hardware, made-up ones, and damage."""

from __future__ import annotations

import struct
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm import readers
from rca_llm.errors import UnreadableInput
from rca_llm.readers import cupti, cupti_raw, cupti_rows, cupti_tables
from rca_llm.readers.demangle import demangled
from rca_llm.readers.files import source
from rca_llm.table import NO_TEXT, UNKNOWN
from rca_llm.trace import KERNEL, MEMCPY, MEMSET, Input, Timeline

DATA = Path(__file__).parent / "data"
NAME = b"_Z6kernelPf"


def named(pointer: int, name: bytes = NAME) -> bytes:
    """A name of a raw recording."""
    return struct.pack("<IIQ", 1, len(name), pointer) + name


def buffer(*records: bytes) -> bytes:
    """An activity buffer of a raw recording."""
    body = b"".join(records)
    return struct.pack("<IIQ", 2, len(body), 0) + body


def kernel(start: int, end: int, pointer: int = 64, correlation: int = 5) -> bytes:
    """A kernel record of CUDA 13.0."""
    record = bytearray(216)
    struct.pack_into("<I", record, 0, 10)
    struct.pack_into("<HIIQQ", record, 6, 40, 0, 0, start, end)
    struct.pack_into("<III3i3iii", record, 40, 1, 1, 7, 2, 3, 4, 128, 1, 1, 16, 32)
    struct.pack_into("<I", record, 92, correlation)
    struct.pack_into("<Q", record, 104, pointer)
    return bytes(record)


def call(cbid: int, correlation: int = 5, kind: int = 5) -> bytes:
    """An API record."""
    return struct.pack("<IIQQIIII", kind, cbid, 100, 200, 77, 78, correlation, 0)


def written(folder: Path, content: bytes) -> Path:
    """A recording in a file."""
    path = folder / "recording.bin"
    path.write_bytes(content)
    return path


def one(path: Path) -> Timeline:
    """The timeline of a recording."""
    (timeline,) = readers.read(path).timelines
    return timeline


def test_the_recording_from_the_hardware(shared: Path) -> None:
    timeline = one(shared / "data/h200/generate.cupti.raw.gz")
    assert Counter(timeline["gpu"]["kind"].tolist()) == {KERNEL: 9426, MEMCPY: 104, MEMSET: 29}
    assert len(timeline["api"]) == 93295 + 43115
    assert not (timeline["gpu"]["name"][timeline["gpu"]["kind"] == KERNEL] == NO_TEXT).any()
    assert timeline.input.format == "cupti"


def test_it_agrees_with_nsight_systems_kernel_by_kernel(shared: Path) -> None:
    """Two recordings of one program: the same launches in the same order."""
    shapes: list[object] = []
    for name in ("generate.cupti.raw.gz", "generate.nsys.sqlite.gz"):
        gpu = one(shared / "data/h200" / name)["gpu"].sorted_by("start")
        rows = gpu.take(gpu["kind"] == KERNEL)
        axes = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
        shapes.append([rows[column].tolist() for column in (*axes, "registers")])
    assert shapes[0] == shapes[1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """What our collector recorded on an H200: three requests of one prefill and eight steps."""
    folder = tmp_path_factory.mktemp("h200")
    with tarfile.open(DATA / "h200" / "generate.rca.tar.gz") as archive:
        # Python before 3.11.4 has no filters.
        safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **safe)
    return one(folder / "generate.rca")


def test_our_recording_from_the_hardware_is_whole(recorded: Timeline) -> None:
    gpu, api = recorded["gpu"], recorded["api"]
    assert Counter(gpu["kind"].tolist()) == {KERNEL: 67513, MEMCPY: 811, MEMSET: 194}
    kernels = gpu.take(gpu["kind"] == KERNEL)
    assert not (kernels["name"] == NO_TEXT).any()
    assert (kernels["end"] >= kernels["start"]).all()
    assert np.isin(kernels["correlation"], api["correlation"]).all()
    assert [device.name for device in recorded.devices] == ["NVIDIA H200"]
    assert recorded.header.graph_level is False


def test_equal_requests_launch_equal_kernels(recorded: Timeline) -> None:
    ranges, gpu = recorded["ranges"], recorded["gpu"]
    counts: dict[str, int] = {}
    for name in ("generate 0", "generate 1", "generate 2"):
        (row,) = (ranges["name"] == recorded.strings.find(name)).nonzero()[0]
        inside = (gpu["start"] >= ranges["start"][row]) & (gpu["start"] <= ranges["end"][row])
        counts[name] = int((inside & (gpu["kind"] == KERNEL)).sum())
    assert set(counts.values()) == {9402}


def test_a_kernel_keeps_its_shape_and_name(tmp_path: Path) -> None:
    content = named(64) + buffer(kernel(1000, 2000), call(211))
    timeline = one(written(tmp_path, content))
    gpu = timeline["gpu"]
    assert [timeline.text(code) for code in gpu["name"].tolist()] == ["kernel(float*)"]
    columns = ("start", "end", "grid_x", "grid_y", "grid_z", "block_x", "shared", "registers")
    assert [int(gpu[name][0]) for name in columns] == [1000, 2000, 2, 3, 4, 128, 48, 40]
    assert int(gpu["process"][0]) == 77
    assert [timeline.text(code) for code in timeline["api"]["name"].tolist()] == [
        "cudaLaunchKernel"
    ]


def test_a_pointer_means_the_name_before_it(tmp_path: Path) -> None:
    """A module that is unloaded leaves its pointers to the next one."""
    content = named(64, b"first") + buffer(kernel(1, 2)) + named(64, b"second")
    timeline = one(written(tmp_path, content + buffer(kernel(3, 4), kernel(5, 6, pointer=8))))
    found = [timeline.text(code) for code in timeline["gpu"]["name"].tolist()]
    assert found == ["first", "second", None]


def test_an_unknown_function_keeps_its_number(tmp_path: Path) -> None:
    timeline = one(written(tmp_path, buffer(call(9999), call(9999, kind=4))))
    found = {timeline.text(code) for code in timeline["api"]["name"].tolist()}
    assert found == {"cuda#9999", "cu#9999"}


def test_a_record_without_time_is_kept_without(tmp_path: Path) -> None:
    gpu = one(written(tmp_path, named(64) + buffer(kernel(0, 0), kernel(5, 9))))["gpu"]
    assert gpu["start"].tolist() == [UNKNOWN, 5]


@pytest.mark.parametrize("cut", [1, 15, 17, 100, 215])
def test_a_cut_recording_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    content = named(64) + buffer(kernel(1, 2), kernel(3, 4)) + buffer(kernel(5, 6))
    timeline = one(written(tmp_path, content[:-cut]))
    assert len(timeline["gpu"]) == 2
    assert [finding.code for finding in timeline.findings] == ["truncated"]


def test_a_recording_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="byte 27: expected CUPTI activity records"):
        one(written(tmp_path, named(64)))


@given(st.binary(max_size=600))
def test_no_bytes_break_the_walk(data: bytes) -> None:
    raw = cupti_raw.parse(memoryview(named(64) + data))
    assert raw.end <= len(data) + 27
    for kind, rows in cupti_raw.rows(raw, cupti_rows.ROWS):
        assert rows.dtype == cupti_rows.ROWS[kind]


@given(st.binary(max_size=600), st.integers(0, 12), st.integers(0, 100))
def test_no_payload_breaks_the_rows(data: bytes, kind: int, row_bytes: int) -> None:
    timeline = Timeline(Input("x", "run"))
    rows = cupti_rows.Rows()
    rows.add(kind, row_bytes, data, cupti_rows.codes_of(timeline, {1: "a"}))
    cupti_tables.add_rows(timeline, rows, 1)
    assert len(timeline["gpu"]) <= len(data)


def test_longer_rows_of_a_newer_collector_are_understood() -> None:
    timeline = Timeline(Input("x", "run"))
    row = np.zeros(1, cupti_rows.ROWS[cupti_rows.ROW_API])
    row["start"], row["name"] = 7, 1
    rows = cupti_rows.Rows()
    payload = (row.tobytes() + b"new!") * 3
    rows.add(
        cupti_rows.ROW_API,
        row.itemsize + 4,
        payload,
        cupti_rows.codes_of(timeline, {1: "cudaFree_v3020"}),
    )
    cupti_tables.add_rows(timeline, rows, 1)
    assert timeline["api"]["start"].tolist() == [7, 7, 7]
    assert timeline.text(int(timeline["api"]["name"][0])) == "cudaFree"


def test_other_content_is_not_taken_for_a_recording(tmp_path: Path) -> None:
    for content in (b"", b"{}", b"\1\0\0\0\4\0\0\0", b"RCASEG1\n" + bytes(100), bytes(64)):
        assert not cupti.matches(source(written(tmp_path, content)))


def test_names_that_are_not_mangled_stay() -> None:
    assert demangled("triton_poi_fused_add_0") == "triton_poi_fused_add_0"
    assert demangled("_Znot\udcff") == "_Znot\udcff"
    assert demangled("_Z6kernelPf") in ("kernel(float*)", "_Z6kernelPf")


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cudaMemcpy_ptds_v7000", "cudaMemcpy"),
        ("cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2"),
        ("my_kernel_v7000", "my_kernel_v7000"),
    ],
)
def test_api_names_lose_cupti_s_suffix(given_name: str, name: str) -> None:
    assert cupti_rows.api_name(given_name) == name
