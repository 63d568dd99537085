"""Whether two traces are of the same work: what differs before any time is compared.

A time per request says nothing about a change where the engine, the model, the devices or the
tokens of a request are others. What a trace does not tell is not judged, and named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import cast

from rca_llm.report import Report

TOLERANCE = 0.1
"""Tokens of a request, by mean or percentile, that differ by more than this are another load."""

_PERCENTILES = (10, 50, 90)
_MODEL = ("--model", "--model-path", "--model-name", "--model_id", "-m")
_LOOKS_LIKE_MODEL = re.compile(r"[\w.-]+/[\w./-]+|.*\.(?:gguf|safetensors)|/.+")

Facts = Mapping[str, str | None]


def differences(base: Report, other: Report) -> tuple[list[dict[str, str]], list[str]]:
    """What makes two traces no measure of a change, and what neither tells enough to judge."""
    found: list[dict[str, str]] = []
    unjudged: list[str] = []
    for what, told in _TELLERS.items():
        a, b = told(base), told(other)
        if a is None or b is None:
            unjudged += [what] if a != b or what in _EXPECTED else []
        elif a != b:
            found.append({"what": what, "base": a, "other": b})
    for what in ("prompt tokens", "output tokens"):
        one, two = (_tokens(report, what.replace(" ", "_")) for report in (base, other))
        if not one or not two:
            unjudged += [what] if bool(one) != bool(two) else []
        elif _apart(one, two):
            found.append({"what": what, "base": _spread(one), "other": _spread(two)})
    return found, unjudged


def _engine(report: Report) -> str | None:
    """The engine without its version: an upgrade is a change that one wants to measure."""
    named = {line.header.engine for line in report.trace.timelines if line.header.engine}
    return _joined(re.split(r"[\s/]*v?\d", name, maxsplit=1)[0].strip() or name for name in named)


def _model(report: Report) -> str | None:
    """The model as the traced command names it."""
    commands = [line.header.extra.get("command") for line in report.trace.timelines]
    return _joined(model for words in commands if (model := _model_of(words)))


def _model_of(command: object) -> str | None:
    if not isinstance(command, (list, tuple)):
        return None
    words = [str(word) for word in cast("Sequence[object]", command)]
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[at + 1] if at + 1 < len(words) else ""
        if name in _MODEL and (equals or _LOOKS_LIKE_MODEL.fullmatch(following)):
            return value if equals else following
        if word == "serve" and following and not following.startswith("-"):
            return following
    return None


def _devices(report: Report) -> str | None:
    """Kinds of devices and how many of each; none where none worked, unknown without names."""
    rows = report.summary["devices"]
    if not rows:
        return "no GPU" if report.summary["totals"]["ranges"] else None
    names = Counter(row["name"] for row in rows)
    if None in names:
        return None
    return ", ".join(f"{count} × {name}" for name, count in sorted(names.items()))


def _ranks(report: Report) -> str | None:
    return str(len(report.summary["ranks"])) if report.summary["ranks"] else None


def _joined(names: Iterator[str]) -> str | None:
    return (
        ", ".join(sorted({PurePath(name).name if name[:1] == "/" else name for name in names}))
        or None
    )


_TELLERS: Mapping[str, Callable[[Report], str | None]] = {
    "engine": _engine,
    "model": _model,
    "devices": _devices,
    "ranks": _ranks,
}
_EXPECTED = ("model",)
"""What is worth saying that it was not judged, even where neither side tells it."""


def _tokens(report: Report, column: str) -> list[int]:
    """The tokens of all finished requests that tell them, ascending."""
    rows = report.summary["requests"]
    values = [row[column] for row in rows if row["status"] == "finished"]
    return sorted(value for value in values if value is not None)


def _figures(values: Sequence[int]) -> Iterator[float]:
    yield sum(values) / len(values)
    for percent in _PERCENTILES:
        yield values[-(-len(values) * percent // 100) - 1]


def _apart(one: Sequence[int], two: Sequence[int]) -> bool:
    """Whether the mean or a percentile of one side is another than that of the other side."""
    pairs = zip(_figures(one), _figures(two), strict=True)
    return any(abs(a - b) > TOLERANCE * max(a, b) and abs(a - b) > 1 for a, b in pairs)


def _spread(values: Sequence[int]) -> str:
    mean, *percentiles = _figures(values)
    marks = ", ".join(f"P{p} {v:,}" for p, v in zip(_PERCENTILES, percentiles, strict=True))
    return f"mean {mean:,.4g} ({marks})"
