"""What the NCCL benchmark traces: collectives of known size and order, one process a GPU.

    torchrun --nproc-per-node 2 nccl_work.py --scenario sizes --truth folder

Each rank writes `truth-RANK.json`: for every phase when it began and ended (CLOCK_MONOTONIC, ns),
which collectives were asked for, in their order, and what was measured by other means: CUDA events
around collectives, the clock around injected delays. Nothing in here reads a trace. On a machine
without a GPU (`--device cpu`) it runs through gloo, without graphs and peer copies.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nccl_model import Model, Shape

import rca_llm

Call = tuple[str, int, str]
"""A collective that was asked for: operation, bytes as NCCL counts its message, type."""

SIZES = (8, 1024, 65_536, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
IN_GRAPH = 5
"""Collectives in one captured graph."""

SLEEP_S = 0.010
LATE_S = 0.040
"""In the decoder's late steps: well above what launching under other tools varies by."""

GC_PAUSE_NS = 25_000_000
BURN_NS = 8_000_000
PROMPT, STEPS = 512, 10
LATE_STEPS = (3, 6)
CLEAN_WINDOWS, CLEAN_STEPS = 24, 8
DTYPE = torch.bfloat16


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", choices=SCENARIOS, required=True)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--share-device", action="store_true", help="all ranks on device 0")
    parser.add_argument("--profiler", action="store_true", help="record with torch.profiler")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes")
    return parser.parse_args()


class Clocked:
    """A pair of events where there is no GPU: the host's clock."""

    def record(self) -> None:
        """Note the time."""
        self.at = time.monotonic_ns()

    def elapsed_time(self, other: Clocked) -> float:
        """Milliseconds up to a later one."""
        return (other.at - self.at) / 1e6


class Job:
    """One rank of the job: its device, and what it has to tell."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cuda = arguments.device == "cuda"
        local = 0 if arguments.share_device else int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", local) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl" if self.cuda else "gloo", device_id=self.device if self.cuda else None
        )
        self.phases: list[dict[str, Any]] = []
        self.calls: list[Call] = []

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def settle(self) -> None:
        """Bring all ranks together, so that a phase begins for all at once."""
        self.synchronize()
        dist.barrier(device_ids=[self.device.index] if self.cuda else None)
        self.synchronize()

    def event(self) -> Any:
        """Something that notes a time on the device."""
        return torch.cuda.Event(enable_timing=True) if self.cuda else Clocked()

    @contextlib.contextmanager
    def phase(self, name: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """A stretch of work whose collectives are known; what else is learnt goes into it."""
        self.settle()
        self.calls = []
        found: dict[str, Any] = {"name": name, **facts, "begin": time.monotonic_ns()}
        with rca_llm.span(f"phase {name}"), nvtx_range(f"phase {name}", self.cuda):
            yield found
            self.synchronize()
        found["end"] = time.monotonic_ns()
        found["calls"] = list(self.calls)
        self.phases.append(found)

    def asked(self, op: str, bytes_: int, tensor: torch.Tensor) -> None:
        """Note a collective that is now asked for."""
        self.calls.append((op, bytes_, str(tensor.dtype).removeprefix("torch.")))

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """All-reduce in place."""
        self.asked("all_reduce", tensor.nbytes, tensor)
        dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """All ranks' pieces side by side."""
        self.asked("all_gather", tensor.nbytes, tensor)
        whole = torch.empty(self.world * tensor.numel(), device=self.device, dtype=tensor.dtype)
        dist.all_gather_into_tensor(whole, tensor)
        return whole

    def write(self, arguments: argparse.Namespace) -> None:
        """Tell everything."""
        told = {
            "scenario": arguments.scenario,
            "rank": self.rank,
            "world": self.world,
            "pid": os.getpid(),
            "device": str(self.device),
            "clock": {"monotonic_ns": time.monotonic_ns(), "utc_ns": time.time_ns()},
            "torch": torch.__version__,
            "nccl": list(torch.cuda.nccl.version()) if self.cuda else None,
            "gpu": torch.cuda.get_device_name(self.device) if self.cuda else None,
            "phases": self.phases,
        }
        path = arguments.truth / f"truth-{self.rank}.json"
        path.write_text(json.dumps(told))


