"""When a run was paused: nobody recorded anything then, so idle time in it is unknown.

`ctl RUN stop`, `--start paused`, `--duration` and `--max-size` pause a whole run, and its launcher
writes down from when until when. The collector writes down when another profiler held CUPTI, so
that it recorded no device. What a device is known to have done meanwhile stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.parts import CLASS_OF, CLASSES, CODE
from rca_llm.intervals import Pieces
from rca_llm.table import NEVER, Ints
from rca_llm.trace import PAUSES, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_RECORDED = CODE["unknown.not_recorded"]


def pauses_of(timeline: Timeline) -> tuple[Ints, Ints]:
    """Begin and end of each pause of a timeline on its clock, disjoint and ascending, ns.

    The end is `NEVER` of one that was not over when the run was.
    """
    return _union(pairs(timeline.header.extra.get(PAUSES)))


def unknown(timeline: Timeline) -> Pieces:
    """The pauses of a timeline as pieces of the part that idle time in them has."""
    start, end = pauses_of(timeline)
    return Pieces(start, end, np.full(len(start), NOT_RECORDED, np.int64))


def untold(timeline: Timeline, seen: Pieces) -> Pieces:
    """What nobody can tell of a request that is there in a pause, whatever it waits for.

    `seen` are the pieces that its rank shows it, by part. What these tell of a pause, which is
    device work, stays; beyond them nothing is known.
    """
    found = unknown(timeline)
    if not len(found):
        return found
    found = intervals.cut(found, intervals.distinct(np.concatenate([seen.start, seen.end])))
    label = np.append(seen.label, NOT_RECORDED)[intervals.at(seen, found.start)]
    silent = np.flatnonzero(CLASS_OF[label] == CLASSES.index("unknown"))
    return Pieces(found.start, found.end, label).take(silent)


def within(timeline: Timeline, pieces: Pieces) -> Pieces:
    """Those of some pieces, by part, that are unknown because of a pause."""
    lost = pieces.take(np.flatnonzero(pieces.label == NOT_RECORDED))
    return intervals.within(lost, pauses_of(timeline))


def pairs(content: Any) -> list[tuple[int, int]]:
    """The pauses that a header's key tells of; a file may say anything there."""
    told = cast("Sequence[Any]", content) if isinstance(content, list) else ()
    return [(one[0], one[1]) for one in told if _is_pause(one)]


def _is_pause(one: Any) -> bool:
    """Whether a value is a pair of times, the later one behind."""
    if not isinstance(one, (list, tuple)):
        return False
    times = cast("list[Any]", one)
    if [type(time) for time in times] != [int, int]:
        return False
    return bool(-NEVER <= times[0] < times[1] <= NEVER)


def _union(pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    found = np.array([*pairs], np.int64).reshape(-1, 2)
    return intervals.union(found[:, 0], found[:, 1])
