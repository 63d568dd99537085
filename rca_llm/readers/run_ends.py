"""When the processes of a run ended or became another program, which ends what they left open.

The launcher saw processes end. That a process became another program (`exec`) shows in what that
one records under the same number: a first segment of its own, and nothing more from the former.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rca_llm.probes import format as layout
from rca_llm.readers.mending import with_ends
from rca_llm.readers.segments import Segment, pauses
from rca_llm.table import known
from rca_llm.trace import Timeline

_ENDED, _REPLACED = "ended", "recorded as another program (exec)"
_FIRST = (layout.WRITER_PYTHON, layout.WRITER_PRELOAD)
"""Writers that begin with their program: each has one segment of the main thread in it."""

_LASTING = ("ranges", "collectives", "steps")
MOST_TOLD = 5
"""Ends that get a finding each; of more, one says how many there were."""

End = tuple[int, str]
"""When, ns of the run's clock, and what happened."""


class Ends:
    """The ends of the programs of each process, as far as they are known."""

    def __init__(self, segments: Sequence[Segment], manifest: Mapping[str, Any]) -> None:
        began = manifest.get("began_ns")
        self._began: int | None = began if isinstance(began, int) else None
        self._pauses = pauses(segments)
        self._of: dict[int, list[End]] = defaultdict(list)
        for pid, end in (*_seen(segments), *_command(manifest), *_replaced(segments)):
            self._of[pid].append(end)
        for ends in self._of.values():
            ends.sort()

    def after(self, process: int, start: int) -> End | None:
        """The end of what a process left open at an instant; None where that is not known.

        What lasted into a pause ends with the beginning of that: nobody recorded what came then.
        """
        ends = self._of.get(process, [])
        place = bisect_left(ends, (start, ""))
        if place == len(ends):
            return None
        time, what = ends[place]
        for paused, resumed in self._pauses:
            if paused <= time < resumed:
                return max(paused, start), "was not recorded any more (paused)"
        return time, what

    def close(self, timeline: Timeline) -> None:
        """Let what was never closed last until the end of its process, where that is known."""
        for name in _LASTING:
            self._close(timeline, name)

    def _close(self, timeline: Timeline, name: str) -> None:
        table = timeline[name]
        rows = np.flatnonzero(~known(table["end"]) & known(table["start"]))
        end, told = np.array(table["end"]), Counter[tuple[int, End]]()
        for row in rows.tolist():
            process = int(table["process"][row])
            found = self.after(process, int(table["start"][row]))
            if found is not None:
                end[row] = found[0]
                told[process, found] += 1
        if not told:
            return
        timeline.tables[name] = with_ends(table, rows, end)
        self._note(timeline, name, told)

    def _note(self, timeline: Timeline, name: str, told: Counter[tuple[int, End]]) -> None:
        if len(told) > MOST_TOLD:
            detail = f"never closed; taken to last until each of {len(told)} processes ended"
            timeline.note("repaired", told.total(), name, detail)
            return
        for (process, (time, what)), count in told.items():
            detail = f"never closed; taken to last until process {process} {what}"
            if self._began is not None:
                detail += f", {(time - self._began) / 1e9:.3f} s after the command began"
            timeline.note("repaired", count, name, detail)


def _seen(segments: Iterable[Segment]) -> Iterator[tuple[int, End]]:
    """The ends of processes that the launcher waited for."""
    for segment in segments:
        if segment.header["writer"] == layout.WRITER_LAUNCHER:
            for place in segment.of(layout.INFO).tolist():
                cell = segment.cells[place]
                if segment.names.get(int(cell["c"])) == layout.PROCESS_END:
                    yield int(cell["e"]), (int(cell["a"]), _ENDED)


def _command(manifest: Mapping[str, Any]) -> Iterator[tuple[int, End]]:
    """The end of the command itself, which the manifest tells in any case."""
    pid, ended = manifest.get("pid"), manifest.get("ended_ns")
    if isinstance(pid, int) and isinstance(ended, int) and 0 < ended < 2**62:
        yield pid, (ended, _ENDED)


def _replaced(segments: Iterable[Segment]) -> Iterator[tuple[int, End]]:
    """When processes became other programs."""
    of: dict[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        if segment.header["writer"] != layout.WRITER_LAUNCHER:
            of[segment.pid].append(segment)
    for pid, own in of.items():
        for time in sorted({*_later(own)}):
            former = [one for one in own if _anchor(one) < time]
            if all(_last(one) <= time for one in former):  # `exec` ends all threads
                yield pid, (time, _REPLACED)


def _later(segments: Sequence[Segment]) -> Iterator[int]:
    """When all but the first program of a process may have begun, at the latest."""
    for writer in _FIRST:
        mine = [one for one in segments if one.header["writer"] == writer]
        main = [one for one in mine if int(one.header["tid"]) == one.pid]
        yield from sorted(map(_anchor, main))[1:]


def _anchor(segment: Segment) -> int:
    return int(segment.header["anchor_monotonic_ns"])


def _last(segment: Segment) -> int:
    """The last time in a segment, ns; 0 in one without any."""
    last = 0
    for types, column in ((layout.TIMED, "a"), (layout.ENDED, "b")):
        rows = np.isin(segment.kinds, types)
        last = max(last, int(segment.cells[column][rows].max(initial=0)))
    return last
