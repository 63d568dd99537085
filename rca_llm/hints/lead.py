"""Idle time of devices that a call leaves behind: the host lost its lead and launches too late.

A host that launches ahead keeps devices busy. One that is blocked, or busy with something else,
while the queue runs empty leaves them idle until it has come to its next launch: that time belongs
to what held it up as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.host import NO_THREAD
from rca_llm.attribute.job import Member
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import codes
from rca_llm.hints import records
from rca_llm.hints.case import Case, Spans
from rca_llm.intervals import Measure, Pieces
from rca_llm.table import UNKNOWN, Ints, Mask, known


@dataclass(frozen=True)
class Queue:
    """Device work of a rank in the order in which it was asked for; `busy` is when any of it ran.

    `asked` is when its call began; where that is not known, when it began itself. `thread` made the
    call, an index of the host records, negative where that is not known.
    """

    asked: Ints
    start: Ints
    thread: Ints
    busy: Spans

    def before(self, rows: Ints) -> tuple[Ints, Mask]:
        """When the devices stood still before some work, and for which of it they did."""
        start = self.start[rows]
        place = np.searchsorted(self.busy[0], start, "right") - 1
        return self.busy[1][place - 1], (place > 0) & (self.busy[0][place] == start)

    @cached_property
    def pause(self) -> int:
        """How long devices stand still between work that was asked for in time: the median, ns."""
        rows = np.arange(len(self.asked))
        done, paused = self.before(rows)
        queued = paused & (self.asked < done)
        return round(records.median((self.start - done)[queued]) or 0)


def queue(member: Member, left_out: Mask | None = None) -> Queue:
    """The device work of a rank that took time, without some activities where those are named."""
    recording, partition = member
    activity, api = partition.activity, recording.timeline["api"]
    wanted = activity.end > activity.start
    rows = np.flatnonzero(wanted if left_out is None else wanted & ~left_out)
    start = activity.start[rows]
    gpu_row = activity.gpu_row[rows]
    called = np.append(recording.links.of_api(api["start"]), UNKNOWN)[gpu_row]
    thread = np.append(recording.launched_by, NO_THREAD)[gpu_row]
    asked = np.where(known(called), called, start)
    order = np.lexsort([start, asked])
    busy = intervals.union(start, activity.end[rows])
    return Queue(asked[order], start[order], thread[order], busy)


def of_rank(case: Case, number: int) -> Queue:
    """The device work of a rank (an index), which several rules look at."""
    return case.once(("queue", number), lambda: queue(case.job.ranks[number]))


def lost(member: Member, own: Queue, calls: Spans, thread: Ints) -> Spans:
    """The idle time that calls, each of a thread, leave behind; empty without any.

    It lasts from when the devices have done what was asked for, with the pause that queued work
    makes as well, but not before the call began, to the first work that is asked for after the
    call, where the same thread asks for it when they have stood still already, and in the same
    step. All that calls of a step leave behind is no longer than they took so far (without steps,
    no longer than each took): without them, the work would have come no sooner than by that.
    """
    begin, end = calls
    if not len(own.asked) or not len(begin):
        return end, end
    following = np.searchsorted(own.asked, end, "left")
    row = np.minimum(following, len(own.asked) - 1)
    done, paused = own.before(row)
    mine = (own.thread[row] == thread) | (own.thread[row] < 0) | (thread < 0)
    late = mine & paused & (own.asked[row] >= done) & (following < len(own.asked))
    late &= same_step(member, begin, own.start[row])
    first = np.maximum(done + own.pause, begin)
    late &= first < own.start[row]
    works, each = np.unique(row[late], return_inverse=True)
    since, until = own.start[works], np.zeros(len(works), np.int64)
    np.minimum.at(since, each, first[late])
    np.maximum.at(until, each, end[late])
    gap = _held(member, (begin[mine], end[mine]), until, own.start[works] - since)
    found = np.array(end), np.array(end)
    found[0][late], found[1][late] = since[each], (since + gap)[each]
    return found


def _held(member: Member, calls: Spans, until: Ints, gap: Ints) -> Ints:
    """What of some gaps can come from the calls up to an instant before each, ns."""
    start, end = intervals.union(*calls)
    recording, partition = member
    starts = recording.steps.start[partition.steps]
    if not len(starts) or not len(gap):
        begun = start[np.searchsorted(start, until, "left") - 1] if len(gap) else until
        return np.asarray(np.minimum(gap, until - begun))
    taken = Measure(Pieces(start, end, np.zeros(len(start), np.int64))).until
    step = np.searchsorted(starts, until, "left") - 1
    opens = np.searchsorted(step, step, "left")
    sofar = np.cumsum(gap)
    sofar -= (sofar - gap)[opens]
    room = np.minimum(taken(until) - taken(starts[step]) - sofar, 0)
    # Steps are put so far apart that the least of one is never that of the one before.
    apart = step * (1 - int(room.min()))
    granted = sofar + np.minimum.accumulate(room - apart) + apart
    before = np.append(0, granted[:-1])
    return np.asarray(granted - np.where(opens == np.arange(len(step)), 0, before))


def same_step(member: Member, begin: Ints, until: Ints) -> Mask:
    """Which calls are made in a step that has device work going on after an instant.

    All where there are no steps.
    """
    recording, partition = member
    steps = partition.steps
    if not len(steps):
        return np.ones(len(begin), bool)
    starts, ends = recording.steps.start[steps], recording.steps.end[steps]
    place = np.searchsorted(starts, begin, "right") - 1
    last_work = records.first_and_last_work(recording, partition.step_of)[1][steps]
    inside = (place >= 0) & (begin < ends[place])
    return np.asarray(inside & (until < last_work[place]))


def within(member: Member, calls: Spans, own: Sequence[str], left: Spans) -> Spans:
    """Some calls with the idle time that they left behind, as one set of times.

    Idle time in the calls that is charged as none of their `own` parts is not theirs: the thread
    that launches did something else while another one called.
    """
    segments = member[1].segments
    others = (segments.activity < 0) & ~among(segments.part, codes(own).tolist())
    others &= intervals.touching(segments.start, segments.end, intervals.union(*calls))
    kept = intervals.without(calls, (segments.start[others], segments.end[others]))
    return intervals.union(*records.joined([kept, left]))
