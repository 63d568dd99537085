"""Continuous batching: who runs in the next step, and with how many tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .batch import Chunk
from .blocks import BlockPool
from .sequence import Sequence


@dataclass(frozen=True)
class Limits:
    """What one step may hold; ValueError where decoding could not be served in every step."""

    step_tokens: int = 128
    running: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.running <= self.step_tokens:
            raise ValueError("a step needs at least one token for every running sequence")


@dataclass(frozen=True)
class Work:
    """`count` tokens of one sequence, from its first uncached one."""

    sequence: Sequence
    count: int
    phase: str

    def chunk(self) -> Chunk:
        """The work as input of the forward pass."""
        sequence = self.sequence
        tokens = sequence.tokens(sequence.computed, self.count)
        return Chunk(tokens, sequence.computed, tuple(sequence.blocks))


@dataclass
class Plan:
    """One step: its work, and who was admitted or preempted to make it."""

    work: list[Work] = field(default_factory=list[Work])
    admitted: list[Sequence] = field(default_factory=list[Sequence])
    preempted: list[Sequence] = field(default_factory=list[Sequence])

    @property
    def tokens(self) -> int:
        """Tokens of all work together."""
        return sum(work.count for work in self.work)

    def add(self, sequence: Sequence, count: int) -> None:
        """Plan that many tokens of a sequence whose blocks are reserved."""
        self.work.append(Work(sequence, count, sequence.phase))


@dataclass(frozen=True)
class Output:
    """A token for the front end, or the end of a sequence without one.

    `finish_reason` is None while more is to come, else `stop`, `length`, `abort` or `error`.
    """

    sequence: Sequence
    token: int | None
    finish_reason: str | None


class Scheduler:
    """First come, first served, with chunked prefill and preemption by recomputation.

    Decoding sequences go first; what is left of the budget goes to prefill. Where blocks run out,
    the sequence admitted last gives its blocks up and waits at the head of the queue.
    """

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self.limits = limits
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.waiting or self.running)

    def fits(self, tokens: int) -> bool:
        """Whether a sequence that grows to that many tokens can ever finish."""
        return self.pool.needed(tokens) <= self.pool.total

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """Take a sequence out wherever it is; False where it is not here any more."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            return False
        self.pool.release(sequence.blocks)
        return True

    def plan(self) -> Plan:
        """Choose the next step's work and reserve its blocks."""
        plan = Plan()
        self._continue_running(plan)
        if not plan.preempted:
            self._admit_waiting(plan)
        return plan

    def _continue_running(self, plan: Plan) -> None:
        planned: set[Sequence] = set()
        for sequence in sorted(self.running, key=lambda each: each.pending > 1):
            count = min(sequence.pending, self.limits.step_tokens - plan.tokens)
            if not count or sequence in plan.preempted:
                continue
            if self._make_room(sequence, count, plan, planned):
                plan.add(sequence, count)
                planned.add(sequence)

    def _make_room(
        self, sequence: Sequence, count: int, plan: Plan, planned: set[Sequence]
    ) -> bool:
        """Reserve blocks, preempting who is not planned yet; False where it hit itself."""
        while not self.pool.grow(sequence.blocks, sequence.computed + count):
            victim = next(each for each in reversed(self.running) if each not in planned)
            self._preempt(victim, plan)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, plan: Plan) -> None:
        self.running.remove(victim)
        self.pool.release(victim.blocks)
        victim.forget()
        self.waiting.appendleft(victim)
        plan.preempted.append(victim)

    def _admit_waiting(self, plan: Plan) -> None:
        while self.waiting and len(self.running) < self.limits.running:
            sequence = self.waiting[0]
            count = min(sequence.pending, self.limits.step_tokens - plan.tokens)
            # Room for all it has, not just for this chunk: half-admitted prompts would preempt
            # each other.
            if not count or self.pool.free < self.pool.needed(sequence.length):
                return
            self.pool.grow(sequence.blocks, count)
            self.running.append(self.waiting.popleft())
            plan.admitted.append(sequence)
            plan.add(sequence, count)

    def update(self, plan: Plan, tokens: list[int]) -> list[Output]:
        """Take the step's result in: one token a piece of work, used where it reached the end."""
        outputs: list[Output] = []
        for work, token in zip(plan.work, tokens, strict=True):
            sequence = work.sequence
            sequence.computed += work.count
            if not sequence.pending:
                sequence.output.append(token)
                outputs.append(Output(sequence, token, sequence.finish_reason))
                if sequence.finish_reason:
                    self.remove(sequence)
        return outputs
