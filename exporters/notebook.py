"""A report in a notebook: the headline, the shares and the first hints, without scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from rca_llm.attribute.parts import CLASSES
from rca_llm.exporters import flat, units
from rca_llm.exporters.text import shown
from rca_llm.exporters.verdict import Summary, details, headline, judged, root_cause, saves, title

if TYPE_CHECKING:
    import pandas as pd

COLOURS = ("#2f6db3", "#b85c14", "#0f7a60", "#a8528f", "#6b7480")
"""The classes' colours, as on the page."""

MOST_HINTS = 3


def fragment(summary: Summary) -> str:
    """HTML for a notebook's output cell."""
    lines = " ".join(details(summary))
    hints = "".join(_hint(hint) for hint in summary["hints"][:MOST_HINTS])
    findings = len(summary["quality"])
    return (
        f"<div><h3>{escape(headline(summary))}</h3><p>{escape(lines)}</p>{_table(summary)}"
        f"<ol>{hints}</ol><p>{findings} findings about the quality of this data.</p></div>"
    )


def _table(summary: Summary) -> str:
    found = judged(summary)
    rows = "".join(
        f'<tr><th style="text-align:left"><span style="color:{colour}">■</span>'
        f" {escape(title(name))}</th><td>{escape(units.milliseconds(found.shares[name]))}</td>"
        f"<td>{escape(units.percent(found.share(name)))}</td>"
        f'<td style="text-align:left">{escape(root_cause(summary, found, name))}</td></tr>'
        for name, colour in zip(CLASSES, COLOURS, strict=True)
        if found.shares.get(name)
    )
    heads = "".join(f"<th>{head}</th>" for head in ("class", "time", "share", "root cause"))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _hint(hint: dict[str, Any]) -> str:
    return f"<li>{escape(shown(hint['title']))} ({escape(saves(hint))})</li>"


def frames(summary: Summary) -> dict[str, pd.DataFrame]:
    """Every list of the summary as a pandas frame, by name; `overview` has the figures of all."""
    import pandas as pd

    return {
        name: pd.DataFrame({c: _series([row.get(c) for row in rows]) for c in columns})
        for name, columns, rows in flat.tables(summary)
    }


def _series(values: list[Any]) -> pd.Series[Any]:
    """A column; integers with gaps stay integers, which pandas alone would make floats."""
    import pandas as pd

    types: set[type] = {type(value) for value in values if value is not None}
    column: pd.Series[Any] = pd.Series(values, dtype="Int64" if types == {int} else None)
    return column
