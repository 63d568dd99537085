"""Sampled metrics for the page: counters as rates, one line a process or device, nothing flat.

A metric that never changes is told in a sentence with its value; drawn, it would only take space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rca_llm.exporters import units
from rca_llm.exporters.text import shown
from rca_llm.table import NO_TEXT, UNKNOWN, Array

if TYPE_CHECKING:
    from rca_llm.report import Report
    from rca_llm.table import Table
    from rca_llm.trace import Timeline

MOST_PLOTS, MOST_LINES, MOST_POINTS = 10, 8, 300
"""Metrics that are drawn, lines of each, and points of a line."""

RATES: Mapping[str, str] = {
    "cpu.throttled_ns": "share",
    "pressure.cpu_some_ns": "share",
    "pressure.cpu_full_ns": "share",
    "pressure.memory_some_ns": "share",
    "pressure.memory_full_ns": "share",
    "pressure.io_some_ns": "share",
    "pressure.io_full_ns": "share",
    "process.read_bytes": "rate",
    "process.write_bytes": "rate",
    "process.major_faults": "per second",
    "net.tcp_retransmits": "per second",
}
"""Metrics that only ever grow, and the unit of their growth: ns a ns, bytes or counts a second."""

WORDS: Mapping[str, tuple[str, str]] = {
    "queue.waiting": ("requests waiting", "Requests that wait to be admitted."),
    "queue.running": ("requests running", "Requests that the engine works on."),
    "kv.usage": ("KV cache in use", "Share of the KV cache's blocks that hold something."),
    "kv.free_blocks": ("free KV blocks", "Blocks of the KV cache that are free."),
    "gpu.sm_clock_mhz": ("SM clock", "Clock of the multiprocessors."),
    "gpu.power_w": ("power", "Electric power that the GPU takes."),
    "gpu.utilization": ("GPU utilization", "As the driver reports it: any kernel counts."),
    "gpu.memory_used_bytes": ("GPU memory in use", "By all processes."),
    "gpu.temperature_c": ("GPU temperature", "In degrees Celsius."),
    "gpu.throttle_reasons": ("reasons to slow clocks", "The driver's bit mask; 0: none."),
    "gpu.pcie_rx_bytes_s": ("PCIe to the GPU", "As the driver samples it."),
    "gpu.pcie_tx_bytes_s": ("PCIe from the GPU", "As the driver samples it."),
    "gpu.sm_active": ("SMs active", "Share of the time a multiprocessor had work, by counters."),
    "gpu.tensor_active": ("tensor cores active", "Share of the highest rate, by counters."),
    "gpu.dram_read": ("memory reads", "Share of the highest rate, by counters."),
    "gpu.dram_write": ("memory writes", "Share of the highest rate, by counters."),
    "gpu.pcie_read_bytes_s": ("PCIe reads", "Bytes a second that the GPU reads, by counters."),
    "gpu.pcie_write_bytes_s": ("PCIe writes", "Bytes a second that the GPU writes, by counters."),
    "gpu.nvlink_rx_bytes_s": ("NVLink to the GPU", "Bytes a second, by counters."),
    "gpu.nvlink_tx_bytes_s": ("NVLink from the GPU", "Bytes a second, by counters."),
    "gpu.process_memory_bytes": ("GPU memory of processes", "Summed over the GPUs."),
    "gpu.process_sm": ("SMs kept busy by processes", "Summed over the GPUs; 1: all of one."),
    "cpu.neighbour": ("CPUs of others", "CPUs that a process outside of the run kept busy."),
    "cpu.throttled_ns": ("CPU quota used up", "Share of the time the control group was throttled."),
    "pressure.cpu_some_ns": ("CPU pressure", "Share of the time some task waited for a CPU."),
    "pressure.cpu_full_ns": ("CPU pressure, all", "Share of the time all tasks waited for a CPU."),
    "pressure.memory_some_ns": (
        "memory pressure",
        "Share of the time some task waited for it.",
    ),
    "pressure.memory_full_ns": (
        "memory pressure, all",
        "Share of the time all tasks waited for it.",
    ),
    "pressure.io_some_ns": ("IO pressure", "Share of the time some task waited for IO."),
    "pressure.io_full_ns": ("IO pressure, all", "Share of the time all tasks waited for IO."),
    "process.rss_anon_bytes": ("memory of processes", "Anonymous resident memory."),
    "process.swap_bytes": ("swapped memory", "Memory of the process that lies in swap."),
    "process.read_bytes": ("read from storage", "Bytes a second that really came from storage."),
    "process.write_bytes": ("written to storage", "Bytes a second that go to storage."),
    "process.major_faults": ("major page faults", "Page faults a second that read from storage."),
    "net.tcp_retransmits": ("TCP retransmits", "Segments a second that were sent again."),
}
"""Names and definitions, in the order in which metrics are drawn; others follow by name."""

_UNITS = (
    ("_bytes_s", "rate"),
    ("_bytes", "bytes"),
    ("_ns", "ns"),
    ("_mhz", "MHz"),
    ("_w", "W"),
    ("_c", "°C"),
    ("usage", "share"),
    ("utilization", "share"),
)
"""Units by the end of a metric's name; anything else is a count."""


