"""The summary in the terminal: one row a class, the first hints, what is wrong with the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rca_llm.attribute.parts import CLASSES
from rca_llm.exporters import units
from rca_llm.exporters.text import shown
from rca_llm.exporters.verdict import (
    Judged,
    Summary,
    details,
    given,
    headline,
    judged,
    root_cause,
    saves,
    title,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rca_llm.report import Report

MOST_HINTS = 3
"""Hints that are printed; the report file holds all."""

MOST_FINDINGS = 6
"""Quality findings that are printed."""

MOST_PLACE = 40
"""Characters of the place of a finding that are printed."""

COLOURS = {
    "compute": "blue",
    "communication": "yellow",
    "io": "green",
    "scheduling": "magenta",
    "unknown": "bright_black",
}
"""The classes' colours; the words stand beside them everywhere."""


def show(report: Report, console: Console | None = None) -> None:
    """Print the summary of a report to a console, standard output by default."""
    from rich.console import Console

    out = console or Console(highlight=False)
    for line in lines(report.summary):
        out.print(line, soft_wrap=False, markup=False)


def lines(summary: Summary) -> Iterator[Table | Text]:
    """What is printed, in order. All names are plain text: rich reads no markup in them."""
    from rich.text import Text

    yield Text(headline(summary), style="bold")
    yield from (Text(detail) for detail in details(summary)[:2])
    yield table(summary)
    for number, hint in enumerate(summary["hints"][:MOST_HINTS], 1):
        yield _hint(number, hint)
    if not summary["hints"]:
        yield Text("No hint: no rule found a cause that this data supports.")
    if len(summary["hints"]) > MOST_HINTS:
        more = len(summary["hints"]) - MOST_HINTS
        yield Text(f"   … and {units.counted(more, 'more hint')} in the report")
    yield from _findings(summary)


def table(summary: Summary) -> Table:
    """The classes with mean latency, share, variation and root cause."""
    from rich import box
    from rich.table import Table

    found = judged(summary)
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rows.add_column("class", no_wrap=True)
    for head in _heads(found):
        rows.add_column(head, justify="right", no_wrap=True)
    rows.add_column("root cause", overflow="fold", ratio=1)
    for name in CLASSES:
        if found.shares.get(name):
            rows.add_row(*_row(summary, found, name))
    return rows


def _heads(found: Judged) -> tuple[str, ...]:
    return ("mean", "share", "variation") if found.count else ("time", "share")


def _row(summary: Summary, found: Judged, name: str) -> list[Text]:
    from rich.text import Text

    share = units.percent(found.share(name))
    stats = given(given(summary["class_stats"]).get(name))
    if found.count:
        figures = [units.milliseconds(stats.get("mean_ns")), share, units.percent(stats.get("cv"))]
    else:
        figures = [units.milliseconds(found.shares[name]), share]
    cells = [Text(title(name), style=COLOURS[name]), *map(Text, figures)]
    return [*cells, Text(root_cause(summary, found, name))]


def _hint(number: int, hint: Mapping[str, Any]) -> Text:
    from rich.text import Text

    line = Text(f"{number}. {shown(hint['title'])}")
    return line.append(f"  ({saves(hint)}, confidence {hint['confidence']})", style="dim")


def _findings(summary: Summary) -> Iterator[Text]:
    from rich.text import Text

    findings = summary["quality"]
    for row in findings[:MOST_FINDINGS]:
        words = shown(row["code"]).replace("_", " ")
        about = shown(row.get("detail") or row.get("where") or "", 160)
        place = _place(summary, row) if row.get("detail") else ""
        line = f"{words} × {units.number(row['count'])}{place}{': ' if about else ''}{about}"
        yield Text.assemble(("data: ", "yellow"), line)
    if len(findings) > MOST_FINDINGS:
        more = len(findings) - MOST_FINDINGS
        yield Text(f"   … and {units.counted(more, 'more finding')} in the report")


def _place(summary: Summary, row: Mapping[str, Any]) -> str:
    """Where a finding was made, of one that several inputs may have."""
    where = str(row.get("where") or "")
    if len(summary["inputs"]) < 2 or not where:
        return ""
    return f" ({shown(where.rstrip('/').rpartition('/')[2], MOST_PLACE)})"
