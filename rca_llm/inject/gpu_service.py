"""A small inference service on a GPU, served once without the cause and once with it.

A step is a row of large matrix products that keep the device busy, the copy of a token to pinned
memory and the wait for it. What a cause costs is the difference between the two services in one
process, so that nothing but the cause differs. Only the one with the cause is named by the probes,
unless an order asks for all: naming takes time of its own, on some machines as much as a cause.
"""

from __future__ import annotations

import importlib
import itertools
import statistics
import time
from time import perf_counter_ns
from typing import Any, Literal

from rca_llm import request, step
from rca_llm.errors import RcaError
from rca_llm.inject.catalogue import Order
from rca_llm.inject.truth import Ledger, Truth

Variant = Literal["off", "on", "mended"]
"""Without the cause, with it, and with what the advice says done about it."""

PRODUCTS, ROWS, WIDTH = 12, 1024, 8192
REST_S = 0.002
"""The least pause before a request, so that a window can be cut out with some time around it."""


class Engine:
    """A device with the weights of the service; `torch` is the module, loaded late."""

    def __init__(self, device: str = "cuda", rows: int = ROWS, width: int = WIDTH) -> None:
        try:
            self.torch: Any = importlib.import_module("torch")
        except ImportError:
            raise RcaError("causes on a GPU need torch: pip install torch") from None
        if device == "cuda" and not self.torch.cuda.is_available():
            raise RcaError("causes on a GPU need a CUDA device; torch finds none")
        self.device = device
        self.on_gpu = device != "cpu"
        kind = self.torch.bfloat16 if self.on_gpu else self.torch.float32
        self.half: Any = kind
        # Zeros draw the least power: see `_serve`.
        self.input = self.torch.zeros((rows, width), dtype=kind, device=device)
        self.weight = self.torch.zeros((width, width), dtype=kind, device=device)
        self.output = self.torch.empty_like(self.input)
        self.token = self.torch.zeros(1, dtype=self.torch.long, device=device)
        self.host_token = self.torch.zeros(1, dtype=self.torch.long, pin_memory=self.on_gpu)

    def pinned(self, count: int) -> Any:
        """Bytes in pinned host memory."""
        return self.torch.zeros(count, dtype=self.torch.uint8, pin_memory=self.on_gpu)

    def on_device(self, count: int) -> Any:
        """Bytes in device memory."""
        return self.torch.zeros(count, dtype=self.torch.uint8, device=self.device)

    def compute(self, products: int = PRODUCTS) -> None:
        """Large matrix products, launched without waiting."""
        for _ in range(products):
            self.torch.matmul(self.input, self.weight, out=self.output)

    def sample(self) -> None:
        """The step's token comes to the host."""
        self.host_token.copy_(self.token, non_blocking=True)
        self.synchronise()

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            self.torch.cuda.current_stream().synchronize()


_engines: dict[str, Engine] = {}


def engine(device: str = "cuda") -> Engine:
    """The engine of this process, made once."""
    if device not in _engines:
        _engines[device] = Engine(device)
    return _engines[device]


class GpuFault:
    """A cause on a GPU; `mends` says that what the advice says can be done as well."""

    requests, tokens = 3, 7
    compared = 3
    """How many requests are served without the cause, before and after."""
    mends = False
    pause_s = REST_S
    """The least time between requests."""

    def __init__(self, engine: Engine, order: Order) -> None:
        self.engine, self.order, self.size = engine, order, order.magnitude
        self.variant: Variant = "off"
        self.served_s = 0.0  # how long the last request took

    def prepare(self) -> None:
        """Make what the cause needs, before anything is measured."""

    def before(self, id: str) -> None:
        """A request has arrived and is not in a step yet."""

    def in_step(self, number: int, phase: str) -> None:
        """Inside a step, among its matrix products."""

    def close(self) -> None:
        """Give everything back."""


def measure(fault: GpuFault) -> Truth:
    """Serve without the cause, with it and, where that is known, with what mends it."""
    ledger = Ledger(measured_by="mean latency of the same service without the cause, in turns")
    ledger.without = _unseen(fault)
    fault.prepare()
    try:
        _serve(fault, "off", None, requests=1)
        _serve(fault, "on", None, requests=1)
        before = _serve(fault, "off", ledger.without, fault.compared)
        on = _serve(fault, "on", ledger)
        after = _serve(fault, "off", _unseen(fault), fault.compared)
        mended = _serve(fault, "mended", _unseen(fault)) if fault.mends else []
    finally:
        fault.close()
    ledger.off = [before, after]
    usual = statistics.median(before + after)
    for served in ledger.requests.values():
        ledger.add(served.arrival, served.finished, round(served.latency - usual), served.id)
    ledger.figures |= {"off_ns": usual, "on_ns": statistics.fmean(on)}
    if mended:
        ledger.figures["mended_ns"] = statistics.fmean(mended)
    return Truth(fault.order, ledger)


def _unseen(fault: GpuFault) -> Ledger | None:
    """Where what is compared is written down, if it is to be named."""
    return Ledger() if fault.order.named else None


_numbers = itertools.count(1)
_services = itertools.count(1)


def next_step() -> int:
    """The number of the next step; no two steps of a process share one."""
    return next(_numbers)


def _serve(
    fault: GpuFault, variant: Variant, ledger: Ledger | None, requests: int = 0
) -> list[int]:
    """Serve all requests, one after another; the latency of each, ns.

    Before each the device rests as long as it served the one before. At its power cap it works
    faster after it was idle: an H200 that multiplied for more than about 50 ms on end went from
    1965 to 1845 MHz, also with zeros, unless a cause left it idle meanwhile. So the service without
    a cause was up to 7 % slower by itself, and what the cause cost was measured too small.
    """
    fault.variant = variant
    fault.engine.synchronise()
    found: list[int] = []
    for number in range(requests or fault.requests):
        id = f"{fault.order.cause.name}-{fault.order.magnitude:g}-{fault.order.seed}-{number}"
        if variant != "on":
            id = f"{id}-{variant}-{next(_services)}"
        time.sleep(max(fault.pause_s, fault.served_s))
        begun = perf_counter_ns()
        if ledger is None:
            fault.before("")
            for place in range(fault.tokens):
                _work(fault, place)
        else:
            _named(fault, ledger, id)
        found.append(perf_counter_ns() - begun)
        fault.served_s = found[-1] / 1e9
    return found


def _named(fault: GpuFault, ledger: Ledger, id: str) -> None:
    """A request whose life and steps the probes record."""
    served = ledger.served(id)
    with request(id, prompt_tokens=512, output_tokens=fault.tokens) as own:
        own.arrival()
        served.arrival = perf_counter_ns()
        fault.before(id)
        own.scheduled()
        served.scheduled = perf_counter_ns()
        for place in range(fault.tokens):
            batch = {id: ("decode", 1) if place else ("prefill", 512)}
            begun = perf_counter_ns()
            with step(next_step(), batch, mode="eager"):
                _work(fault, place)
            ledger.steps.append((begun, perf_counter_ns()))
            (own.token if place else own.first_token)()
        own.finish()
        served.last_token = served.finished = perf_counter_ns()


def _work(fault: GpuFault, place: int) -> None:
    fault.engine.compute(PRODUCTS // 2)
    fault.in_step(place, "decode" if place else "prefill")
    fault.engine.compute(PRODUCTS // 2)
    fault.engine.sample()
