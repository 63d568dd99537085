"""PyTorch's Flight Recorder: what each rank was doing in its process groups, and what it awaits.

A dump (pickle or JSON, `torch.distributed` 2.3 and later) holds the last collectives of one rank,
no kernels and no calls. A collective begins when it was asked for (`time_created_ns`) and ends when
PyTorch noticed that it had (`time_discovered_completed_ns`), which may be late by its watchdog's
period; one that PyTorch still watches has not ended. Dumps come from crashed jobs of anybody: a
pickle is read by an unpickler that makes nothing but lists, tuples, dictionaries, texts, numbers.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
from collections.abc import Sequence
from typing import Any, NoReturn, cast

import numpy as np

from rca_llm.attribute.collective_names import element_type
from rca_llm.attribute.members import listed
from rca_llm.errors import UnreadableInput
from rca_llm.readers.files import Source
from rca_llm.readers.mending import mend
from rca_llm.table import UNKNOWN, Table
from rca_llm.trace import COLLECTIVES, PARTIAL, Header, Input, Timeline, Trace

_MARKS = (b"pg_config", b"pg_status", b"profiling_name", b"comm_lib_version", b"nccl_version")
_PICKLE = b"\x80"

_PAIR = re.compile(r"(send|recv)\D*(\d+)\s*(->|<-)\s*(\d+)")
_RANK_IN_NAME = re.compile(r"(\d+)(?:\.[a-z]+)*$", re.IGNORECASE)

_RECEIVED = ("reduce_scatter",)
"""Operations whose share of one rank is what it receives."""


def matches(source: Source) -> bool:
    """Whether the content is a pickle or a JSON object that speaks of process groups."""
    head = source.head
    begins = head.startswith(_PICKLE) or head.lstrip().startswith(b"{")
    named = sum(mark in head for mark in _MARKS)
    return begins and named >= 2 and b"traceEvents" not in head


def read(source: Source) -> Trace:
    """The collectives of one rank; `UnreadableInput` where there are none."""
    with source.open() as stream:
        data = stream.readall()
        truncated = stream.truncated
    said = _content(source, data)
    entries = [_dict(entry) for entry in _list(said.get("entries"))]
    timeline = Timeline(Input(source.path, "flight"), _header(source, said))
    groups = _groups(said)
    rows = [row for entry in entries if (row := _row(entry, groups)) is not None]
    timeline.note(
        "dropped_records", len(entries) - len(rows), source.path, "entries without a time"
    )
    timeline.note("truncated", int(truncated), source.path, "the file ends early")
    if not rows:
        raise UnreadableInput(f"{source.path}: byte 0: expected collectives under entries")
    timeline.add("collectives", _table(timeline, rows))
    mend(timeline)
    timeline.input = Input(
        source.path,
        "flight",
        tool="PyTorch Flight Recorder",
        tool_version=_text(said.get("version")),
        rank=timeline.header.rank,
        events=len(rows),
    )
    return Trace([timeline])


class _Unpickler(pickle.Unpickler):
    """Unpickles plain data and refuses all else, so that no dump can run code."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside")


def _content(source: Source, data: bytes) -> dict[str, Any]:
    try:
        if data.startswith(_PICKLE):
            found = _Unpickler(io.BytesIO(data)).load()
        else:
            found = json.loads(data)
    except Exception as error:  # unpickling broken bytes raises nearly anything
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise UnreadableInput(
            f"{source.path}: byte 0: expected a Flight Recorder dump; {reason}"
        ) from None
    if not isinstance(found, dict):
        raise UnreadableInput(f"{source.path}: byte 0: expected a dictionary with entries")
    return cast("dict[str, Any]", found)


def _list(value: Any) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else []


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _header(source: Source, said: dict[str, Any]) -> Header:
    """The rank is in the file's name alone, unless a version says it."""
    rank = said.get("rank")
    named = _RANK_IN_NAME.search(source.name)
    if not isinstance(rank, int):
        rank = int(named.group(1)) if named else None
    world = max((len(ranks) for _, ranks in _groups(said).values()), default=0) or None
    nccl = _text(said.get("nccl_version")) or _text(said.get("comm_lib_version"))
    return Header(rank=rank, world_size=world, nccl=nccl, extra={PARTIAL: True})


