"""Content that no reader reads, by name, so that the refusal says what to do instead."""

from __future__ import annotations

import re

from rca_llm.readers.files import Source

_STARTS = (
    (b"\x00\x05\x16\x07", "the macOS half (`._…`) of a copied file: give the file without `._`"),
    (b"\x89HDF", "HDF5: export the report with `nsys export --type sqlite`"),
    (b"ARROW1", "an Arrow file: export the report with `nsys export --type sqlite`"),
    (b"NVR\x00", "a report of Nsight Compute, which has no timeline: record with Nsight Systems"),
    (b"PK\x03\x04", "a zip archive: unpack it"),
    (b"PAR1", "one Parquet table: give the directory of the whole export"),
    (b"%PDF", "a PDF document"),
)
"""How formats begin."""

_PARTS = (
    (rb"^SQLite format 3\0.*rocpd_", "a ROCm RPD database: convert it with rpd2tracing.py"),
    (rb"rocprofiler-sdk|rocprofv3", "rocprofiler JSON: record with torch.profiler instead"),
    (rb'"type": ?"Profiler(Lifecycle|Event)|"commId"', "the output of an NCCL profiler plugin"),
    (rb"nccl-tests|NCCL INFO|# nThread \d", "the log of an NCCL program: it has no timeline"),
    (
        rb'"error_request_count"|"inter_token_latency_s"',
        "a load generator's results: they have no timeline; requests can be given as RCA events",
    ),
    (rb'^\s*\[?\s*\{"?Type"?:', "a JSON export of Nsight Systems: export with `--type sqlite`"),
)
"""What formats hold near their beginning."""

_TABLE = re.compile(rb"[\w .\"-]+([,;\t][\w .\"-]*){2,}\r?\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def described(found: Source) -> str:
    """What a file is, by how it begins, for the line that refuses it."""
    head, packed = found.head, found.compression
    if not head and packed and found.damaged:
        return f"{packed} data that is damaged or cut short, of which nothing can be decompressed"
    if not head:
        return f"a {packed} file of nothing" if packed else "an empty file"
    if found.damaged:
        return f"{packed} data that is damaged after {len(head):,} bytes of content: {_named(head)}"
    return _named(head)


def _named(head: bytes) -> str:
    for start, name in _STARTS:
        if head.startswith(start):
            return name
    for pattern, name in _PARTS:
        if re.search(pattern, head, re.DOTALL):
            return name
    if _CONTROL.search(head):
        return f"other binary content ({head[:8].hex(' ')})"
    if _TABLE.match(head):
        return "a table of values (CSV): it has no timeline"
    return f"text that begins {head[:24].decode(errors='replace')!r}"
