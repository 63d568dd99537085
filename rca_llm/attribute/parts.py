"""The parts of the partition: every nanosecond of a window gets exactly one of these names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rca_llm.table import Array, Ints

CLASSES = ("compute", "communication", "io", "scheduling", "unknown")
"""The classes, in the order of the contract; a part's class is its name up to the dot."""

_NAMES: Mapping[str, str] = {
    "compute": "gemm attention norm elementwise reduce sampling moe quant memory graph other cpu",
    "communication": "collective wait p2p serialization kv_transfer",
    "io": "h2d d2h file network page_fault log",
    "scheduling": (
        "queue host launch sync alloc jit gc gil cpu_wait preempt recompute prefill_interference"
        " tokenize detokenize client graph_capture other"
    ),
    "unknown": "not_traced not_recorded",
}

PARTS: tuple[str, ...] = tuple(
    f"{group}.{name}" for group, names in _NAMES.items() for name in names.split()
)
"""All part names; segments hold indices into this tuple."""

CODE: Mapping[str, int] = {name: code for code, name in enumerate(PARTS)}
"""The index of every part."""

CLASS_OF: Ints = np.array([CLASSES.index(name.partition(".")[0]) for name in PARTS], np.int64)
"""The index in `CLASSES` of every part."""

NO_PART = -1
"""Where a layer says nothing."""


def codes(names: Sequence[str]) -> Ints:
    """The codes of part names."""
    return np.array([CODE[name] for name in names], np.int64)


def named(totals: Array) -> dict[str, int]:
    """The parts that have time, by name, ns; `totals` has one entry a part."""
    return {name: time for name, time in zip(PARTS, totals.tolist(), strict=True) if time}


def shares(totals: Array) -> dict[str, int]:
    """The time of every class, ns; adds up to the sum of `totals`."""
    return shares_of_all(totals.reshape(1, -1))[0]


def shares_of_all(totals: Array) -> list[dict[str, int]]:
    """The time of every class in each of some windows; `totals` is (windows, parts), ns."""
    member = (CLASS_OF[:, None] == np.arange(len(CLASSES))).astype(np.int64)
    return [dict(zip(CLASSES, row, strict=True)) for row in (totals @ member).tolist()]
