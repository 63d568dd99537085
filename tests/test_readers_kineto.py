"""The Kineto reader: exact times, what belongs to what, damage, and helper processes."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import os
import sys
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm.errors import UnreadableInput
from rca_llm.readers import kineto, kineto_pieces
from rca_llm.readers.exact import ints, nanoseconds
from rca_llm.readers.files import Source, source
from rca_llm.readers.jsontext import mend, salvage
from rca_llm.readers.kineto_events import valid_event
from rca_llm.readers.pieces import Pieces
from rca_llm.table import UNKNOWN
from rca_llm.trace import COPY_KINDS, KERNEL, MEMCPY, MEMORY_KINDS, Timeline

DATA = Path(os.environ.get("RCA_LLM_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
BASE = 1_700_000_000_000_000_000
HEAD = {"schemaVersion": 1, "baseTimeNanoseconds": BASE}


def event(cat: str, name: Any, ts: str, dur: str = "2.000", **fields: Any) -> str:
    """The text of a complete event; times as they stand in the file."""
    args = fields.pop("args", {})
    place = {"pid": 100, "tid": 101} | fields
    head = json.dumps({"ph": "X", "cat": cat, "name": name} | place)[:-1]
    return f'{head}, "ts": {ts}, "dur": {dur}, "args": {json.dumps(args)}}}'


def kernel(
    name: Any = "k",
    ts: str = "10.000",
    dur: str = "2.000",
    args_too: dict[str, Any] | None = None,
    **args: Any,
) -> str:
    """The text of a kernel on device 0; `args_too` are arguments whose names have blanks."""
    args = {"device": 0, "stream": 7, "correlation": 1} | args | (args_too or {})
    return event("kernel", name, ts, dur, pid=0, tid=7, args=args)


def api(name: str = "cudaLaunchKernel", ts: str = "5.000", **fields: Any) -> str:
    """The text of a runtime call."""
    args = {"correlation": fields.pop("correlation", 1)}
    return event("cuda_runtime", name, ts, args=args, **fields)


def document(*events: str, head: dict[str, Any] = HEAD, tail: str = '"traceName": "t"') -> bytes:
    """A whole file."""
    start = json.dumps(head)[:-1]
    comma = ", " if head else ""
    return f'{start}{comma}"traceEvents": [{", ".join(events)}], {tail}}}'.encode()


def read(tmp_path: Path, data: bytes) -> Timeline:
    """The timeline of a file with this content."""
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    (timeline,) = kineto.read(source(path)).timelines
    return timeline


def findings(timeline: Timeline) -> dict[str, int]:
    """The quality findings and their counts."""
    return {finding.code: finding.count for finding in timeline.findings}


@given(st.lists(st.decimals(min_value=-(10**15), max_value=10**15, places=3), max_size=30))
def test_decimal_microseconds_are_exact(times: list[Decimal]) -> None:
    expected = [int((time * 1000).to_integral_value(ROUND_FLOOR)) for time in times]
    assert nanoseconds([str(time) for time in times]).tolist() == expected


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.integers(),
            st.decimals(allow_nan=True, allow_infinity=True).map(str),
            st.floats(min_value=0, max_value=1e14, allow_nan=False).map(repr),
            st.text(max_size=8),
        )
    )
)
def test_any_time_is_exact_or_unknown(values: list[Any]) -> None:
    for value, found in zip(values, nanoseconds(values).tolist(), strict=True):
        try:
            exact = (Decimal(value) * 1000).to_integral_value(ROUND_FLOOR)
        except (ArithmeticError, TypeError, ValueError):
            assert found == UNKNOWN
        else:
            fits = exact.is_finite() and abs(exact) < 1 << 63
            assert found == UNKNOWN or (fits and found == int(exact))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000000.123", 1_700_000_000_000_000_123),
        ("5105428057788.394", 5_105_428_057_788_394),
        ("12", 12_000),
        ("1.5e3", 1_500_000),
        ("1E-3", 1),
        ("12.3456789", 12_345),
        ('"12.25"', 12_250),
    ],
)
def test_times_in_every_spelling(tmp_path: Path, text: str, expected: int) -> None:
    timeline = read(tmp_path, document(kernel(ts="3.5"), kernel(ts=text), head={}))
    assert int(timeline["gpu"]["start"][1]) == expected


def test_ids_keep_64_bits_and_what_is_none_is_unknown() -> None:
    values = [5, "7", "stream 7", 140_737_353_873_152, -1, None, "Spans", 10**30, "9" * 500, [1]]
    expected = [5, 7, 7, 140_737_353_873_152, -1, *[UNKNOWN] * 5]
    assert ints(values).tolist() == expected


def test_base_time_places_the_trace_in_utc(tmp_path: Path) -> None:
    timeline = read(tmp_path, document(kernel(ts="10.001")))
    assert int(timeline["gpu"]["start"][0]) == BASE + 10_001
    assert int(timeline["gpu"]["end"][0]) == BASE + 12_001
    assert timeline.header.utc


def test_base_time_after_the_events_counts_too(tmp_path: Path) -> None:
    tail = f'"deviceProperties": [{{"id": 0}}, {{"id": 1}}], "baseTimeNanoseconds": {BASE}'
    timeline = read(tmp_path, document(kernel(), head={}, tail=tail))
    assert int(timeline["gpu"]["start"][0]) == BASE + 10_000


def test_times_near_zero_are_no_utc(tmp_path: Path) -> None:
    assert not read(tmp_path, document(kernel(), head={})).header.utc


def test_a_time_of_zero_is_unknown_and_a_negative_duration_is_kept(tmp_path: Path) -> None:
    gpu = read(tmp_path, document(kernel(ts="0"), kernel(ts="20.000", dur="-3.000")))["gpu"]
    assert gpu["start"].tolist() == [UNKNOWN, BASE + 20_000]
    assert gpu["end"].tolist() == [UNKNOWN, BASE + 17_000]


def test_device_and_stream_come_from_the_arguments(tmp_path: Path) -> None:
    text = event("kernel", "k", "1", pid=9, tid="stream 4", args={"device": 2, "stream": 5})
    bare = event("Kernel", "k", "2", pid=3, tid="stream 4")
    gpu = read(tmp_path, document(text, bare))["gpu"]
    assert gpu["device"].tolist() == [2, 3]
    assert gpu["stream"].tolist() == [5, 4]


def test_kernel_arguments(tmp_path: Path) -> None:
    said: dict[str, Any] = {"registers per thread": 40, "shared memory": 1024, "graph node id": 12}
    gpu = read(tmp_path, document(kernel(grid=[4, 2, 1], block=[128, 1, 1], args_too=said)))["gpu"]
    names = ("grid_x", "grid_y", "grid_z", "block_x", "registers", "shared", "graph_node")
    assert [int(gpu[name][0]) for name in names] == [4, 2, 1, 128, 40, 1024, 12]


def test_arguments_of_the_wrong_kind_are_unknown(tmp_path: Path) -> None:
    gpu = read(tmp_path, document(kernel(grid="4", block=[1, 2], correlation="x", stream=[])))[
        "gpu"
    ]
    assert [int(gpu[name][0]) for name in ("grid_x", "block_x")] == [-1, -1]
    assert int(gpu["correlation"][0]) == UNKNOWN


def test_the_process_is_the_launching_one(tmp_path: Path) -> None:
    timeline = read(
        tmp_path,
        document(
            api(correlation=1, pid=100, ts="5.000"),
            api(correlation=1, pid=200, ts="105.000"),
            kernel("a", ts="10.000", correlation=1),
            kernel("b", ts="110.000", correlation=1),
            kernel("early", ts="1.000", correlation=1),
            api(correlation=2, pid=200, ts="50.000"),
            kernel("c", ts="60.000", correlation=2),
        ),
    )
    assert timeline["gpu"]["process"].tolist() == [100, 200, 100, 200]


def test_external_id_is_no_correlation(tmp_path: Path) -> None:
    timeline = read(tmp_path, document(api(correlation=23), kernel(args_too={"External id": 23})))
    assert timeline["gpu"]["correlation"].tolist() == [1]


@pytest.mark.parametrize(
    ("name", "kind", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "H2D", ("pageable", "device")),
        ("Memcpy DtoH (Device -> Pinned)", "D2H", ("device", "pinned")),
        ("Memcpy DtoD (Device -> Device)", "D2D", ("device", "device")),
        ("Memcpy PtoP (Device -> Device)", "P2P", ("device", "device")),
        ("Memcpy HtoD (Host -> Device)", "H2D", (None, "device")),
        ("Memcpy HtoD (Managed -> Device)", "H2D", ("managed", "device")),
        ("CopyHostToDevice", "H2D", (None, None)),
        ("Memcpy", None, (None, None)),
    ],
)
def test_copies(
    tmp_path: Path, name: str, kind: str | None, memory: tuple[str | None, ...]
) -> None:
    args = {"device": 0, "stream": 7, "bytes": 4096}
    gpu = read(tmp_path, document(event("gpu_memcpy", name, "1", args=args)))["gpu"]
    found = int(gpu["copy"][0])
    assert (COPY_KINDS[found] if found >= 0 else None) == kind
    ends = [int(gpu[column][0]) for column in ("src", "dst")]
    assert tuple(MEMORY_KINDS[end] if end >= 0 else None for end in ends) == memory
    assert int(gpu["bytes"][0]) == 4096


def test_categories(tmp_path: Path) -> None:
    timeline = read(
        tmp_path,
        document(
            kernel(),
            event("cuda_sync", "Stream Sync", "1", args={"stream": 7, "device": 0}),
            event("gpu_user_annotation", "step", "1"),
            event("user_annotation", "step", "1"),
            event("cpu_op", "aten::mm", "1"),
            event("python_function", "f", "1"),
            event("Trace", "PyTorch Profiler", "1", pid="Spans", tid="PyTorch Profiler"),
        ),
    )
    ranges = timeline["ranges"]
    found = [
        (timeline.text(int(name)), timeline.text(int(domain)))
        for name, domain in zip(ranges["name"], ranges["domain"], strict=True)
    ]
    assert len(timeline["gpu"]) == 1
    assert found == [("step", "annotation"), ("aten::mm", "cpu_op"), ("f", "python")]


def test_names_of_threads_and_processes(tmp_path: Path) -> None:
    def named(kind: str, pid: int, tid: Any, **args: str) -> str:
        return json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args})

    timeline = read(
        tmp_path,
        document(
            kernel(),
            named("process_name", 6_000_000_001, 0, name="python3"),
            named("thread_name", 6_000_000_001, 140_737_353_873_152, name="worker"),
            named("process_name", 0, 0, name="python3"),
            named("process_labels", 0, 0, labels="GPU 0"),
            named("thread_name", 0, "stream 7", name="stream 7"),
        ),
    )
    assert timeline["processes"]["process"].tolist() == [6_000_000_001]
    assert timeline["threads"]["thread"].tolist() == [140_737_353_873_152]


def test_header_and_devices(tmp_path: Path) -> None:
    job = {"backend": "nccl", "rank": 3, "world_size": 8, "nccl_version": "2.28.9"}
    devices = [{"id": 0, "name": "GPU A", "numSms": 132, "warpSize": 32}, {"id": 1, "name": "B"}]
    head = HEAD | {"distributedInfo": job, "deviceProperties": devices, "cupti_version": 130001}
    timeline = read(tmp_path, document(api(), kernel(), head=head))
    header = timeline.header
    assert (header.rank, header.world_size, header.nccl) == (3, 8, "2.28.9")
    (device,) = timeline.devices
    assert (device.device, device.name, device.process) == (0, "GPU A", 100)
    assert device.limits == {"sms": 132, "warp_size": 32}
    assert timeline.input.rank == 3
    assert timeline.input.events == 2


def test_collectives_of_kernels(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "Collective name": "allreduce",
        "dtype": "BFloat16",
        "Process Group Name": "0",
    }
    said |= {"In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 2}
    host = event("cpu_op", "record_param_comms", "1", args={"External id": 9, "Seq": 17} | said)
    own = kernel("ncclDevKernel_AllReduce", correlation=5, args_too={"External id": 9} | said)
    gathered = said | {"Collective name": "_allgather_base", "Out msg nelems": 2000}
    other = kernel("ncclDevKernel_AllGather", correlation=6, ts="20.000", args_too=gathered)
    timeline = read(tmp_path, document(host, own, other, kernel("plain", ts="30.000")))
    table = timeline["collectives"]
    assert table["bytes"].tolist() == [2000, 2000]
    assert table["seq"].tolist() == [17, UNKNOWN]
    assert table["correlation"].tolist() == [5, 6]
    assert [timeline.text(int(op)) for op in table["op"]] == ["all_reduce", "all_gather"]
    assert [timeline.text(int(dtype)) for dtype in table["dtype"]] == ["bf16", "bf16"]


def test_collectives_told_by_the_host_range_alone(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "Process Group Name": "0",
    }
    said |= {"In msg nelems": 10, "Out msg nelems": 10, "Group size": 2, "Seq": 3}
    host = event("cpu_op", "record_param_comms", "1", args={"External id": 9} | said)
    timeline = read(tmp_path, document(host, kernel("ncclKernel", args_too={"External id": 9})))
    assert timeline["collectives"]["bytes"].tolist() == [40]
    assert timeline["collectives"]["seq"].tolist() == [3]


def test_exact_duplicates_go_and_near_ones_stay(tmp_path: Path) -> None:
    timeline = read(tmp_path, document(kernel(), kernel(), kernel("other"), kernel(correlation=2)))
    assert len(timeline["gpu"]) == 3
    assert findings(timeline) == {"duplicate_records": 1}


def test_links_that_only_flows_tell_are_found(tmp_path: Path) -> None:
    launch = event("cuda_runtime", "cudaLaunchKernel", "5.000")
    work = event("kernel", "k", "10.000", pid=0, tid=7, args={"device": 0, "stream": 7})
    flows = [
        '{"ph": "s", "id": 77, "pid": 100, "tid": 101, "ts": 5.000, "cat": "ac2g", "name": "ac2g"}',
        '{"ph": "f", "id": 77, "pid": 0, "tid": 7, "ts": 10.000, "cat": "ac2g", "name": "ac2g"}',
    ]
    timeline = read(tmp_path, document(launch, work, *flows))
    assert timeline["gpu"]["correlation"].tolist() == [77]
    assert timeline["api"]["correlation"].tolist() == [77]


def test_a_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    text = f"[{kernel()},\n{kernel(correlation=2)}]".encode()
    timeline = read(tmp_path, text)
    assert len(timeline["gpu"]) == 2
    assert findings(timeline) == {}


@pytest.mark.parametrize("args", ["null", "[1]", '"text"', "5"])
def test_arguments_that_are_no_object_say_nothing(tmp_path: Path, args: str) -> None:
    work = event("kernel", "k", "10", pid=2, tid=7).replace('"args": {}', f'"args": {args}')
    call = api(ts="5").replace('{"correlation": 1}', args)
    timeline = read(tmp_path, document(kernel(), work, call))
    assert timeline["gpu"]["device"].tolist() == [0, 2]
    assert timeline["api"]["correlation"].tolist() == [UNKNOWN]


def test_the_cost_of_the_tracer_is_told_and_that_of_cuda_is_not(tmp_path: Path) -> None:
    timeline = read(
        tmp_path,
        document(
            kernel(),
            event("overhead", "Activity Buffer Request", "1", "3.5"),
            event("overhead", "Lazy Function Loading", "1", "90"),
        ),
    )
    (finding,) = timeline.findings
    assert (finding.code, finding.count) == ("tracer_overhead", 1)
    assert "3500 ns" in finding.detail


def test_names_that_are_no_text(tmp_path: Path) -> None:
    timeline = read(tmp_path, document(*(kernel(name) for name in (None, 5, True, "k"))))
    found = [timeline.text(int(code)) for code in timeline["gpu"]["name"]]
    assert found == [None, "5", "True", "k"]


def test_an_indented_file(tmp_path: Path) -> None:
    data = json.loads(document(kernel(), kernel(correlation=2), api()))
    timeline = read(tmp_path, json.dumps(data, indent=4).encode())
    assert len(timeline["gpu"]) == 2
    assert findings(timeline) == {}


def test_times_out_of_range_are_unknown(tmp_path: Path) -> None:
    timeline = read(tmp_path, document(kernel(ts="9" * 16), kernel(ts="1", dur="9" * 30)))
    assert timeline["gpu"]["start"].tolist() == [UNKNOWN, BASE + 1000]
    assert timeline["gpu"]["end"].tolist() == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("data", [b"[]", b'{"traceEvents": []}', b'{"schemaVersion": 1, "traceEv'])
def test_a_file_without_events_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UnreadableInput, match=r"trace\.json: byte \d+: expected .* found none"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (b"kernel\x01042", "kernel\ufffd042"),
        (b"kernel\xff042", "kernel\ufffd042"),
        (b"kernel\n042", "kernel\ufffd042"),
        (b'kernel"042', 'kernel"042'),
        (b'"kernel"', '"kernel"'),
        (b"kernel\\q042", "kernel\ufffdq042"),
        (b"kernel\\ud800042", "kernel\ufffd042"),
    ],
)
def test_broken_text_costs_itself_alone(tmp_path: Path, name: bytes, found: str) -> None:
    broken = kernel("MARK", ts="20.000").encode().replace(b"MARK", name)
    data = document(kernel("before"), "HERE", kernel("after", ts="40.000"))
    timeline = read(tmp_path, data.replace(b"HERE", broken))
    assert [timeline.text(int(code)) for code in timeline["gpu"]["name"]] == [
        "before",
        found,
        "after",
    ]
    assert findings(timeline) == {"bad_text": 1}


def test_numbers_that_are_none_cost_no_finding(tmp_path: Path) -> None:
    data = document(kernel(), kernel(occupancy="MARK", ts="20.000"))
    for token in (b"NaN", b"-inf", b"Infinity"):
        timeline = read(tmp_path, data.replace(b'"MARK"', token))
        assert len(timeline["gpu"]) == 2
        assert findings(timeline) == {}


def test_an_event_beyond_repair_is_dropped_and_counted(tmp_path: Path) -> None:
    data = document(kernel(), '{"ph": "X", "name": }', kernel(ts="20.000"))
    timeline = read(tmp_path, data)
    assert len(timeline["gpu"]) == 2
    assert findings(timeline) == {"dropped_records": 1}
    (finding,) = timeline.findings
    assert str(data.index(b'{"ph": "X", "name": }')) in finding.detail


EVENTS = [kernel(f"kernel_{number}", ts=f"{number}.000") for number in range(1, 30)]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, len(document(*EVENTS)) - 1))
def test_a_file_cut_anywhere_gives_the_events_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    data = document(*EVENTS)
    whole = sum(data.index(text.encode()) + len(text) <= cut for text in EVENTS)
    folder = tmp_path_factory.mktemp("cut")
    if whole == 0:
        path = folder / "trace.json"
        path.write_bytes(data[:cut])
        with pytest.raises(UnreadableInput):
            kineto.read(source(path))
        return
    timeline = read(folder, data[:cut])
    assert len(timeline["gpu"]) == whole
    assert findings(timeline) == {"truncated": 1}


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, len(document(*EVENTS)) - 1), byte=st.integers(0, 255))
def test_any_broken_byte_costs_at_most_an_event_or_two(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
) -> None:
    data = bytearray(document(*EVENTS))
    begin = data.index(EVENTS[0].encode())
    place = begin + place % (len(data) - begin - len('], "traceName": "t"}'))
    data[place] = byte
    timeline = read(tmp_path_factory.mktemp("broken"), bytes(data))
    assert len(timeline["gpu"]) >= len(EVENTS) - 2


@settings(max_examples=50, deadline=None)
@given(block=st.integers(200, 9000))
def test_pieces_of_any_size_hold_the_same_events(
    tmp_path_factory: pytest.TempPathFactory, block: int
) -> None:
    data = document(
        *EVENTS, api(), event("cpu_op", "op", "1", args={"list": [{"id": 1}, {"id": 2}]})
    )
    path = tmp_path_factory.mktemp("pieces") / "trace.json"
    path.write_bytes(data)
    with source(path).open() as stream:
        share = kineto_pieces.read_share(Pieces(stream, block), itertools.count())
    assert sum(batch.events for batch in share.batches) == len(EVENTS) + 2
    assert not any(batch.dropped or batch.bad_text for batch in share.batches)
    assert share.batches[-1].tail is not None


def large(tmp_path: Path) -> Source:
    """A file of several pieces in a gzip stream."""
    events = [
        text
        for number in range(20_000)
        for text in (
            api(ts=f"{10 * number}.001", correlation=number),
            kernel(f"k{number % 37}", ts=f"{10 * number + 5}.001", correlation=number),
        )
    ]
    path = tmp_path / "large.json.gz"
    path.write_bytes(gzip.compress(document(*events), 1))
    return source(path)


def two_helpers(_: Source) -> int:
    """How many helpers any file gets."""
    return 2


def same(one: Timeline, other: Timeline) -> bool:
    """Whether two timelines hold the same records with the same names."""
    for name, table in one.tables.items():
        for column in table.schema:
            values = [timeline[name][column] for timeline in (one, other)]
            if table.schema[column] == "text":
                texts = [np.array([*t.strings.texts, None]) for t in (one, other)]
                values = [text[value] for text, value in zip(texts, values, strict=True)]
            if not np.array_equal(values[0], values[1]):
                return False
    return True


def test_a_helper_process_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = large(tmp_path)
    monkeypatch.setattr(kineto_pieces, "MOST_HELPERS", 0)
    (alone,) = kineto.read(trace).timelines
    monkeypatch.setattr(kineto_pieces, "_helper_count", two_helpers)
    (helped,) = kineto.read(trace).timelines
    (again,) = kineto.read(trace).timelines
    assert len(alone["gpu"]) == 20_000
    assert same(alone, helped)
    assert helped.strings.texts == again.strings.texts
    assert np.array_equal(helped["gpu"]["name"], again["gpu"]["name"])


def test_a_helper_that_fails_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto_pieces, "_helper_count", two_helpers)
    monkeypatch.setattr(kineto_pieces, "_HELPER", "rca_llm.no_such_module")
    (timeline,) = kineto.read(large(tmp_path)).timelines
    assert len(timeline["gpu"]) == len(timeline["api"]) == 20_000


def test_a_helper_that_cannot_be_started_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto_pieces, "_helper_count", two_helpers)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python-that-is-not-there"))
    (timeline,) = kineto.read(large(tmp_path)).timelines
    assert len(timeline["gpu"]) == 20_000


def test_mend_leaves_sound_text_alone() -> None:
    text = kernel(
        'quote " backslash \\ é \ud83d\ude00'.encode("utf-16", "surrogatepass").decode("utf-16")
    ).encode()
    assert mend(text, valid_event) == text


def test_salvage_finds_the_end_of_the_list() -> None:
    text = f'{kernel()}, {kernel()}], "other": [{{"name": 1}}, {{"name": 2}}]}}'.encode()
    found = salvage(text, valid_event, last=True)
    assert len(found.events) == 2
    assert found.tail is not None
    assert found.tail.startswith(b', "other"')


def recorded() -> list[Any]:
    """The recorded Kineto files and what they hold."""
    index = DATA / "INDEX.tsv"
    if not index.exists():
        reason = f"no recorded traces at {DATA}"
        return [pytest.param({}, marks=pytest.mark.skip(reason=reason))]
    with index.open(newline="") as file:
        rows = [r for r in csv.DictReader(file, delimiter="\t") if r["kind"].startswith("kineto")]
    return [pytest.param(row, id=row["file"]) for row in rows]


@pytest.mark.parametrize("row", recorded())
def test_recorded_traces(row: dict[str, str]) -> None:
    found = source(DATA / row["file"])
    assert kineto.matches(found)
    (timeline,) = kineto.read(found).timelines
    gpu = timeline["gpu"]
    kernels = gpu["kind"] == KERNEL
    assert int(np.count_nonzero(kernels)) == int(row["kernels"] or 0)
    assert int(np.count_nonzero(gpu["kind"] == MEMCPY)) >= int(row["copies"] or 0)
    assert busy(timeline) == json.loads(row["busy_ns by device"] or "{}")
    assert not findings(timeline).keys() - {"tracer_overhead"}


def busy(timeline: Timeline) -> dict[str, int]:
    """The union of the kernels of each device, ns."""
    gpu = timeline["gpu"]
    result: dict[str, int] = {}
    for device in np.unique(gpu["device"][gpu["kind"] == KERNEL]).tolist():
        rows = (gpu["kind"] == KERNEL) & (gpu["device"] == device)
        order = np.argsort(gpu["start"][rows], kind="stable")
        start, end = gpu["start"][rows][order], gpu["end"][rows][order]
        reached = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
        result[str(device)] = int(np.maximum(end - np.maximum(start, reached), 0).sum())
    return result
