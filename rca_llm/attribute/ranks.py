"""The ranks of a timeline: processes that have devices, with the time they were watched."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rca_llm.attribute.codes import GRAPH_LAUNCH, LAUNCH, call_codes
from rca_llm.attribute.links import among
from rca_llm.attribute.pauses import pauses_of
from rca_llm.table import UNKNOWN, Array, Ints, Table, known
from rca_llm.trace import CUT, GRAPH, KERNEL, PARTIAL, Origin, Timeline

NOT_TRACED_LAUNCHES = 10
"""A process with this many launches and no kernel was not traced (gate G1)."""

FIRST_RANK = "first_rank"
"""Key in `Header.extra`: see `first_rank`."""

_RANK_IN_NAME = re.compile(r"(?:TP|rank|Worker[-_]?)[-_]?(\d+)\b", re.IGNORECASE)

_TIMED: dict[str, tuple[str, ...]] = {
    "gpu": ("start", "end"),
    "api": ("start", "end"),
    "ranges": ("start", "end"),
    "collectives": ("start", "end"),
    "steps": ("start", "end"),
    "states": ("start", "end"),
    "marks": ("t", "t"),
    "tokens": ("t", "t"),
    "requests": ("arrival", "finished", "until"),
    "processes": ("start", "end"),
}
"""The tables whose records open a rank's window; samples do not."""

_SHARED = ("tokens", "requests")
"""Tables that belong to no process."""


@dataclass(frozen=True)
class Rank:
    """One rank of a timeline: its processes and its window [start, end), ns.

    `cut`: its input ends early, and any device work of it may be missing.
    """

    number: int
    processes: tuple[int, ...]
    start: int
    end: int
    traced: bool
    launches: int
    cut: bool = False

    @property
    def span(self) -> int:
        """The length of the window, ns."""
        return self.end - self.start


def find_ranks(timeline: Timeline) -> list[Rank]:
    """The ranks of a timeline, in ascending order.

    One rank holds everything, unless several processes have devices, launches or rank numbers.
    Those of a timeline whose rest is elsewhere have no window.
    """
    if timeline.origin is not None:
        return _of_origin(timeline, timeline.origin)
    launches = _launches(timeline)
    own = _ranked_processes(timeline, launches)
    if timeline.header.rank is not None or len(own) < 2:
        number = timeline.header.rank
        if number is None:
            number = next(iter(own.values()), 0) if own else 0
        return [_rank(timeline, number, None, sum(launches.values()))]
    first = first_rank(timeline)
    return [
        _rank(timeline, first + number, process, launches.get(process, 0))
        for process, number in sorted(own.items(), key=lambda item: item[1])
    ]


def first_rank(timeline: Timeline) -> int:
    """What to add to the rank numbers of a file that counts its own ranks from 0."""
    return int(timeline.header.extra.get(FIRST_RANK, 0))


def _of_origin(timeline: Timeline, origin: Origin) -> list[Rank]:
    number, cut = timeline.header.rank, _is_cut(timeline)
    if number is not None or len(origin.ranks) == 1:
        own = origin.ranks[0][0] if number is None else number
        processes = {process for _, found in origin.ranks for process in found}
        return [Rank(own, (*sorted(processes | _seen(timeline)),), 0, 0, True, 0, cut)]
    first = first_rank(timeline)
    return [Rank(first + own, found, 0, 0, True, 0, cut) for own, found in origin.ranks]


def _launches(timeline: Timeline) -> dict[int, int]:
    """How many launch calls each process made."""
    api = timeline["api"]
    calls = call_codes(timeline.strings, api["name"])
    launching = (calls == LAUNCH) | (calls == GRAPH_LAUNCH)
    processes, counts = np.unique(api["process"][launching], return_counts=True)
    return dict(zip(processes.tolist(), counts.tolist(), strict=True))


