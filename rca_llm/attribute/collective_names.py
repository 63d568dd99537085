"""The contract's names of collective operations and of their element types.

NCCL, torch and kernels spell the same names with capitals, underscores and prefixes of their own
(`ncclAllReduce`, `_all_gather_base`, `c10::BFloat16`): letters and digits alone are compared.
"""

from __future__ import annotations

import re

OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "barrier": "barrier",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
}
"""Operations by the letters of their names; a word that holds others stands before them."""

PAIRWISE = frozenset(("send", "recv", "send_recv"))
"""Operations between two ranks of a communicator."""

_TYPES = {
    "bool": ("bool", 1),
    "byte": ("uint8", 1),
    "uint8": ("uint8", 1),
    "char": ("int8", 1),
    "int8": ("int8", 1),
    "short": ("int16", 2),
    "int16": ("int16", 2),
    "int": ("int32", 4),
    "int32": ("int32", 4),
    "uint32": ("uint32", 4),
    "long": ("int64", 8),
    "int64": ("int64", 8),
    "uint64": ("uint64", 8),
    "half": ("fp16", 2),
    "float16": ("fp16", 2),
    "bfloat16": ("bf16", 2),
    "float": ("fp32", 4),
    "float32": ("fp32", 4),
    "double": ("fp64", 8),
    "float64": ("fp64", 8),
    "float8e4m3": ("fp8_e4m3", 1),
    "float8e4m3fn": ("fp8_e4m3", 1),
    "float8e5m2": ("fp8_e5m2", 1),
}

_PREFIX = re.compile("^(?:nccl|c10|torch)")


def operation(name: str | None) -> str | None:
    """The operation whose name a text is or holds; the text itself where it holds none."""
    return operation_in(name) or name


def operation_in(name: str | None) -> str | None:
    """The operation whose name a text is or holds, None where it holds none."""
    letters = _letters(name)
    return next((ours for theirs, ours in OPERATIONS.items() if theirs in letters), None)


def element_type(name: str | None) -> tuple[str | None, int | None]:
    """The short name of an element type and its bytes; of an unknown one its own name and None."""
    return _TYPES.get(_PREFIX.sub("", _letters(name), count=1), (name, None))


def _letters(name: str | None) -> str:
    return re.sub("[^a-z0-9]", "", (name or "").lower())
