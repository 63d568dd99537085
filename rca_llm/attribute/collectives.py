"""Collectives: the parts of all ranks brought together, with who waited for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rca_llm.attribute import device
from rca_llm.attribute.collective_names import PAIRWISE
from rca_llm.attribute.collective_parts import Part
from rca_llm.attribute.device import Activity
from rca_llm.attribute.matching import matched
from rca_llm.attribute.members import members
from rca_llm.attribute.parts import CODE
from rca_llm.table import UNKNOWN

_BUS_FACTOR: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
    "send": lambda n: 1.0,
    "recv": lambda n: 1.0,
}
"""Bus bandwidth over algorithm bandwidth for n ranks (nccl-tests, doc/PERFORMANCE.md)."""

_IN_SHARES = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""Operations whose message size is recorded for one rank's share of the whole."""


@dataclass(frozen=True)
class Collective:
    """One collective with the parts of all ranks that were found.

    It is `complete` if every rank's part was found, on clocks that can be compared: to within
    `uncertainty`, ns, where the ranks do not share a clock. None where that is not known.
    """

    parts: tuple[Part, ...]
    complete: bool
    uncertainty: int | None = 0

    @cached_property
    def arrived(self) -> int | None:
        """When the last rank had come; None where parts are missing, or nobody can be told late."""
        if not self.complete or self.uncertainty is None:
            return None
        starts = [part.start for part in self.parts]
        last = max(starts)
        apart = last - min(starts)
        return last if apart > self.uncertainty or not self.uncertainty else None

    @cached_property
    def last_rank(self) -> int | None:
        """Who came last by more than the clocks are unsure of, None where nobody did."""
        if self.arrived is None:
            return None
        last = max(self.parts, key=lambda part: part.start)
        others = [part for part in self.parts if part is not last]
        return last.rank if all(self._after(last, part) for part in others) else None

    def _after(self, last: Part, other: Part) -> bool:
        shared = last.clock.number == other.clock.number
        return last.start - other.start > (0 if shared else self.uncertainty or 0)

    @cached_property
    def timeless(self) -> bool:
        """Whether nobody knows when it ended: all parts are instants, or have not ended."""
        return any(p.open for p in self.parts) or all(p.end == p.start for p in self.parts)

    @cached_property
    def missing(self) -> tuple[int, ...] | None:
        """Members that have no part in it; None where nobody says who the members are."""
        told = members(self.parts[0].comm)
        here = {part.rank for part in self.parts}
        return None if told is None else tuple(rank for rank in told if rank not in here)

    @cached_property
    def transfer(self) -> int | None:
        """Time from the last arrival to the last end, ns; None where the clocks cannot tell."""
        if not self.complete or self.uncertainty is None or self.timeless:
            return None
        ends, starts = (part.end for part in self.parts), (part.start for part in self.parts)
        taken = max(max(ends) - max(starts), 0)
        return taken if taken > self.uncertainty or not self.uncertainty else None


def match(ranks: Sequence[Sequence[Part]], world: int | None = None) -> list[Collective]:
    """The collectives of a job by start; `world` is how many ranks it has where that is known.

    What is left of a rank whose input ends early is compared with nobody's.
    """
    world = max(world or 0, len(ranks))
    found = [Collective((part,), complete=False) for own in ranks for part in own if part.cut]
    ranks = [[part for part in own if not part.cut] for own in ranks]
    present = len({part.rank for own in ranks for part in own})
    members = _members(ranks)
    found += [_collective(parts, members, world, present) for parts in matched(ranks, world)]
    return sorted(found, key=lambda c: min((part.start, part.rank) for part in c.parts))


def _members(ranks: Sequence[Sequence[Part]]) -> dict[str, int]:
    """How many ranks took part in anything of each communicator."""
    seen: dict[str, set[int]] = defaultdict(set)
    for parts in ranks:
        for part in parts:
            if part.comm is not None:
                seen[part.comm].add(part.rank)
    return {comm: len(members) for comm, members in seen.items()}


def _collective(
    parts: list[Part], members: Mapping[str, int], world: int, present: int
) -> Collective:
    sizes = [part.group_size for part in parts if part.group_size is not None]
    expected = max(sizes, default=world)
    if parts[0].op in PAIRWISE:
        expected = 2
    elif not sizes and present == world:
        expected = members.get(parts[0].comm or "", world)
    uncertainty = _uncertainty(parts)
    complete = 1 < len(parts) == expected and uncertainty is not None
    return Collective(tuple(parts), complete, uncertainty)


def _uncertainty(parts: Sequence[Part]) -> int | None:
    """How far the clocks of some parts may be apart, ns; None where that is not known."""
    clocks = {part.clock.number: part.clock.uncertainty_ns for part in parts}
    if len(clocks) == 1:
        return 0
    values = [value for value in clocks.values() if value is not None]
    return max(values) if len(values) == len(clocks) else None


def unmatched(collectives: Iterable[Collective]) -> tuple[int, int]:
    """How many parts found no part of another rank, and how many there are in all."""
    alone = total = 0
    for one in collectives:
        total += len(one.parts)
        first = one.parts[0]
        alone += len(one.parts) == 1 and first.group_size != 1 and not first.cut
    return alone, total


@dataclass(frozen=True)
class Hang:
    """A collective that ranks wait in for others which did not come to it, nor to a later one."""

    collective: Collective
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    last: Mapping[int, Part]
    """What each absent rank did last on that communicator, where it did anything."""

    @property
    def waited(self) -> int:
        """How long the first that came had waited when its recording ended, ns."""
        return max(part.end - part.start for part in self.collective.parts)


