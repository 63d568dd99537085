"""Copies that the host issues one after another, and the idle time that it spends on that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.hints import lead, records
from rca_llm.hints.case import Case, Spans
from rca_llm.hints.moved import HostCopies
from rca_llm.table import Mask


@dataclass(frozen=True)
class Issued:
    """Runs of small copies of a rank, each with nothing else asked for between its copies.

    `spans` is when the host issued them, when devices stood still between them, and the idle time
    that they leave behind. `copies` says how many copies are in the runs, `count` how many runs.
    """

    spans: Spans
    copies: int
    count: int


NONE = Issued(records.NO_SPANS, 0, 0)


def issued(case: Case, number: int, copies: HostCopies, size: float, pause: float) -> Issued:
    """The runs among some copies of a rank (an index), each in one step.

    A copy belongs to the run of the one before where both are of at most `size` bytes, the same
    thread begins its call within `pause` ns of the end of the other's, and nothing was asked for
    between them.
    """
    own = copies.take((copies.rank == number) & (copies.size <= size))
    own = own.take(np.lexsort([own.start, own.call_start]))
    close = own.call_start[1:] - own.call_end[:-1] <= pause
    close &= (own.step[1:] == own.step[:-1]) & (own.thread[1:] == own.thread[:-1])
    place = np.searchsorted(lead.of_rank(case, number).asked, own.call_start, "left")
    close &= np.diff(place) == 1
    return _runs(case, number, own, close) if close.any() else NONE


def _runs(case: Case, number: int, own: HostCopies, close: Mask) -> Issued:
    """The runs of copies of which some are `close` to the one before; the first is none of them."""
    opens = np.append(True, ~close)
    size = np.bincount(np.cumsum(opens) - 1)
    several = size > 1
    first = np.flatnonzero(opens)[several]
    calls = own.call_start[first], own.call_end[first + size[several] - 1]
    pairs = np.flatnonzero(close)
    between = own.end[pairs], own.start[pairs + 1]
    called = np.flatnonzero(own.thread[first] >= 0)
    known = calls[0][called], calls[1][called]
    member, queue = case.job.ranks[number], lead.of_rank(case, number)
    left = lead.lost(member, queue, known, own.thread[first[called]])
    spans = intervals.union(*records.joined([calls, between, left]))
    return Issued(spans, int(size[several].sum()), len(first))
