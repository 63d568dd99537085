"""Causes in the way of data to and from the device."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

from rca_llm import span
from rca_llm.inject.catalogue import Order
from rca_llm.inject.gpu_service import Engine, GpuFault, engine, measure
from rca_llm.inject.truth import Ledger, Truth

SMALL = 4096


def run(order: Order) -> Truth:
    """Serve with copies of some kind, or load weights that have to be converted."""
    if order.cause.name == "dtype_conversion":
        return convert(engine(), order)
    made = {
        "pageable_copies": Pageable,
        "small_copies": Small,
        "pcie_bound": Large,
        "kv_offload": Offload,
    }
    return measure(made[order.cause.name](engine(), order))


class Pageable(GpuFault):
    """`magnitude` MB a step from pageable memory; mended by pinning it."""

    mends = True

    def prepare(self) -> None:
        """Both kinds of host memory, and where they go."""
        count = round(self.size * 1e6)
        self._pageable = self.engine.torch.zeros(count, dtype=self.engine.torch.uint8)
        self._pinned = self.engine.pinned(count)
        self._target = self.engine.on_device(count)

    def in_step(self, number: int, phase: str) -> None:
        """Copy."""
        if self.variant == "on":
            self._target.copy_(self._pageable, non_blocking=True)
        elif self.variant == "mended":
            self._target.copy_(self._pinned, non_blocking=True)


class Small(GpuFault):
    """`magnitude` copies of 4 kB a step; mended by one copy of all."""

    mends = True

    def prepare(self) -> None:
        """The pieces on both sides."""
        count = round(self.size) * SMALL
        self._host, self._target = self.engine.pinned(count), self.engine.on_device(count)
        self._pieces = list(zip(self._target.split(SMALL), self._host.split(SMALL), strict=True))

    def in_step(self, number: int, phase: str) -> None:
        """Copy piece by piece, or the whole."""
        if self.variant == "on":
            for target, piece in self._pieces:
                target.copy_(piece, non_blocking=True)
        elif self.variant == "mended":
            self._target.copy_(self._host, non_blocking=True)


class Large(GpuFault):
    """`magnitude` MB a step from pinned memory, as fast as the link."""

    def prepare(self) -> None:
        """The memory on both sides."""
        count = round(self.size * 1e6)
        self._host, self._target = self.engine.pinned(count), self.engine.on_device(count)

    def in_step(self, number: int, phase: str) -> None:
        """Copy on the stream that computes."""
        if self.variant == "on":
            self._target.copy_(self._host, non_blocking=True)


class Offload(GpuFault):
    """`magnitude` MB of KV cache that come back from the host before a request's first step."""

    BLOCK = 1 << 20

    def prepare(self) -> None:
        """The blocks on both sides."""
        count = max(round(self.size * 1e6) // self.BLOCK, 1) * self.BLOCK
        self._host, self._target = self.engine.pinned(count), self.engine.on_device(count)
        self._blocks = list(
            zip(self._host.split(self.BLOCK), self._target.split(self.BLOCK), strict=True)
        )

    def in_step(self, number: int, phase: str) -> None:
        """Bring the blocks back, then put them away again."""
        if self.variant != "on" or phase != "prefill":
            return
        count = self._host.numel()
        with span("kv load", kind="kv_transfer", bytes=count):
            for host, target in self._blocks:
                target.copy_(host, non_blocking=True)
            self.engine.synchronise()
        with span("kv store", kind="kv_transfer", bytes=count):
            for host, target in self._blocks:
                host.copy_(target, non_blocking=True)
            self.engine.synchronise()


def convert(own: Engine, order: Order) -> Truth:
    """Load `magnitude` MB of float32 weights from a file and cast them on the host.

    They are cast into pinned memory: a copy from pageable memory would be a fault of its own.
    """
    ledger = Ledger(measured_by="the wall clock around the casts")
    torch, count = own.torch, round(order.magnitude * 1e6 / 4)
    path = Path(order.folder) / "weights.bin"
    path.write_bytes(bytes(count * 4))
    half = torch.zeros(count // 4, dtype=own.half, pin_memory=own.on_gpu)
    target = torch.zeros(count // 4, dtype=own.half, device=own.device)
    own.synchronise()
    served = ledger.served("load")
    served.arrival = served.scheduled = perf_counter_ns()
    with span("load weights", kind="load", bytes=count * 4, path=str(path)):
        for _ in range(4):
            with span("read", kind="file", bytes=count, path=str(path)):
                data = torch.from_file(str(path), size=count // 4, dtype=torch.float32).clone()
            with ledger.delay(), span("cast", kind="cast"):
                half.copy_(data)
            target.copy_(half, non_blocking=True)
            own.synchronise()
    served.last_token = served.finished = perf_counter_ns()
    path.unlink()
    return Truth(order, ledger)
