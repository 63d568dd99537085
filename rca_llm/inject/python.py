"""Causes in the Python interpreter: its lock and its garbage collector."""

from __future__ import annotations

import gc
import threading
import time
from time import perf_counter_ns

from rca_llm.inject.catalogue import Order
from rca_llm.inject.serving import Fault, Load, Service
from rca_llm.inject.truth import Ledger, Truth, Turn, run_delay

CYCLE_S = 0.05
EVERY = 6
"""A collection every so many steps."""


def run(order: Order) -> Truth:
    """Serve with a thread that holds the lock, or with full collections of a large heap."""
    ledger = Ledger()
    made = {"gil": HeldLock, "gc": Collections}[order.cause.name]
    fault = (Fault if order.without else made)(order.magnitude, ledger)
    Service(Load(first=order.first), fault, order.seed).run()
    return Truth(order, ledger)


class HeldLock(Fault):
    """A thread of pure Python that runs for a fraction `magnitude` of the time.

    The engine gives the lock up in every matrix product and has to wait until the interpreter
    makes the other thread let go. Its arithmetic never blocks: what keeps it from the CPU and is
    not the run queue (schedstat) is the lock.
    """

    def begin(self) -> None:
        """Start the thread."""
        self.ledger.measured_by = (
            "wall clock less the thread's CPU time (CLOCK_THREAD_CPUTIME_ID) less its run-queue"
            " delay (schedstat), around arithmetic that never blocks"
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._hold, name="lock holder", daemon=True)
        self._thread.start()

    def _hold(self) -> None:
        while not self._stop.is_set():
            until = perf_counter_ns() + int(CYCLE_S * 1e9 * self.magnitude)
            while perf_counter_ns() < until:
                pass
            time.sleep(CYCLE_S * max(1 - self.magnitude, 0))

    def worked(self, turn: Turn) -> None:
        """What is left when the run queue is taken off."""
        lost = turn.off_cpu - turn.queued
        self.ledger.add(turn.start, turn.end, lost, queued=turn.queued)

    def end(self) -> None:
        """Let the thread go."""
        self._stop.set()
        self._thread.join()


class Collections(Fault):
    """Full collections of a heap that is so large that one takes `magnitude` ms."""

    def begin(self) -> None:
        """Fill the heap, and measure collections as the interpreter reports them."""
        self.ledger.measured_by = "the wall clock between the interpreter's own gc callbacks"
        self._heap: list[list[None]] = []
        while self._lasts() < self.magnitude * 1e6:
            self._heap.extend([] for _ in range(20_000))
        self._begun = self._queued = 0
        gc.callbacks.append(self._watch)

    def _lasts(self) -> int:
        if not self._heap:
            return 0
        begun = perf_counter_ns()
        gc.collect()
        return perf_counter_ns() - begun

    def _watch(self, phase: str, info: dict[str, int]) -> None:
        now = perf_counter_ns()
        if phase == "start":
            self._begun, self._queued = now, run_delay()
        elif info["generation"] == 2:
            queued = run_delay() - self._queued
            self.ledger.add(self._begun, now, now - self._begun, queued=queued)

    def in_step(self, number: int) -> None:
        """Collect in every sixth step."""
        if number % EVERY == EVERY - 1:
            gc.collect()

    def end(self) -> None:
        """Give the heap back."""
        gc.callbacks.remove(self._watch)
        self._heap.clear()


__all__ = ["Collections", "HeldLock", "run"]
