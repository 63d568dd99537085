"""Classes of names as integer columns: kernels by part, calls by what they do, spans by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rca_llm.attribute.calls import call_class
from rca_llm.attribute.classify import classify_all
from rca_llm.attribute.parts import CODE, NO_PART
from rca_llm.table import Array, Ints, Strings

CALLS = (
    "launch",
    "graph_launch",
    "copy",
    "copy_sync",
    "sync",
    "alloc",
    "jit",
    "graph_capture",
    "other",
)
"""What an API call does."""

LAUNCH, GRAPH_LAUNCH, COPY, COPY_SYNC, SYNC, ALLOC, JIT, GRAPH_CAPTURE, OTHER = range(len(CALLS))

CALL_PART = np.array(
    [
        CODE["scheduling.launch"],
        CODE["scheduling.launch"],
        CODE["scheduling.launch"],
        CODE["scheduling.sync"],
        CODE["scheduling.sync"],
        CODE["scheduling.alloc"],
        CODE["scheduling.jit"],
        CODE["scheduling.graph_capture"],
        CODE["scheduling.host"],
        NO_PART,
    ],
    np.int64,
)
"""The part of idle time in which the launching thread is in such a call."""

SPAN_PART = {
    "file": "io.file",
    "load": "io.file",
    "network": "io.network",
    "page_fault": "io.page_fault",
    "log": "io.log",
    "serialize": "communication.serialization",
    "kv_transfer": "communication.kv_transfer",
    "gc": "scheduling.gc",
    "gil": "scheduling.gil",
    "jit": "scheduling.jit",
    "alloc": "scheduling.alloc",
    "tokenize": "scheduling.tokenize",
    "detokenize": "scheduling.detokenize",
    "sync": "scheduling.sync",
    "queue": "scheduling.queue",
    "host": "scheduling.host",
    "cast": "scheduling.host",
    "compute": "scheduling.host",
}
"""The part of idle time that a span of each kind covers; `compute` only on an engine with a GPU."""

WORK = "work"
"""The kind of spans in which a thread works for a request (`probes/threads.py`)."""

KNOWN_KINDS = {*SPAN_PART, WORK, "request", "collective"}
"""The kinds that spans have: those of the contract, and what the probes themselves record."""

STATE_PART = {
    "runnable": "scheduling.cpu_wait",
    "throttled": "scheduling.cpu_wait",
    "gil": "scheduling.gil",
}
"""The part of idle time in which the launching thread is in such a state."""


def by_name(
    strings: Strings,
    column: Array,
    classify: Callable[[Sequence[str]], Sequence[int]],
    default: int,
) -> Ints:
    """A class for every row of a text column, asked once for each distinct text."""
    if not len(column):
        return np.empty(0, np.int64)
    table = np.full(len(strings) + 1, default, np.int64)
    used = np.flatnonzero(np.bincount(column[column >= 0], minlength=len(strings)))
    table[used] = list(classify([strings[code] for code in used.tolist()]))
    return table[column]


def kernel_parts(strings: Strings, names: Array) -> Ints:
    """The part of every kernel name of a column."""

    def parts(texts: Sequence[str]) -> list[int]:
        return [CODE[found.part] for found in classify_all(texts)]

    return by_name(strings, names, parts, CODE["compute.other"])


def call_codes(strings: Strings, names: Array) -> Ints:
    """What every API call of a column does, as an index into `CALLS`."""

    def calls(texts: Sequence[str]) -> list[int]:
        return [CALLS.index(call_class(text)) for text in texts]

    return by_name(strings, names, calls, OTHER)


def span_parts(strings: Strings, kinds: Array, *, on_gpu: bool) -> Ints:
    """The part of every span kind of a column, `NO_PART` for ranges without a kind."""
    table = {kind: CODE[part] for kind, part in SPAN_PART.items()}
    if not on_gpu:
        table["compute"] = CODE["compute.cpu"]
    return strings.lookup(table, NO_PART)[kinds]
