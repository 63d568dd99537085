"""Which parts of different ranks are one collective: by number, else by order where it is safe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rca_llm.attribute.collective_names import PAIRWISE
from rca_llm.attribute.collective_parts import Part

SYMMETRIC = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
"""Operations that no rank can leave before every rank has come."""

IMPOSSIBLE_SHARE = 0.1
"""Kernels matched by order are not of one communicator where more than this share of them has a
rank that left before another one came."""

Key = tuple[object, ...]
_Chain = dict[int, list[Part]]


def matched(ranks: Sequence[Sequence[Part]], world: int) -> list[list[Part]]:
    """The parts of each collective; `world` is how many ranks the job has.

    Numbered parts belong together by communicator, operation and sequence number. The others are
    told apart by their place in the order of communicator, operation and stream, which is the
    same on every rank: but only if all ranks have equally many, and if no rank leaves before
    another one comes. Otherwise each stands alone.
    """
    numbered: dict[Key, list[Part]] = defaultdict(list)
    chains: dict[Key, _Chain] = defaultdict(lambda: defaultdict(list))
    for parts in ranks:
        for key, part in _placed(part for part in parts if part.seq is not None):
            numbered[key].append(part)
        for key, part in _on_streams([part for part in parts if part.seq is None]):
            chains[key][part.rank].append(part)
    found: list[list[Part]] = []
    for parts in numbered.values():
        found += [parts] if _may_pair(parts, world) else [[part] for part in parts]
    for chain in chains.values():
        found += _by_order(chain, world)
    return found


def _placed(parts: Iterable[Part]) -> Iterable[tuple[Key, Part]]:
    """The key of numbered parts; a number that a rank uses again counts as another one."""
    places: dict[Key, int] = defaultdict(int)
    for part in parts:
        stem = (part.comm, _side_less(part.op), part.seq)
        place = places[stem]
        places[stem] += 1
        yield (*stem, place), part


def _side_less(op: str | None) -> str | None:
    """An operation as both of its sides call it."""
    return "send_recv" if op in PAIRWISE else op


def _on_streams(parts: Sequence[Part]) -> Iterable[tuple[Key, Part]]:
    """The chain of every part. Streams are numbered by their ids, which differ between ranks."""
    streams: dict[Key, set[int]] = defaultdict(set)
    for part in parts:
        streams[part.comm, _side_less(part.op)].add(_stream(part))
    order = {
        (*stem, stream): place
        for stem, found in streams.items()
        for place, stream in enumerate(sorted(found))
    }
    for part in parts:
        comm, op = part.comm, _side_less(part.op)
        yield (comm, op, order[comm, op, _stream(part)]), part


def _stream(part: Part) -> int:
    return -1 if part.stream is None else part.stream


def _by_order(chain: _Chain, world: int) -> list[list[Part]]:
    """The parts of a chain place by place, or one by one where that would be a guess."""
    rows = list(chain.values())
    alone = [[part] for parts in rows for part in parts]
    if len({len(parts) for parts in rows}) != 1:
        return alone
    found = [list(parts) for parts in zip(*rows, strict=True)]
    if not _may_pair(found[0], world):
        return alone
    impossible = sum(_left_early(parts) for parts in found)
    return found if impossible <= IMPOSSIBLE_SHARE * len(found) else alone


def _may_pair(parts: Sequence[Part], world: int) -> bool:
    """Whether it is known who exchanges with whom, which a larger communicator does not tell."""
    if parts[0].op not in PAIRWISE:
        return True
    return max((part.group_size or world for part in parts), default=world) == 2


def _left_early(parts: Sequence[Part]) -> bool:
    """Whether some rank left before another one on the same clock came."""
    if parts[0].op not in SYMMETRIC:
        return False
    last: dict[int, int] = {}
    for part in parts:
        last[part.clock.number] = max(last.get(part.clock.number, part.start), part.start)
    return any(part.end < last[part.clock.number] for part in parts)
