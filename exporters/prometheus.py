"""Prometheus text: the report's figures as gauges, for a node exporter's textfile collector.

Base units as Prometheus wants them: seconds, bytes and ratios. What is unknown is not written.
Format: prometheus.io/docs/instrumenting/exposition_formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rca_llm.exporters.text import shown
from rca_llm.exporters.verdict import given

if TYPE_CHECKING:
    from rca_llm.report import Report

suffix = ".prom"

Sample = tuple[Mapping[str, object], "float | int | None"]

MOST_KERNELS = 50
"""Kernels that become series: labels from traces must not flood a database."""


@dataclass(frozen=True)
class Family:
    """One metric: its name, what it says, and its samples with their labels."""

    name: str
    about: str
    samples: Iterable[Sample]

    def lines(self) -> Iterator[str]:
        """The metric in the text format; nothing where no sample is known."""
        known = [(labels, value) for labels, value in self.samples if value is not None]
        if not known:
            return
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in known:
            pairs = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
            yield f"{self.name}{{{pairs}}} {value!r}" if pairs else f"{self.name} {value!r}"


def write(report: Report, target: Path) -> None:
    """Write the file."""
    target.write_text(text(report.summary), encoding="utf-8", newline="\n")


def text(summary: Mapping[str, Any]) -> str:
    """All metrics of a summary."""
    return "".join(f"{line}\n" for family in families(summary) for line in family.lines())


def escaped(value: object) -> str:
    """A label's value in the text format."""
    return shown(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def families(summary: Mapping[str, Any]) -> Iterator[Family]:
    """The metrics of a summary, those of every table in turn."""
    yield from _of_time(summary)
    yield from _of_requests(summary)
    yield from _of_devices(summary)
    yield from _of_findings(summary)


def seconds(ns: float | None) -> float | None:
    """A time in ns as seconds."""
    return None if ns is None else ns / 1e9


def _of_time(summary: Mapping[str, Any]) -> Iterator[Family]:
    yield Family(
        "rca_llm_trace_seconds",
        "Traced time, summed over ranks.",
        [({}, seconds(summary["window"]["span_ns"]))],
    )
    yield Family(
        "rca_llm_class_seconds",
        "Traced time by class; adds up to rca_llm_trace_seconds.",
        [({"class": name}, seconds(ns)) for name, ns in summary["shares"].items()],
    )
    yield Family(
        "rca_llm_part_seconds",
        "Traced time by part; adds up to rca_llm_class_seconds.",
        [
            ({"class": name.partition(".")[0], "part": name}, seconds(ns))
            for name, ns in summary["parts"].items()
        ],
    )
    yield Family(
        "rca_llm_hidden_seconds",
        "Time of a class that delayed nothing, because other work ran.",
        [({"class": name}, seconds(ns)) for name, ns in given(summary["hidden"]).items()],
    )


def _of_requests(summary: Mapping[str, Any]) -> Iterator[Family]:
    latency = given(summary["latency"])
    yield Family(
        "rca_llm_request_latency_seconds",
        "Latency of finished requests, by nearest rank.",
        [({"percentile": name[1:]}, seconds(latency.get(name))) for name in ("p50", "p90", "p99")],
    )
    yield Family(
        "rca_llm_requests",
        "Requests of the trace by how they ended.",
        [({"status": status}, count) for status, count in _statuses(summary).items()],
    )
    stats = given(summary["class_stats"])
    yield Family(
        "rca_llm_request_class_seconds",
        "Mean time of a request by class.",
        [({"class": n}, seconds(given(row).get("mean_ns"))) for n, row in stats.items()],
    )
    yield Family(
        "rca_llm_request_class_variation_ratio",
        "Standard deviation over mean of a class's time, over requests.",
        [({"class": name}, given(row).get("cv")) for name, row in stats.items()],
    )


def _statuses(summary: Mapping[str, Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in summary["requests"]:
        status = row["status"] or "unknown"
        counts[status] = counts.get(status, 0) + 1
    return counts


def _of_devices(summary: Mapping[str, Any]) -> Iterator[Family]:
    devices = [
        ({"rank": row["rank"], "process": row["process"], "device": row["device"]}, row)
        for row in summary["devices"]
    ]
    yield Family(
        "rca_llm_device_utilization_ratio",
        "Busy time of a device over its traced time.",
        [(labels, row["utilization"]) for labels, row in devices],
    )
    for state in ("busy", "idle"):
        yield Family(
            f"rca_llm_device_{state}_seconds",
            f"Time a device was {state}.",
            [(labels, seconds(row[f"{state}_ns"])) for labels, row in devices],
        )
    yield Family("rca_llm_kernel_seconds", "Plain sum of a kernel's durations.", _kernels(summary))


def _kernels(summary: Mapping[str, Any]) -> Iterator[Sample]:
    """The kernels with most time; rows of one name are launches of different shapes."""
    sums: dict[tuple[str, str], int] = {}
    for row in summary["kernels"]:
        key = (shown(row["name"], 160), row["class"])
        sums[key] = sums.get(key, 0) + (row["total_ns"] or 0)
    for (name, part), ns in sorted(sums.items(), key=lambda item: -item[1])[:MOST_KERNELS]:
        yield {"kernel": name, "part": part}, seconds(ns)


def _of_findings(summary: Mapping[str, Any]) -> Iterator[Family]:
    hints: dict[str, float | None] = {}
    for row in summary["hints"]:
        hints.setdefault(row["id"], seconds(row["saving_ns"]))
    yield Family(
        "rca_llm_hint_saving_seconds",
        "Latency that fixing the cause would save.",
        [({"hint": name}, saving) for name, saving in hints.items()],
    )
    counts: dict[str, int] = {}
    for row in summary["quality"]:
        counts[row["code"]] = counts.get(row["code"], 0) + row["count"]
    yield Family(
        "rca_llm_quality_findings",
        "Findings about the quality of the trace.",
        [({"code": code}, count) for code, count in counts.items()],
    )