def _groups(said: dict[str, Any]) -> dict[str, tuple[str, list[int]]]:
    """Of each group the description and the ranks, by name."""
    found: dict[str, tuple[str, list[int]]] = {}
    for key, own in _dict(said.get("pg_config")).items():
        config = _dict(own)
        ranks = config.get("ranks")
        if isinstance(ranks, str):
            ranks = [int(number) for number in re.findall(r"\d+", ranks)]
        numbers = sorted(number for number in _list(ranks) if isinstance(number, int))
        found[str(config.get("name") or key)] = _text(config.get("desc")) or "", numbers
    return found


def communicator(name: str, description: str, ranks: Sequence[int]) -> str:
    """A group in words that are the same on all of its ranks, and in no other group."""
    told = description if description not in ("", "undefined", name) else ""
    words = [name, told, f"[{listed(list(ranks))}]" if ranks else ""]
    return " ".join(filter(None, words))


def _row(entry: dict[str, Any], groups: dict[str, tuple[str, list[int]]]) -> dict[str, Any] | None:
    """A `collectives` row, None where it has no time."""
    start = _time(entry.get("time_created_ns"))
    if start is None:
        return None
    name = str(next(iter(_list(entry.get("process_group"))), entry.get("pg_id", "")))
    description, ranks = groups.get(name, ("", []))
    comm, size = communicator(name, description, ranks), len(ranks) or UNKNOWN
    op = (_text(entry.get("profiling_name")) or "").rpartition(":")[2]
    seq = entry.get("collective_seq_id", entry.get("seq_id"))
    pair = _PAIR.search(op)
    if pair or entry.get("is_p2p"):
        op, comm, size = _pair(op, comm)
        seq = entry.get("p2p_seq_id", seq)
    bytes, dtype = _size(entry, op, len(ranks))
    end = _time(entry.get("time_discovered_completed_ns"))
    over = bool(entry.get("retired")) or entry.get("state") == "completed"
    return {
        "comm": comm,
        "op": op or None,
        "seq": seq if isinstance(seq, int) else UNKNOWN,
        "group_size": size,
        "bytes": bytes,
        "dtype": dtype,
        "start": start,
        "end": end if end is not None else start if over else UNKNOWN,
    }


def _pair(op: str, comm: str) -> tuple[str, str, int]:
    """A send or receive as both of its sides name it."""
    found = _PAIR.search(op)
    if found is None:
        return op, comm, 2
    name, one, way, other = found.groups()
    source, target = (one, other) if way == "->" else (other, one)
    return name, f"{comm} {source}>{target}", 2


def _time(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _size(entry: dict[str, Any], op: str, ranks: int) -> tuple[int, str | None]:
    """The bytes of one rank's part, and the type."""
    side = "output" if any(name in op for name in _RECEIVED) else "input"
    dtype = next((str(one).lower() for one in _list(entry.get(f"{side}_dtypes"))), "")
    name, width = element_type(dtype or None)
    shapes = [_list(shape) for shape in _list(entry.get(f"{side}_sizes"))]
    plain = all(isinstance(n, int) for shape in shapes for n in shape)
    if not width or not shapes or not plain:
        return UNKNOWN, name
    total = sum(math.prod(shape) for shape in shapes) * width
    return total // max(ranks, 1) if "all_to_all" in op or "alltoall" in op else total, name


def _table(timeline: Timeline, rows: Sequence[dict[str, Any]]) -> Table:
    texts = ("comm", "op", "dtype")
    strings = timeline.strings
    return Table(
        COLLECTIVES,
        {
            name: strings.codes(row[name] for row in rows)
            if name in texts
            else np.array([row[name] for row in rows], np.int64)
            for name in rows[0]
        },
    )
