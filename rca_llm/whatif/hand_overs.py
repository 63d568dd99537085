"""KV hand-overs in a replay: what the launching thread and the devices do for them.

Attribution charges the time of a hand-over's span to it, whatever goes on underneath, unless a
kernel runs. So the copies that a span launched and that were done when it ended, and what the
launching thread did in the span (launching, waiting), are the hand-over's and go with it.
"""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.device import COPY
from rca_llm.attribute.job import Member
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE, codes
from rca_llm.attribute.ranks import rows_of
from rca_llm.intervals import Pieces
from rca_llm.table import Ints, Mask

HAND_OVER = CODE["communication.kv_transfer"]

_ITS_OWN = codes(
    ("scheduling.launch", "scheduling.sync", "scheduling.host", "scheduling.other")
).tolist()
"""What a thread does for a hand-over; a collection or a page fault has its own cause."""


def spans(member: Member) -> tuple[Ints, Pieces]:
    """The hand-overs of a rank: the threads that have some, and their spans, labelled by thread.

    Spans of one thread are a union; those of several threads may overlap.
    """
    recording, partition = member
    ranges = recording.timeline["ranges"]
    kind = recording.timeline.strings.find("kv_transfer")
    rows = rows_of(ranges, partition.rank)
    rows = rows[(ranges["kind"][rows] == kind) & (kind >= 0)]
    thread = recording.host.range_thread[rows]
    threads: Ints = np.unique(thread).astype(np.int64)
    found = [of_thread(ranges["start"], ranges["end"], rows[thread == one]) for one in threads]
    none = [np.zeros(0, np.int64)]
    label = np.repeat(threads, [len(own) for own in found])
    start = np.concatenate([own.start for own in found] or none)
    end = np.concatenate([own.end for own in found] or none)
    return threads, Pieces(start, end, label)


def of_thread(start: Ints, end: Ints, rows: Ints) -> Pieces:
    """The union of some spans."""
    begin, stop = intervals.union(start[rows], end[rows])
    return Pieces(begin, stop, np.zeros(len(begin), np.int64))


def driven(member: Member, thread: int) -> Pieces:
    """The hand-overs in which one thread of a rank was, ascending and disjoint."""
    _, every = spans(member)
    own = every.take(np.flatnonzero(every.label == thread))
    return Pieces(own.start, own.end, np.zeros(len(own), np.int64))


def relabelled(pieces: Pieces, own: Pieces) -> Pieces:
    """The pieces of a thread, with what it did for its hand-overs charged to them."""
    if not len(own) or not len(pieces):
        return pieces
    pieces = intervals.cut(pieces, intervals.distinct(np.concatenate([own.start, own.end])))
    inside = (intervals.at(own, pieces.start) >= 0) & among(pieces.label, _ITS_OWN)
    return Pieces(pieces.start, pieces.end, np.where(inside, HAND_OVER, pieces.label))


def copies(member: Member) -> Mask:
    """Which activities of a rank are copies that a hand-over launched and waited for."""
    recording, partition = member
    activity = partition.activity
    found = np.zeros(len(activity), bool)
    threads, every = spans(member)
    if not len(threads):
        return found
    copying = np.flatnonzero((activity.layer == COPY) & (activity.gpu_row >= 0))
    called, by = _launches(recording, activity.gpu_row[copying])
    for thread in threads.tolist():
        own = every.take(np.flatnonzero(every.label == thread))
        mine = copying[by == thread]
        span = np.searchsorted(own.start, called[by == thread], "right") - 1
        until = np.append(own.end, np.iinfo(np.int64).min)[span]
        found[mine] = activity.end[mine] <= until
    return found


def _launches(recording: Recording, rows: Ints) -> tuple[Ints, Ints]:
    """When, and on which thread, some rows of `gpu` were launched; thread -1 where unknown."""
    call = recording.links.api_row[rows]
    starts = np.append(recording.timeline["api"]["start"], 0)
    threads = np.append(recording.host.api_thread, -1)
    return starts[call], threads[call]
