from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm.exporters import perfetto, protobuf
from rca_llm.exporters.tracks import Slice, Track
from rca_llm.readers import load
from rca_llm.report import Report
from rca_llm.table import known
from tests.sample_trace import Shape, trace

protos = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
    reason="the published protos are not installed (pip install perfetto)",
)

DEVICE = ("kernel", "memcpy", "memset")


class Read:
    """A trace read with the published protos: the slices of every track, flows and counters."""

    def __init__(self, path: Path) -> None:
        self.tracks: dict[int, Any] = {}
        self.slices: list[tuple[int, str, str, int, int]] = []
        self.flows: dict[str, list[int]] = {"out": [], "in": []}
        self.counters: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self._texts: dict[str, dict[int, str]] = {"names": {}, "categories": {}}
        self._open: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
        self._last: dict[int, int] = {}
        whole = protos.Trace()
        whole.ParseFromString(path.read_bytes())
        for packet in whole.packet:
            self._packet(packet)
        assert not any(self._open.values())

    def _packet(self, packet: Any) -> None:
        for entry in packet.interned_data.event_names:
            self._texts["names"][entry.iid] = entry.name
        for entry in packet.interned_data.event_categories:
            self._texts["categories"][entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        elif packet.HasField("track_event"):
            self._event(packet.timestamp, packet.track_event)

    def _event(self, time: int, event: Any) -> None:
        track = event.track_uuid
        assert track in self.tracks
        assert time >= self._last.get(track, 0)
        self._last[track] = time
        if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
            name = self._texts["names"][event.name_iid]
            category = self._texts["categories"][event.category_iids[0]]
            self._open[track].append((name, category, time))
            self.flows["out"] += event.flow_ids
            self.flows["in"] += event.terminating_flow_ids
        elif event.type == protos.TrackEvent.TYPE_SLICE_END:
            name, category, start = self._open[track].pop()
            self.slices.append((track, name, category, start, time))
        else:
            self.counters[track].append((time, event.double_counter_value))


def exported(report: Report, tmp_path: Path) -> Read:
    target = tmp_path / "out.pftrace"
    perfetto.write(report, target)
    return Read(target)


def device_intervals(report: Report) -> list[tuple[int, int]]:
    return sorted(
        (start, end)
        for timeline in report.trace.timelines
        for start, end in zip(
            timeline["gpu"]["start"].tolist(), timeline["gpu"]["end"].tolist(), strict=True
        )
        if start != -(2**63)
    )


def test_device_slices_are_those_of_the_trace(tmp_path: Path) -> None:
    report = trace().attribute()
    read = exported(report, tmp_path)
    found = sorted((s, e) for _, _, category, s, e in read.slices if category in DEVICE)
    assert found == device_intervals(report)


@pytest.mark.parametrize(
    "name",
    [
        "h200/generate.nsys.sqlite.gz",
        "kineto/facebookresearch__HolisticTraceAnalysis__critical_path_event_sync_multi_stream.json.gz",
    ],
)
def test_recorded_traces_keep_every_device_record(shared: Path, tmp_path: Path, name: str) -> None:
    report = load(shared / "data" / name).attribute()
    read = exported(report, tmp_path)
    found = sorted((s, e) for _, _, category, s, e in read.slices if category in DEVICE)
    assert found == device_intervals(report)
    ranges = sum(int(known(line["ranges"]["start"]).sum()) for line in report.trace.timelines)
    host = [row for row in read.slices if row[2] not in (*DEVICE, "api", "part", "request", "step")]
    assert len(host) == ranges


def test_requests_and_their_parts_are_there(tmp_path: Path) -> None:
    report = trace().attribute()
    read = exported(report, tmp_path)
    lives = {
        name: end - start for _, name, category, start, end in read.slices if category == "request"
    }
    assert lives == {row["id"]: row["latency_ns"] for row in report.summary["requests"]}


def test_every_launch_flows_to_its_kernel(tmp_path: Path) -> None:
    report = trace().attribute()
    read = exported(report, tmp_path)
    assert len(read.flows["out"]) == report.summary["totals"]["api_calls"]
    assert set(read.flows["out"]) <= set(read.flows["in"])


def test_counters_keep_their_values(tmp_path: Path) -> None:
    report = trace().attribute()
    read = exported(report, tmp_path)
    samples = report.trace.timelines[0]["samples"]
    (points,) = read.counters.values()
    assert points == list(zip(samples["t"].tolist(), samples["value"].tolist(), strict=True))


def test_ids_fit_32_bits_and_hostile_names_are_text(tmp_path: Path) -> None:
    source = trace(Shape(prefix="\ud800\u202e<b>"))
    for table in source.timelines[0].tables.values():
        if "process" in table:
            table["process"][:] = 2**62 + 7
        if "thread" in table:
            table["thread"][:] = 2**62 + 9
    read = exported(source.attribute(), tmp_path)
    for track in read.tracks.values():
        for ids in (track.process.pid, track.thread.pid, track.thread.tid):
            assert 0 <= ids < 2**31
    assert any(str(2**62 + 9) in track.thread.thread_name for track in read.tracks.values())


SLICES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 30)).map(
        lambda pair: Slice(pair[0], pair[0] + pair[1], "s", "c")
    ),
    max_size=30,
)


@given(SLICES, st.booleans())
def test_lanes_hold_every_slice_and_nest(slices: list[Slice], nests: bool) -> None:
    lanes = Track(1, None, "t", slices, nests).lanes()
    assert sorted((s.start, s.end) for lane in lanes for s in lane) == sorted(
        (s.start, s.end) for s in slices
    )
    for lane in lanes:
        for at, first in enumerate(lane):
            for second in lane[at + 1 :]:
                apart = second.start >= first.end
                inside = nests and second.end <= first.end
                assert apart or inside


@given(st.integers(-(2**63), 2**64 - 1))
def test_numbers_are_written_as_protobuf_writes_them(value: int) -> None:
    unsigned = value & 0xFFFF_FFFF_FFFF_FFFF
    packet = protos.TracePacket(timestamp=unsigned)
    assert protobuf.number(8, value) == packet.SerializeToString()
