"""Thread states from what the scheduler counted between two looks at a thread.

The kernel's schedstat says how long a thread has run and how long it was ready but waited for a
processor, not when. Between two looks the order is therefore an estimate: first the wait, then the
run, then neither. Where looks are at most `FINE_NS` apart an instant is wrong by no more than that;
where they are further apart only a state that fills nearly all of the time between them is kept.
"""

from __future__ import annotations

import numpy as np

from rca_llm.table import Ints, Mask, Strings, Table
from rca_llm.trace import STATES

FINE_NS = 25_000_000
NEARLY_ALL = 0.9
SHORTEST_NS = 100_000
"""Shorter states are left out: they explain nothing and would be most of the rows."""

Looks = tuple[Ints, Ints, Ints]
"""Times of the looks at one thread, ns on CPU and ns on the run queue so far, by time."""


def states(looks: dict[tuple[int, int], Looks], strings: Strings) -> Table:
    """Rows of `states` for threads by (process, thread)."""
    parts = [_thread(pid, tid, found, strings) for (pid, tid), found in looks.items()]
    columns = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    )
    return Table(STATES, columns)


def _thread(pid: int, tid: int, looks: Looks, strings: Strings) -> dict[str, Ints]:
    time, on_cpu, delay = looks
    span = np.diff(time)
    waited = np.clip(np.diff(delay), 0, span)
    ran = np.clip(np.diff(on_cpu), 0, span - waited)
    begin = time[:-1]
    waits = _kept(span, waited)
    runs = _kept(span, ran)
    start = np.concatenate([begin[waits], (begin + waited)[runs]])
    end = np.concatenate([(begin + waited)[waits], (begin + waited + ran)[runs]])
    state = np.repeat(
        [strings.code("runnable"), strings.code("running")], [waits.sum(), runs.sum()]
    )
    order = np.argsort(start, kind="stable")
    return {
        "process": np.full(len(start), pid),
        "thread": np.full(len(start), tid),
        "start": start[order],
        "end": end[order],
        "state": state[order],
    }


def _kept(span: Ints, part: Ints) -> Mask:
    fine = (span <= FINE_NS) | (part >= NEARLY_ALL * span)
    return np.asarray(fine & (part >= SHORTEST_NS))
