"""Steps by markers: against the truth of random programs, with lost markers and with pauses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from rca_llm.readers.cupti_markers import repeated, steps_of
from rca_llm.readers.cupti_rows import ROW_MARKER, ROWS
from rca_llm.table import UNKNOWN, Array, Ints

OUTSIDE, STEP, NOT_KNOWN, RESET = range(4)


@dataclass
class Program:
    """Threads that enter and leave steps and launch, as the collector sees them."""

    first_id: int = 1
    markers: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    kernels: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    truth: list[int] = field(default_factory=list[int])
    recorded: bool = True
    calls: int = 0
    steps: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    numbers: dict[int, int] = field(default_factory=dict[int, int])

    def _call(self) -> int:
        self.calls += 1 + ((self.first_id + self.calls + 1) % 2**32 == 0)  # 0 is no id
        return (self.first_id + self.calls) % 2**32

    def _mark(self, thread: int, within: bool) -> None:
        if not self.recorded:
            return
        open_steps = self.steps[thread]
        self.numbers[thread] = self.numbers.get(thread, 0) + 1
        state = STEP if open_steps else OUTSIDE
        step = open_steps[-1] if open_steps else 0
        number = self.numbers[thread] % 2**16
        self.markers.append((self.calls, step, self._call(), thread, number, state, int(within)))

    def push(self, thread: int, step: int) -> None:
        """A step begins in a thread."""
        own = self.steps.setdefault(thread, [])
        own.append(step)
        self._mark(thread, len(own) > 1)

    def pop(self, thread: int) -> None:
        """The innermost ends."""
        if self.steps.get(thread):
            self.steps[thread].pop()
            self._mark(thread, True)

    def launch(self, late: int) -> None:
        """Some thread launches a kernel; only while it is recorded it leaves a record."""
        id = self._call()
        if self.recorded:
            under_way = {steps[-1] for steps in self.steps.values() if steps}
            self.kernels.append((id, self.calls + late))
            self.truth.append(under_way.pop() if len(under_way) == 1 else UNKNOWN)

    def record(self, on: bool) -> None:
        """Recording ends, or begins anew."""
        if on and not self.recorded:
            inside = sum(bool(steps) for steps in self.steps.values())
            self.markers.append((self.calls, inside, self._call(), 999, 0, RESET, 0))
        self.recorded = on

    def found(self, lost: frozenset[int] = frozenset()) -> Ints:
        """What the reader makes of it, some markers lost."""
        kept = [row for place, row in enumerate(self.markers) if place not in lost]
        pairs: Ints = np.array(self.kernels, np.int64).reshape(-1, 2)
        return steps_of(rows_of(kept), pairs[:, 0], pairs[:, 1] + 1)


def rows_of(markers: Sequence[tuple[int, ...]]) -> Array:
    """Rows of the collector; (time, step, correlation, thread, sequence, state, within)."""
    rows = np.zeros(len(markers), ROWS[ROW_MARKER])
    names = ("time", "step", "correlation", "thread", "sequence", "state", "within")
    for name, values in zip(names, zip(*markers, strict=True), strict=False):
        rows[name] = values
    rows["time"] += 1
    return rows


def random_program(rng: random.Random, pauses: bool = False) -> Program:
    """A few threads, nested steps, launches that run much later."""
    program = Program(rng.choice([1, 2**32 - rng.randrange(200), 2**31 - 50]))
    threads = range(rng.choice([1, 1, 2, 4]))
    for _ in range(rng.randrange(300)):
        thread = rng.choice(threads)
        what = rng.random()
        if what < 0.25:
            program.push(thread, rng.randrange(6))
        elif what < 0.5:
            program.pop(thread)
        elif what < 0.97 or not pauses:
            program.launch(rng.randrange(60))
        else:
            program.record(not program.recorded)
    return program


def test_every_step_is_found_where_exactly_one_is_under_way() -> None:
    rng = random.Random(1)
    told = 0
    for _ in range(400):
        program = random_program(rng)
        if program.kernels:
            found = program.found()
            assert found.tolist() == program.truth
            told += int((found != UNKNOWN).sum())
    assert told > 5000


@pytest.mark.parametrize("pauses", [False, True])
def test_a_lost_marker_leaves_work_unknown_and_never_gives_it_to_another_step(
    pauses: bool,
) -> None:
    rng = random.Random(2)
    told = changed = 0
    for _ in range(600):
        program = random_program(rng, pauses)
        if not program.kernels:
            continue
        resets = {place for place, row in enumerate(program.markers) if row[5] == RESET}
        others = sorted(set(range(len(program.markers))) - resets)
        # The last marker of a thread leaves no gap behind it: losing that cannot be seen.
        last = {row[3]: place for place, row in enumerate(program.markers)}
        spare = [place for place in others if place not in last.values()]
        lost = frozenset(rng.sample(spare, min(len(spare), rng.randrange(3))))
        found, truth = program.found(lost), np.array(program.truth)
        wrong = (found != truth) & (found != UNKNOWN)
        assert not wrong.any(), (program.markers, lost)
        told += int((found != UNKNOWN).sum())
        changed += int((found != truth).sum())
    assert told > 3000
    assert changed > 300


def test_after_a_pause_a_step_is_known_again_from_the_marker_of_those_who_were_in_one() -> None:
    program = Program()
    program.push(3, 30)  # idle from here on, and in no step when recording goes on
    program.pop(3)
    program.push(1, 10)
    program.record(False)
    program.push(2, 20)
    program.record(True)
    program.launch(0)
    program.pop(1)
    program.launch(0)  # thread 2 is still in a step that nobody told
    program.pop(2)
    program.push(1, 11)
    program.launch(0)
    assert program.found().tolist() == [UNKNOWN, UNKNOWN, 11]


def test_a_thread_with_the_number_of_one_that_ended_is_known_from_its_first_marker() -> None:
    rows = [(1, 5, 1, 7, 1, STEP, 0), (3, 0, 3, 7, 2, OUTSIDE, 1), (7, 6, 7, 7, 1, STEP, 0)]
    other = [(5, 9, 5, 8, 1, STEP, 0)]
    ids = np.array([2, 4, 6, 8])
    # Until then the number is that of the thread that ended, which was in no step.
    assert steps_of(rows_of(rows + other), ids, ids).tolist() == [5, UNKNOWN, 9, UNKNOWN]
    assert steps_of(rows_of(rows), ids, ids).tolist() == [5, UNKNOWN, UNKNOWN, 6]


def test_a_step_that_is_not_known_leaves_that_of_another_thread_unknown_too() -> None:
    rows = [(1, 9, 1, 8, 1, STEP, 0), (3, 0, 3, 7, 1, NOT_KNOWN, 0), (5, 0, 5, 7, 2, OUTSIDE, 1)]
    ids = np.array([2, 4, 6])
    assert steps_of(rows_of(rows), ids, ids).tolist() == [9, UNKNOWN, 9]


def test_work_without_a_time_or_an_id_has_no_step() -> None:
    rows = rows_of([(1, 5, 1, 7, 1, STEP, 0)])
    ids, start = np.array([2, 3, 0]), np.array([9, UNKNOWN, 9])
    assert steps_of(rows, ids, start).tolist() == [5, UNKNOWN, UNKNOWN]
    assert steps_of(rows[:0], ids, start).tolist() == [UNKNOWN] * 3
    assert steps_of(rows, ids[:0], start[:0]).tolist() == []


def test_nodes_that_come_again_with_one_id_have_not_that_of_their_launch() -> None:
    """As those of a graph that was captured while nobody recorded may have that of its capture."""
    ids = np.array([5, 5, 6, 6, 9, 6, 6, 7, 8, 8, 8, 8])
    nodes = np.array([1, 2, 1, 2, UNKNOWN, 1, 2, 1, 1, 2, 1, 2])
    assert repeated(ids, nodes).tolist() == [id in (6, 8) and id != 9 for id in ids.tolist()]
    assert repeated(ids, np.full(12, UNKNOWN)).tolist() == [False] * 12


def test_without_a_marker_the_first_of_a_thread_says_whether_others_were_lost() -> None:
    """As in a window of a run: what a thread did before its first marker there is not known."""
    rows = rows_of([(1, 5, 1, 7, 1, STEP, 0), (9, 8, 9, 8, 4, STEP, 1), (12, 0, 12, 8, 5, 0, 1)])
    ids = np.array([2, 10, 13])
    assert steps_of(rows, ids, ids).tolist() == [UNKNOWN, UNKNOWN, 5]
