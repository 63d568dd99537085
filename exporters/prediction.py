"""What-if answers in the terminal: latencies as measured and as replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rca_llm.exporters import units

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("", "measured", "replayed", "saved", "")


def rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The table's rows as texts; what was not measured is left out."""
    for key, words in (("latency", "latency"), ("ttft", "time to first token")):
        for figure in ("mean", "p50", "p99"):
            yield from _row(f"{words}, {figure}", found[key][figure])
    yield from _row("step, mean", found["steps"])
    yield from _row("window", found["window"])


def _row(name: str, change: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    old, new = change["measured_ns"], change["replayed_ns"]
    if old is None:
        return
    if new is None:
        yield name, units.duration(old), "not predicted", "", ""
        return
    saved = units.duration(abs(old - new))
    sign = "−" if new > old else ""
    share = units.percent(units.ratio(abs(old - new), old))
    yield name, units.duration(old), units.duration(new), f"{sign}{saved}", f"{sign}{share}"


def show(found: Mapping[str, Any], settings: Sequence[str], console: Console | None = None) -> None:
    """Print an answer to a console, standard output by default."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = console or Console(highlight=False)
    out.print(Text(f"If {', '.join(settings)}: replay of the dependency graph", style="bold"))
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name else "left")
    for row in rows(found):
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)
    if found["not_predicted"]:
        parts = ", ".join(found["not_predicted"])
        out.print(Text(f"Not predicted: {parts}, spent on threads that the replay does not hold."))
    if told := kept(found):
        out.print(Text(told))


LEAST_KEPT = 0.01
"""Less of the latency in queues that stay as measured is not worth a line."""


def kept(found: Mapping[str, Any]) -> str:
    """What is said of queues that stay as measured; nothing where they are next to nothing."""
    whole = sum(row["latency_ns"] for row in found["requests"])
    waits: Mapping[str, int] = found["kept_as_measured"]
    told = ", ".join(
        f"{part} ({units.duration(ns)} of {units.duration(whole)} of the requests' time)"
        for part, ns in waits.items()
        if ns >= LEAST_KEPT * whole
    )
    if not told:
        return ""
    return (
        f"Kept as measured: {told}. Queues that no step tells of are not replayed: what a change"
        " saves or costs is a lower bound."
    )
