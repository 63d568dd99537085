"""How fast bytes could move between host and device, and what would be left of copies at that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rca_llm import hardware
from rca_llm.hardware import Peak
from rca_llm.hints.case import Case
from rca_llm.hints.moved import HostCopies, host_copies
from rca_llm.table import known

PARTS = (("io.h2d", True), ("io.d2h", False))
"""The part of copies in each direction, and whether that is to the device."""


@dataclass(frozen=True)
class Reachable:
    """Bytes a second to the device and to the host, None where nobody knows.

    `seen` says in which direction pinned copies of this trace tell it.
    """

    to_device: float | None
    to_host: float | None
    seen: tuple[bool, bool] = (False, False)

    def left(self, copies: HostCopies) -> dict[str, float]:
        """What would be left of the time on the device of some copies at these rates, by part."""
        found: dict[str, float] = {}
        for part, to_device in PARTS:
            own = copies.take(np.flatnonzero(copies.to_device == to_device))
            speed = self.to_device if to_device else self.to_host
            if speed and own.lasting:
                found[part] = min(own.bytes * 1e9 / speed / own.lasting, 1.0)
        return found

    def told(self, link: float | None) -> dict[str, float | str | None]:
        """What a saving assumes, as evidence; `link` is the peak rate of the link."""
        speeds = {
            "assumed_to_device_bytes_s": self.to_device,
            "assumed_to_host_bytes_s": self.to_host,
        }
        if not any(speeds.values()):
            assumed = "the copies would take no time"
        elif any(self.seen):
            assumed = "the bytes would move as fast as pinned copies of this trace do"
        else:
            assumed = (
                "the bytes would move at the link's peak rate, less the headers of its packets"
            )
        return {"link_bytes_s": link, **speeds, "saving_assumes": assumed}


def pcie(case: Case) -> float | None:
    """The PCIe rate of the devices at hand, one direction; None where unknown or different."""
    return agreed(case, lambda peak: peak.pcie_bytes_s)


def agreed(case: Case, figure: Callable[[Peak], float | None]) -> float | None:
    """What the peak table says of the devices at hand; None where unknown or different."""
    found = {
        figure(peak) if peak else None
        for recording in case.job.recordings
        for device in recording.timeline.devices
        for peak in [hardware.peak(device.name, device.limits)]
    }
    return next(iter(found)) if len(found) == 1 else None


def by_link(link: float | None) -> Reachable:
    """What a link of a known rate lets through."""
    most = link * hardware.PCIE_PAYLOAD if link else None
    return Reachable(most, most)


def by_pinned(case: Case, copies: HostCopies, least: float) -> Reachable:
    """What pinned copies in the same direction reach, by their median; else what the link allows.

    At least `least` of them tell, each not smaller than half of the median of `copies`: larger ones
    are quicker, since the start of a copy weighs less.
    """
    usual = by_link(pcie(case))
    every = host_copies(case)
    pinned = ~every.pageable & known(every.size) & (every.end > every.start)
    speeds: list[float | None] = []
    for _, to_device in PARTS:
        own = copies.size[(copies.to_device == to_device) & known(copies.size)]
        rows = pinned & (every.to_device == to_device)
        rows &= every.size * 2 >= (np.median(own) if len(own) else 0)
        reached = every.size[rows] * 1e9 / (every.end - every.start)[rows]
        enough = len(own) > 0 and len(reached) >= least
        speeds.append(float(np.median(reached)) if enough else None)
    seen = (speeds[0] is not None, speeds[1] is not None)
    return Reachable(speeds[0] or usual.to_device, speeds[1] or usual.to_host, seen)
