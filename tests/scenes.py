"""Serving scenes for tests of hints: steps, one request, and idle time to fill with a cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rca_llm.readers.run_calls import DOMAIN
from rca_llm.trace import Device, Trace
from tests.timelines import PROCESS, THREAD, Builder

US, MS, S = 1_000, 1_000_000, 1_000_000_000
GIB = 1 << 30
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
LAUNCH_NS = 10 * US
"""From a launch call to its kernel, in every scene."""

H200 = {
    "sms": 132,
    "max_threads_per_sm": 2048,
    "max_blocks_per_sm": 32,
    "registers_per_sm": 65536,
    "shared_per_sm": 233472,
    "shared_reserved_per_block": 1024,
    "memory_bytes": 150_109_880_320,
}

Idle = Mapping[int, Sequence[tuple[int, int]]]
"""By step: idle times as (offset from the step's start, length), ns."""


class Scene(Builder):
    """A timeline of an engine that serves; steps follow each other without a pause."""

    def serve(
        self,
        steps: int = 20,
        period: int = 10 * MS,
        idle: Idle | None = None,
        request: str = "R",
        *,
        graph: bool = True,
        arrival: int = 0,
        name: str = GEMM,
        **kernel: Any,
    ) -> None:
        """One request: a prefill step and then decodes; the device works except where idle."""
        for i in range(steps):
            start = i * period
            self.step(i, start, start + period, **{request: "decode" if i else "prefill"})
            for begin, end in _busy(start, start + period, (idle or {}).get(i, ())):
                self.work(name, begin, end, graph=graph, **kernel)
        times = [(i + 1) * period for i in range(steps)]
        self.request(request, arrival, times, scheduled=0)

    def work(self, name: str, start: int, end: int, *, graph: bool = False, **more: Any) -> None:
        """A kernel from `LAUNCH_NS` after `start` to `end`, its launch call at `start`."""
        self.calls += 1
        call = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
        self.api(call, start, start + LAUNCH_NS, correlation=self.calls)
        self.kernel(name, start + LAUNCH_NS, end, correlation=self.calls, **more)

    def request(
        self,
        id: str,
        arrival: int,
        tokens: Sequence[int],
        scheduled: int | None = None,
        **more: Any,
    ) -> None:
        """A finished request with the times of its tokens."""
        told = {"scheduled": arrival if scheduled is None else scheduled}
        told |= {"first_token": tokens[0], "finished": tokens[-1], "output_tokens": len(tokens)}
        self.row("requests", id=id, arrival=arrival, status="finished", **told | more)
        for t in tokens:
            self.row("tokens", request=id, t=t)

    def meet(self, seq: int, start: int, end: int, **more: Any) -> None:
        """This rank's part in a collective, an all-reduce of 1 MiB unless told otherwise."""
        told = {"comm": "tp", "op": "all_reduce", "bytes": 1 << 20, "device": 0}
        where = {"rank": self.timeline.header.rank, "process": PROCESS}
        self.row("collectives", seq=seq, start=start, end=end, **where | told | more)

    def state(self, state: str, start: int, end: int, thread: int = THREAD) -> None:
        """What a thread did for a while."""
        where = {"process": PROCESS, "thread": thread}
        self.row("states", state=state, start=start, end=end, **where)

    def call(self, name: str, start: int, end: int, kind: str = "network", **more: Any) -> None:
        """A system call that the interposer recorded."""
        self.span(kind, start, end, name=name, domain=DOMAIN, **more)

    def sample(self, metric: str, t: int, value: float, **where: Any) -> None:
        """One value of a metric."""
        self.row("samples", metric=metric, t=t, value=value, **where)

    def mark(self, name: str, t: int, request: str) -> None:
        """An event of a request."""
        self.row("marks", name=name, t=t, request=request)

    def device(self, number: int = 0, name: str = "NVIDIA H200", **limits: int) -> None:
        """What the device is."""
        self.timeline.devices.append(Device(number, name, PROCESS, H200 | limits))


def _busy(start: int, end: int, idle: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The rest of a step without its idle times."""
    found = []
    for offset, length in idle:
        found.append((start, start + offset if offset else start))
        start = found[-1][1] + length
    return [(a, b) for a, b in [*found, (start, end)] if b > a]


def spread(steps: range, offset: int, length: int) -> dict[int, list[tuple[int, int]]]:
    """The same idle time in several steps; `offset` is from each step's start."""
    return {i: [(offset, length)] for i in steps}


def ids(summary: Mapping[str, Any]) -> set[str]:
    """The rules that gave a hint."""
    return {hint["id"] for hint in summary["hints"]}


def hint(summary: Mapping[str, Any], id: str) -> dict[str, Any]:
    """The first hint of a rule."""
    found = [hint for hint in summary["hints"] if hint["id"] == id]
    assert found, f"no {id} among {sorted(ids(summary))}"
    return found[0]


def job(*scenes: Builder) -> dict[str, Any]:
    """The summary of several ranks."""
    return Trace([scene.build() for scene in scenes]).attribute().summary
