"""Causes in who else uses the device: another process, another request, memory that grows."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter_ns
from typing import Any

from rca_llm import request, step
from rca_llm.inject.catalogue import Order
from rca_llm.inject.gpu_service import Engine, GpuFault, engine, measure, next_step
from rca_llm.inject.truth import Ledger, Truth


def run(order: Order) -> Truth:
    """Serve beside another process, behind another prefill, or with growing memory."""
    if order.cause.name == "prefill_before_decode":
        return prefill_first(engine(), order)
    made = {"two_processes": Neighbour, "memory_growth": Growth}
    return measure(made[order.cause.name](engine(), order))


_NEIGHBOUR = """
import select, sys, time
import torch
a = torch.zeros((4096, 4096), dtype=torch.bfloat16, device="cuda")
torch.matmul(a, a); torch.cuda.synchronize()
print("ready", flush=True)
duty = 0.0
while True:
    if select.select([sys.stdin], [], [], 0 if duty else None)[0]:
        line = sys.stdin.readline()
        if not line:
            break
        duty = float(line)
        print("ok", flush=True)
        continue
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.005 * duty:
        for _ in range(4):
            torch.matmul(a, a)
        torch.cuda.synchronize()
    time.sleep(0.005 * (1 - duty))
"""


class Neighbour(GpuFault):
    """Another process that uses the device for `magnitude` of the time."""

    requests = 6
    _process: subprocess.Popen[str] | None = None

    def prepare(self) -> None:
        """Start it once; it works only while it is told to."""
        if Neighbour._process is None:
            call = [sys.executable, "-c", _NEIGHBOUR]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            Neighbour._process = subprocess.Popen(call, text=True, **pipes)
            self._answer(Neighbour._process)
        self._duty = 0.0

    def before(self, id: str) -> None:
        """Let it work or rest."""
        duty = self.size if self.variant == "on" else 0.0
        if duty != self._duty:
            self._tell(duty)

    def _tell(self, duty: float) -> None:
        process = Neighbour._process
        assert process is not None and process.stdin is not None
        process.stdin.write(f"{duty}\n")
        process.stdin.flush()
        self._answer(process)
        self._duty = duty

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        process.stdout.readline()

    def close(self) -> None:
        """Let it rest; it ends with this process."""
        self._tell(0.0)


class Growth(GpuFault):
    """`magnitude` MB of device memory a request that nobody gives back."""

    requests = 30
    pause_s = 0.05

    def prepare(self) -> None:
        """Nothing is kept yet."""
        self._kept: list[Any] = []

    def before(self, id: str) -> None:
        """Keep some more."""
        if self.variant == "on":
            self._kept.append(self.engine.on_device(round(self.size * 1e6)))

    def close(self) -> None:
        """Give it back."""
        self._kept.clear()
        self.engine.torch.cuda.empty_cache()


def prefill_first(own: Engine, order: Order) -> Truth:
    """A request decodes; another is prefilled in `magnitude` steps of its own before it goes on.

    The other one comes when it is its turn. If it came with the first it would wait for that one's
    first steps, which is a second cause, and in the smallest size as large as this one.
    """
    ledger = Ledger(measured_by="the wall clock of the steps that only prefill")
    own.compute()
    own.synchronise()
    first, second = (f"{order.cause.name}-{order.magnitude:g}-{order.seed}-{n}" for n in "ab")
    a, b = request(first, prompt_tokens=512), request(second, prompt_tokens=4096)
    _comes(ledger, a, first)
    for place in range(4):
        _one(own, ledger, {first: ("decode", 1) if place else ("prefill", 512)})
        (a.token if place else a.first_token)()
    _comes(ledger, b, second)
    for _ in range(round(order.magnitude)):
        begun = perf_counter_ns()
        _one(own, ledger, {second: ("prefill", 512)})
        ended = perf_counter_ns()
        ledger.add(begun, ended, ended - begun, first)
    b.first_token()
    for _ in range(6):
        _one(own, ledger, {first: ("decode", 1), second: ("decode", 1)})
        a.token()
        b.token()
    for made, id in ((a, first), (b, second)):
        made.finish()
        ledger.served(id).last_token = ledger.served(id).finished = perf_counter_ns()
    return Truth(order, ledger)


def _comes(ledger: Ledger, made: request, id: str) -> None:
    """A request arrives and is scheduled at once."""
    made.arrival()
    ledger.served(id).arrival = perf_counter_ns()
    made.scheduled()
    ledger.served(id).scheduled = perf_counter_ns()


def _one(own: Engine, ledger: Ledger, batch: dict[str, tuple[str, int | None]]) -> None:
    begun = perf_counter_ns()
    with step(next_step(), batch, mode="eager"):
        own.compute()
        own.sample()
    ledger.steps.append((begun, perf_counter_ns()))
