"""What happened: the tables of a trace, the hinge between everything that reads and analyses.

A `Trace` holds one `Timeline` for every input. The columns of each table are listed in `TABLES`,
with a line on what they mean; all times are int64 ns on the timeline's clock, which is UTC once
`Timeline.utc` says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rca_llm.table import Schema, Strings, Table, concat

if TYPE_CHECKING:
    from pathlib import Path

    from rca_llm.hints.thresholds import Thresholds
    from rca_llm.report import Report

KERNEL, MEMCPY, MEMSET, GRAPH = range(4)
"""`gpu.kind`: a kernel, a copy, a memset, and a graph replay recorded as one piece."""

COPY_KINDS = ("H2D", "D2H", "D2D", "P2P", "H2H")
"""The texts of `gpu.copy`, by value."""

MEMORY_KINDS = ("pageable", "pinned", "device", "managed")
"""The texts of `gpu.src` and `gpu.dst`, by value."""

NUMBER_FORMATS = ("bf16", "fp8", "fp32", "fp64")
"""The texts of `gpu.format`, by value; 16-bit floats of both kinds are `bf16`."""

GPU: Schema = {
    "kind": "small",  # KERNEL, MEMCPY, MEMSET or GRAPH
    "start": "time",
    "end": "time",
    "name": "text",
    "process": "int",  # pid as in the input, 64 bit
    "device": "small",
    "stream": "int",
    "correlation": "int",  # the launch call with the same number in the same process
    "graph_node": "int",  # which node of a CUDA graph, where it came from one
    "queued": "time",  # when the host put the launch into the command buffer
    "grid_x": "small",
    "grid_y": "small",
    "grid_z": "small",
    "block_x": "small",
    "block_y": "small",
    "block_z": "small",
    "registers": "small",  # per thread
    "shared": "small",  # bytes per block, static and dynamic
    "copy": "small",  # index into COPY_KINDS
    "src": "small",  # index into MEMORY_KINDS
    "dst": "small",
    "bytes": "int",
    "step": "int",  # id of the engine step, where the record itself says so
    "flops": "int",  # floating-point operations, where the shapes of what it multiplies are known
    "moved": "int",  # bytes of its operands and result, each counted once
    "format": "small",  # index into NUMBER_FORMATS
}
API: Schema = {
    "start": "time",
    "end": "time",
    "name": "text",
    "process": "int",
    "thread": "int",
    "correlation": "int",
}
SYSTEM_DOMAINS = ("osrt", "cuda", "stack")
"""Domains of `ranges` that no program marked: system calls, CUDA's own loading of code, and
functions that were sampled."""

RANGES: Schema = {
    "start": "time",
    "end": "time",
    "name": "text",
    "domain": "text",  # NVTX domain, "cpu_op", "annotation", "probe", or of SYSTEM_DOMAINS
    "kind": "text",  # a span kind of the contract ("host", "gc" …); NO_TEXT for a plain range
    "process": "int",
    "thread": "int",
    "request": "text",
    "step": "int",
    "bytes": "int",
    "path": "text",
    "fs": "text",
    "pieces": "int",
    "post_ns": "int",
    "link_bytes_s": "int",
}
COLLECTIVES: Schema = {
    "comm": "text",
    "op": "text",
    "seq": "int",
    "rank": "int",
    "process": "int",
    "device": "small",
    "bytes": "int",
    "dtype": "text",
    "group_size": "int",
    "start": "time",
    "end": "time",
    "algo": "text",
    "proto": "text",
    "correlation": "int",  # of the kernel that did it, where there is one in `gpu`
    "open": "small",  # 1 where it had not ended when its process did
    "waited_from": "time",  # since when a thread did nothing but wait for it; else since its start
    "issued": "time",  # when the host handed it to the device
}
REQUESTS: Schema = {
    "id": "text",
    "client_submit": "time",
    "arrival": "time",
    "scheduled": "time",
    "first_token": "time",
    "finished": "time",
    "prompt_tokens": "int",
    "output_tokens": "int",
    "status": "text",  # "finished", "aborted" or unknown
    "home_process": "int",  # which process and thread began to handle it, where a program says so
    "home_thread": "int",
    "until": "time",  # how long one that never finished lasted: its process died, or is another now
}
TOKENS: Schema = {"request": "text", "t": "time"}
MARKS: Schema = {
    "t": "time",
    "name": "text",  # "queued", "scheduled", "preempted", "resumed", "aborted", or a user's own
    "request": "text",
    "process": "int",  # UNKNOWN for what nobody of the program marked (`rca-llm ctl`)
    "thread": "int",
}
STEPS: Schema = {
    "id": "int",
    "process": "int",
    "start": "time",
    "end": "time",
    "mode": "text",  # "graph", "eager" or unknown
    "batch": "int",
}
BATCH: Schema = {
    "step": "int",  # row number in `steps`
    "request": "text",
    "phase": "text",  # "prefill", "decode" or "recompute"
    "tokens": "int",
}
STATES: Schema = {
    "process": "int",
    "thread": "int",
    "start": "time",
    "end": "time",
    "state": "text",  # "running", "runnable", "blocked", "throttled" or "gil"
    "cpu": "small",  # on which it ran, as far as that was looked at
}
SAMPLES: Schema = {
    "t": "time",
    "metric": "text",
    "device": "small",
    "process": "int",
    "value": "float",
}
PROCESSES: Schema = {
    "process": "int",
    "name": "text",
    "rank": "int",
    "start": "time",  # when it began and ended, where that opens the window: readers/run_header.py
    "end": "time",
}
THREADS: Schema = {"process": "int", "thread": "int", "name": "text"}

TABLES: dict[str, Schema] = {
    "gpu": GPU,
    "api": API,
    "ranges": RANGES,
    "collectives": COLLECTIVES,
    "requests": REQUESTS,
    "tokens": TOKENS,
    "marks": MARKS,
    "steps": STEPS,
    "batch": BATCH,
    "states": STATES,
    "samples": SAMPLES,
    "processes": PROCESSES,
    "threads": THREADS,
}
"""The tables of a timeline and their columns."""


@dataclass(frozen=True)
class Finding:
    """One quality finding of the contract: what is wrong with the data, how often and where."""

    code: str
    count: int
    where: str = ""
    detail: str = ""


MOST_QUOTED = 80
"""Characters of a name that a finding shows."""


def quoted(name: str) -> str:
    """A name from a trace as findings tell it: in quotes, control characters written out, cut."""
    return repr(name if len(name) <= MOST_QUOTED else f"{name[:MOST_QUOTED]}…")


@dataclass(frozen=True)
class Input:
    """What was read: the contract's `inputs` row."""

    path: str
    format: str
    tool: str | None = None
    tool_version: str | None = None
    rank: int | None = None
    events: int = 0