@dataclass(frozen=True)
class Line:
    """A metric of one process or device over time, ns UTC."""

    name: str
    t: Array
    value: Array

    @property
    def constant(self) -> bool:
        """Whether its value never changes."""
        return bool(np.all(self.value == self.value[0]))


@dataclass
class Metric:
    """All lines of one metric."""

    key: str
    unit: str
    lines: list[Line] = field(default_factory=list[Line])

    @property
    def words(self) -> tuple[str, str]:
        """Its name and its definition."""
        return WORDS.get(self.key) or (shown(self.key, 80), "A metric of the program's own.")

    @property
    def order(self) -> tuple[int, str]:
        """Where it stands on the page."""
        known = list(WORDS)
        return known.index(self.key) if self.key in WORDS else len(known), self.key


def samples(report: Report, origin: int) -> dict[str, Any]:
    """What to draw, times as ns after `origin`, and the metrics that never changed as texts."""
    metrics = sorted(_metrics(report), key=lambda metric: metric.order)
    moving = [m for m in metrics if not all(line.constant for line in m.lines)]
    still = [m for m in metrics if m not in moving]
    return {
        "plots": [_plot(metric, origin) for metric in moving[:MOST_PLOTS]],
        "constant": [f"{m.words[0]} {_values(m)}" for m in still],
        "left": [metric.words[0] for metric in moving[MOST_PLOTS:]],
    }


def _metrics(report: Report) -> list[Metric]:
    found: dict[str, Metric] = {}
    for timeline in report.trace.timelines:
        for key, line in _lines(timeline):
            metric = found.setdefault(key, Metric(key, _unit(key)))
            metric.lines.append(line)
    return list(found.values())


def _lines(timeline: Timeline) -> Iterator[tuple[str, Line]]:
    """Every metric of one input, split by process and device; counters as rates."""
    table = timeline["samples"]
    columns = [table[name].tolist() for name in ("metric", "process", "device")]
    for metric, process, device in sorted(set(zip(*columns, strict=True))):
        if metric == NO_TEXT:
            continue
        same = (table["process"] == process) & (table["device"] == device)
        key = timeline.text(metric) or ""
        t, value = _clean(table, (table["metric"] == metric) & same)
        if key in RATES:
            t, value = _rate(t, value, 1.0 if RATES[key] == "share" else 1e9)
        if len(t):
            yield key, Line(_whose(timeline, process, device), t, value)


def _clean(table: Table, rows: Array) -> tuple[Array, Array]:
    """Times in order and their finite values."""
    t, value = table["t"][rows], table["value"][rows]
    good = np.isfinite(value)
    order = np.argsort(t[good], kind="stable")
    return t[good][order], value[good][order]


def _rate(t: Array, value: Array, scale: float) -> tuple[Array, Array]:
    """The growth between neighbours, at the later of the two; a counter that fell began anew."""
    later = np.flatnonzero((np.diff(t) > 0) & (np.diff(value) >= 0))
    growth = np.diff(value)[later] * scale / np.diff(t)[later]
    return t[later + 1], growth


def _whose(timeline: Timeline, process: int, device: int) -> str:
    rank = timeline.header.rank
    parts = [
        f"rank {rank}" if rank is not None else "",
        f"GPU {device}" if device >= 0 else "",
        f"process {process}" if process != UNKNOWN else "",
    ]
    return " ".join(filter(None, parts)) or "host"


def _unit(key: str) -> str:
    if key in RATES:
        return RATES[key]
    return next((unit for end, unit in _UNITS if key.endswith(end)), "count")


def _plot(metric: Metric, origin: int) -> dict[str, Any]:
    name, about = metric.words
    lines = sorted(metric.lines, key=lambda line: -float(np.ptp(line.value)))[:MOST_LINES]
    drawn = [{"name": line.name, **_thinned(line, origin)} for line in lines]
    more = len(metric.lines) - len(lines)
    return {"name": name, "about": about, "unit": metric.unit, "lines": drawn, "more": more}


def _thinned(line: Line, origin: int) -> dict[str, Any]:
    """At most `MOST_POINTS` points: means over neighbours, at the first one's time."""
    groups = np.array_split(np.arange(len(line.t)), min(len(line.t), MOST_POINTS))
    return {
        "t": [int(line.t[group[0]] - origin) for group in groups],
        "value": [float(line.value[group].mean()) for group in groups],
    }


def _values(metric: Metric) -> str:
    """The value of a metric that never changes, one for each line that differs."""
    texts = dict.fromkeys(text(float(line.value[0]), metric.unit) for line in metric.lines)
    return " or ".join(texts)


def text(value: float, unit: str) -> str:
    """A value with its unit."""
    known = {"bytes": units.size, "rate": units.rate, "share": units.percent, "ns": units.duration}
    if unit in known:
        return known[unit](value)
    plain = units.number(int(value) if value.is_integer() else value)
    return plain if unit == "count" else f"{plain} {unit}"
