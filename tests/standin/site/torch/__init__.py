"""A stand-in for PyTorch with CUDA: what it "launches" are records of the stand-in for CUPTI.

Anything that has no meaning here can be called, indexed and computed with, and gives itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import nvtx as _nvtx

__version__ = "0.0+stand-in"
version = SimpleNamespace(cuda="0.0 stand-in")
NODES = 1000
"""What a kernel of a captured graph has as its node, at least."""


class Device:
    """The device: the driver's part in loading an injected library, and kernels that do nothing."""

    def __init__(self) -> None:
        injected = os.environ.get("CUDA_INJECTION64_PATH")
        if injected:
            ctypes.CDLL(injected).InitializeInjection()
        path = os.environ.get("RCA_LLM_CUPTI")
        self.cupti: Any = ctypes.CDLL(path) if path else None
        self.captured: list[str] | None = None
        self.profiled: list[tuple[str, int]] | None = None

    def launch(self, name: str, count: int = 1, node: int = 0) -> None:
        """Kernels of one name; only remembered while a graph is captured."""
        if self.captured is not None:
            self.captured += [name] * count
            return
        for number in range(count):
            if self.profiled is not None:
                self.profiled.append((name, time.monotonic_ns()))
            if self.cupti is not None:
                self.cupti.fake_kernel(name_of(name), ctypes.c_uint64(node and node + number))

    def call(self, what: str, *arguments: Any) -> None:
        """Another record of the stand-in for CUPTI."""
        if self.cupti is not None and self.captured is None:
            getattr(self.cupti, what)(*arguments)


_names: dict[str, Any] = {}
_device: list[Device] = []


def name_of(name: str) -> Any:
    """A kernel's name where CUPTI keeps it: it stays as long as the process."""
    return _names.setdefault(name, ctypes.c_char_p(name.encode()))


def device_of() -> Device:
    """The device, "initialised" at first use."""
    if not _device:
        _device.append(Device())
    return _device[0]


class Anything:
    """A tensor, a type, a module: whatever is wanted of it."""

    def __init__(self, *arguments: Any, **named: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Anything:
        return self

    def __exit__(self, *error: object) -> None: ...

    def __index__(self) -> int:
        return 1

    def __gt__(self, other: object) -> bool:
        return False

    def compute(self, *others: Any) -> Any:
        """An operator launches one kernel."""
        device_of().launch("stand_in_elementwise")
        return self

    add_ = mul_ = add = __add__ = __radd__ = __mul__ = __rmul__ = compute
    __matmul__ = __getitem__ = __sub__ = compute

    def item(self) -> float:
        """A number read back: a wait."""
        device_of().call("fake_synchronise")
        return 0.0

    def tolist(self) -> list[float]:
        """Numbers read back."""
        return [self.item()]

    def copy_(self, *others: Any, **named: Any) -> Any:
        """A copy to the device."""
        device_of().call("fake_copy", ctypes.c_uint64(4096), 1, 1, 3)
        return self


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything()


def matmul(*arguments: Any, **named: Any) -> Anything:
    """A product."""
    device_of().launch("stand_in_gemm")
    return Anything()


class CUDAGraph:
    """What was "launched" while it was captured."""

    kernels: list[str]

    def replay(self) -> None:
        """Its kernels again, each a node."""
        for number, name in enumerate(self.kernels):
            device_of().launch(name, 1, NODES + number)


@contextlib.contextmanager
def graph(made: CUDAGraph, *arguments: Any, **named: Any) -> Iterator[None]:
    """Capture."""
    device = device_of()
    device.captured = []
    yield
    made.kernels, device.captured = device.captured, None


def compile_kernel(source: str, name: str) -> Callable[..., None]:
    """A kernel by its name."""
    return lambda *arguments: device_of().launch(name)


cuda: Any = SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: 1,
    get_device_name=lambda *_: "stand-in",
    get_device_properties=lambda *_: SimpleNamespace(multi_processor_count=132, name="stand-in"),
    synchronize=lambda *_: device_of().call("fake_synchronise"),
    current_stream=lambda *_: SimpleNamespace(synchronize=cuda.synchronize),
    Stream=lambda *_, **__: SimpleNamespace(synchronize=lambda: None, wait_stream=lambda _: None),
    stream=lambda *_: contextlib.nullcontext(),
    empty_cache=lambda: None,
    CUDAGraph=CUDAGraph,
    graph=graph,
    compile_kernel=compile_kernel,
    nvtx=SimpleNamespace(range_push=_nvtx.push_range, range_pop=_nvtx.pop_range),
)
nccl = Anything()


class profile:
    """torch.profiler.profile: the kernels that were launched meanwhile."""

    def __init__(self, *arguments: Any, **named: Any) -> None: ...

    def _prepare_trace(self) -> None: ...

    def __enter__(self) -> profile:
        self._prepare_trace()
        device_of().profiled = []
        return self

    def __exit__(self, *error: object) -> None:
        device = device_of()
        self.kernels, device.profiled = device.profiled or [], None

    def key_averages(self) -> list[Any]:
        """A row."""
        count = len(self.kernels)
        return [SimpleNamespace(key="elementwise", count=count, device_time_total=float(count))]

    def export_chrome_trace(self, path: str) -> None:
        """A Kineto trace."""
        import json
        from pathlib import Path

        shape = {"grid": [4, 5, 6], "block": [128, 2, 1], "stream": 7, "device": 0}
        events = [
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ns / 1000,
             "dur": 1.0, "args": shape | {"correlation": number + 1}}
            for number, (name, ns) in enumerate(self.kernels)
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


profiler = SimpleNamespace(
    profile=profile, ProfilerActivity=SimpleNamespace(CPU="cpu", CUDA="cuda")
)
sys.modules["torch.profiler"] = profiler  # type: ignore[assignment]
