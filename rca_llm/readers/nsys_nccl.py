"""NCCL's NVTX payloads in an Nsight Systems export: size and communicator of each collective.

They are there where the export was made with `--include-blobs=true` by a version that knows them.
A blob is a head of 32 bytes (u32 domain, u64 schema at 8, u64 size at 16), then the structure that
the schema describes; which field lies where stands in tables of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from rca_llm.readers import nccl, nccl_rows
from rca_llm.readers.nsys_store import Chunk, Export, process, thread
from rca_llm.table import UNKNOWN, known
from rca_llm.trace import Timeline

_HEAD, _SCHEMA_AT, _SIZE_AT = 32, 8, 16
_RANGES = (59, 60)
_WIDTHS = {5: 4, 17: 8, 18: 8, 22: 8}
"""Bytes of the types of NVTX that NCCL's fields have: int, int64, uint64, size_t. Enumerations are
types of their own, as wide as an int."""

_COLUMNS = ("start", "end", "eventType", "globalTid", "textId", "domainId")

_Field = tuple[str, int, int]
"""The name of a field, where it begins, and its bytes."""

_Schemas = Mapping[int, Sequence[_Field]]


def add(export: Export, timeline: Timeline) -> None:
    """Append the collectives whose kernels were launched inside a call that NVTX tells of."""
    schemas = _schemas(export)
    if not schemas or not export.has("NVTX_EVENTS", "binaryData"):
        return
    calls: dict[int, list[nccl_rows.Call]] = defaultdict(list)
    for chunk in export.chunks("NVTX_EVENTS", _COLUMNS, ("binaryData",)):
        for owner, call in _calls(export, chunk, schemas):
            calls[owner].append(call)
    for owner, own in calls.items():
        nccl.add_rows(timeline, nccl_rows.Rows(calls=own), owner)


def _schemas(export: Export) -> _Schemas:
    """The fields of each schema that has a communicator or a size, by its number."""
    found: dict[int, dict[str, _Field]] = defaultdict(dict)
    numbers = ("schemaId", "type", "offset")
    for row, texts in export.records("NVTX_PAYLOAD_SCHEMA_ENTRIES", numbers, ("name",)):
        name = texts.get("name", "")
        field = name, row.get("offset", 0), _WIDTHS.get(row.get("type", 0), 4)
        found[row.get("schemaId", -1)][name] = field
    wanted = {nccl_rows.COMM, nccl_rows.SIZE}
    return {id: [*own.values()] for id, own in found.items() if wanted & own.keys()}


def _calls(export: Export, chunk: Chunk, schemas: _Schemas) -> list[tuple[int, nccl_rows.Call]]:
    """NCCL's calls among some events, each with its process."""
    rows = np.flatnonzero(np.isin(chunk["eventType"], _RANGES) & known(chunk["end"]))
    names = export.texts(chunk["textId"][rows])
    owners, threads = process(chunk["globalTid"]), thread(chunk["globalTid"])
    starts, ends = export.time(chunk["start"]), export.time(chunk["end"])
    blobs = chunk.texts.get("binaryData")
    found: list[tuple[int, nccl_rows.Call]] = []
    texts = {code: export.strings[code] for code in np.unique(names).tolist() if code >= 0}
    for row, code in zip(rows.tolist(), names.tolist(), strict=True):
        if not texts.get(code, "").startswith("nccl") or owners[row] == UNKNOWN:
            continue
        numbers = _numbers(blobs.get(row) if blobs else None, schemas)
        times = int(starts[row]), int(ends[row])
        call = nccl_rows.Call(texts[code], *times, int(threads[row]), numbers)
        found.append((int(owners[row]), call))
    return found


def _numbers(blob: bytes | None, schemas: _Schemas) -> Mapping[str, int]:
    """The fields of a payload by name; empty where it is not what its head says."""
    if blob is None or len(blob) < _HEAD:
        return {}
    schema = int.from_bytes(blob[_SCHEMA_AT : _SCHEMA_AT + 8], "little")
    size = int.from_bytes(blob[_SIZE_AT : _SIZE_AT + 8], "little")
    fields, payload = schemas.get(schema), blob[_HEAD:]
    if fields is None or size > len(payload):
        return {}
    return {
        name: int.from_bytes(payload[at : at + width], "little", signed=width == 4)
        for name, at, width in fields
        if at + width <= size
    }