def _ranked_processes(timeline: Timeline, launches: dict[int, int]) -> dict[int, int]:
    """The rank number of every process that is a rank."""
    gpu, table = timeline["gpu"], timeline["processes"]
    stated = {
        int(process): int(rank)
        for process, rank in zip(table["process"], table["rank"], strict=True)
        if rank != UNKNOWN
    }
    with_work = sorted({*np.unique(gpu["process"]).tolist(), *launches} - {UNKNOWN})
    chosen = with_work or sorted(stated)
    if all(process in stated for process in chosen):
        numbers = [stated[process] for process in chosen]
    else:
        numbers = _numbers_from_names(timeline, chosen)
    if len(set(numbers)) < len(numbers):
        numbers = list(range(len(chosen)))
    return dict(zip(chosen, numbers, strict=True))


def _numbers_from_names(timeline: Timeline, processes: list[int]) -> list[int]:
    """Rank numbers that stand in the process names, else the order of the process ids."""
    table = timeline["processes"]
    names = {
        int(p): timeline.strings[int(n)]
        for p, n in zip(table["process"], table["name"], strict=True)
    }
    found = [_RANK_IN_NAME.search(names.get(process, "")) for process in processes]
    if all(found):
        return [int(match.group(1)) for match in found if match]
    return list(range(len(processes)))


def _rank(timeline: Timeline, number: int, process: int | None, launches: int) -> Rank:
    gpu = timeline["gpu"]
    rows = slice(None) if process is None else gpu["process"] == process
    kinds = gpu["kind"][rows]
    kernels = int(np.count_nonzero((kinds == KERNEL) | (kinds == GRAPH)))
    cut = _is_cut(timeline)
    missing = launches >= NOT_TRACED_LAUNCHES and not cut if len(kinds) else launches > 0 or cut
    start, end = _window(timeline, process)
    processes = _processes(timeline) if process is None else (process,)
    traced = bool(kernels or not missing) and not timeline.header.extra.get(PARTIAL)
    return Rank(number, processes, start, end, traced, launches, cut)


def _is_cut(timeline: Timeline) -> bool:
    return bool(timeline.header.extra.get(CUT))


def _processes(timeline: Timeline) -> tuple[int, ...]:
    """Every process that recorded anything."""
    return tuple(sorted(_seen(timeline))) or (UNKNOWN,)


def _seen(timeline: Timeline) -> set[int]:
    seen: set[int] = set()
    for name in ("gpu", "api", "ranges", "steps", "states", "collectives"):
        table = timeline[name]
        if "process" in table:
            seen.update(np.unique(table["process"]).tolist())
    return seen - {UNKNOWN}


def _window(timeline: Timeline, process: int | None) -> tuple[int, int]:
    """From the first to the last timed record."""
    low: list[int] = []
    high: list[int] = []
    for name, columns in _TIMED.items():
        table = timeline[name]
        if process is not None:
            if name in _SHARED:
                continue
            table = table.take(table["process"] == process) if len(table) else table
        elif name == "marks":
            table = _recorded(timeline, table)
        _extremes(table, columns, low, high)
    return (min(low), max(high)) if low else (0, 0)


def _recorded(timeline: Timeline, marks: Table) -> Table:
    """The marks outside of pauses: those in one, which users may set, do not open the window."""
    start, end = pauses_of(timeline)
    place = np.searchsorted(start, marks["t"], "right") - 1
    inside = (place >= 0) & (marks["t"] < np.append(end, 0)[place])
    return marks.take(~inside) if inside.any() else marks


def _extremes(table: Table, columns: tuple[str, ...], low: list[int], high: list[int]) -> None:
    for column in columns:
        times = table[column] if column in table else np.empty(0, np.int64)
        times = times[known(times)]
        if len(times):
            low.append(int(times.min()))
            high.append(int(times.max()))


def rows_of(table: Table, rank: Rank) -> Ints:
    """The rows of a table that belong to a rank's processes, or to no process."""
    if not len(table) or "process" not in table:
        return np.arange(len(table))
    process: Array = table["process"]
    return np.flatnonzero(among(process, [*rank.processes, UNKNOWN]))