@dataclass(frozen=True)
class Device:
    """A GPU as the input describes it; `limits` are device attributes under their own names.

    Names used: `sms`, `warp_size`, `max_threads_per_sm`, `max_blocks_per_sm`, `registers_per_sm`,
    `shared_per_sm` and `shared_reserved_per_block` (bytes), `memory_bytes`, `memory_bytes_s`,
    `clock_hz`, `major`, `minor`. What the input does not say is absent.
    """

    device: int
    name: str | None = None
    process: int | None = None
    limits: dict[str, int] = field(default_factory=dict[str, int])
    uuid: str | None = None
    node: int | None = None
    """The NUMA node of the machine that it is connected to."""


@dataclass
class Header:
    """What an input says about itself: where it was recorded and on which clock."""

    utc: bool = True
    anchors: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Pairs (time on this clock, UTC), ns; needed where the clock is not UTC."""
    job: str | None = None
    same_rank_as: str | None = None
    host: str | None = None
    rank: int | None = None
    world_size: int | None = None
    nccl: str | None = None
    engine: str | None = None
    graph_level: bool | None = None
    """Whether graph replays were recorded as one piece; None where unknown."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


PARTIAL = "partial"
"""Key in `Header.extra`: the input tells of collectives alone, not what devices and threads did."""
PAUSES = "gaps"
"""Key in `Header.extra`: begin and end of each pause of a whole run, and of each stretch in which
its device was not recorded for another reason, on the timeline's clock."""
NODES = "nodes"
"""Key in `Header.extra`: the machine's NUMA nodes with CPUs, by number as text: `cpus`, a list as
the kernel writes it (`0-3,8`), and `distances` to nodes by number, 10 to itself."""
SETTINGS = "settings"
"""Key in `Header.extra`: settings of the engine by name, each on or off, as it told."""
CUT = "cut"
"""Key in `Header.extra`: the input ends early, and what is missing may be device work."""
SWITCHED_OFF = "recording was switched off for a while"
"""What `dropped_records` says of time that nobody wanted recorded."""
DEVICE_OFF = "of the device, launched while recording was switched off"
CALLS_OFF = "of CUDA calls, made while recording was switched off"
"""What it says of records that were made all the same."""
HOST_RECORDS, DEVICE_RECORDS = "records of the host", "records of a device"
"""How it begins where a recorder of ours had no room: what cannot have been of the other."""
BY_INTENT = (SWITCHED_OFF, DEVICE_OFF, CALLS_OFF)


