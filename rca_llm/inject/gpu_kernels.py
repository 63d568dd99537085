"""Causes in how kernels use the device: launch shapes, access patterns, missing fusion."""

from __future__ import annotations

from rca_llm.inject.catalogue import Order
from rca_llm.inject.gpu_launching import compiled
from rca_llm.inject.gpu_service import GpuFault, engine, measure
from rca_llm.inject.truth import Truth

HEADS, HEAD = 16, 128
SHARED_WORDS = 8192


def run(order: Order) -> Truth:
    """Serve with kernels that use the device badly; `off` does the same work well."""
    made = {
        "block_32": SmallBlocks,
        "one_wave_tail": Tail,
        "unfused_attention": Unfused,
        "gemm_shape": OddShape,
        "bank_conflicts": BankConflicts,
        "strided_access": Strides,
    }
    return measure(made[order.cause.name](engine(), order))


class _Streaming(GpuFault):
    """A kernel that reads and writes `magnitude` MB of floats in every step."""

    mends = True
    source, name = "", ""

    def prepare(self) -> None:
        """Compile, and make the data."""
        torch = self.engine.torch
        self._count = round(self.size * 1e6 / 4)
        self._from = torch.zeros(self._count, device=self.engine.device)
        self._to = torch.zeros(self._count, device=self.engine.device)
        self._kernel = compiled(torch, self.source, self.name)
        self._sms = torch.cuda.get_device_properties(0).multi_processor_count

    @property
    def bad(self) -> bool:
        """Whether the cause is at work."""
        return self.variant == "on"


class SmallBlocks(_Streaming):
    """Blocks of 32 threads with so much shared memory that a tenth of the warps fit.

    A multiprocessor of an H100 or H200 has 228 KB of it and holds six of them, all of the grid at
    once: a last wave would be a cause of its own.
    """

    SHARED, FITTING = 32 << 10, 6
    name = "stream_floats"
    source = """
extern "C" __global__ void stream_floats(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = x[i] * 1.5f + 0.5f;
}
"""

    def in_step(self, number: int, phase: str) -> None:
        """Run it with one warp a block, or with eight."""
        threads, shared = (32, self.SHARED) if self.bad else (256, 0)
        blocks = self._sms * (self.FITTING if self.bad else 8)
        arguments = [self._from, self._to, self._count]
        self._kernel((blocks, 1, 1), (threads, 1, 1), arguments, shared)


class Tail(GpuFault):
    """A grid of two blocks more than the device holds at once, `magnitude` thousand rounds."""

    mends = True
    SOURCE = """
extern "C" __global__ void two_waves(float* y, int rounds) {
  float a = threadIdx.x;
  for (int i = 0; i < rounds; ++i) a = a * 1.0001f + 0.5f;
  if (a == 1.25f) y[0] = a;
}
"""

    def prepare(self) -> None:
        """Compile."""
        torch = self.engine.torch
        self._out = torch.zeros(1, device=self.engine.device)
        self._kernel = compiled(torch, self.SOURCE, "two_waves")
        self._sms = torch.cuda.get_device_properties(0).multi_processor_count

    def in_step(self, number: int, phase: str) -> None:
        """Two blocks of 1,024 threads fit on a multiprocessor."""
        blocks = 2 * self._sms + (2 if self.variant == "on" else 0)
        self._kernel((blocks, 1, 1), (1024, 1, 1), [self._out, round(self.size * 1000)])


class Unfused(GpuFault):
    """Attention over `magnitude` tokens as two products and a softmax; mended by a fused kernel."""

    mends = True
    tokens = 4

    def prepare(self) -> None:
        """Queries, keys and values."""
        shape = (1, HEADS, round(self.size), HEAD)
        self._tensors = [
            self.engine.torch.zeros(shape, dtype=self.engine.half, device=self.engine.device)
            for _ in range(3)
        ]

    def in_step(self, number: int, phase: str) -> None:
        """Four layers in a prefill."""
        if phase != "prefill":
            return
        torch, (q, k, v) = self.engine.torch, self._tensors
        for _ in range(4):
            if self.variant == "on":
                scores = (q @ k.transpose(-1, -2)) * HEAD**-0.5
                self._out = torch.softmax(scores, dim=-1) @ v
            else:
                self._out = torch.nn.functional.scaled_dot_product_attention(q, k, v)


class OddShape(GpuFault):
    """`magnitude` matrix products a step with odd sizes; `off` has them in the next even ones."""

    mends = True

    def prepare(self) -> None:
        """Both pairs of matrices."""
        torch, own = self.engine.torch, self.engine
        self._odd = [
            torch.zeros(shape, dtype=own.half, device=own.device)
            for shape in ((1023, 4095), (4095, 4095))
        ]
        self._even = [
            torch.zeros(shape, dtype=own.half, device=own.device)
            for shape in ((1024, 4096), (4096, 4096))
        ]

    def in_step(self, number: int, phase: str) -> None:
        """Multiply."""
        left, right = self._odd if self.variant == "on" else self._even
        for _ in range(round(self.size)):
            self.engine.torch.matmul(left, right)


class BankConflicts(GpuFault):
    """Shared memory read with a stride of 32 words; `off` reads it with 33."""

    mends = True
    SOURCE = """
extern "C" __global__ void columns(float* y, int stride, int rounds) {
  __shared__ float s[8192];
  for (int i = threadIdx.x; i < 8192; i += blockDim.x) s[i] = i;
  __syncthreads();
  float a = 0;
  for (int r = 0; r < rounds; ++r) a += s[(threadIdx.x * stride + r) & 8191];
  if (a == 1.25f) y[0] = a;
}
"""

    def prepare(self) -> None:
        """Compile."""
        self._out = self.engine.torch.zeros(1, device=self.engine.device)
        self._kernel = compiled(self.engine.torch, self.SOURCE, "columns")
        self._sms = self.engine.torch.cuda.get_device_properties(0).multi_processor_count

    def in_step(self, number: int, phase: str) -> None:
        """`magnitude` thousand rounds."""
        stride = 32 if self.variant == "on" else 33
        arguments = [self._out, stride, round(self.size * 1000)]
        self._kernel((self._sms * 8, 1, 1), (256, 1, 1), arguments)


class Strides(_Streaming):
    """Floats read 128 apart, so that every one costs a sector; `off` reads them in a row."""

    name = "gather_floats"
    source = """
extern "C" __global__ void gather_floats(const float* x, float* y, int n, int stride) {
  int rows = n / stride;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    int from = stride == 1 ? i : (i % rows) * stride + i / rows % stride;
    y[i] = x[from < n ? from : 0];
  }
}
"""

    def in_step(self, number: int, phase: str) -> None:
        """Gather."""
        arguments = [self._from, self._to, self._count, 128 if self.bad else 1]
        self._kernel((self._sms * 8, 1, 1), (256, 1, 1), arguments)
