"""The pages about hints inside the report: what each rule compares, and what would disprove it.

They are made from the rules themselves, as `docs/hints.md` is, so that a report that was sent to
somebody explains its hints without the documentation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from markupsafe import Markup, escape

from rca_llm.hints import RULES, thresholds
from rca_llm.hints.advice import table
from rca_llm.hints.model import Rule

_CODE = re.compile(r"`([^`]+)`")
_HEADS = {"Disproof": "Not if"}
"""Heads of docstrings that the page words otherwise."""

_PART = re.compile(r"\b(Symptom|Source|Effect|Disproof):\s+")


@dataclass(frozen=True)
class Page:
    """What is said of one rule; `parts` are headed paragraphs, `thresholds` its limits."""

    id: str
    name: str
    class_: str
    stage: str
    about: Markup
    parts: Sequence[tuple[str, Markup]]
    disproof: Markup
    thresholds: Sequence[Mapping[str, str]]
    advice: Sequence[tuple[str, str]]

    @property
    def anchor(self) -> str:
        """The id of its element on the page."""
        return anchor(self.id)


@cache
def limits() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """The thresholds of all rules, read once: value, source and meaning."""
    return thresholds.documented()


def anchor(id: str) -> str:
    """The id of a rule's element on the page."""
    return f"rule-{id}"


def pages() -> list[Page]:
    """The pages of all rules by id, gates first."""
    return [_page(rule) for rule in sorted(RULES, key=lambda rule: rule.id)]


def known() -> frozenset[str]:
    """The ids of the rules that have a page."""
    return frozenset(rule.id for rule in RULES)


def meanings(id: str) -> Mapping[str, str]:
    """What a rule's thresholds mean, by name."""
    return {name: str(row["meaning"]) for name, row in limits().get(id, {}).items()}


def _page(rule: Rule) -> Page:
    about, *parts = _PART.split(" ".join((inspect.getdoc(rule.function) or "").split()))
    headed = zip(parts[::2], parts[1::2], strict=True)
    advice = table().get(rule.id, {})
    return Page(
        rule.id,
        rule.name,
        rule.class_,
        rule.stage.name.lower(),
        _with_code(about.strip()),
        [(_HEADS.get(head, head), _with_code(text.strip())) for head, text in headed],
        _with_code(f"{rule.disproof}."),
        [_threshold(name, row) for name, row in limits().get(rule.id, {}).items()],
        [("Try" if engine == "any" else f"On {engine}", text) for engine, text in advice.items()],
    )


def _threshold(name: str, row: Mapping[str, Any]) -> dict[str, str]:
    told = {key: str(row[key]) for key in ("source", "meaning")}
    return {"name": name, "value": f"{row['value']:,}", **told}


def _with_code(text: str) -> Markup:
    """Markdown's backticks as `code` elements; everything else is text."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))
