"""PyTorch's collectives: operation, group, sequence number, size and type of every call.

A call that blocks lasts until it returns; one with ``async_op`` (and ``isend``, ``irecv``) from the
call to the end of ``Work.wait``. Both stay open in the recording until then, so that one in which
a rank hangs is seen in what it left. Sequence numbers are counted here, by group and pair of ranks:
all members make the same calls in the same order. Collectives of GPU tensors are not recorded,
since the call only enqueues them: their kernels are, and NCCL tells the rest.
"""

from __future__ import annotations

import sys
from threading import local
from time import perf_counter_ns

from .emit_collective import Collective

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Make = Callable[[Any], Any]

# Operation by function: the contract's name; the place and the name of the tensor whose size is
# that of one rank's part; the place of the group; the name of the other rank, of pairs.
KNOWN: dict[str, tuple[str, int, str, int, str]] = {
    "all_reduce": ("all_reduce", 0, "tensor", 2, ""),
    "broadcast": ("broadcast", 0, "tensor", 2, ""),
    "reduce": ("reduce", 0, "tensor", 3, ""),
    "all_gather": ("all_gather", 1, "tensor", 2, ""),
    "all_gather_into_tensor": ("all_gather", 1, "input_tensor", 2, ""),
    "all_gather_single": ("all_gather", 1, "input_tensor", 2, ""),  # torch 2.13
    "reduce_scatter_single": ("reduce_scatter", 0, "output", 3, ""),
    "reduce_scatter": ("reduce_scatter", 0, "output", 3, ""),
    "reduce_scatter_tensor": ("reduce_scatter", 0, "output", 3, ""),
    "all_to_all": ("all_to_all", 1, "input_tensor_list", 2, ""),
    "all_to_all_single": ("all_to_all", 1, "input", 4, ""),
    "gather": ("gather", 0, "tensor", 3, ""),
    "scatter": ("scatter", 0, "tensor", 3, ""),
    "barrier": ("barrier", -1, "", 0, ""),
    "send": ("send", 0, "tensor", 2, "dst"),
    "isend": ("send", 0, "tensor", 2, "dst"),
    "recv": ("recv", 0, "tensor", 2, "src"),
    "irecv": ("recv", 0, "tensor", 2, "src"),
}

MOST_PENDING = 4096

# Has ``call`` while this thread is in a recorded call: some are made of others (``send``).
_inside = local()
# What Work objects that nobody has waited for belong to, by their address.
_pending: dict[int, Collective] = {}
# Calls so far of each communicator (and pair), and what is known of each group, by its name.
_calls: dict[str, int] = {}
_groups: dict[str, tuple[str, int, list[int]]] = {}


def recorded(name: str) -> Make:
    """A maker of wrappers that record every call of the function of this name."""
    known = KNOWN[name]

    def make(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            begun = None if hasattr(_inside, "call") else _begin(known, args, kwargs)
            if begun is None:
                return function(*args, **kwargs)
            start, own = begun
            _inside.call = True
            try:
                result = function(*args, **kwargs)
            finally:
                del _inside.call
            if hasattr(result, "wait"):
                _remember(result, own)
            else:
                own.end(perf_counter_ns(), start)
            return result

        return call

    return make


def _begin(
    known: tuple[str, int, str, int, str], args: Any, kwargs: Any
) -> tuple[int, Collective] | None:
    """The start of a call and its record; None where it is not to be recorded."""
    try:
        dist = sys.modules[MODULE]
        op, place, tensor_name, group_place, pair = known
        group = args[group_place] if len(args) > group_place >= 0 else kwargs.get("group")
        found = _group(dist, group)
        if found is None:
            return None
        where, size, ranks = found
        tensor = args[place] if len(args) > place >= 0 else kwargs.get(tensor_name)
        bytes, kind = _size(tensor, op, size)
        if bytes == -2:
            return None
        if pair:
            where, size = _pair(dist, op, where, ranks, args, kwargs, pair)
        seq = _calls[where] = _calls.get(where, -1) + 1
        start = perf_counter_ns()
        return start, Collective(op, "%s|%d|%s" % (where, size, kind), seq, bytes, start)
    except Exception:  # whatever the call was given is for PyTorch to judge
        return None


def _group(dist: Any, group: Any) -> tuple[str, int, list[int]] | None:
    """A group's communicator, size and ranks; None where this rank is no member."""
    if group is None:
        group = dist._get_default_group()
    name = getattr(group, "group_name", None)
    if name is None:  # GroupMember.NON_GROUP_MEMBER, an int
        return None
    name = str(name)
    found = _groups.get(name)
    if found is None:
        ranks = sorted(dist.get_process_group_ranks(group))
        told = str(getattr(group, "group_desc", "") or "")
        told = "" if told in ("undefined", name) else told + " "
        found = _groups[name] = "%s %s[%s]" % (name, told, listed(ranks)), len(ranks), ranks
    return found


def listed(ranks: list[int]) -> str:
    """Ranks in few letters: ``0-3``, ``0,2,5``, or the first of many."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return "%d-%d" % (ranks[0], ranks[-1])
    if len(ranks) <= 16:
        return ",".join(map(str, ranks))
    return ",".join(map(str, ranks[:16])) + ",… of %d" % len(ranks)


def _size(tensor: Any, op: str, ranks: int) -> tuple[int, str]:
    """Bytes and type of what a call was given: -1 of nothing, -2 where it is on a GPU."""
    several = isinstance(tensor, (list, tuple))
    own: list[Any] = [*_any(tensor)] if several else [tensor]
    first: Any = own[0] if own else None
    if not hasattr(first, "element_size"):
        return -1, ""
    if first.device.type != "cpu":
        return -2, ""
    bytes = sum(one.numel() * one.element_size() for one in own)
    if op == "all_to_all":
        bytes //= max(ranks, 1)
    return bytes, str(first.dtype).replace("torch.", "")


def _any(value: Any) -> Any:
    """The value, of which nothing is known."""
    return value


def _pair(
    dist: Any, op: str, where: str, ranks: list[int], args: Any, kwargs: Any, other: str
) -> tuple[str, int]:
    """The communicator of a send or a receive: the group and the way, and how many take part."""
    mine: int = dist.get_rank()
    peer: Any = _any(args[1] if len(args) > 1 else kwargs.get(other))
    if peer is None and kwargs.get("group_" + other) is not None:
        peer = ranks[int(kwargs["group_" + other])]
    if peer is None:
        return where, len(ranks)
    known = int(peer)
    source, target = (mine, known) if op == "send" else (known, mine)
    return "%s %d>%d" % (where, source, target), 2


def _remember(work: Any, own: Collective) -> None:
    if len(_pending) >= MOST_PENDING:
        _pending.clear()  # of a program that never waits
    _pending[id(work)] = own


def waiting(wait: Any) -> Any:
    """``Work.wait``, which ends the record of its collective."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = _pending.pop(id(self), None)
        if own is None:
            return wait(self, *args, **kwargs)
        start = perf_counter_ns()
        result = wait(self, *args, **kwargs)
        own.end(perf_counter_ns(), start)
        return result

    return call


MODULE = "torch.distributed.distributed_c10d"
TARGETS: dict[str, dict[str, Make]] = {
    MODULE: {**{name: recorded(name) for name in KNOWN}, "Work.wait": waiting}
}


def version(module: Any) -> str:
    """Nothing: PyTorch is not the engine."""
    return ""
