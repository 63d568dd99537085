"""A cause between ranks: one of two processes comes late to every collective.

The ranks meet at a barrier in every step, which stands for an all-reduce, and write what they did
as RCA events, one file a rank.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from rca_llm.inject.arithmetic import Arithmetic
from rca_llm.inject.catalogue import Order
from rca_llm.inject.truth import Ledger, Truth

RANKS = 2
LATE = 1
STEPS_A_REQUEST, REQUESTS, UNITS = 8, 10, 8
PATIENCE_S = 120.0

Row = dict[str, Any]


def run(order: Order) -> Truth:
    """Let rank 1 do `magnitude` ms of other work before every collective."""
    folder, late_ms = Path(order.folder), 0.0 if order.without else order.magnitude
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(RANKS, timeout=PATIENCE_S)
    others = [
        context.Process(target=work, args=(rank, late_ms, order.seed, barrier, str(folder)))
        for rank in range(RANKS)
    ]
    for process in others:
        process.start()
    for process in others:
        process.join()
    return Truth(order, _ledger(folder))


@dataclass
class Rank:
    """What one rank writes down."""

    number: int
    rows: list[Row] = field(default_factory=list[Row])

    def add(self, type: str, start: int, **fields: object) -> None:
        """A record from `start` to now."""
        row = {"type": type, "pid": os.getpid(), "start": start, "end": perf_counter_ns()}
        self.rows.append(row | fields)

    def span(self, name: str, kind: str, start: int) -> None:
        """A span of this process's only thread."""
        self.add("span", start, tid=os.getpid(), name=name, kind=kind)


def work(rank: int, magnitude: float, seed: int, barrier: Barrier, folder: str) -> None:
    """One rank: every step computes, and meets the others."""
    one, arithmetic, chance = Rank(rank), Arithmetic(), random.Random(seed)
    arithmetic.warm_up()
    number = 0
    for request in range(REQUESTS):
        wanted = STEPS_A_REQUEST + chance.randint(-2, 2)
        barrier.wait()
        begun, tokens = perf_counter_ns(), list[int]()
        for place in range(wanted):
            phase = "decode" if place else "prefill"
            _step(
                one,
                number,
                f"r{request}",
                phase,
                magnitude if rank == LATE else 0,
                arithmetic,
                barrier,
            )
            tokens.append(perf_counter_ns())
            number += 1
        if rank == 0:
            one.rows.append(_request(f"r{request}", begun, tokens))
        time.sleep(0.002)
    _write(one, Path(folder) / f"rank{rank}.jsonl")


def _step(
    one: Rank,
    number: int,
    request: str,
    phase: str,
    late_ms: float,
    arithmetic: Arithmetic,
    barrier: Barrier,
) -> None:
    begun = perf_counter_ns()
    arithmetic(UNITS)
    one.span("forward", "compute", begun)
    if late_ms:
        also = perf_counter_ns()
        _other_work(late_ms)
        one.span("repack inputs", "host", also)
    arrived = perf_counter_ns()
    barrier.wait()
    one.add(
        "collective",
        arrived,
        comm="tp",
        op="all_reduce",
        seq=number,
        rank=one.number,
        bytes=1 << 20,
    )
    batch = {request: {"phase": phase, "tokens": 1 if phase == "decode" else 64}}
    one.add("step", begun, id=number, batch=1, requests=batch)


def _other_work(ms: float) -> None:
    """Python that is not the model's, for some time."""
    until = perf_counter_ns() + int(ms * 1e6)
    while perf_counter_ns() < until:
        sum(range(500))


def _request(id: str, arrival: int, tokens: list[int]) -> Row:
    times = {"first_token": tokens[0], "finished": tokens[-1], "token_times": tokens}
    counts = {"prompt_tokens": 64, "output_tokens": len(tokens)}
    return {"type": "request", "id": id, "arrival": arrival, "scheduled": arrival} | times | counts


def _write(one: Rank, path: Path) -> None:
    header: Row = {"type": "header", "schema": "rca-llm/events/1", "clock": "monotonic"}
    header |= {"anchor": [perf_counter_ns(), time.time_ns()], "job": "inject", "host": "h0"}
    header |= {"rank": one.number, "world_size": RANKS}
    lines = [json.dumps(row) for row in (header, *one.rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _ledger(folder: Path) -> Ledger:
    """The requests of rank 0 and the other work of the late rank, from what they wrote."""
    ledger = Ledger(measured_by="the wall clock of the late rank around its other work")
    for row in _rows(folder / "rank0.jsonl"):
        if row["type"] == "request":
            served = ledger.served(row["id"])
            served.arrival = served.scheduled = row["arrival"]
            served.last_token = served.finished = row["finished"]
        elif row["type"] == "step":
            ledger.steps.append((row["start"], row["end"]))
    for row in _rows(folder / f"rank{LATE}.jsonl"):
        if row["type"] == "span" and row["kind"] == "host":
            ledger.add(row["start"], row["end"], row["end"] - row["start"])
    return ledger


def _rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
