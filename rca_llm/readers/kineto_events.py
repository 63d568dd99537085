"""Kineto events as columns: decoding of event text and extraction of what the tables need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, cast

import msgspec
import numpy as np

from rca_llm.readers.exact import ints, nanoseconds, smalls
from rca_llm.table import NO_TEXT, UNKNOWN, Array
from rca_llm.trace import KERNEL, MEMCPY, MEMSET

Columns = dict[str, Array]

GPU_KINDS = {
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
}
"""Categories of device work, in lower case; `cuda_sync` and projected annotations are none."""

API_CATEGORIES = frozenset(
    f"{maker}{kind}"
    for maker in ("", "cuda_", "hip_", "xpu_", "mtia_", "privateuse1_")
    for kind in ("runtime", "driver")
)
RANGE_DOMAINS = {
    "user_annotation": "annotation",
    "cpu_op": "cpu_op",
    "operator": "cpu_op",
    "python_function": "python",
}
"""The domain of each category of host ranges."""

COMMS = "record_param_comms"
"""The name of the range in which torch.distributed describes a collective."""

_NO_ARGS = msgspec.Raw(b"{}")


class Event(msgspec.Struct, gc=False):
    """The fields of an event that are read; numbers with a point stay text."""

    ph: str
    cat: str | None = None
    name: str | int | float | bool | None = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = _NO_ARGS


class Flow(msgspec.Struct, gc=False):
    """An arrow from a launch to what it launched."""

    ph: str
    id: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None


class GpuArgs(msgspec.Struct, gc=False):
    """What is said of device work."""

    device: Any = None
    stream: Any = None
    correlation: Any = None
    external: Any = msgspec.field(default=None, name="External id")
    grid: Any = None
    block: Any = None
    registers: Any = msgspec.field(default=None, name="registers per thread")
    shared: Any = msgspec.field(default=None, name="shared memory")
    bytes: Any = None
    kind: Any = None
    graph_node: Any = msgspec.field(default=None, name="graph node id")
    collective: Any = msgspec.field(default=None, name="Collective name")


class ApiArgs(msgspec.Struct, gc=False):
    """What is said of an API call."""

    correlation: Any = None


class CommArgs(msgspec.Struct, omit_defaults=True):
    """What is said of a collective, on its host range or on its kernel."""

    op: Any = msgspec.field(default=None, name="Collective name")
    dtype: Any = None
    sent: Any = msgspec.field(default=None, name="In msg nelems")
    received: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    seq: Any = msgspec.field(default=None, name="Seq")


class _External(msgspec.Struct):
    """The id that a host range and what it launched have in common."""

    external: Any = msgspec.field(default=None, name="External id")


class NameArgs(msgspec.Struct):
    """What a metadata event says."""

    name: Any = None
    labels: Any = None


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind, float_hook=str).decode


decode_events: Callable[[bytes], list[Event]] = _decoder(list[Event])
decode_flows: Callable[[bytes], list[Flow]] = _decoder(list[Flow])
_decode_event = _decoder(Event)
_decode_gpu = _decoder(list[GpuArgs])
_decode_api = _decoder(list[ApiArgs])
decode_comm: Callable[[bytes], CommArgs] = _decoder(CommArgs)
_decode_external = _decoder(_External)
_decode_name = _decoder(NameArgs)


def valid_event(text: bytes) -> bool:
    """Whether a text is one event that can be read."""
    try:
        event: Event = _decode_event(text)
        _decode_gpu(_args([event]))
        decode_comm(event.args)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


class Texts(dict[str, int]):
    """Codes of texts in the order in which they first occur."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]

    def codes(self, texts: Iterable[object]) -> Array:
        """A code for every text; what is none is spelled out."""
        try:
            return np.array([self[text] for text in texts], np.int32)  # type: ignore[index]
        except TypeError:
            return np.array([self[str(text)] for text in texts], np.int32)


@dataclass
class Batch:
    """What a piece held, times relative to the file's base time."""

    index: int
    events: int = 0
    tables: dict[str, Columns] = field(default_factory=dict[str, Columns])
    names: list[tuple[str, Any, Any, str]] = field(default_factory=list[tuple[str, Any, Any, str]])
    """Metadata: which name, pid, tid and the name itself."""
    bad_text: int = 0
    dropped: list[int] = field(default_factory=list[int])
    """Byte offsets of events that could not be read."""
    tail: bytes | None = None
    """What follows the list of events, None where it does not end in this piece."""


def extract(events: Sequence[Event], texts: Texts, batch: Batch) -> None:
    """Put what the events say into a batch."""
    groups: dict[str | None, list[Event]] = defaultdict(list)
    for event in events:
        groups[event.cat if event.ph == "X" else event.ph].append(event)
    batch.events += len(events)
    found: dict[str, list[Columns]] = defaultdict(list)
    for category, group in groups.items():
        known_as = (category or "").lower()
        if known_as in GPU_KINDS:
            found["gpu"].append(_gpu(group, GPU_KINDS[known_as], texts))
        elif known_as in API_CATEGORIES:
            found["api"].append(_api(group, texts))
        elif known_as in RANGE_DOMAINS:
            found["ranges"].append(_ranges(group, RANGE_DOMAINS[known_as], texts))
            found["comms"] += _comms(group, texts)
        elif category == "M":
            _note_names(group, batch)
    batch.tables = {name: joined(parts) for name, parts in found.items() if parts}


