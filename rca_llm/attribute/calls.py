"""API-call classes: what a runtime, driver or HIP call does to the thread that calls it.

The rules are data, `calls.tsv` beside this file. They say nothing about the device: an
asynchronous copy is a short call here and a long row among the device's records.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Literal, NamedTuple, get_args

from rca_llm import tsv

CallClass = Literal[
    "launch",
    "graph_launch",
    "sync",
    "alloc",
    "jit",
    "copy",
    "copy_sync",
    "graph_capture",
    "other",
]
"""`launch` queues a kernel or host function and `graph_launch` a graph; `sync` blocks until the
device is done, `copy_sync` copies and blocks, `copy` only queues a copy or memset; `alloc` takes,
pins, maps or frees memory; `jit` loads or compiles code, on first use too; `graph_capture` records
or builds a graph; `other` is everything else, `cudaStreamWaitEvent` and queries among it."""

CALL_CLASSES: tuple[CallClass, ...] = get_args(CallClass)
"""All classes."""

_PREFIX = re.compile(r"cuda|hip|cu")
_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds|_spt|R\d{4})+$")


class CallRule(NamedTuple):
    """One row of the table."""

    call_class: CallClass
    """The class of the calls that match."""
    pattern: str
    """A regular expression for the whole operation name."""
    example: str
    """A call that this row and no earlier one matches."""


@cache
def call_rules() -> tuple[CallRule, ...]:
    """The rows of the table, in the order in which they are tried."""
    rows = tsv.rows("rca_llm.attribute", "calls.tsv")
    return tuple(CallRule(_known_class(row[0]), row[1], row[2]) for row in rows)


def operation(name: str) -> str:
    """A call's name without `cuda`, `cu` or `hip`, version and per-thread-stream suffixes."""
    return _SUFFIX.sub("", _PREFIX.sub("", name, count=1) if _PREFIX.match(name) else name)


@lru_cache(maxsize=1 << 12)
def call_class(name: str) -> CallClass:
    """The class of an API call, by the name that any of the tracers gives it."""
    text = operation(name)
    for pattern, found in _patterns():
        if pattern.fullmatch(text):
            return found
    return "other"


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], CallClass], ...]:
    return tuple((re.compile(rule.pattern), rule.call_class) for rule in call_rules())


def _known_class(text: str) -> CallClass:
    for known in CALL_CLASSES:
        if text == known:
            return known
    raise ValueError(f"calls.tsv: no class {text!r}")
