"""Engine steps: recorded ones, or those that range names tell of, and their batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.links import among, dense_threads
from rca_llm.attribute.ranks import Rank
from rca_llm.intervals import Pieces
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, RowsBy, Table, integers, known
from rca_llm.trace import BATCH, Timeline

NO_STEP = -1

PREFILL_PHASES = ("prefill", "recompute")

_VLLM = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
"""vLLM's annotation of a step: context requests (tokens), generation requests (tokens)."""

_SGLANG = re.compile(r"step\[(EXTEND|DECODE|MIXED)\b[^\]]*?\bbs=(\d+)(?:[^\]]*?\btoks=(\d+))?")
"""SGLang's step span: forward mode, batch size and, for prefill, tokens."""

_TENSORRT = re.compile(
    r"\[Executor\] _forward_step[^:]*: (\d+) ctx reqs, (?:(\d+) ctx tokens, )?(\d+) gen reqs"
)
"""TensorRT-LLM's: context requests, their tokens in newer versions, generation requests."""

_FORWARD = re.compile(r"forward$", re.I)
"""What a program may call the pass through its model; its modules may be called so too."""

_GENERIC = re.compile(r"(?:ProfilerStep|step|iteration|iter|decode[ _]?step)[ _#:\-]*(\d+)", re.I)
"""A counted range, as torch.profiler and many programs mark their loops."""


@dataclass(frozen=True)
class Load:
    """What a step's name says of its batch: requests and tokens by phase, None where unsaid."""

    prefill_requests: int | None = None
    prefill_tokens: int | None = None
    decode_requests: int | None = None
    decode_tokens: int | None = None


def _vllm_load(match: re.Match[str]) -> Load:
    return Load(*(int(number) for number in match.groups()))


def _sglang_load(match: re.Match[str]) -> Load:
    mode, size, tokens = match.group(1), int(match.group(2)), match.group(3)
    if mode == "DECODE":
        return Load(0, 0, size, size)
    if mode == "EXTEND":
        return Load(size, int(tokens) if tokens else None, 0, 0)
    return Load()


def _tensorrt_load(match: re.Match[str]) -> Load:
    """One token a generation request: what speculation adds is not said."""
    context, tokens, generation = (None if n is None else int(n) for n in match.groups())
    return Load(context, 0 if context == 0 else tokens, generation, generation)


_FAMILIES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Load]], ...] = (
    (_VLLM, _vllm_load),
    (_SGLANG, _sglang_load),
    (_TENSORRT, _tensorrt_load),
    (_GENERIC, lambda _: Load()),
    (_FORWARD, lambda _: Load()),
)
"""Names that mark steps, the most telling first; only one family is used."""


