"""Collectives of Kineto: what kernels and `record_param_comms` ranges say of them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from rca_llm.readers.exact import ints
from rca_llm.readers.kineto_events import Columns, CommArgs, decode_comm
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Strings, Table
from rca_llm.trace import COLLECTIVES, KERNEL, Timeline

TYPES = {
    "bfloat16": ("bf16", 2),
    "half": ("fp16", 2),
    "float": ("fp32", 4),
    "double": ("fp64", 8),
    "byte": ("uint8", 1),
    "char": ("int8", 1),
    "short": ("int16", 2),
    "int": ("int32", 4),
    "long": ("int64", 8),
    "bool": ("bool", 1),
    "float8_e4m3fn": ("fp8_e4m3", 1),
    "float8_e5m2": ("fp8_e5m2", 1),
}
"""The short name and size in bytes of each of torch's types."""

_OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
}
"""Operations by what torch's names of them hold, longest words first where one holds another."""


def collectives(columns: Columns, comms: Columns | None, timeline: Timeline) -> Table:
    """The kernels of collectives that are described, with the description.

    A kernel carries its own (torch 2.2 and later), or has the external id of the host range that
    does. The sequence number stands on the host range alone in some versions.
    """
    own = columns["said"]
    host = _of_hosts(columns, comms)
    rows = np.flatnonzero((columns["kind"] == KERNEL) & ((own != NO_TEXT) | (host != NO_TEXT)))
    if not len(rows):
        return Table(COLLECTIVES)
    said = [
        _described(timeline, int(kernel), int(call))
        for kernel, call in zip(own[rows], host[rows], strict=True)
    ]
    return Table(COLLECTIVES, _placed(columns, rows) | _descriptions(said, timeline.strings))


def _placed(columns: Columns, rows: Ints) -> Columns:
    names = ("process", "device", "start", "end", "correlation")
    return {name: columns[name][rows] for name in names}


def _of_hosts(columns: Columns, comms: Columns | None) -> Array:
    """The code of what the host range of each record says, `NO_TEXT` where there is none."""
    ids = columns["external"]
    if comms is None:
        return np.full(len(ids), NO_TEXT, np.int32)
    usable = (comms["said"] != NO_TEXT) & (comms["external"] != UNKNOWN)
    keys, said = comms["external"][usable], comms["said"][usable]
    order = np.argsort(keys, kind="stable")
    if not len(order):
        return np.full(len(ids), NO_TEXT, np.int32)
    place = np.minimum(np.searchsorted(keys[order], ids), len(order) - 1)
    found = order[place]
    return np.where(keys[found] == ids, said[found], NO_TEXT)


def _described(timeline: Timeline, kernel: int, call: int) -> CommArgs:
    """What a kernel says of its collective, completed by what its host range says."""
    texts = [timeline.strings[code] for code in (kernel, call) if code != NO_TEXT]
    first, *rest = [decode_comm(text.encode()) for text in texts]
    for other in rest:
        if first.seq is None and (first.op, first.group) == (other.op, other.group):
            first.seq = other.seq
    return first


def _descriptions(said: list[CommArgs], strings: Strings) -> Columns:
    dtypes = [TYPES.get(str(one.dtype).lower()) for one in said]
    sizes = ints([one.group_size for one in said])
    return {
        "comm": strings.codes(_text(one.group) for one in said),
        "op": strings.codes(_op(one.op) for one in said),
        "seq": ints([one.seq for one in said]),
        "group_size": sizes,
        "dtype": strings.codes(
            dtype[0] if dtype else _text(one.dtype) for one, dtype in zip(said, dtypes, strict=True)
        ),
        "bytes": _bytes(said, (dtype[1] if dtype else None for dtype in dtypes), sizes),
    }


def _bytes(said: list[CommArgs], widths: Iterable[int | None], sizes: Ints) -> Ints:
    """The message size: of one rank's part where the operation joins or splits parts."""
    sent, received = ints([one.sent for one in said]), ints([one.received for one in said])
    values: list[int] = []
    for one, width, ranks, *counts in zip(said, widths, sizes, sent, received, strict=True):
        known = [int(count) for count in counts if count != UNKNOWN]
        if width is None or not known:
            values.append(UNKNOWN)
        elif _op(one.op) == "all_to_all":
            values.append(max(known) * width // max(int(ranks), 1))
        else:
            values.append(min(known) * width)
    return np.array(values, np.int64)


def _op(name: object) -> str | None:
    """The operation in the contract's spelling; torch's own where that has none."""
    text = _text(name)
    letters = re.sub("[^a-z]", "", (text or "").lower())
    return next((ours for theirs, ours in _OPS.items() if theirs in letters), text)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
