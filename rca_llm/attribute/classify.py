"""Kernel classification: which part of the partition a kernel's name belongs to.

The rules are data, `kernels.tsv` beside this file: ordered rows, of which the first that matches
decides. What is matched is the kernel's *subject*, its qualified function name in lower case. The
template arguments are kept only where the function name says nothing by itself (an `args` row:
`cutlass::device_kernel`, `at::native::elementwise_kernel`), because elsewhere they mislead: the
element type of a KV-cache write names FP8 without quantising anything else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from rca_llm import tsv
from rca_llm.attribute.matcher import OrderedPatterns

OTHER = "compute.other"
"""The part of a kernel that no rule knows."""

ARGS = "args"
"""The part column of a row whose kernels are known by their template arguments alone."""

LONGEST = 320
"""How many characters of a name are looked at; what tells always stands near the front."""

_NOISE = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|_global__n_\w*?::"
    r"|at::native::|at::detail::|c10::|std::(?!enable)"
)
"""Namespaces that say nothing and that template arguments repeat."""
_LENGTH = re.compile(r"\d+")
_HEAD = re.compile(r"[^<(]*")


class KernelClass(NamedTuple):
    """Where a kernel's time goes, and the second class of a fused kernel."""

    part: str
    """A part name of the contract, `compute.*` or `communication.*`."""
    also: str | None
    """The part of the other work that a fused kernel does; None for a plain one."""


class Rule(NamedTuple):
    """One row of the table."""

    part: str
    """The part of the kernels that match, or `ARGS`."""
    also: str | None
    """Their second class, if they are fused."""
    pattern: str
    """A regular expression, searched for in the subject (lower case)."""
    example: str
    """A name that this row and no earlier one matches."""
    source: str
    """The library or trace that the name was taken from."""


@cache
def rules() -> tuple[Rule, ...]:
    """The rows of the table, in the order in which they are tried."""
    rows = tsv.rows("rca_llm.attribute", "kernels.tsv")
    return tuple(Rule(row[0], row[1] or None, *row[2:]) for row in rows)


def subject(name: str) -> str:
    """What of a kernel's name the rules are matched against: at most `LONGEST` characters."""
    text = _NOISE.sub("", _unmangled(name[: 2 * LONGEST]).lower()).removeprefix("void ")
    head = _HEAD.match(text)
    function = head.group() if head else text
    keep = _tells_by_arguments().search(function) if function else True
    return (text if keep else function)[:LONGEST]


def classify(name: str) -> KernelClass:
    """The class of one kernel name, demangled, mangled or short."""
    return _first_match(subject(name))


def classify_all(names: Sequence[str]) -> list[KernelClass]:
    """The classes of many names, in their order; names with one subject are matched once."""
    found: dict[str, KernelClass] = {}
    classes: list[KernelClass] = []
    for name in names:
        text = subject(name)
        known = found.get(text)
        if known is None:
            known = found[text] = _first_match(text)
        classes.append(known)
    return classes


def deciding_rule(name: str) -> Rule | None:
    """The row that decides a name; None where it is `OTHER` because no row matches."""
    text = subject(name)
    return next((r for r in rules() if r.part != ARGS and re.search(r.pattern, text)), None)


@lru_cache(maxsize=1 << 14)
def _first_match(text: str) -> KernelClass:
    rows, patterns = _matcher()
    found = patterns.first(text)
    return KernelClass(OTHER, None) if found is None else KernelClass(*rows[found][:2])


@cache
def _matcher() -> tuple[list[Rule], OrderedPatterns]:
    rows = [rule for rule in rules() if rule.part != ARGS]
    samples = [subject(rule.example) for rule in rows]
    return rows, OrderedPatterns([rule.pattern for rule in rows], samples)


@cache
def _tells_by_arguments() -> re.Pattern[str]:
    return re.compile("|".join(rule.pattern for rule in rules() if rule.part == ARGS))


def _unmangled(name: str) -> str:
    """A name of the Itanium C++ ABI as `a::b::c<rest>`; any other name as it is.

    Only the identifiers of the function are spelled out (the ABI writes each as its length and
    its text); its template arguments follow in their mangled form.
    """
    if not name.startswith("_Z"):
        return name
    position = 3 if name.startswith("_ZN") else 2
    parts: list[str] = []
    while (length := _LENGTH.match(name, position)) and len(length.group()) < 5:
        position = length.end() + int(length.group())
        parts.append(name[length.end() : position])
    return f"{'::'.join(parts)}<{name[position:]}" if parts else name
