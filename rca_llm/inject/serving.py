"""A small inference service on the CPU: arrivals, continuous batching, steps of real arithmetic.

The engine's loop runs on the calling thread. Arrivals follow the engine's progress, not the wall
clock, so that the load stays the same on a slower machine and under an injected delay. A `Fault`
puts its cause into the places where it belongs; without one the service is clean.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from time import perf_counter_ns

from rca_llm import request, span, step
from rca_llm.inject.arithmetic import Arithmetic
from rca_llm.inject.truth import Ledger, Turn, turn

PREFILL, DECODE = 8, 8
"""Units of arithmetic of one prompt, and of a step that decodes."""


@dataclass(frozen=True)
class Load:
    """What the service is asked: requests, steps between arrivals (mean), and its limits.

    `first` is the number of the first request, for loads that follow each other in a process.
    """

    requests: int = 20
    output_tokens: int = 8
    prompt_tokens: int = 16
    between: float = 5.0
    most_running: int = 8
    burst: int = 1
    first: int = 0

    def id(self, number: int) -> str:
        """What a request of it is called."""
        return f"r{self.first + number}"


class Fault:
    """A cause: what it does at each place of the service; here nothing."""

    delivers = False
    """Whether tokens go out through the request's own thread (`deliver`)."""

    def __init__(self, magnitude: float, ledger: Ledger) -> None:
        self.magnitude = magnitude
        self.ledger = ledger

    def begin(self) -> None:
        """Before the service starts."""

    def before(self, id: str) -> None:
        """On the request's thread, after its arrival and before it is queued."""

    def in_step(self, number: int) -> None:
        """On the engine's thread, inside a step, before its arithmetic."""

    def deliver(self, id: str, token: int) -> None:
        """On the request's thread: send a token."""

    def worked(self, turn: Turn) -> None:
        """After each turn of the engine's loop: what kept its arithmetic off the CPU."""

    def end(self) -> None:
        """After the service."""


@dataclass
class _Job:
    """A request in the service."""

    id: str
    wanted: int
    due: int
    late: float
    call: threading.Event = field(default_factory=threading.Event)
    out: queue.SimpleQueue[int] = field(default_factory=lambda: queue.SimpleQueue[int]())
    produced: int = 0


class Service:
    """One run of the service under a load, with a fault in it."""

    def __init__(self, load: Load, fault: Fault, seed: int) -> None:
        self.load, self.fault, self.ledger = load, fault, fault.ledger
        self._random = random.Random(seed)
        self._jobs = list(self._plan())
        self._coming = deque(self._jobs)
        self._inbox: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._arithmetic = Arithmetic()
        self._steps = 0
        self._threads = [
            threading.Thread(target=self._front, args=(job,), name=f"front {job.id}", daemon=True)
            for job in self._jobs
        ]

    def _plan(self) -> list[_Job]:
        load, found = self.load, list[_Job]()
        at = 0.0
        for number in range(load.requests):
            if number % load.burst == 0 and number:
                at += self._random.expovariate(1.0) * load.between * load.burst
            tokens = max(load.output_tokens + self._random.randint(-2, 2), 1)
            found.append(_Job(load.id(number), tokens, int(at), self._random.random()))
        return found

    def run(self) -> None:
        """Serve every request."""
        self._arithmetic.warm_up()
        self.fault.begin()
        try:
            for thread in self._threads:
                thread.start()
            while self._coming or self._waiting or self._running or self._expected():
                self._turn()
            for thread in self._threads:
                thread.join()
        finally:
            self.fault.end()

    def _expected(self) -> bool:
        """Whether a request was called that is not in the engine yet, or not done."""
        return any(job.produced < job.wanted for job in self._jobs)

    def _turn(self) -> None:
        """Let due requests come, admit what fits, and make a step; wait where there is nothing."""
        if not (self._running or self._waiting) and self._coming and not self._called():
            self._steps = max(self._steps, self._coming[0].due)
        while self._coming and self._coming[0].due <= self._steps:
            self._coming.popleft().call.set()
        self._receive(block=not (self._running or self._waiting))
        self.fault.worked(turn(self._work))

    def _work(self) -> None:
        """What the engine does without waiting for anybody."""
        self._admit()
        if self._running:
            self._step()

    def _called(self) -> int:
        """How many requests were called and have not reached the engine."""
        here = {job.id for job in (*self._running, *self._waiting)}
        return sum(
            1
            for job in self._jobs
            if job.call.is_set() and job.produced == 0 and job.id not in here
        )

    def _receive(self, *, block: bool) -> None:
        try:
            while True:
                self._waiting.append(self._inbox.get(block=block))
                block = False
        except queue.Empty:
            pass

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.load.most_running:
            job = self._waiting.popleft()
            self.ledger.served(job.id).scheduled = perf_counter_ns()
            request(job.id).scheduled()
            self._running.append(job)

    def _step(self) -> None:
        prompts = sum(1 for job in self._running if not job.produced)
        phases: dict[str, tuple[str, int | None]] = {
            job.id: ("decode", 1) if job.produced else ("prefill", self.load.prompt_tokens)
            for job in self._running
        }
        begun = perf_counter_ns()
        with step(self._steps, phases):
            self.fault.in_step(self._steps)
            with span("forward", kind="compute"):
                self._arithmetic(prompts * PREFILL + DECODE)
        self.ledger.steps.append((begun, perf_counter_ns()))
        self._steps += 1
        for job in list(self._running):
            self._token(job)

    def _token(self, job: _Job) -> None:
        """A token leaves the engine; the last one ends the request there."""
        job.produced += 1
        made, last = request(job.id), job.produced == job.wanted
        (made.first_token if job.produced == 1 else made.token)()
        if last:
            self.ledger.served(job.id).last_token = perf_counter_ns()
            self._running.remove(job)
        if self.fault.delivers:
            job.out.put(job.produced)
        elif last:
            self._finish(job)

    def _finish(self, job: _Job) -> None:
        request(job.id).finish(output_tokens=job.produced)
        self.ledger.served(job.id).finished = perf_counter_ns()

    def _front(self, job: _Job) -> None:
        """A request's own thread: it arrives, is prepared, and gets its tokens."""
        job.call.wait()
        time.sleep(job.late * self._arithmetic.unit_ns * DECODE / 1e9)
        with request(job.id, prompt_tokens=self.load.prompt_tokens) as own:
            own.arrival()
            self.ledger.served(job.id).arrival = perf_counter_ns()
            self.fault.before(job.id)
            own.queued()
            self._inbox.put(job)
            if self.fault.delivers:
                for _ in range(job.wanted):
                    self.fault.deliver(job.id, job.out.get())
                self._finish(job)