@contextlib.contextmanager
def nvtx_range(name: str, cuda: bool) -> Iterator[None]:
    """A range that every tracer shows: NVTX, and an annotation for torch.profiler."""
    with torch.profiler.record_function(name):
        if cuda:
            torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            if cuda:
                torch.cuda.nvtx.range_pop()


# ------------------------------------------------------------------ sizes


def collective(job: Job, op: str, size: int) -> Callable[[], None]:
    """A function that does one collective of a total size, noting what it asks for."""
    item = torch.empty(0, dtype=DTYPE).element_size()
    count = max(size // item // job.world, 1) * job.world
    whole = torch.ones(count, device=job.device, dtype=DTYPE)
    part = torch.ones(count // job.world, device=job.device, dtype=DTYPE)
    other = torch.empty_like(whole)

    def all_reduce() -> None:
        job.asked(op, whole.nbytes, whole)
        dist.all_reduce(whole)

    def all_gather() -> None:
        job.asked(op, part.nbytes, part)
        dist.all_gather_into_tensor(whole, part)

    def reduce_scatter() -> None:
        job.asked(op, part.nbytes, part)
        dist.reduce_scatter_tensor(part, whole)

    def all_to_all() -> None:
        job.asked(op, part.nbytes, part)
        dist.all_to_all_single(other, whole)

    def send_recv() -> None:
        peer = job.rank ^ 1
        if peer >= job.world:
            return
        sends = job.rank < peer
        job.asked("send" if sends else "recv", whole.nbytes, whole)
        dist.send(whole, peer) if sends else dist.recv(whole, peer)

    return {f.__name__: f for f in (all_reduce, all_gather, reduce_scatter, all_to_all, send_recv)}[
        op
    ]


def timed(job: Job, times: int, work: Callable[[], None]) -> list[float]:
    """How long each repetition took by events on the device, microseconds."""
    pairs = [(job.event(), job.event()) for _ in range(times)]
    for before, after in pairs:
        before.record()
        work()
        after.record()
    job.synchronize()
    return [before.elapsed_time(after) * 1000 for before, after in pairs]


def sizes(job: Job, arguments: argparse.Namespace) -> None:
    """Every operation at every size, eager and inside a graph."""
    with job.phase("empty") as found:
        found["times_us"] = timed(job, 20, lambda: None)
    for op in OPS:
        if job.world == 1 and op == "send_recv":
            continue
        if not job.cuda and op == "reduce_scatter":
            continue  # gloo has none for bfloat16 everywhere
        for size in (size for size in SIZES if size <= arguments.largest):
            work = collective(job, op, size)
            timed(job, 3, work)
            with job.phase(f"{op} {size} eager", op=op, size=size, mode="eager") as found:
                found["times_us"] = timed(job, 20 if size <= 1 << 20 else 10, work)
            if job.cuda:
                captured(job, op, size, work)
            del work


def captured(job: Job, op: str, size: int, work: Callable[[], None]) -> None:
    """The same operation several times in one graph, replayed."""
    job.settle()
    graph = torch.cuda.CUDAGraph()
    job.calls = []
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(IN_GRAPH):
            work()
    calls = list(job.calls)
    graph.replay()
    replays = 8
    with job.phase(f"{op} {size} graph", op=op, size=size, mode="graph", each=IN_GRAPH) as found:
        found["times_us"] = timed(job, replays, graph.replay)
        job.calls = calls * replays
    job.synchronize()
    del graph


# ------------------------------------------------------------------ a model


class Decoder:
    """The model with a decode step eager and captured."""

    def __init__(self, job: Job) -> None:
        self.job = job
        layers = 4 if job.cuda else 2
        width = 2048 if job.cuda else 128
        shape = Shape(job.world, layers, width, inner=width * 11 // 4, vocabulary=16 * width)
        self.model = Model(shape, job.device, DTYPE)
        prompt = [7] * (PROMPT if job.cuda else 32)
        self.prompt = torch.tensor(prompt, device=job.device)
        self.token = torch.tensor([7], device=job.device)
        self.graph: Any = None
        self.captured_calls: list[Call] = []

    def prefill(self) -> None:
        """The prompt."""
        self.model.forward(self.prompt, 0, self.job.reduce, self.job.gather)

    def decode(self) -> None:
        """One token after the prompt, launched kernel by kernel."""
        length = len(self.prompt)
        self.token.copy_(self.model.forward(self.token, length, self.job.reduce, self.job.gather))

    def replay(self) -> None:
        """The same as one graph; eager where there are none."""
        if self.graph is None:
            self.decode()
            return
        self.graph.replay()
        self.job.calls += self.captured_calls

    def capture(self) -> None:
        """Capture the decode step."""
        if not self.job.cuda:
            return
        self.job.settle()
        self.job.calls = []
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.decode()
        self.captured_calls, self.graph = list(self.job.calls), graph

    def warm(self) -> None:
        """Everything once, so that nothing is loaded later."""
        for _ in range(3):
            self.prefill()
            self.decode()
        self.capture()
        self.replay()
        self.job.synchronize()


def generate(job: Job, decoder: Decoder, mode: str, late: tuple[int, ...] = LATE_STEPS) -> None:
    """One request; in some steps the last rank begins late by a known time."""
    name = f"generate {mode}"
    work = decoder.decode if mode == "eager" else decoder.replay
    with job.phase(name, mode=mode, late=list(late), delays=[]) as found, rca_llm.request(mode):
        for number in range(STEPS):
            tokens = len(decoder.prompt) if number == 0 else 1
            batch = {mode: ("decode" if number else "prefill", tokens)}
            with rca_llm.step(number, batch, mode), nvtx_range(f"step {number}", job.cuda):
                if number in late and job.rank == job.world - 1:
                    found["delays"].append(measured(lambda: time.sleep(LATE_S)))
                (work if number else decoder.prefill)()
                job.synchronize()


def measured(work: Callable[[], object]) -> int:
    """Nanoseconds that some work took."""
    begun = time.monotonic_ns()
    work()
    return time.monotonic_ns() - begun


def tensor_parallel(job: Job, arguments: argparse.Namespace) -> None:
    """A request decoded eagerly, and one decoded through a graph."""
    decoder = Decoder(job)
    decoder.warm()
    job.settle()
    with profiled(job, arguments):
        for mode in ("eager", "graph"):
            generate(job, decoder, mode)


@contextlib.contextmanager
def profiled(job: Job, arguments: argparse.Namespace) -> Iterator[None]:
    """Record with torch.profiler, where asked for, and keep its trace beside the truth."""
    if not arguments.profiler:
        yield
        return
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if job.cuda:
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        job.settle()
        yield
        job.settle()
    profile.export_chrome_trace(str(arguments.truth / f"kineto-{job.rank}.json"))


# ------------------------------------------------------------------ delays


@contextlib.contextmanager
def on_host(found: dict[str, Any]) -> Iterator[None]:
    """Note how long a step's work on the host took, and how long its thread ran for it."""
    wall, cpu = time.monotonic_ns(), time.thread_time_ns()
    yield
    found.setdefault("host_ns", []).append(time.monotonic_ns() - wall)
    found.setdefault("cpu_ns", []).append(time.thread_time_ns() - cpu)


class Heap:
    """Live cyclic objects, so many that a full collection takes about a known time."""

    def __init__(self) -> None:
        self.kept: list[list[Any]] = []
        for _ in range(40):
            if measured(gc.collect) >= GC_PAUSE_NS:
                return
            self.kept += [cycle() for _ in range(50_000)]


def cycle() -> list[Any]:
    """A list that holds itself."""
    made: list[Any] = []
    made.append(made)
    return made


def burn() -> None:
    """Use a fixed amount of this thread's CPU time."""
    until = time.thread_time_ns() + BURN_NS
    while time.thread_time_ns() < until:
        pass


@contextlib.contextmanager
def hogged(active: bool) -> Iterator[None]:
    """Share one core with another program."""
    if not active:
        yield
        return
    before = os.sched_getaffinity(0)
    core = max(before)
    os.sched_setaffinity(0, {core})
    command = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    hog = subprocess.Popen([sys.executable, "-S", "-E", "-c", command])
    time.sleep(0.3)
    try:
        yield
    finally:
        hog.kill()
        hog.wait()
        os.sched_setaffinity(0, before)


def injected(job: Job, decoder: Decoder, cause: str, steps: int) -> None:
    """Decode steps of which each begins late on the last rank, for one cause."""
    late = job.rank == job.world - 1
    heap = Heap() if cause == "gc" and late else None
    actions: dict[str, Callable[[], object]] = {
        "sleep": lambda: time.sleep(SLEEP_S) if late else None,
        "gc": lambda: gc.collect() if late else None,
        "hog": burn,
    }
    gc.disable()
    with (
        hogged(cause == "hog" and late),
        job.phase(f"injected {cause}", cause=cause, delays=[]) as found,
    ):
        for number in range(steps):
            with rca_llm.step(number, mode="eager"):
                with on_host(found):
                    found["delays"].append(measured(actions[cause]))
                    decoder.decode()
                job.synchronize()
    gc.enable()
    del heap


def clean(job: Job, decoder: Decoder) -> None:
    """Short windows in which nobody is delayed on purpose."""
    for window in range(CLEAN_WINDOWS):
        mode = "graph" if window % 2 else "eager"
        work = decoder.replay if window % 2 else decoder.decode
        with job.phase(f"clean {window}", mode=mode) as found:
            for number in range(CLEAN_STEPS):
                with rca_llm.step(number, mode=mode):
                    with on_host(found):
                        work()
                    job.synchronize()


def delays(job: Job, arguments: argparse.Namespace) -> None:
    """Clean windows, and each cause of a late rank."""
    decoder = Decoder(job)
    decoder.warm()
    clean(job, decoder)
    for cause in ("sleep", "gc", "hog"):
        injected(job, decoder, cause, 12)


# ------------------------------------------------------------------ contention


class PeerCopy:
    """Copies from this rank's device to the next one's, on a stream of their own."""

    BYTES = 256 << 20

    def __init__(self, job: Job) -> None:
        self.cudart = ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
        self.call = self.cudart.cudaMemcpyPeerAsync
        self.call.argtypes = [ctypes.c_void_p, ctypes.c_int] * 2 + [
            ctypes.c_size_t,
            ctypes.c_void_p,
        ]
        near, far = job.device, torch.device("cuda", (job.device.index + 1) % job.world)
        self.source = torch.empty(self.BYTES, dtype=torch.uint8, device=near)
        self.target = torch.empty(self.BYTES, dtype=torch.uint8, device=far)
        self.stream = torch.cuda.Stream(near)
        torch.cuda.can_device_access_peer(near.index, far.index)
        self.target[:16].copy_(self.source[:16])  # lets torch switch peer access on
        torch.cuda.set_device(near)

    def __call__(self) -> None:
        """Begin a copy."""
        result = self.call(
            self.target.data_ptr(), self.target.device.index, self.source.data_ptr(),
            self.source.device.index, self.BYTES, self.stream.cuda_stream,
        )  # fmt: skip
        if result:
            raise RuntimeError(f"cudaMemcpyPeerAsync: {result}")


TOGETHER = 10
"""All-reduces between two events: so many that launching hides behind them."""

COPIES = 10
"""Copies that begin before them and last longer."""


def contention(job: Job, arguments: argparse.Namespace) -> None:
    """All-reduces alone, and with copies between the same devices under way."""
    if not job.cuda or job.world < 2:
        return
    work, copy = collective(job, "all_reduce", 64 << 20), PeerCopy(job)

    def several() -> None:
        for _ in range(TOGETHER):
            work()

    timed(job, 1, several)
    for mode in ("alone", "copies", "alone again"):
        with job.phase(f"contention {mode}", mode=mode, times_us=[]) as found:
            for number in range(6):
                with rca_llm.step(number, mode="eager"):
                    for _ in range(COPIES if mode == "copies" else 0):
                        copy()
                    found["times_us"] += [t / TOGETHER for t in timed(job, 1, several)]


SCENARIOS: dict[str, Callable[[Job, argparse.Namespace], None]] = {
    "sizes": sizes,
    "tp": tensor_parallel,
    "delays": delays,
    "contention": contention,
}


def main() -> None:
    """Do a scenario and tell the truth about it."""
    arguments = options()
    with torch.inference_mode():
        job = Job(arguments)
        SCENARIOS[arguments.scenario](job, arguments)
        job.settle()
        job.write(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
