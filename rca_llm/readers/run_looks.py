"""Looks at threads in a run: collected from SCHED cells, and made into what each thread did."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rca_llm import intervals
from rca_llm.faults import WORK_METRIC
from rca_llm.probes import format as layout
from rca_llm.readers import run_calls, run_states
from rca_llm.readers.run_counted import Looks
from rca_llm.readers.run_free import Spans
from rca_llm.readers.run_states import Key
from rca_llm.readers.segments import Segment
from rca_llm.table import Array
from rca_llm.trace import Timeline


@dataclass
class Watched:
    """The looks at every thread, by process and thread, as far as they were read."""

    parts: dict[Key, list[Array]] = field(default_factory=dict[Key, list[Array]])

    def read(self, segment: Segment) -> None:
        """Add the looks that a segment holds."""
        cells, places = segment.cells, segment.of(layout.SCHED)
        more, whole = segment.followers(places, layout.MORE)
        places, more = places[whole], more[whole]
        keys = cells["d"][places].astype(np.int64) << 32 | cells["e"][places]
        faults = np.where(
            cells["d"][more] & layout.SCHED_FAULTS, cells["c"][more].astype(np.int64), -1
        )
        kernel = cells["e"][more].astype(np.int64)
        itself = np.full(len(places), segment.header["writer"] != layout.WRITER_LAUNCHER)
        cpu = np.where(itself, -1, cells["c"][places].astype(np.int64) - 1)
        times = cells["a"][places], cells["b"][places], cells["a"][more]
        rows = np.stack([*times, faults, kernel, itself, cpu])
        order = np.argsort(keys, kind="stable")
        found, first = np.unique(keys[order], return_index=True)
        for key, own in zip(found.tolist(), np.split(order, first)[1:], strict=True):
            self.parts.setdefault((key >> 32, key & 0xFFFFFFFF), []).append(rows[:, own])

    def add_to(self, timeline: Timeline) -> None:
        """Append what threads did, from the looks at them and the calls that are known."""
        looks, cpus = self._looks()
        strings = timeline.strings
        calls, locks = run_calls.spans(timeline), run_calls.spans(timeline, "gil")
        edges, throttled = run_calls.edges(timeline), _throttled(timeline)
        work = _fault_work(timeline)
        known = run_states.Known(calls, locks, edges, throttled, work, cpus)
        timeline.add("states", run_states.states(looks, strings, known))
        timeline.add("ranges", run_states.faults(looks, strings, known))
        timeline.header.extra["threads"] = run_states.totals(looks)

    def _looks(self) -> tuple[dict[Key, Looks], dict[Key, Spans]]:
        """The looks at each thread by time, and which CPU it ran on by those that said so.

        The launcher and the thread itself look.
        """
        looks: dict[Key, Looks] = {}
        cpus: dict[Key, Spans] = {}
        for key, parts in self.parts.items():
            rows = np.concatenate(parts, axis=1)
            rows = rows[:, np.argsort(rows[0], kind="stable")]
            time, on_cpu, delay, faults, kernel, own, cpu = rows
            looks[key] = Looks(time, on_cpu, delay, faults, kernel, own > 0)
            cpus[key] = time[cpu >= 0], cpu[cpu >= 0]
        return looks, cpus


def _fault_work(timeline: Timeline) -> int:
    """CPU time of a page fault, ns, as the launcher measured it; 0 where it had no reason to.

    A second at the most: what a damaged file claims may be any number.
    """
    samples = timeline["samples"]
    told = samples["value"][samples["metric"] == timeline.strings.find(WORK_METRIC)]
    return int(np.clip(told[-1], 0, 10**9)) if len(told) else 0


def _throttled(timeline: Timeline) -> Spans:
    """When the quota of a cgroup kept its threads from running."""
    samples = timeline["samples"]
    found: list[Spans] = []
    for metric in ("cpu.throttled_ns", "cpu.throttled_count"):
        rows = samples["metric"] == timeline.strings.code(metric)
        order = np.argsort(samples["t"][rows], kind="stable")
        total = samples["value"][rows][order].astype(np.int64)
        least = 0 if metric.endswith("_ns") else run_states.BETWEEN_READINGS_NS
        found.append(run_states.throttled_spans(samples["t"][rows][order], total, least))
    start, end = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return intervals.union(start, end)
