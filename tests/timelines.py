"""Small timelines for tests, written as rows instead of columns."""

from __future__ import annotations

from typing import Any

from rca_llm.table import UNKNOWN, Table
from rca_llm.trace import TABLES, Finding, Header, Input, Timeline, Trace

PROCESS = THREAD = 1


class Builder:
    """A timeline in the making: every method adds a row; texts are given as texts."""

    def __init__(self, **header: Any) -> None:
        self.timeline = Timeline(Input("test", "events"), Header(**header))
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.calls = 0

    def row(self, table: str, **values: Any) -> None:
        schema = TABLES[table]
        for name, value in values.items():
            if schema[name] == "text":
                values[name] = self.timeline.strings.code(value)
        self.rows.setdefault(table, []).append(values)

    def kernel(self, name: str, start: int, end: int, **values: Any) -> None:
        defaults = {"kind": 0, "process": PROCESS, "device": 0, "stream": 7}
        self.row("gpu", name=name, start=start, end=end, **defaults | values)

    def copy(self, kind: int, start: int, end: int, **values: Any) -> None:
        defaults = {"kind": 1, "process": PROCESS, "device": 0, "stream": 8, "copy": kind}
        self.row("gpu", name="copy", start=start, end=end, **defaults | values)

    def launch(
        self, name: str, call: tuple[int, int], kernel: tuple[int, int], **more: Any
    ) -> None:
        self.calls += 1
        self.api("cudaLaunchKernel", *call, correlation=self.calls)
        self.kernel(name, *kernel, correlation=self.calls, **more)

    def api(self, name: str, start: int, end: int, **values: Any) -> None:
        defaults = {"process": PROCESS, "thread": THREAD}
        self.row("api", name=name, start=start, end=end, **defaults | values)

    def span(self, kind: str | None, start: int, end: int, **values: Any) -> None:
        defaults = {"process": PROCESS, "thread": THREAD, "name": kind or "range"}
        self.row("ranges", kind=kind, start=start, end=end, **defaults | values)

    def step(self, id: int, start: int, end: int, **phases: str) -> None:
        number = len(self.rows.get("steps", []))
        self.row("steps", id=id, start=start, end=end, process=PROCESS)
        for request, phase in phases.items():
            tokens = 1 if phase == "decode" else 16
            self.row("batch", step=number, request=request, phase=phase, tokens=tokens)

    def build(self) -> Timeline:
        for table, rows in self.rows.items():
            schema = TABLES[table]
            names = [name for name in schema if any(name in row for row in rows)]
            empty = {"time": UNKNOWN, "int": UNKNOWN, "float": float("nan")}
            columns = {
                name: [row.get(name, empty.get(schema[name], -1)) for row in rows] for name in names
            }
            self.timeline.tables[table] = Table(schema, columns)
        return self.timeline

    def summary(self) -> dict[str, Any]:
        return Trace([self.build()]).attribute().summary


def findings(summary: dict[str, Any], code: str) -> list[dict[str, Any]]:
    """The quality rows of one code."""
    return [row for row in summary["quality"] if row["code"] == code]


__all__ = ["PROCESS", "THREAD", "Builder", "Finding", "findings"]
