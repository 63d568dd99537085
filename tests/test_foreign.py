"""Content that nobody reads is refused with its name and what to do instead."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
import zstandard

from rca_llm import readers
from rca_llm.errors import UnreadableInput
from rca_llm.readers.files import Source
from rca_llm.readers.foreign import described


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"", "an empty file"),
        (b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X", "macOS"),
        (b"SQLite format 3\0" + bytes(200) + b"CREATE TABLE rocpd_api", "RPD"),
        (b'{"rocprofiler-sdk-tool": [{"metadata": 1}]}', "rocprofiler"),
        (b'{"type":"ProfilerLifecycle","func":"ProfilerInit"}', "NCCL profiler plugin"),
        (b"# nThread 1 nGpus 2 minBytes 8388608", "NCCL program"),
        (b'[{"error_code": null, "inter_token_latency_s": 0.1}]', "load generator"),
        (b"prompt_tokens,ttft,finish_time\n76.0,0.05,17.5\n", "CSV"),
        (b"\x89HDF\r\n\x1a\n", "nsys export --type sqlite"),
        (b"\x7fELF\x02\x01\x01\x00", "7f 45 4c 46"),
        (b"INFO server started\n", "'INFO server started"),
    ],
)
def test_names(head: bytes, name: str) -> None:
    assert name in described(Source("x", head))
    assert "\n" not in described(Source("x", head))


def test_the_line_of_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_bytes(b"a,b,c,d\n1,2,3,4\n")
    with pytest.raises(UnreadableInput, match=r"results\.csv: byte 0: expected .*; found a table"):
        readers.read(path)


def _members(whole: bytes) -> list[tuple[bytes, str]]:
    packed = gzip.compress(whole)
    return [
        (b"", "an empty file"),
        (gzip.compress(b""), "a gzip file of nothing"),
        (packed[:8], "gzip data that is damaged or cut short, of which nothing"),
        (b"\x1f\x8b\x08\0" + bytes(range(200)), "gzip data that is damaged or cut short"),
        (zstandard.compress(whole)[:7] + b"\xff" * 90, "zstd data that is damaged or cut short"),
        (packed[: len(packed) // 2], "bytes of content: text that begins"),
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_broken_archive_is_not_called_empty(tmp_path: Path, number: int) -> None:
    numbers = random.Random(7)
    text = " ".join(str(numbers.random()) for _ in range(4000))
    content, words = _members(text.encode())[number]
    path = tmp_path / "bad.gz"
    path.write_bytes(content)
    with pytest.raises(UnreadableInput, match=words):
        readers.read(path)
    with pytest.raises(UnreadableInput, match="found"):
        readers.read(tmp_path)
