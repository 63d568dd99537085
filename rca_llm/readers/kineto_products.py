"""Matrix products of Kineto: what operators with recorded shapes say of the kernels they launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rca_llm.readers.events_values import as_list
from rca_llm.table import UNKNOWN, Array, Ints, first_rows, known
from rca_llm.trace import KERNEL, NUMBER_FORMATS

Columns = dict[str, Array]
Product = tuple[int, int, int]
"""Floating-point operations, bytes of operands and result, and an index into `NUMBER_FORMATS`."""

OPERANDS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Operators that multiply two matrices, or batches of them, by the place of the first."""

_FORMATS = {
    "c10::BFloat16": ("bf16", 2),
    "c10::Half": ("bf16", 2),
    "float": ("fp32", 4),
    "double": ("fp64", 8),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
}
"""The number format of a tensor's type, and its bytes."""

LARGEST = 1 << 60
"""More operations than this are no count but damage."""


class Shapes(msgspec.Struct):
    """The arguments of an operator that was recorded with shapes."""

    external: Any = msgspec.field(default=None, name="External id")
    dims: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")


def product(name: str, args: Shapes) -> Product | None:
    """What an operator multiplies; None where it is no product, or its shapes are not told.

    Operations are 2·batch·m·k·n; bytes those of both operands and the result, each once.
    """
    place = OPERANDS.get(name)
    dims, types = as_list(args.dims), as_list(args.types)
    if place is None or min(len(dims), len(types)) < place + 2:
        return None
    left, right = _whole(dims[place]), _whole(dims[place + 1])
    told = _FORMATS.get(str(types[place]))
    if told is None or len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2]:
        return None
    batch, (m, k), n = left[0] if len(left) == 3 else 1, left[-2:], right[-1]
    flops, size = 2 * batch * m * k * n, batch * (m * k + k * n + m * n)
    return (flops, size * told[1], NUMBER_FORMATS.index(told[0])) if flops < LARGEST else None


def _whole(value: Any) -> list[int]:
    sizes = as_list(value)
    return sizes if all(isinstance(size, int) and size > 0 for size in sizes) else []


def as_columns(found: Sequence[Product], ids: Ints) -> Columns:
    """Products as columns, `ids` the external id of each."""
    flops, moved, format_ = (np.array(values, np.int64) for values in zip(*found, strict=True))
    return {"external": ids, "flops": flops, "moved": moved, "format": format_}


def fill(gpu: Columns, products: Columns | None) -> None:
    """Give each product to the longest kernel of its operator; of the others nothing is told."""
    for name, unknown in (("flops", UNKNOWN), ("moved", UNKNOWN), ("format", -1)):
        gpu[name] = np.full(len(gpu["start"]), unknown, np.int64)
    if products is None or "external" not in gpu:
        return
    rows = np.flatnonzero((gpu["kind"] == KERNEL) & known(gpu["external"]) & known(gpu["start"]))
    lasting = (gpu["end"] - gpu["start"])[rows]
    rows = rows[np.lexsort([-lasting, gpu["external"][rows]])]
    first = first_rows(gpu["external"][rows], products["external"])
    for name in ("flops", "moved", "format"):
        gpu[name][rows[first[first >= 0]]] = products[name][first >= 0]
