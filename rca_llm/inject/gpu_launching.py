"""Causes in how the host drives the device: launches, synchronisation, allocation, compiling."""

from __future__ import annotations

import itertools
from typing import Any

from rca_llm import span
from rca_llm.inject.catalogue import Order
from rca_llm.inject.gpu_service import GpuFault, engine, measure
from rca_llm.inject.truth import Truth


def run(order: Order) -> Truth:
    """Serve with many tiny launches, waits in the loop, allocations, or compiling."""
    made = {
        "launch_bound": TinyKernels,
        "sync_in_loop": Waits,
        "alloc_churn": Allocations,
        "jit_in_request": Compiling,
    }
    return measure(made[order.cause.name](engine(), order))


class TinyKernels(GpuFault):
    """`magnitude` kernels of about a microsecond in every step; mended by a CUDA graph."""

    mends = True

    def prepare(self) -> None:
        """Capture the same kernels."""
        torch = self.engine.torch
        self._small = torch.zeros(256, device=self.engine.device)
        self._launch()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            self._launch()
        side.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._launch()

    def _launch(self) -> None:
        for _ in range(round(self.size)):
            self._small.add_(1)

    def in_step(self, number: int, phase: str) -> None:
        """Launch them one by one, or as a graph."""
        if self.variant == "on":
            self._launch()
        elif self.variant == "mended":
            self._graph.replay()


class Waits(GpuFault):
    """`magnitude` times a step the host reads a number back before it goes on; mended by not."""

    mends = True

    def prepare(self) -> None:
        """A number on the device."""
        self._number = self.engine.torch.ones(1, device=self.engine.device)

    def in_step(self, number: int, phase: str) -> None:
        """A product, then a look at a result; without the cause and mended, no look."""
        for _ in range(round(self.size)):
            self.engine.compute(1)
            if self.variant == "on" and self._number.item() > 2:
                return


class Allocations(GpuFault):
    """`magnitude` blocks of device memory a step, taken from the driver and given back."""

    def in_step(self, number: int, phase: str) -> None:
        """Allocate and free, past the caching allocator; to fill it would be work of its own."""
        if self.variant != "on":
            return
        torch = self.engine.torch
        for _ in range(round(self.size)):
            block = torch.empty(96 << 20, dtype=torch.uint8, device=self.engine.device)
            del block
            self.engine.torch.cuda.empty_cache()


_numbers = itertools.count()


class Compiling(GpuFault):
    """`magnitude` kernels that are compiled in the first step of a request."""

    def in_step(self, number: int, phase: str) -> None:
        """Compile, load and run kernels that were never seen before."""
        if self.variant != "on" or phase != "prefill":
            return
        for _ in range(round(self.size)):
            with span("compile kernel", kind="jit"):
                kernel = compiled(self.engine.torch, _FRESH.format(number=next(_numbers)), "fresh")
            kernel((1, 1, 1), (32, 1, 1), [self.engine.token])


_FRESH = """
extern "C" __global__ void fresh(long long* out) {{ if (threadIdx.x > 64) *out = {number}; }}
"""


def compiled(torch: Any, source: str, name: str) -> Any:
    """A kernel from CUDA source, called with grid, block and arguments."""
    compile_kernel = getattr(torch.cuda, "compile_kernel", None) or torch.cuda._compile_kernel
    return compile_kernel(source, name)
