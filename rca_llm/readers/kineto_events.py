"""Kineto events as columns: decoding of event text and extraction of what the tables need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from rca_llm.readers import kineto_own
from rca_llm.readers.exact import ints, nanoseconds, smalls
from rca_llm.readers.jsontext import UNDECODABLE
from rca_llm.readers.kineto_products import OPERANDS, Shapes, as_columns, product
from rca_llm.table import NO_TEXT, UNKNOWN, Array
from rca_llm.trace import GRAPH, KERNEL, MEMCPY, MEMSET

Columns = dict[str, Array]

GPU_KINDS = {
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    "cuda_graph": GRAPH,  # our own export's
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

_NAMING = ("process_name", "process_labels", "thread_name")
"""The metadata events that are read."""

_LATEST = 1 << 62
"""Times from this one on (the year 2116) are none; sums of two below it fit 64 bits."""

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
    rca: Any = None


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


class RangeArgs(msgspec.Struct, gc=False):
    """What our own export says of a range."""

    rca: Any = None


class _External(msgspec.Struct):
    """The id that a host range and what it launched have in common."""

    external: Any = msgspec.field(default=None, name="External id")


class NameArgs(msgspec.Struct):
    """What a metadata event says."""

    name: Any = None
    labels: Any = None


T = TypeVar("T")


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind, float_hook=str).decode


def _args_decoder(kind: type[T]) -> Callable[[Sequence[Event]], list[T]]:
    """What decodes the arguments of events; those that are no object say nothing."""
    decode_all, decode_one = _decoder(list[kind]), _decoder(kind)  # type: ignore[valid-type]

    def one(event: Event) -> T:
        try:
            return cast(T, decode_one(event.args))
        except UNDECODABLE:
            return kind()

    def decode(events: Sequence[Event]) -> list[T]:
        try:  # as one list, which is faster than one by one
            return cast(list[T], decode_all(b"[" + b",".join([e.args for e in events]) + b"]"))
        except UNDECODABLE:
            return list(map(one, events))

    return decode


decode_events: Callable[[bytes], list[Event]] = _decoder(list[Event])
decode_flows: Callable[[bytes], list[Flow]] = _decoder(list[Flow])
decode_comm: Callable[[bytes], CommArgs] = _decoder(CommArgs)
_decode_event = _decoder(Event)
_gpu_args = _args_decoder(GpuArgs)
_api_args = _args_decoder(ApiArgs)
_comm_args = _args_decoder(CommArgs)
_range_args = _args_decoder(RangeArgs)
_shapes = _args_decoder(Shapes)
_externals = _args_decoder(_External)
_name_args = _args_decoder(NameArgs)


def valid_event(text: bytes) -> bool:
    """Whether a text is one event that can be read."""
    try:
        _decode_event(text)
    except UNDECODABLE:
        return False
    return True


class Texts(dict[Any, int]):
    """Codes of texts in the order in which they first occur; None has `NO_TEXT`."""

    def __missing__(self, text: object) -> int:
        if text is None:
            return NO_TEXT
        if not isinstance(text, str):
            return self[str(text)]
        self[text] = len(self)
        return self[text]

    def codes(self, texts: Iterable[object]) -> Array:
        """A code for every text; what is none is spelled out."""
        return np.array([self[text] for text in texts], np.int32)


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
            found["products"] += _products(group)
        elif known_as == "overhead":
            found["overhead"].append(_spans(group, texts))
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
    start[(start == 0) | (start <= -_LATEST) | (start >= _LATEST)] = UNKNOWN
    length[(length <= -_LATEST) | (length >= _LATEST)] = UNKNOWN
    end = np.where((start == UNKNOWN) | (length == UNKNOWN), UNKNOWN, start + length)
    return {"start": start, "end": end, "name": texts.codes([event.name for event in events])}


def _ranges(events: Sequence[Event], domain: str, texts: Texts) -> Columns:
    own = [args.rca for args in _range_args(events)] if domain == "annotation" else []
    return _spans(events, texts) | {
        "domain": np.full(len(events), texts[domain], np.int32),
        "process": ints([event.pid for event in events]),
        "thread": ints([event.tid for event in events]),
        "own": kineto_own.codes(own, len(events), texts),
    }


def _api(events: Sequence[Event], texts: Texts) -> Columns:
    args = _api_args(events)
    return _spans(events, texts) | {
        "process": ints([event.pid for event in events]),
        "thread": ints([event.tid for event in events]),
        "correlation": ints([arg.correlation for arg in args]),
    }


_GPU_INTS = ("stream", "correlation", "graph_node", "bytes", "external")
_GPU_SMALLS = ("device", "registers", "shared")


def _gpu(events: Sequence[Event], kind: int, texts: Texts) -> Columns:
    args = _gpu_args(events)
    columns = _spans(events, texts)
    columns["kind"] = np.full(len(events), kind, np.int32)
    columns |= {name: ints(list(map(attrgetter(name), args))) for name in _GPU_INTS}
    columns |= {name: smalls(list(map(attrgetter(name), args))) for name in _GPU_SMALLS}
    columns |= _sizes("grid", [arg.grid for arg in args])
    columns |= _sizes("block", [arg.block for arg in args])
    columns["direction"] = texts.codes([str(arg.kind or "") for arg in args])
    columns["said"] = np.full(len(events), NO_TEXT, np.int32)
    rows = [row for row, arg in enumerate(args) if arg.collective is not None]
    columns["said"][rows] = _said([events[row] for row in rows], texts)
    columns["own"] = kineto_own.codes([arg.rca for arg in args], len(events), texts)
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
    ids = ints([args.external for args in _externals(described)])
    return [{"external": ids, "said": _said(described, texts)}]


def _products(events: Sequence[Event]) -> list[Columns]:
    """The matrix products among operators that were recorded with shapes."""
    named = [event for event in events if event.name in OPERANDS]
    pairs = zip(named, _shapes(named), strict=True) if named else ()
    found = [(a.external, told) for e, a in pairs if (told := product(str(e.name), a))]
    if not found:
        return []
    return [as_columns([told for _, told in found], ints([id for id, _ in found]))]


def _said(events: Sequence[Event], texts: Texts) -> Array:
    """The code of what each event says of a collective, as JSON; `NO_TEXT` where it names none."""
    codes = [
        NO_TEXT if args.op is None else texts[msgspec.json.encode(args).decode()]
        for args in _comm_args(events)
    ]
    return np.array(codes, np.int32)


def _note_names(events: Sequence[Event], batch: Batch) -> None:
    named = [event for event in events if event.name in _NAMING]
    for event, args in zip(named, _name_args(named), strict=True):
        text = str(args.name or args.labels or "")
        batch.names.append((str(event.name), event.pid, event.tid, text))
