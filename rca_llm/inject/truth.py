"""The ground truth of a run: what the injected cause cost, as the workload measured it itself."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from rca_llm.inject.catalogue import Order

SCHEMA = "rca-llm/truth/1"

EVERYBODY = None
"""Whom a delay concerns that holds up all requests in the engine."""


@dataclass(frozen=True)
class Delay:
    """`ns` of delay somewhere between `start` and `end`; `request` None: for all in the engine.

    `queued` is how long the thread was ready but without a CPU between them, ns: in the delay where
    this is work, beside it where this is waiting.
    """

    start: int
    end: int
    ns: int
    request: str | None = EVERYBODY
    queued: int = 0

    def within(self, start: int, end: int) -> int:
        """How much of it falls into a time; one that is cut counts in proportion."""
        length, common = self.end - self.start, min(end, self.end) - max(start, self.start)
        if common <= 0 or length <= 0:
            return 0
        return self.ns if common == length else self.ns * common // length


@dataclass
class Served:
    """A request as the workload saw it: times of perf_counter_ns, 0 where not reached."""

    id: str
    arrival: int = 0
    scheduled: int = 0
    last_token: int = 0
    finished: int = 0

    @property
    def latency(self) -> int:
        """From arrival to finish, ns."""
        return self.finished - self.arrival


@dataclass
class Ledger:
    """Where a workload writes down its requests and what the cause did to them."""

    delays: list[Delay] = field(default_factory=list[Delay])
    requests: dict[str, Served] = field(default_factory=dict[str, Served])
    steps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    figures: dict[str, float] = field(default_factory=dict[str, float])
    off: list[list[int]] = field(default_factory=list[list[int]])
    """Latencies of requests without the cause, of each time that the load was served without it."""
    without: Ledger | None = None
    """What was served without the cause before, where the probes named that as well."""
    measured_by: str = "the wall clock around the injected work"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def served(self, id: str) -> Served:
        """The record of a request."""
        with self._lock:
            return self.requests.setdefault(id, Served(id))

    def done(self) -> list[Served]:
        """The requests that finished, by arrival."""
        found = [one for one in self.requests.values() if one.finished]
        return sorted(found, key=lambda one: one.arrival)

    def add(
        self, start: int, end: int, ns: int, request: str | None = EVERYBODY, queued: int = 0
    ) -> None:
        """A delay of `ns` between two instants."""
        if ns > 0 and end > start:
            with self._lock:
                self.delays.append(Delay(start, end, min(ns, end - start), request, queued))

    @contextmanager
    def delay(self, request: str | None = EVERYBODY) -> Generator[None]:
        """Everything inside is the injected delay."""
        queued, begun = run_delay(), perf_counter_ns()
        yield
        ended = perf_counter_ns()
        self.add(begun, ended, ended - begun, request, run_delay() - queued)

    def cost(self, served: Served) -> int:
        """What the delays cost a request: shared ones while it is in the engine, its own always."""
        shared = served.scheduled or served.arrival, served.last_token or served.finished
        own = served.arrival, served.finished
        return sum(
            delay.within(*(shared if delay.request is EVERYBODY else own))
            for delay in self.delays
            if delay.request in (EVERYBODY, served.id)
        )


@dataclass(frozen=True)
class Truth:
    """A run and what its cause cost; `write` puts it beside what was recorded."""

    order: Order
    ledger: Ledger

    def document(self) -> dict[str, Any]:
        """The contents of `truth.json`; times are ns, the window is UTC."""
        cause, ledger = self.order.cause, self.ledger
        done = ledger.done()
        costs = [ledger.cost(one) for one in done]
        latency, injected = sum(one.latency for one in done), sum(costs)
        return {
            "schema": SCHEMA,
            "cause": cause.name,
            "title": cause.title,
            "magnitude": self.order.magnitude,
            "unit": cause.unit,
            "seed": self.order.seed,
            "without": self.order.without,
            "hints": list(cause.hints),
            "parts": list(cause.parts),
            "window": _window(done),
            "off_window": None if ledger.without is None else _window(ledger.without.done()),
            "latency_ns": latency,
            "injected_ns": injected,
            "share": injected / latency if latency else None,
            "occurrences": len(ledger.delays),
            "steps": len(ledger.steps),
            "step_ns": sum(end - start for start, end in ledger.steps),
            "measured_by": ledger.measured_by,
            "figures": ledger.figures,
            "off_ns": ledger.off,
            "requests": [
                {"id": one.id, "latency_ns": one.latency, "injected_ns": cost}
                for one, cost in zip(done, costs, strict=True)
            ],
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `truth.json`, whole or not at all."""
        target = Path(path)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        draft.write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")
        draft.replace(target)


def _window(done: list[Served]) -> dict[str, int] | None:
    """From the first arrival to the last finish: UTC, and CLOCK_MONOTONIC, ns."""
    if not done:
        return None
    ahead = time.time_ns() - perf_counter_ns()
    first, last = min(one.arrival for one in done), max(one.finished for one in done)
    utc = {"start_ns": first + ahead, "end_ns": last + ahead}
    return utc | {"monotonic_start_ns": first, "monotonic_end_ns": last}


@dataclass(frozen=True)
class Turn:
    """Work that never blocks by itself: its start and end, and how long it was off the CPU, ns.

    `queued` is the part of that in which the thread was ready to run.
    """

    start: int
    end: int
    off_cpu: int
    queued: int


def turn(work: Callable[[], object]) -> Turn:
    """Do some work and measure what keeps it from the CPU."""
    queued, begun, spent = run_delay(), perf_counter_ns(), time.thread_time_ns()
    work()
    spent, ended = time.thread_time_ns() - spent, perf_counter_ns()
    lost = max(ended - begun - spent, 0)
    return Turn(begun, ended, lost, min(run_delay() - queued, lost))


_own = threading.local()


def run_delay() -> int:
    """How long this thread has been ready without a CPU, ns; 0 where the kernel does not say."""
    try:
        if not hasattr(_own, "schedstat"):  # it stays open: opening takes longer than reading
            _own.schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        return int(os.pread(_own.schedstat, 100, 0).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