@dataclass(frozen=True)
class Steps:
    """The steps of a timeline in ascending order of start, one row a step.

    `end` includes the work launched in the step; `known_batch` says whether `batch` lists its
    requests. The columns with counts hold `UNKNOWN` where nobody says.
    """

    id: Ints
    process: Ints
    start: Ints
    end: Ints
    mode: Ints
    size: Ints
    prefill_tokens: Ints
    decode_tokens: Ints
    known_batch: Array
    batch: Table
    """The `batch` table with rows of these steps, by step."""

    def __len__(self) -> int:
        return len(self.id)

    @cached_property
    def _by_request(self) -> RowsBy:
        """The rows of the batch by request (a text code)."""
        return RowsBy(self.batch["request"])

    def of_request(self, code: int) -> tuple[Ints, Ints]:
        """The steps that a request (a text code) is in, and its phase in each (a text code)."""
        if code < 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        rows = self._by_request[code]
        rows = rows[self.batch["step"][rows] >= 0]
        return self.batch["step"][rows], self.batch["phase"][rows].astype(np.int64)

    def batch_of(self, row: int) -> tuple[Array, Array]:
        """The requests of a step and the phase of each, as text codes."""
        owner = self.batch["step"]
        rows = slice(np.searchsorted(owner, row, "left"), np.searchsorted(owner, row, "right"))
        return self.batch["request"][rows], self.batch["phase"][rows]

    @cached_property
    def mixed_excess(self) -> Ints:
        """How much longer each step with prefill and decode lasts than the median decode step, ns.

        0 for other steps, and for all where no step only decodes.
        """
        lasting = self.end - self.start
        decodes = self.decode_tokens > 0
        plain = lasting[decodes & (self.prefill_tokens == 0)]
        mixed = decodes & (self.prefill_tokens > 0)
        if not len(plain):
            return np.zeros(len(self), np.int64)
        usual = int(np.sort(plain)[(len(plain) - 1) // 2])
        return np.where(mixed, np.maximum(lasting - usual, 0), 0)

    def lasting(self, end: Ints) -> Steps:
        """The same steps with other ends."""
        return replace(self, end=end)


def find_steps(timeline: Timeline) -> Steps:
    """The steps of a timeline; those of range names only where none were recorded."""
    table = timeline["steps"]
    return _recorded(timeline, table) if len(table) else _from_ranges(timeline)


def _recorded(timeline: Timeline, table: Table) -> Steps:
    order = np.argsort(table["start"], kind="stable")
    order = order[known(table["start"][order])]
    place = np.full(len(table), NO_STEP, np.int64)
    place[order] = np.arange(len(order))
    batch = timeline["batch"]
    if len(batch):
        batch = batch.with_columns(step=place[batch["step"]]).sorted_by("step")
    table = table.take(order)
    end = np.where(known(table["end"]), table["end"], table["start"])
    prefill = among(batch["phase"], [timeline.strings.find(p) for p in PREFILL_PHASES])
    members = np.bincount(batch["step"][batch["step"] >= 0], minlength=len(table))
    size = np.where(members > 0, members, table["batch"])
    return Steps(
        table["id"],
        table["process"],
        table["start"],
        np.maximum(end, table["start"]),
        table["mode"].astype(np.int64),
        size,
        _tokens(batch, prefill, members),
        _tokens(batch, ~prefill, members),
        members > 0,
        batch,
    )


def _tokens(batch: Table, rows: Array, members: Ints) -> Ints:
    """The tokens that each step computes in some rows of its batch."""
    counted = np.where(known(batch["tokens"]), batch["tokens"], 0)
    sums = intervals.sum_by(np.where(rows, batch["step"], -1), counted, len(members))
    return np.where(members > 0, sums, UNKNOWN)


def _from_ranges(timeline: Timeline) -> Steps:
    ranges = timeline["ranges"]
    loads = _step_names(timeline, ranges)
    rows = np.flatnonzero(among(ranges["name"], list(loads))) if loads else np.empty(0, np.int64)
    rows = _outermost(ranges, rows[known(ranges["start"][rows])])
    found = [loads[int(code)] for code in ranges["name"][rows]]
    prefill = integers(load.prefill_tokens for load in found)
    decode = integers(load.decode_tokens for load in found)
    nobody = np.zeros(len(rows), bool)
    size = integers(_size(load) for load in found)
    start = ranges["start"][rows]
    end = np.maximum(np.where(known(ranges["end"][rows]), ranges["end"][rows], start), start)
    return Steps(
        np.arange(len(rows)),
        ranges["process"][rows],
        start,
        end,
        np.full(len(rows), NO_TEXT, np.int64),
        size,
        prefill,
        decode,
        nobody,
        Table(BATCH),
    )


def _outermost(ranges: Table, rows: Ints) -> Ints:
    """Those ranges that lie in no other of them on the same thread, by start."""
    _, (thread,) = dense_threads(ranges.take(rows))
    start = ranges["start"][rows]
    end = np.maximum(ranges["end"][rows], start)  # an unknown end is the smallest number
    order = np.lexsort([-end, start, thread])
    around = intervals.reach_before(thread[order], end[order])
    outer = order[end[order] > around]
    return rows[outer[np.argsort(start[outer], kind="stable")]]


def _step_names(timeline: Timeline, ranges: Table) -> dict[int, Load]:
    """The range names that mark steps, and what they say."""
    used = np.unique(ranges["name"]).tolist()
    # A span that a program calls forward need not be all that it does for a request.
    families = _FAMILIES if not len(timeline["requests"]) else _FAMILIES[:-1]
    for pattern, read in families:
        matches = {code: pattern.match(timeline.strings[code]) for code in used if code >= 0}
        found = {code: read(match) for code, match in matches.items() if match}
        if found:
            return found
    return {}


def _size(load: Load) -> int | None:
    if load.prefill_requests is None or load.decode_requests is None:
        return None
    return load.prefill_requests + load.decode_requests


def of_rank(steps: Steps, rank: Rank, strangers: frozenset[int] = frozenset()) -> Ints:
    """The steps that a rank runs: those of its own processes, else all of the timeline's.

    Ranks whose processes are all `strangers` run no steps but their own.
    """
    if strangers.issuperset(rank.processes):
        return np.flatnonzero(among(steps.process, [*rank.processes]))
    own = np.flatnonzero(among(steps.process, [*rank.processes, UNKNOWN]))
    return own if len(own) else np.arange(len(steps))


def current(steps: Steps, mine: Ints) -> Pieces:
    """The earliest step that has not ended, at every instant; labels are rows of `steps`."""
    return intervals.earliest_wins(steps.start[mine], steps.end[mine]).relabel(mine)
