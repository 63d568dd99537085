"""The evidence of a hint for people: every number with its unit, its limit and what it means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rca_llm.exporters import units
from rca_llm.exporters.rules import meanings
from rca_llm.exporters.text import shown
from rca_llm.exporters.verdict import given

Row = dict[str, Any]

ABOUT: Mapping[str, str] = {
    "charged_ns": "Time that this cause is charged with, summed over what it was judged on.",
    "of_ns": "The time that it was judged on: what the share is a share of.",
    "population": "What the figures were computed over.",
    "rule": "The rule's name; its page below says what it compares.",
    "explained_by": "Rules whose hint is the cause of this one.",
    "disproved_by": "What you would see if this hint were wrong.",
    "data": "What is missing or blurred in the data that this hint rests on.",
    "power": "Why removing idle time would save less than a replay says.",
    "saving_assumes": "What the saving takes for granted, as no record tells it.",
    "window": "The stretch of the trace that it was seen in.",
}
"""What every hint's evidence may hold."""

_UNITS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("bytes_s", "in bytes a second", units.rate),
    ("bytes_per_hour", "in bytes an hour", units.size),
    ("bytes", "in bytes (powers of ten)", units.size),
    ("_ns", "a time", units.duration),
    ("_mhz", "in megahertz", lambda value: f"{units.number(value)} MHz"),
    ("power_w", "in watts", lambda value: f"{units.number(value)} W"),
    ("per_s", "a second", lambda value: f"{units.number(value)} /s"),
)
_FRACTION = re.compile(r"(?:^|_)(?:share|fraction|utilization|occupancy|usage)(?:_|$)")
_RATIO = re.compile(r"(?:^|_)(?:ratio|over)(?:_|$)")
_SUFFIX = re.compile(r"_(?:ns|bytes_s|bytes|mhz|w)$")


def rows(hint: Mapping[str, Any]) -> list[Row]:
    """Name, value, limit and meaning of everything a hint says as evidence, in its own order."""
    return list(_rows(str(hint["id"]), given(hint.get("evidence"))))


def _rows(id: str, evidence: Mapping[str, Any]) -> Iterator[Row]:
    limits, means = given(evidence.get("thresholds")), meanings(id)
    for name, value in evidence.items():
        if name != "thresholds":
            yield _row(name, value, about(name, value), limits.get(name), means.get(name, ""))
    for name, limit in limits.items():
        if name not in evidence:
            meaning = f"A threshold of this rule: {shown(means.get(name, words(name)))}."
            yield _row(f"limit_{name}", limit, meaning, None, "")


def _row(name: str, value: Any, about: str, limit: Any, limit_about: str) -> Row:
    """One line: what it is, its value, and the limit that it is compared with, if any."""
    row = {"name": words(name), "value": text(name, value), "about": about}
    return row | {"limit": None if limit is None else text(name, limit), "limit_about": limit_about}


def words(name: str) -> str:
    """A name without its unit, which the value carries."""
    return shown(_SUFFIX.sub("", name).replace("_", " "))


def text(name: str, value: Any) -> str:
    """A value in the unit that its name says."""
    if value is None:
        return units.UNKNOWN
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return shown(value)
    if _FRACTION.search(name) and abs(value) <= 1:
        return units.percent(value)
    if _RATIO.search(name):
        return f"{units.number(value)} ×"
    return next((show(value) for end, _, show in _UNITS if name.endswith(end)), units.number(value))


def about(name: str, value: Any) -> str:
    """What a piece of evidence is; the rule's page says how it is used."""
    if name in ABOUT:
        return ABOUT[name]
    what = words(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{_capital(what)}, as the trace names it."
    return f"{_capital(what)}: {_unit(name)}, measured on this trace."


def _unit(name: str) -> str:
    if _FRACTION.search(name):
        return "a share of the whole it is compared with"
    if _RATIO.search(name):
        return "how many times the one is the other"
    return next((unit for end, unit, _ in _UNITS if name.endswith(end)), "a count")


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
