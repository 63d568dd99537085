"""Opening of inputs: what they are, compressed or remote or damaged, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard

from rca_llm import readers
from rca_llm.distributed.job import TOGETHER, analyse
from rca_llm.errors import RcaError, UnreadableInput
from rca_llm.readers.files import HEAD, source

TEXT = b"".join(b"line %06d\n" % number for number in range(60_000))


def kineto(rank: int) -> bytes:
    """A Kineto file with one kernel."""
    kernel: dict[str, Any] = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 5,
        "dur": 1,
    }
    kernel["args"] = {"device": 0, "stream": 7, "correlation": 1}
    job = {"rank": rank, "world_size": 2}
    return json.dumps({"distributedInfo": job, "traceEvents": [kernel]}).encode()


def content(path: Path | str) -> tuple[bytes, bool]:
    """What a stream gives, read in uneven steps, and whether it calls itself truncated."""
    with source(path).open() as stream:
        parts = list(iter(lambda: stream.read(70_001), b""))
        return b"".join(parts), stream.truncated


@pytest.mark.parametrize(
    "packed",
    [
        TEXT,
        gzip.compress(TEXT),
        gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]),
        gzip.compress(TEXT) + bytes(512),
        zstandard.compress(TEXT),
        zstandard.compress(TEXT[:1000]) + zstandard.compress(TEXT[1000:]),
    ],
    ids=["plain", "gzip", "gzip members", "gzip and padding", "zstd", "zstd frames"],
)
def test_content_is_the_same_however_it_is_packed(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "named.anyhow"
    path.write_bytes(packed)
    assert content(path) == (TEXT, False)
    assert source(path).head == TEXT[:HEAD]


def test_a_cut_gzip_gives_everything_before_the_cut(tmp_path: Path) -> None:
    packer = zlib.compressobj(wbits=31)
    flushed = packer.compress(TEXT[:5000]) + packer.flush(zlib.Z_SYNC_FLUSH)
    path = tmp_path / "cut.gz"
    path.write_bytes(flushed)
    assert content(path) == (TEXT[:5000], True)


@pytest.mark.parametrize("packed", [gzip.compress(TEXT), zstandard.compress(TEXT)])
def test_a_damaged_stream_ends_without_an_error(tmp_path: Path, packed: bytes) -> None:
    half = len(packed) // 2
    path = tmp_path / "damaged"
    path.write_bytes(packed[:half] + b"\xff" * 64 + packed[half + 64 :])
    data, truncated = content(path)
    assert truncated
    assert TEXT.startswith(data[: len(TEXT) // 8])


def test_remote_paths_are_read_through_fsspec() -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/job/rank0.json.gz", gzip.compress(kineto(0)))
    system.pipe("/job/rank1.json", kineto(1))
    assert content("memory://job/rank0.json.gz") == (kineto(0), False)
    trace = readers.read("memory://job")
    assert [timeline.header.rank for timeline in trace.timelines] == [0, 1]
    with source("memory://job/rank0.json.gz").local() as path:
        assert path.read_bytes() == kineto(0)
    assert not path.exists()


def test_a_plain_local_file_is_used_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "plain"
    path.write_bytes(TEXT)
    with source(path).local() as local:
        assert local == path


def test_a_packed_file_has_a_local_copy_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    path.write_bytes(zstandard.compress(TEXT))
    with source(path).local() as local:
        assert local.read_bytes() == TEXT
    assert not local.exists()


def test_a_missing_path_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(RcaError, match=r"nothing\.json: no such file") as caught:
        readers.read(tmp_path / "nothing.json")
    assert caught.value.status == 2


def test_a_pipe_is_refused_and_passed_over_in_a_directory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RcaError, match="is a pipe"):
        source(tmp_path / "pipe")
    (tmp_path / "rank0.json").write_bytes(kineto(0))
    assert len(readers.read(tmp_path).timelines) == 1


def test_a_missing_protocol_is_wrong_usage() -> None:
    with pytest.raises(RcaError, match="cannot be opened") as caught:
        readers.read("nowhere-at-all://bucket/file")
    assert caught.value.status == 2


@pytest.mark.parametrize("data", [b"", b"hello", bytes(9), b"{}", b"[1, 2]"], ids=repr)
def test_unknown_content_is_refused_with_its_place(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(UnreadableInput, match=r"trace\.json: byte 0: expected .*; found") as caught:
        readers.read(path)
    assert caught.value.status == 3
    assert "\n" not in str(caught.value)


def test_a_directory_is_one_job_and_foreign_files_in_it_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(kineto(1))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(kineto(0)))
    (tmp_path / "notes.txt").write_text("nothing to see")
    (tmp_path / "._a.json").write_bytes(b"\x00\x05\x16\x07")
    trace = readers.read(tmp_path)
    assert [timeline.header.rank for timeline in trace.timelines] == [0, 1]
    assert [timeline.input.rank for timeline in trace.timelines] == [0, 1]


def test_several_paths_are_one_job(tmp_path: Path) -> None:
    paths = [tmp_path / "0.json", tmp_path / "1.json"]
    for rank, path in enumerate(paths):
        path.write_bytes(kineto(rank))
    trace = readers.load(*paths)
    assert [timeline.input.path for timeline in trace.timelines] == [str(path) for path in paths]


def test_a_directory_without_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see")
    (tmp_path / "empty").touch()
    with pytest.raises(UnreadableInput, match=r"holds no trace; .* in this directory$"):
        readers.read(tmp_path)


def test_a_large_directory_without_a_trace_is_refused_as_one(tmp_path: Path) -> None:
    for number in range(TOGETHER + 1):
        (tmp_path / f"{number}").touch()
    with pytest.raises(UnreadableInput) as caught:
        analyse([tmp_path], jobs=1)
    assert re.search("holds no trace; .* in this directory$", str(caught.value))


def test_a_rank_that_holds_nothing_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_bytes(kineto(0))
    (tmp_path / "1.json").write_bytes(b'{"traceEvents": []}')
    trace = readers.read(tmp_path)
    assert [timeline.header.rank for timeline in trace.timelines] == [0]
    (finding,) = trace.findings
    assert (finding.code, finding.count) == ("truncated", 1)
    assert "1.json" in finding.where
