"""Watching a run while it is recorded: figures of its last seconds, and what broke an objective.

Each look reads the run as far as it was written, keeps the records that began in the window, and
attributes them as a report would. The figures become Prometheus metrics. Where the 99th percentile
of the finished requests exceeds an objective, the window is saved as a trace, once for each time
that the objective is broken.

A look reads on from where the window begins (`readers/run_window.py`), so that its cost does not
grow with the run. The recording itself is not trimmed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rca_llm.errors import RcaError, UnreadableInput
from rca_llm.inject.windows import between
from rca_llm.readers import load
from rca_llm.readers.run_window import Window
from rca_llm.run import Run
from rca_llm.table import UNKNOWN
from rca_llm.trace import Trace

FEWEST = 10
"""Finished requests in a window from which its 99th percentile is judged."""

FIGURES: Mapping[str, str] = {"latency": "latency_ns", "ttft": "ttft_ns"}
"""What an objective may be about, and the key of a request's row that holds it."""

_UNITS = {"us": 1e3, "ms": 1e6, "s": 1e9}
_ENDS = ("end", "start", "t", "finished", "arrival")


@dataclass(frozen=True)
class Objective:
    """The 99th percentile of a figure must not exceed a limit, ns."""

    name: str
    limit_ns: int

    def measured(self, requests: Sequence[Mapping[str, Any]]) -> int | None:
        """The 99th percentile over finished requests by nearest rank; None of too few."""
        key = FIGURES[self.name]
        values = sorted(
            row[key] for row in requests if row["status"] == "finished" and row.get(key) is not None
        )
        if len(values) < FEWEST:
            return None
        found: int = values[math.ceil(0.99 * len(values)) - 1]
        return found


def objective(text: str) -> Objective:
    """An objective as it is typed, such as `ttft=800ms`; raises `RcaError`."""
    name, _, limit = text.partition("=")
    unit = next((unit for unit in ("us", "ms", "s") if limit.endswith(unit)), "")
    number = limit.removesuffix(unit)
    if name not in FIGURES or not unit or not number.replace(".", "", 1).isdigit():
        raise RcaError(f"{text}: expected an objective such as ttft=800ms or latency=2s")
    return Objective(name, round(float(number) * _UNITS[unit]))


@dataclass
class Monitor:
    """A run that is watched: how far back, what must hold, and where broken windows are kept."""

    run: Path
    window_ns: int
    objectives: Sequence[Objective] = ()
    dumps: Path | None = None
    say: Callable[[str], None] = print
    breaches: dict[str, int] = field(default_factory=dict[str, int])
    broken: set[str] = field(default_factory=set[str])
    looks: int = 0
    records: Window = field(init=False)
    text: str = ""
    """The metrics of the latest look, in Prometheus' format."""

    def __post_init__(self) -> None:
        """Begin at the start of the run."""
        self.records = Window(self.run)

    def look(self) -> None:
        """Read the run as far as it is there, and bring the metrics up to date."""
        began = time.perf_counter()
        self.looks += 1
        summary, measured = None, dict[str, "int | None"]()
        try:
            window = self.stretch()
            summary = window.attribute().summary
        except UnreadableInput:
            window = None  # nothing was recorded yet
        if window is not None and summary is not None:
            measured = {one.name: one.measured(summary["requests"]) for one in self.objectives}
            self._judge(window, measured)
        self.text = self._metrics(summary, measured, time.perf_counter() - began)

    def stretch(self) -> Trace:
        """The last stretch of the run; of one without segments, of its tables."""
        if not Run(self.run).segments.is_dir():
            return last(load(self.run), self.window_ns)
        whole = self.records.read()
        latest = _latest(whole)
        if latest != UNKNOWN:
            self.records.forget(latest - self.window_ns)
        return last(whole, self.window_ns)

    def _judge(self, window: Trace, measured: Mapping[str, int | None]) -> None:
        """Note what is broken now, and keep the window where something newly is."""
        limits = {one.name: one.limit_ns for one in self.objectives}
        now = {name for name, ns in measured.items() if ns is not None and ns > limits[name]}
        for name in sorted(now - self.broken):
            self.breaches[name] = self.breaches.get(name, 0) + 1
            self._keep(window, name, measured[name] or 0)
        self.broken = now

    def _keep(self, window: Trace, name: str, ns: int) -> None:
        told = f"p99 of {name} is {ns / 1e6:.1f} ms"
        if self.dumps is None:
            self.say(told)
            return
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        folder = self.dumps / f"{name}-{stamp}-{self.looks}"
        try:
            window.save(folder)
        except OSError as error:
            self.say(f"{told}; {folder}: cannot be written: {error.strerror or error}")
        else:
            self.say(f"{told}; the window is in {folder}")

    def _metrics(
        self,
        summary: Mapping[str, Any] | None,
        measured: Mapping[str, int | None],
        seconds: float,
    ) -> str:
        from rca_llm.exporters import prometheus

        own = "".join(f"{line}\n" for f in self._own(measured, seconds) for line in f.lines())
        return own + ("" if summary is None else prometheus.text(summary))

    def _own(self, measured: Mapping[str, int | None], seconds: float) -> Iterator[Any]:
        from rca_llm.exporters.prometheus import Family
        from rca_llm.exporters.prometheus import seconds as of

        yield Family("rca_llm_monitor_looks", "Times the run was read.", [({}, self.looks)])
        yield Family(
            "rca_llm_monitor_look_records",
            "Records that the last look read.",
            [({}, self.records.cells)],
        )
        yield Family(
            "rca_llm_monitor_look_seconds", "Time that the last look took.", [({}, seconds)]
        )
        yield Family(
            "rca_llm_monitor_objective_seconds",
            "Limit of the 99th percentile.",
            [({"objective": one.name}, of(one.limit_ns)) for one in self.objectives],
        )
        yield Family(
            "rca_llm_monitor_p99_seconds",
            f"99th percentile over the window; absent below {FEWEST} finished requests.",
            [({"objective": name}, of(ns)) for name, ns in measured.items()],
        )
        yield Family(
            "rca_llm_monitor_breaches",
            "Times that an objective was newly broken.",
            [({"objective": o.name}, self.breaches.get(o.name, 0)) for o in self.objectives],
        )

    def watch(self, every_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Look again and again until the run has ended, and once more then."""
        while True:
            ended = Run(self.run).manifest().get("state") == "finished"
            began = time.monotonic()
            self.look()
            if ended:
                return
            sleep(max(every_s - (time.monotonic() - began), 0.1))


def last(trace: Trace, window_ns: int) -> Trace:
    """What began in the last stretch of a trace, up to its latest record."""
    latest = _latest(trace)
    return between(trace, latest - window_ns, latest + 1) if latest != UNKNOWN else trace


def _latest(trace: Trace) -> int:
    """The latest time of any record, `UNKNOWN` where there is none."""
    return max(
        (
            int(table[column].max())
            for line in trace.timelines
            for table in line.tables.values()
            for column in _ENDS
            if len(table) and column in table.known
        ),
        default=UNKNOWN,
    )
