"""What the scheduler counted between two looks at a thread: waits, runs and page faults, in ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rca_llm import intervals
from rca_llm.readers.run_free import Free
from rca_llm.table import Ints, Mask

FINE_NS = 25_000_000
NEAR_NS = 100_000_000
"""Between two looks of the thread itself that are no further apart, others add nothing."""
LONGEST_FAULT_NS = 20_000_000
"""More than reading one page takes: blocked time beyond it has another reason."""

MOSTLY_FAULTS = 1.5
"""A stretch that ran no longer than so many times the work of its faults did nothing else: how long
one takes differs by as much with the load of the machine."""


class Looks(NamedTuple):
    """The looks at one thread, by time: what was counted up to each."""

    time: Ints
    on_cpu: Ints
    """ns on a CPU."""
    delay: Ints
    """ns ready but without a CPU."""
    faults: Ints
    """Major page faults, -1 where the look did not say."""
    kernel: Ints
    """µs on a CPU in the kernel, modulo 2^32; nothing where `faults` is -1."""
    own: Mask
    """Whether the thread itself looked: it ran then, so no wait goes on over such a look."""


@dataclass(frozen=True)
class Between:
    """The stretches between the looks at a thread, in its free time: ns of each kind, in order.

    `span` is all of the free time, `inside` what was waited for a CPU outside of it; `faulted` is
    the time in which pages were read: blocked, or at work in the kernel.
    """

    begin: Ints
    span: Ints
    inside: Ints
    waited: Ints
    ran: Ints
    faulted: Ints


def sharp(looks: Looks) -> Looks:
    """The looks without those from outside that lie between near looks of the thread itself.

    The latter are exact, and taken wherever a span begins or ends; from outside a counter is seen
    up to some milliseconds late.
    """
    own = np.flatnonzero(looks.own)
    every = np.arange(len(looks.time))
    after = np.searchsorted(own, every)
    enclosed = (after > 0) & (after < len(own)) & ~looks.own
    row = np.where(enclosed, after, 0)
    near = np.zeros(len(every), bool)
    if len(own):
        near = looks.time[own[row]] - looks.time[own[row - 1]] <= NEAR_NS
    kept = ~(enclosed & near)
    time, on_cpu, delay, faults, kernel = (column[kept] for column in looks[:5])
    return Looks(time, on_cpu, delay, faults, kernel, looks.own[kept])


def stretches(looks: Looks, free: Free, fault_work: int) -> Between:
    """What each stretch between two looks holds; a page fault takes `fault_work` ns of CPU."""
    on_cpu, delay = _up_to_date(looks.time, looks.on_cpu, looks.delay)
    begin = free.of(looks.time)
    span = np.diff(begin)
    ran = np.clip(np.diff(on_cpu), 0, span)
    delayed = np.maximum(np.diff(delay), 0)
    waited = np.minimum(delayed, span - ran)
    pages = np.where(fine(looks), _new_faults(looks.faults, span - waited), 0)
    worked = np.maximum(_fault_work(looks, pages), pages * fault_work)
    worked = np.where(ran <= MOSTLY_FAULTS * worked, ran, worked)
    blocked = np.minimum(span - ran - waited, pages * LONGEST_FAULT_NS)
    inside, waited = _settled(delayed - waited, waited, span - ran - blocked, looks.own)
    return Between(begin[:-1], span, inside, waited, ran - worked, worked + blocked)


def _settled(inside: Ints, waited: Ints, room: Ints, own: Mask) -> tuple[Ints, Ints]:
    """Waits inside of calls and beside them, where both are known: between two own looks.

    A wait is counted when it is over, so one that goes on over a look from outside shows too late,
    where it may find no room beside the calls. Its thread was in no call while there is room.
    """
    part, known = np.cumsum(own[:-1]), _enclosed(own)
    room = np.where(known, room - waited, 0)
    excess, free = (intervals.sum_by(part, v, int(part.max(initial=0)) + 1) for v in (inside, room))
    moved = np.minimum(excess, free)
    given = room * (moved / np.maximum(free, 1))[part]
    taken = np.where(known, inside * (moved / np.maximum(excess, 1))[part], 0)
    return inside - taken.astype(np.int64), waited + given.astype(np.int64)


def _fault_work(looks: Looks, pages: Ints) -> Ints:
    """Time on the CPU that reading pages took between looks, ns: an estimate.

    The kernel counts its share of a thread's time by ticks of some milliseconds, which say nothing
    of one stretch. What it counted in all stretches with faults is shared out by their faults. That
    is too little where ticks wake others: then what a fault was measured to take is more.
    """
    known = np.flatnonzero(looks.faults >= 0)
    if len(known) < 2 or not pages.any():
        return np.zeros(len(pages), np.int64)
    # A look from outside is told in hundredths of a second, one of the thread itself in µs.
    steps = (np.diff(looks.kernel[known]) + (1 << 31)) % (1 << 32) - (1 << 31)
    counted = np.maximum.accumulate(np.concatenate([[0], np.cumsum(steps)])) * 1000
    # A count that did not move waits for the next tick: the time up to then belongs together.
    moved = np.flatnonzero(np.concatenate([[True], np.diff(counted) > 0]))
    group = np.searchsorted(known[moved], np.arange(len(pages)), "right") - 1
    of_group = intervals.sum_by(group, pages, len(moved))[:-1]
    grown = np.diff(counted[moved])[of_group > 0]
    each = grown.sum() / max(int(of_group.sum()), 1)
    return np.asarray(pages * each, np.float64).astype(np.int64)


def _up_to_date(time: Ints, on_cpu: Ints, delay: Ints) -> tuple[Ints, Ints]:
    """Both counters as they stood at each look.

    The kernel adds time on the CPU at ticks, and a wait when it ends. What a later look brings that
    does not fit into the time between was there before.
    """
    waits = _latest(delay - time) + time
    runs = _latest(on_cpu + waits - time) + time - waits
    return runs, waits


def _latest(values: Ints) -> Ints:
    """For each the greatest from there on."""
    return np.asarray(np.maximum.accumulate(values[::-1])[::-1], np.int64)


def _new_faults(pages: Ints, active: Ints) -> Ints:
    """How many major faults came between two looks.

    Between looks that said how many there were, they are shared out by the time in which the thread
    did not wait for a CPU (`active`).
    """
    said = np.flatnonzero(pages >= 0)
    if len(said) < 2:
        return np.zeros(max(len(pages) - 1, 0), np.int64)
    grown = np.maximum(np.diff(pages[said]), 0)
    sums = np.concatenate([[0], np.cumsum(active)])
    every = np.arange(len(pages))
    row = np.clip(np.searchsorted(said, every, "right") - 1, 0, len(grown) - 1)
    first, length = sums[said[row]], (sums[said[row + 1]] - sums[said[row]])
    share = np.clip((sums - first) / np.maximum(length, 1), 0.0, 1.0)
    total = np.concatenate([[0], np.cumsum(grown)])[row] + (grown[row] * share).astype(np.int64)
    return np.asarray(np.diff(total), np.int64)


def fine(looks: Looks) -> Mask:
    """The stretches in which an instant can be told: short ones, and those of one step."""
    return np.asarray((np.diff(looks.time) <= FINE_NS) | _enclosed(looks.own))


def _enclosed(own: Mask) -> Mask:
    """The stretches with a look of the thread itself on either side, near or far."""
    before = np.cumsum(own)
    return np.asarray((before[:-1] > 0) & (before[:-1] < before[-1:]))