def joined(parts: Sequence[Columns]) -> Columns:
    """The rows of several batches of equal columns, one after another."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _spans(events: Sequence[Event], texts: Texts) -> Columns:
    """Start, end and name; a time of 0 is none."""
    start = nanoseconds([event.ts for event in events])
    length = nanoseconds([event.dur for event in events])
    start[start == 0] = UNKNOWN
    end = np.where((start == UNKNOWN) | (length == UNKNOWN), UNKNOWN, start + length)
    return {"start": start, "end": end, "name": texts.codes([event.name for event in events])}


def _ranges(events: Sequence[Event], domain: str, texts: Texts) -> Columns:
    return _spans(events, texts) | {
        "domain": np.full(len(events), texts[domain], np.int32),
        "process": ints([event.pid for event in events]),
        "thread": ints([event.tid for event in events]),
    }


def _api(events: Sequence[Event], texts: Texts) -> Columns:
    args: list[ApiArgs] = _decode_api(_args(events))
    return _spans(events, texts) | {
        "process": ints([event.pid for event in events]),
        "thread": ints([event.tid for event in events]),
        "correlation": ints([arg.correlation for arg in args]),
    }


def _args(events: Sequence[Event]) -> bytes:
    """The arguments of all events as one JSON list, which decodes faster than each alone."""
    return b"[" + b",".join([event.args for event in events]) + b"]"


_GPU_INTS = ("stream", "correlation", "graph_node", "bytes", "external")
_GPU_SMALLS = ("device", "registers", "shared")


def _gpu(events: Sequence[Event], kind: int, texts: Texts) -> Columns:
    args: list[GpuArgs] = _decode_gpu(_args(events))
    columns = _spans(events, texts)
    columns["kind"] = np.full(len(events), kind, np.int32)
    columns |= {name: ints(list(map(attrgetter(name), args))) for name in _GPU_INTS}
    columns |= {name: smalls(list(map(attrgetter(name), args))) for name in _GPU_SMALLS}
    columns |= _sizes("grid", [arg.grid for arg in args])
    columns |= _sizes("block", [arg.block for arg in args])
    columns["direction"] = texts.codes([str(arg.kind or "") for arg in args])
    columns["said"] = np.full(len(events), NO_TEXT, np.int32)
    for row, arg in enumerate(args):
        if arg.collective is not None:
            columns["said"][row] = _said(events[row], texts)
    _fill_tracks(columns, events)
    return columns


def _fill_tracks(columns: Columns, events: Sequence[Event]) -> None:
    """Device and stream from the track where the arguments do not say them."""
    for column, unknown, track in (("device", -1, "pid"), ("stream", UNKNOWN, "tid")):
        missing = np.flatnonzero(columns[column] == unknown)
        if len(missing):
            values = [getattr(events[row], track) for row in map(int, missing)]
            columns[column][missing] = smalls(values) if unknown == -1 else ints(values)


def _sizes(name: str, values: Sequence[Any]) -> Columns:
    """The three dimensions of a grid or block."""
    try:
        table = np.array(values, np.int32)
    except (TypeError, ValueError, OverflowError):
        table = np.array([_dimensions(value) for value in values], np.int32)
    if table.shape != (len(values), 3):
        table = np.array([_dimensions(value) for value in values], np.int32).reshape(-1, 3)
    return {f"{name}_{axis}": table[:, place].copy() for place, axis in enumerate("xyz")}


def _dimensions(value: Any) -> list[int]:
    sizes = cast(list[object], value) if isinstance(value, list) else []
    return [int(size) for size in smalls(sizes)] if len(sizes) == 3 else [-1, -1, -1]


def _comms(events: Sequence[Event], texts: Texts) -> list[Columns]:
    """What host ranges say of collectives, by the id that the kernels have too."""
    described = [event for event in events if event.name == COMMS]
    if not described:
        return []
    ids = [_decode_external(event.args).external for event in described]
    said = np.array([_said(event, texts) for event in described], np.int32)
    return [{"external": ints(ids), "said": said}]


def _said(event: Event, texts: Texts) -> int:
    """The code of what an event says of a collective, as JSON; `NO_TEXT` where it names none."""
    args = decode_comm(event.args)
    return NO_TEXT if args.op is None else texts[msgspec.json.encode(args).decode()]


def _note_names(events: Sequence[Event], batch: Batch) -> None:
    for event in events:
        if event.name in ("process_name", "thread_name", "process_labels"):
            args: NameArgs = _decode_name(event.args)
            batch.names.append(
                (str(event.name), event.pid, event.tid, str(args.name or args.labels or ""))
            )
