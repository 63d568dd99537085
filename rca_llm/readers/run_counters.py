"""Hardware counters put onto the clock of the kernels that they watched.

The GPU stamps its samples on a clock of its own. Where no library reads that clock, the sampling
process knows only that no sample ends after it was read, and CUPTI hands samples over up to ten
milliseconds late, so that all of them lie that much too late. The kernels of the same GPU tell
better: the multiprocessors are active while they run.
"""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.device import busy_rows
from rca_llm.intervals import Measure, Pieces
from rca_llm.probes.counters import COUNTERS
from rca_llm.table import Array, Ints, Table, known
from rca_llm.trace import Timeline

ACTIVE = "gpu.sm_active"
EARLIEST_NS, LATEST_NS = -2_000_000, 50_000_000
"""Between which samples may lie too late."""
COARSE_NS, FINE_NS = 250_000, 25_000
MOST_SAMPLES = 20_000
FEWEST_SAMPLES = 100
CERTAIN = 0.9
"""The correlation of activity with kernels from which their clocks are taken to be told by it."""


def align(timeline: Timeline) -> None:
    """Move the samples of every GPU whose kernels say where they belong, and say by how much.

    The offset is the one at which the multiprocessors' activity correlates best with the fraction
    of each sample's interval in which kernels run; it is left as it is where the best is below
    `CERTAIN`, as where kernels never pause or are not of this run.
    """
    samples = timeline["samples"]
    codes = [timeline.strings.find(name) for name in COUNTERS]
    ours = np.isin(samples["metric"], [code for code in codes if code >= 0])
    if not ours.any():
        return
    times = np.array(samples["t"], np.int64)
    for device in np.unique(samples["device"][ours]).tolist():
        mine = ours & (samples["device"] == device)
        found = _offset(timeline, samples.take(np.flatnonzero(mine)), device)
        if found is not None:
            offset, certainty = found
            times[mine] -= offset
            timeline.note(
                "counters_moved",
                int(mine.sum()),
                f"GPU {device}",
                f"{offset / 1e6:.3f} ms earlier, where they fit its kernels"
                f" (correlation {certainty:.3f})",
            )
    timeline.tables["samples"] = samples.with_columns(t=times)


def _offset(timeline: Timeline, samples: Table, device: int) -> tuple[int, float] | None:
    """By how much the samples of a GPU lie too late, ns, and the correlation there."""
    code = timeline.strings.find(ACTIVE)
    active = samples.take(np.flatnonzero((samples["metric"] == code) & known(samples["t"])))
    active = active.sorted_by("t")
    gpu = timeline["gpu"]
    ran = busy_rows(gpu) & (gpu["device"] == device)
    ran &= known(gpu["start"]) & (gpu["end"] > gpu["start"])
    if len(active) < FEWEST_SAMPLES or not ran.any():
        return None
    begin = int(gpu["start"][ran].min()) + EARLIEST_NS
    first = int(np.searchsorted(active["t"], begin))
    chosen = active.take(np.arange(first, min(first + MOST_SAMPLES, len(active))))
    if len(chosen) < FEWEST_SAMPLES:
        return None
    busy = intervals.union(gpu["start"][ran], gpu["end"][ran])
    measure = Measure(Pieces(*busy, np.zeros(len(busy[0]), np.int64)))
    return _best(measure, chosen["t"], chosen["value"])


def _best(busy: Measure, end: Ints, active: Array) -> tuple[int, float] | None:
    usual = int(np.median(np.diff(end)))

    def fit(offset: int) -> float:
        ran = busy.until(end - offset) - busy.until(end - offset - usual)
        if ran.min() == ran.max() or active.min() == active.max():
            return 0.0
        return float(np.corrcoef(ran, active)[0, 1])

    near = max(range(EARLIEST_NS, LATEST_NS, COARSE_NS), key=fit)
    best = max(range(near - COARSE_NS, near + COARSE_NS + 1, FINE_NS), key=fit)
    certainty = fit(best)
    return (best, certainty) if certainty >= CERTAIN and best else None
