"""Collectives of Kineto: what kernels and `record_param_comms` ranges say of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rca_llm.attribute.collective_names import element_type, operation
from rca_llm.readers.exact import ints
from rca_llm.readers.kineto_events import Columns, CommArgs, decode_comm
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Strings, Table, first_rows
from rca_llm.trace import COLLECTIVES, KERNEL, Timeline


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
    return np.append(said, NO_TEXT)[first_rows(keys, ids)]


def _described(timeline: Timeline, kernel: int, call: int) -> CommArgs:
    """What a kernel says of its collective, completed by what its host range says."""
    texts = [timeline.strings[code] for code in (kernel, call) if code != NO_TEXT]
    first, *rest = [decode_comm(text.encode()) for text in texts]
    for other in rest:
        if first.seq is None and (first.op, first.group) == (other.op, other.group):
            first.seq = other.seq
    return first


def _descriptions(said: list[CommArgs], strings: Strings) -> Columns:
    types = [element_type(_text(one.dtype)) for one in said]
    sizes = ints([one.group_size for one in said])
    return {
        "comm": strings.codes(_text(one.group) for one in said),
        "op": strings.codes(operation(_text(one.op)) for one in said),
        "seq": ints([one.seq for one in said]),
        "group_size": sizes,
        "dtype": strings.codes(name for name, _ in types),
        "bytes": _bytes(said, (width for _, width in types), sizes),
    }


def _bytes(said: list[CommArgs], widths: Iterable[int | None], sizes: Ints) -> Ints:
    """The message size: of one rank's part where the operation joins or splits parts."""
    sent, received = ints([one.sent for one in said]), ints([one.received for one in said])
    values: list[int] = []
    for one, width, ranks, *counts in zip(said, widths, sizes, sent, received, strict=True):
        known = [int(count) for count in counts if count != UNKNOWN]
        if width is None or not known:
            values.append(UNKNOWN)
        elif operation(_text(one.op)) == "all_to_all":
            values.append(max(known) * width // max(int(ranks), 1))
        else:
            values.append(min(known) * width)
    return np.array(values, np.int64)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