@dataclass(frozen=True)
class Clock:
    """How the clock of a timeline relates to the job's reference, the first rank's clock.

    Timelines with one `number` share a clock. `offset_ns` was added to the timeline's first time
    (with drift, a little more or less to later ones); the result is within `uncertainty_ns`. None
    where nothing tells.
    """

    number: int = 0
    offset_ns: int | None = 0
    uncertainty_ns: int | None = 0


REFERENCE = Clock()
"""The clock that all others are brought onto."""


@dataclass(frozen=True)
class Origin:
    """A recording that another process reads: the place of the timeline in what a path holds.

    `kept` is a file that the timeline as it was read was put into, if any; `ranks` are the number
    and the processes of every rank that it holds.
    """

    path: str
    place: int
    kept: str | None = None
    ranks: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass
class Timeline:
    """The tables of one input, on one clock."""

    input: Input
    header: Header = field(default_factory=Header)
    strings: Strings = field(default_factory=Strings)
    tables: dict[str, Table] = field(default_factory=dict[str, Table])
    devices: list[Device] = field(default_factory=list[Device])
    findings: list[Finding] = field(default_factory=list[Finding])
    clock: Clock = REFERENCE
    origin: Origin | None = None
    """Where the rest is, of a timeline that holds only what decides about a whole job."""
    history: list[Any] = field(default_factory=list[Any])
    """What alignment did to it (`rca_llm.align.redo`), to be done to the recording too."""

    def __getitem__(self, name: str) -> Table:
        """A table by name, empty where the input has none."""
        return self.tables.get(name) or Table(TABLES[name])

    def text(self, code: int) -> str | None:
        """The text of a code, None where it is unknown."""
        return self.strings[code] if code >= 0 else None

    def add(self, name: str, table: Table) -> None:
        """Append rows to a table."""
        self.tables[name] = concat(TABLES[name], [self[name], table])

    def copy(self) -> Timeline:
        """A timeline that can be changed without changing this one; the columns are shared."""
        header = replace(self.header, anchors=[*self.header.anchors], extra={**self.header.extra})
        return replace(
            self,
            header=header,
            tables={**self.tables},
            devices=[*self.devices],
            findings=[*self.findings],
            history=[*self.history],
        )

    def note(self, code: str, count: int, where: str = "", detail: str = "") -> None:
        """Record a quality finding, unless its count is 0."""
        if count:
            self.findings.append(Finding(code, count, where, detail))


@dataclass
class Trace:
    """Everything that was recorded of a job: a timeline for each input."""

    timelines: list[Timeline]
    findings: list[Finding] = field(default_factory=list[Finding])

    def attribute(self, thresholds: Thresholds | None = None) -> Report:
        """Where the time went and why, with limits of the rules other than the package's if given.

        The trace itself stays as it is.
        """
        from rca_llm.report import build

        return build(self, thresholds)

    def save(self, folder: Path) -> None:
        """Write the trace into a new folder that `rca_llm.load` reads: Parquet tables by timeline.

        Raises OSError where that cannot be done.
        """
        from rca_llm import run, saved

        for number, timeline in enumerate(self.timelines):
            tables = folder / f"{number:04d}" / run.TABLES
            tables.mkdir(parents=True)
            saved.save(timeline, tables)


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Findings with the same code, place and detail as one, counts added, first seen first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for finding in findings:
        counts[finding.code, finding.where, finding.detail] += finding.count
    return [Finding(code, n, where, detail) for (code, where, detail), n in counts.items()]


def merge(traces: Sequence[Trace]) -> Trace:
    """Several traces as those of one job."""
    return Trace(
        [timeline for trace in traces for timeline in trace.timelines],
        [finding for trace in traces for finding in trace.findings],
    )
