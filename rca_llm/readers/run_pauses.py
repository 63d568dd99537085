"""When a run was paused, and device records of what was launched meanwhile.

The collector notices a pause up to 50 ms late, the probes of the host at once. What it recorded by
then belongs to steps and requests that nobody recorded, so it would count to an earlier step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca_llm.attribute.links import link
from rca_llm.table import Array, Ints, Mask, known
from rca_llm.trace import CALLS_OFF, DEVICE_OFF, Timeline

Pauses = Sequence[tuple[int, int]]
"""Begin and end of each, ns of the run's clock."""


def inside(pauses: Pauses, times: Array) -> Mask:
    """Which instants lie in a pause; one without a time does not."""
    found = np.zeros(len(times), bool)
    for start, end in pauses:
        found |= (times >= start) & (times < end)
    return found


def leave_out(timeline: Timeline, pauses: Pauses) -> None:
    """Drop calls that began in a pause and the device work of those, and say how many.

    Work whose launch is not known counts by when it was queued, else by its own start.
    """
    if not pauses or not len(timeline["gpu"]) + len(timeline["api"]):
        return
    calls = inside(pauses, timeline["api"]["start"])
    work = _launched_inside(timeline, pauses, calls)
    for name, rows, what in (("gpu", work, DEVICE_OFF), ("api", calls, CALLS_OFF)):
        timeline.tables[name] = timeline[name].take(~rows)
        timeline.note("dropped_records", int(rows.sum()), "run", what)


def _launched_inside(timeline: Timeline, pauses: Pauses, calls: Mask) -> Mask:
    gpu = timeline["gpu"]
    launch: Ints = link(gpu, timeline["api"]).api_row
    own = inside(pauses, np.where(known(gpu["queued"]), gpu["queued"], gpu["start"]))
    return np.where(launch >= 0, np.append(calls, False)[launch], own)
