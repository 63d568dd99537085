"""Which record of a thread tells at each instant: the innermost, waits for a CPU included."""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.parts import CODE
from rca_llm.intervals import Pieces
from rca_llm.table import Ints


def innermost(start: Ints, end: Ints, part: Ints, gaps: tuple[Ints, Ints]) -> Pieces:
    """The parts that the records of one thread tell, of those that touch some gaps."""
    rows = intervals.touching(start, end, gaps)
    start, end, part = _waits_inside(start[rows], end[rows], part[rows])
    return intervals.innermost_wins(start, end).relabel(part)


def _waits_inside(start: Ints, end: Ints, part: Ints) -> tuple[Ints, Ints, Ints]:
    """The records of a thread, with waits for a CPU cut where one begins that outlasts the wait.

    When a thread waited between two looks at it is an estimate, and nothing of it begins while it
    waits. A span that begins within a wait and goes on after it held the wait in truth, so from
    there on the wait is the inner of the two.
    """
    waits = part == CODE["scheduling.cpu_wait"]
    order = np.flatnonzero(waits)[np.argsort(start[waits], kind="stable")]
    waiting = intervals.innermost_wins(start[order], end[order])
    begins, ends = start[~waits], end[~waits]
    if not len(waiting) or not len(begins):
        return start, end, part
    row = intervals.at(waiting, begins)
    outlasting = (row >= 0) & (ends > waiting.end[np.maximum(row, 0)])
    waiting = intervals.cut(waiting, intervals.distinct(begins[outlasting]))
    told = np.full(len(waiting), CODE["scheduling.cpu_wait"])
    columns = (waiting.start, begins), (waiting.end, ends), (told, part[~waits])
    start, end, part = (np.concatenate(column).astype(np.int64) for column in columns)
    return start, end, part
