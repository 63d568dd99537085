"""RCA event files: every record type, every kind of damage."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rca_llm import load
from rca_llm.errors import UnreadableInput
from rca_llm.quality import repair
from rca_llm.readers import events
from rca_llm.readers.events_tables import TYPES, Builder
from rca_llm.readers.events_values import Values
from rca_llm.readers.files import source
from rca_llm.table import UNKNOWN, Strings
from rca_llm.trace import COPY_KINDS, GRAPH, KERNEL, MEMCPY, MEMORY_KINDS, TABLES, Timeline

UTC = 1_700_000_000_000_000_000
HEADER = {"type": "header", "schema": "rca-llm/events/1", "clock": "utc", "rank": 0}
GPU = {"type": "gpu", "kind": "kernel", "start": UTC, "end": UTC + 5, "name": "k", "pid": 1}
OTHER = GPU | {"name": "other"}


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def written(path: Path, *records: dict[str, Any], header: dict[str, Any] | None = HEADER) -> Path:
    path.write_bytes(lines(*([header] if header else []), *records))
    return path


def read(path: Path) -> Timeline:
    found = source(path)
    assert events.matches(found)
    return events.read(found).timelines[0]


def rows(timeline: Timeline, table: str) -> list[dict[str, Any]]:
    """The known values of every row, codes as texts."""
    schema, found = TABLES[table], timeline[table]
    return [
        {
            name: timeline.text(int(values[row])) if schema[name] == "text" else values[row].item()
            for name, values in found.known.items()
            if values[row] != (UNKNOWN if schema[name] in ("time", "int") else -1)
        }
        for row in range(len(found))
    ]


def findings(timeline: Timeline) -> dict[str, int]:
    return {finding.code: finding.count for finding in timeline.findings}


def test_header(tmp_path: Path) -> None:
    header = HEADER | {
        "clock": "monotonic",
        "anchor": [5, UTC],
        "job": "j",
        "same_rank_as": "a.sqlite",
        "host": "h0",
        "rank": 1,
        "world_size": 4,
        "nccl": "2.28.9",
        "engine": "vllm",
        "note": 7,
    }
    timeline = read(written(tmp_path / "e", GPU, header=header))
    found = timeline.header
    assert (found.utc, found.anchors) == (False, [(5, UTC)])
    assert (found.job, found.same_rank_as, found.host, found.nccl) == (
        "j",
        "a.sqlite",
        "h0",
        "2.28.9",
    )
    assert (found.rank, found.world_size, found.engine) == (1, 4, "vllm")
    assert found.extra["note"] == 7
    assert (timeline.input.format, timeline.input.rank, timeline.input.events) == ("events", 1, 1)
    assert timeline["gpu"]["start"].tolist() == [UTC]


def test_device_work(tmp_path: Path) -> None:
    more = {"device": 1, "stream": 7, "correlation": 5, "registers": 32, "shared": 0, "step": 3}
    shape = {"grid": [2, 3, 4], "block": [128, 1, 1]}
    copy = {"kind": "memcpy", "copy": "H2D", "src": "pageable", "dst": "device", "bytes": 4096}
    timeline = read(
        written(tmp_path / "e", GPU | more | shape, GPU | copy, GPU | {"kind": "graph"})
    )
    kernel, copied, graph = rows(timeline, "gpu")
    assert kernel == {
        "kind": KERNEL,
        "start": UTC,
        "end": UTC + 5,
        "name": "k",
        "process": 1,
        **more,
        "grid_x": 2,
        "grid_y": 3,
        "grid_z": 4,
        "block_x": 128,
        "block_y": 1,
        "block_z": 1,
    }
    assert (copied["kind"], COPY_KINDS[copied["copy"]], copied["bytes"]) == (MEMCPY, "H2D", 4096)
    assert [MEMORY_KINDS[copied[end]] for end in ("src", "dst")] == ["pageable", "device"]
    assert graph["kind"] == GRAPH


def test_requests_and_marks(tmp_path: Path) -> None:
    timeline = read(
        written(
            tmp_path / "e",
            {"type": "request", "id": "A", "arrival": 5, "prompt_tokens": 3},
            {"type": "request", "id": "A", "finished": 9, "token_times": [7, 9]},
            {"type": "request", "id": "B", "arrival": 5, "finished": 8},
            {"type": "request", "id": 17, "arrival": 6},
            {"type": "event", "t": 8, "name": "aborted", "request": "B"},
        )
    )
    first, second, third = rows(timeline, "requests")
    assert first == {
        "id": "A",
        "arrival": 5,
        "finished": 9,
        "prompt_tokens": 3,
        "status": "finished",
    }
    assert second["status"] == "aborted"
    assert third == {"id": "17", "arrival": 6}
    assert rows(timeline, "tokens") == [{"request": "A", "t": 7}, {"request": "A", "t": 9}]
    assert rows(timeline, "marks") == [{"t": 8, "name": "aborted", "request": "B"}]


def test_steps_and_their_batches(tmp_path: Path) -> None:
    step = {"type": "step", "pid": 1, "start": 0, "end": 9, "mode": "graph", "batch": 2}
    timeline = read(
        written(
            tmp_path / "e",
            step | {"id": 4, "requests": {"A": {"phase": "prefill", "tokens": 512}}},
            step | {"id": 5, "start": None, "requests": {"Z": {"phase": "decode"}}},
            step | {"id": 6, "requests": ["A", "B"]},
        )
    )
    assert timeline["steps"]["id"].tolist() == [4, 6]
    assert rows(timeline, "batch") == [
        {"step": 0, "request": "A", "phase": "prefill", "tokens": 512},
        {"step": 1, "request": "A"},
        {"step": 1, "request": "B"},
    ]
    assert findings(timeline) == {"no_timestamp": 1}


def test_host_records(tmp_path: Path) -> None:
    place = {"pid": 1, "tid": 2**40, "start": 1, "end": 4}
    span = {"kind": "file", "name": "load", "bytes": 9, "path": "/w", "fs": "nfs", "request": "A"}
    state = {"type": "thread", "name": "main", "state": "gil", **place}
    collective = {"op": "all_reduce", "comm": "tp", "seq": 5, "bytes": 8, "start": 1, "end": 2}
    timeline = read(
        written(
            tmp_path / "e",
            {"type": "span", **place, **span},
            {"type": "api", **place, "name": "cudaLaunchKernel", "correlation": 5},
            state,
            {"type": "process", "pid": 1, "name": "EngineCore", "rank": 0},
            {"type": "sample", "t": 3, "metric": "gpu.power_w", "device": 0, "value": 1.5},
            {"type": "collective", **collective, "rank": 1},
        )
    )
    where = {"process": 1, "thread": 2**40, "start": 1, "end": 4}
    assert rows(timeline, "ranges") == [where | span | {"domain": "probe"}]
    assert rows(timeline, "api") == [where | {"name": "cudaLaunchKernel", "correlation": 5}]
    assert rows(timeline, "states") == [where | {"state": "gil"}]
    assert rows(timeline, "threads") == [{"process": 1, "thread": 2**40, "name": "main"}]
    assert rows(timeline, "processes") == [{"process": 1, "name": "EngineCore", "rank": 0}]
    assert rows(timeline, "samples") == [
        {"t": 3, "metric": "gpu.power_w", "device": 0, "value": 1.5}
    ]
    assert rows(timeline, "collectives") == [collective | {"rank": 1}]


def test_order_changes_nothing(tmp_path: Path) -> None:
    records = [GPU | {"start": UTC + n, "name": f"k{n % 3}"} for n in range(50)]
    records += [{"type": "api", "start": UTC + n, "end": UTC + n, "name": "a"} for n in range(50)]
    shuffled = random.Random(0).sample(records, len(records))
    plain, other = read(written(tmp_path / "e", *records)), read(written(tmp_path / "f", *shuffled))
    for table in ("gpu", "api"):
        assert sorted(map(str, rows(plain, table))) == sorted(map(str, rows(other, table)))


def test_records_that_came_twice(tmp_path: Path) -> None:
    timeline = read(written(tmp_path / "e", GPU, OTHER, GPU, GPU | {"stream": 1}))
    repair(timeline)
    assert len(timeline["gpu"]) == 3
    assert findings(timeline)["duplicate_records"] == 1


def test_unknown_keys_and_types(tmp_path: Path) -> None:
    timeline = read(
        written(tmp_path / "e", GPU | {"mood": "good", "type ": 1}, {"type": "weather", "t": 1})
    )
    assert len(timeline["gpu"]) == 1
    (finding,) = timeline.findings
    assert (finding.code, finding.count, finding.where) == ("dropped_records", 1, "type 'weather'")


@pytest.mark.parametrize(
    ("given", "expected", "repaired"),
    [
        (UTC, UTC, 0),
        (5.0, 5, 0),
        (2.6, 3, 1),
        ("17", UNKNOWN, 1),
        (True, UNKNOWN, 1),
        ([1], UNKNOWN, 1),
        (2**70, UNKNOWN, 1),
        (1e300, UNKNOWN, 1),
        (None, UNKNOWN, 0),
    ],
)
def test_times_of_other_types(tmp_path: Path, given: Any, expected: int, repaired: int) -> None:
    timeline = read(written(tmp_path / "e", GPU, OTHER | {"start": given}))
    assert timeline["gpu"]["start"].tolist() == [UTC, expected]
    assert findings(timeline).get("repaired", 0) == repaired


def test_values_of_other_types_elsewhere(tmp_path: Path) -> None:
    odd = {"name": ["k"], "device": 2**40, "grid": "big", "block": [1, "x"], "copy": 7}
    timeline = read(written(tmp_path / "e", GPU | odd))
    (row,) = rows(timeline, "gpu")
    assert row == {"kind": KERNEL, "start": UTC, "end": UTC + 5, "process": 1, "block_x": 1}


def test_spans_that_end_before_they_start_or_never(tmp_path: Path) -> None:
    span = {"type": "span", "pid": 1, "name": "s", "start": 10}
    timeline = read(written(tmp_path / "e", span | {"end": 4}, span, span | {"end": 30}))
    assert timeline["ranges"]["end"].tolist() == [10, 30, 30]
    assert findings(timeline) == {"negative_duration": 1, "repaired": 1}


def test_a_missing_header(tmp_path: Path) -> None:
    timeline = read(written(tmp_path / "e", GPU, header=None))
    assert timeline.header.utc is True
    assert findings(timeline) == {"repaired": 1}
    monotonic = read(written(tmp_path / "f", GPU | {"start": 5, "end": 6}, header=None))
    assert (monotonic.header.utc, monotonic.header.anchors) == (False, [])


@pytest.mark.parametrize(
    ("damaged", "code"),
    [
        (b'{"type":"gpu","kind":"kernel","name":"k\x01","start":1,"end":2}', "bad_text"),
        (b'{"type":"gpu","kind":"kernel","name":"k\x9f","start":1,"end":2}', "bad_text"),
        (b'{"type":"gpu","kind":"kernel","name":"k","start":1,"end":2,"x":NaN}', "bad_text"),
    ],
)
def test_damaged_text(tmp_path: Path, damaged: bytes, code: str) -> None:
    path = tmp_path / "e"
    path.write_bytes(lines(HEADER, GPU) + damaged + b"\n" + lines(OTHER))
    timeline = read(path)
    assert len(timeline["gpu"]) == 3
    assert findings(timeline) == {code: 1}
    assert timeline.findings[0].where == f"byte {len(lines(HEADER, GPU))}"


@pytest.mark.parametrize("line", [b'{"type":"gpu","name":"a"b"}', b"}{", b"[1]", b"7", b"\xff" * 9])
def test_lines_that_cannot_be_mended_cost_only_themselves(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "e"
    path.write_bytes(lines(HEADER, GPU) + line + b"\n\n" + lines(OTHER))
    timeline = read(path)
    assert len(timeline["gpu"]) == 2
    assert findings(timeline) == {"bad_text": 1}


@pytest.mark.parametrize("cut", [1, 20, 80])
def test_a_torn_last_line(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "e"
    path.write_bytes(lines(HEADER, GPU, GPU)[: -1 - cut])
    timeline = read(path)
    assert len(timeline["gpu"]) == 1
    assert findings(timeline) == {"truncated": 1}


def test_a_last_line_without_its_end_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(lines(HEADER, GPU)[:-1])
    assert findings(read(path)) == {}


def test_compressed(tmp_path: Path) -> None:
    content = lines(HEADER, *(GPU | {"end": UTC + n} for n in range(5000)))
    for name, packed in (("a", gzip.compress(content)), ("b", zstandard.compress(content))):
        (tmp_path / name).write_bytes(packed)
        assert len(read(tmp_path / name)["gpu"]) == 5000


def test_a_cut_gzip(tmp_path: Path) -> None:
    records = [GPU | {"start": UTC + 7919 * n} for n in range(20_000)]
    packed = gzip.compress(lines(HEADER, *records))
    (tmp_path / "e").write_bytes(packed[: len(packed) // 2])
    timeline = read(tmp_path / "e")
    assert 100 < len(timeline["gpu"]) < 20_000
    assert findings(timeline) == {"truncated": 1}


def test_lines_longer_than_a_block(tmp_path: Path) -> None:
    long = {"type": "request", "id": "A", "arrival": 1, "token_times": [UTC] * 400_000}
    timeline = read(written(tmp_path / "e", GPU, long, OTHER))
    assert (len(timeline["gpu"]), len(timeline["tokens"])) == (2, 400_000)


def test_refusals(tmp_path: Path) -> None:
    path = written(tmp_path / "e")
    with pytest.raises(UnreadableInput, match=r"e: byte 7.: expected events; found none"):
        read(path)
    for content in (b"", b"{}", b'{"type":"ProfilerLifecycle","rank":2}', b'{"traceEvents":[]}'):
        path.write_bytes(content)
        assert not events.matches(source(path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values),
    max_leaves=5,
)
KEYS = sorted({"requests", "token_times", "tid", "pid", "anchor", "grid", *sum(TYPES.values(), ())})


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6)), st.data())
def test_any_record_at_all(records: list[dict[str, Any]], data: st.DataObject) -> None:
    for record in records:
        record["type"] = data.draw(st.sampled_from(sorted(TYPES)))
    builder = Builder("e")
    builder.add(records)
    timeline = builder.finished()
    for name in ("api", "ranges", "steps", "states", "collectives"):
        table = timeline[name]
        assert np.all(table["start"] != UNKNOWN)
        assert np.all(table["end"] >= table["start"])


@given(st.lists(st.none() | st.integers(-(2**63) + 1, 2**63 - 1)))
def test_integers_are_kept_exactly(values: list[int | None]) -> None:
    found = Values(Strings()).ints(values, "x").tolist()
    assert found == [UNKNOWN if value is None else value for value in values]


@pytest.mark.parametrize("key", ["threads", "short_calls", "side_files", "gaps", "devices"])
@pytest.mark.parametrize("value", [5, "x", [1], [{}], {"a": 1}, True])
def test_a_header_may_say_anything_where_other_readers_keep_rows(
    tmp_path: Path, key: str, value: object
) -> None:
    header = {"type": "header", "schema": "rca-llm/events/1", "clock": "utc", key: value}
    span = {"type": "span", "pid": 1, "tid": 1, "name": "a", "start": 5, "end": 9}
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps(header) + "\n" + json.dumps(span) + "\n")
    assert load(path).attribute().summary["totals"]["ranges"] == 1
