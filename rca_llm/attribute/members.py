"""The ranks of a communicator, where its name tells them: `tp [0-3]`, `pp [0,4] 0>4`.

Flight Recorder dumps and the wrappers of torch.distributed know the ranks of every group; they
become part of its name, so that groups which different ranks call the same stay apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST_NAMED = 16
"""More ranks than these, if they are not consecutive, are told by the first of them."""

_TOLD = re.compile(r"\[([\d,-]+)\](?: (\d+)>(\d+))?$")


def listed(ranks: Sequence[int]) -> str:
    """Ascending ranks in few letters: `0-3`, `0,2,5`, or the first of many."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    told = ",".join(map(str, ranks[:MOST_NAMED]))
    return told if len(ranks) <= MOST_NAMED else f"{told},… of {len(ranks)}"


def members(comm: str | None) -> tuple[int, ...] | None:
    """The ranks that a name tells, both of a pair; None where it does not."""
    found = _TOLD.search(comm or "")
    if found is None:
        return None
    text, source, target = found.groups()
    if source is not None:
        return int(source), int(target)
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return None
        ranks += range(int(first), int(last or first) + 1)
    return tuple(ranks)


def group_of(comm: str) -> str:
    """The group that a communicator belongs to: of a pair, the group that both are in."""
    found = _TOLD.search(comm)
    return comm[: found.start(2) - 1] if found is not None and found.group(2) else comm
