"""The roofline of a trace: what each kernel reaches, under what its device can do at most.

A kernel's point is its floating-point operations for each byte of device memory (intensity) against
its operations a second; the roof is the lower of the device's peak and intensity × memory
bandwidth (Williams, Waterman, Patterson: Roofline, CACM 2009). Peaks come from data sheets
(`rca_llm/hardware.tsv`). Bytes are what a kernel must move at least (each operand and result once),
so a point may lie further left in truth. A kernel whose operations or bytes nobody told has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rca_llm.exporters.text import shown
from rca_llm.hardware import Peak, peak

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rca_llm.report import Report

OPERATIONS, BYTES = "flops", "dram_bytes"
"""Keys of a row of `kernels` that hold what all its launches computed and moved, if known."""


def roofline(report: Report) -> dict[str, Any] | None:
    """Roofs and points for the page; None without a known device or without a single point."""
    roof, rows = _roof(report), list(_points(report.summary))
    if roof is None or not rows:
        return None
    roofs = [{"name": name, "flops_s": flops} for name, flops in roof.flops.items()]
    return {"roofs": roofs, "bandwidth": roof.memory_bytes_s, "rows": rows}


def _roof(report: Report) -> Peak | None:
    """The peak that all devices of the trace share."""
    devices = [device for line in report.trace.timelines for device in line.devices]
    found = [peak(device.name, device.limits) for device in devices]
    return found[0] if found and all(one == found[0] for one in found) else None


def _points(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for row in summary["kernels"]:
        operations, moved = row.get(OPERATIONS), row.get(BYTES)
        if operations and moved and row["total_ns"]:
            yield {
                "name": shown(row["name"], 100),
                "class": row["class"].partition(".")[0],
                "share": row["share"],
                "intensity": operations / moved,
                "flops_s": operations * 1e9 / row["total_ns"],
            }