def hangs(collectives: Sequence[Collective], ranks: Collection[int]) -> list[Hang]:
    """The first collective of each communicator that never ended since ranks are not in it.

    `ranks` are those that were recorded: of others nobody knows where they were. Where a
    communicator does not tell its members, they are those that took part in anything of it.
    """
    last: dict[tuple[str | None, int], Part] = {}
    seen: dict[str | None, set[int]] = defaultdict(set)
    for one in collectives:
        for part in one.parts:
            last[part.comm, part.rank] = part
            seen[part.comm].add(part.rank)
    found: dict[str | None, Hang] = {}
    for one in collectives:
        comm = one.parts[0].comm
        if comm not in found and (hang := _hang(one, members(comm) or seen[comm], ranks, last)):
            found[comm] = hang
    return list(found.values())


def _hang(
    one: Collective,
    expected: Iterable[int],
    ranks: Collection[int],
    last: Mapping[tuple[str | None, int], Part],
) -> Hang | None:
    """Who waits in a collective, and for whom; None where nobody does."""
    first, here = one.parts[0], {part.rank for part in one.parts}
    waiting = tuple(sorted(part.rank for part in one.parts if part.open))
    before = {rank: last[first.comm, rank] for rank in expected if (first.comm, rank) in last}
    absent = tuple(
        rank
        for rank in sorted(expected)
        if rank in ranks
        and rank not in here
        and (rank not in before or _earlier(before[rank], first))
    )
    return Hang(one, waiting, absent, before) if waiting and absent else None


def _earlier(one: Part, other: Part) -> bool:
    return one.seq is not None and other.seq is not None and one.seq < other.seq


Arrivals = tuple[dict[int, int], dict[int, int]]
"""When the last rank came, by the `gpu` row and by the record of a rank's own part."""


def arrivals(collectives: Iterable[Collective]) -> dict[int, Arrivals]:
    """When the last rank came to each collective, for the parts of every rank."""
    found: dict[int, list[tuple[Part, int]]] = defaultdict(list)
    for collective in collectives:
        arrived = collective.arrived
        if arrived is not None:
            for part in collective.parts:
                found[part.rank].append((part, arrived))
    return {rank: by_rows(parts) for rank, parts in found.items()}


def by_rows(parts: Iterable[tuple[Part, int]]) -> Arrivals:
    """When the last rank came, of some parts of one rank, by what tells of them."""
    by_gpu: dict[int, int] = {}
    by_row: dict[int, int] = {}
    for part, arrived in parts:
        if part.gpu_row >= 0:
            by_gpu[part.gpu_row] = arrived
        else:
            by_row[part.row] = arrived
    return by_gpu, by_row


def add_to(activity: Activity, parts: Sequence[Part], arrived_at: Arrivals) -> Activity:
    """A rank's activities with its collectives: those without a kernel, and all arrivals."""
    by_gpu, by_row = arrived_at
    bare = [part for part in parts if part.gpu_row < 0]
    extra = device.bare(
        np.array([_blocking(part) for part in bare], np.int64),
        np.array([part.end for part in bare], np.int64),
        CODE["communication.collective"],
    )
    rows = np.array([part.row for part in bare], np.int64)
    joined = device.join([activity, replace(extra, collective_row=rows)])
    arrived = np.array(joined.arrived, np.int64)
    for place in np.flatnonzero(joined.layer == device.COMMUNICATION).tolist():
        gpu_row, row = int(joined.gpu_row[place]), int(joined.collective_row[place])
        arrived[place] = by_gpu.get(gpu_row, UNKNOWN) if gpu_row >= 0 else by_row.get(row, UNKNOWN)
    return replace(joined, arrived=arrived)


def _blocking(part: Part) -> int:
    """Since when a collective kept its thread from anything else."""
    return part.start if part.waited_from is None else min(part.waited_from, part.end)


def summary_row(collective: Collective) -> dict[str, object]:
    """The contract's `collectives` row."""
    parts = collective.parts
    first, arrived = parts[0], collective.arrived
    start, end = min(p.start for p in parts), max(p.end for p in parts)
    size = _first(part.bytes for part in parts)
    return {
        "comm": first.comm,
        "op": first.op,
        "seq": first.seq,
        "bytes": size,
        "dtype": first.dtype,
        "ranks": sorted({part.rank for part in parts}),
        "missing": None if collective.missing is None else list(collective.missing),
        "start_ns": start,
        "end_ns": end,
        "wait_ns": None
        if arrived is None
        else {str(part.rank): arrived - part.start for part in parts},
        "transfer_ns": collective.transfer,
        "last_rank": collective.last_rank,
        "busbw_bytes_s": bus_bandwidth(first.op, size, collective.transfer, len(parts)),
        "algo": _first(part.algo for part in parts),
        "proto": _first(part.proto for part in parts),
        "contended_ns": _longest(part.contended_ns for part in parts),
    }


def _first(values: Iterable[object]) -> object:
    return next((value for value in values if value is not None), None)


def _longest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def bus_bandwidth(op: str | None, size: object, transfer: int | None, ranks: int) -> int | None:
    """Bytes a second over the bus, None where size or transfer time is not known."""
    factor = _BUS_FACTOR.get(op or "")
    if factor is None or not isinstance(size, int) or not transfer:
        return None
    total = size * ranks if op in _IN_SHARES else size
    return round(total * factor(ranks) * 1_000_000_000 / transfer)
