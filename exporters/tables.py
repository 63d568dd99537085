"""The tables of the page, as data: which columns of the summary they show, and in what unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rca_llm.attribute.parts import CLASSES
from rca_llm.exporters.definitions import CLASSES as CLASS_TERMS
from rca_llm.exporters.definitions import TERMS
from rca_llm.exporters.text import shown
from rca_llm.exporters.verdict import given, listed

Row = Mapping[str, Any]

Kind = Literal["ns", "count", "share", "bytes", "rate", "text", "class", "part", "request", "mix"]
"""How a cell is shown and sorted: `share` is a fraction, `request` opens that request's life, `mix`
is a small stacked bar of the five classes. Ids of 64 bits are `text`: JavaScript's numbers would
round them."""


@dataclass(frozen=True)
class Column:
    """One column: its head, where its value lies in a row, its unit, the term that defines it.

    A `minor` one stands behind the button "More columns".
    """

    head: str
    value: str | Callable[[Row], Any]
    kind: Kind = "text"
    term: str = ""
    minor: bool = False

    def of(self, row: Row) -> Any:
        """The raw value of a row, None where it is unknown."""
        if not isinstance(self.value, str):
            return self.value(row)
        found: Any = row
        for key in self.value.split("."):
            found = given(found).get(key)
        return found


@dataclass(frozen=True)
class Grid:
    """One table of the page: the summary's list it shows, and at most how many rows of it."""

    source: str
    title: str
    about: str
    columns: Sequence[Column]
    sort: str
    most: int = 500

    def packed(self, summary: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
        """The table for the page; the largest by `sort` first, texts made safe to show.

        `words` are those for parts.
        """
        rows = sorted(summary.get(self.source) or (), key=self._rank)
        listed = rows[: self.most]
        columns = [c for c in self.columns if any(_tells(c, c.of(row)) for row in listed)]
        missing = [c.head for c in self.columns if c not in columns and c.head != "unknown"]
        return {
            "id": self.source,
            "title": self.title,
            "about": self.about,
            "total": len(rows),
            "shown": len(listed),
            "unrecorded": missing,
            "sorted": next((i for i, c in enumerate(columns) if c.head == self.sort), -1),
            "columns": [_head(column) for column in columns],
            "rows": [[_cell(c, row, words) for c in columns] for row in listed],
        }

    def _rank(self, row: Row) -> tuple[bool, float]:
        column = next(c for c in self.columns if c.head == self.sort)
        value = column.of(row)
        return value is None, -float(value or 0)


def _tells(column: Column, value: Any) -> bool:
    """Whether a value is worth a column: known, and of the class `unknown` not a mere 0."""
    return value is not None and (column.head != "unknown" or value != 0)


def _head(column: Column) -> dict[str, Any]:
    term = column.term or column.head
    about = TERMS.get(term) or CLASS_TERMS.get(term, "")
    head: dict[str, Any] = {"head": column.head, "kind": column.kind, "about": about}
    return head | ({"minor": True} if column.minor else {})


def _cell(column: Column, row: Row, words: Mapping[str, str]) -> Any:
    value = column.of(row)
    if value is None or isinstance(value, (int, float)):
        return value
    if column.kind == "mix":
        return list(value)
    if column.kind == "part" and value in words:
        return f"{value}: {words[value]}"
    return shown(value)


def _made(key: str, make: Callable[[Any], Any]) -> Callable[[Row], Any]:
    """A value made from another one; None where that is unknown."""

    def value(row: Row) -> Any:
        found = row.get(key)
        return None if found is None else make(found)

    return value


def _shape(sizes: Sequence[int]) -> str | None:
    return " × ".join(map(str, sizes)) or None


def _per_second(row: Row) -> float | None:
    bytes_, ns = row.get("bytes"), row.get("total_ns")
    return bytes_ * 1e9 / ns if bytes_ is not None and ns else None


def _largest(by_rank: Mapping[str, int | None]) -> int | None:
    return max((ns for ns in by_rank.values() if ns is not None), default=None)


def _length(row: Row) -> int | None:
    start, end = row.get("start_ns"), row.get("end_ns")
    return None if start is None or end is None else end - start


def _held_up(others: Sequence[Row]) -> int:
    return sum(other["ns"] for other in others)


def _how_many(found: Any) -> int:
    return found if isinstance(found, int) else len(found)


def _rank_list(ranks: Any) -> str | None:
    return ", ".join(map(str, listed(ranks))) or None


def _shares() -> list[Column]:
    """A bar of the five classes and a column for each."""
    return [MADE_OF, *_classes()]


def _classes(*, minor: bool = False) -> list[Column]:
    return [Column(name, f"shares.{name}", "ns", name, minor) for name in CLASSES]


def _mix(row: Row) -> list[int] | None:
    shares = row.get("shares")
    return [shares.get(name) or 0 for name in CLASSES] if shares else None


MADE_OF = Column("made of", _mix, "mix")


GRIDS: tuple[Grid, ...] = (
    Grid(
        "requests",
        "Requests",
        "Each request's latency and what it is made of. Choose an id to see its life above.",
        [
            Column("request", "id", "request"),
            Column("latency", "latency_ns", "ns"),
            MADE_OF,
            Column("cause", "cause", "part"),
            Column("TTFT", "ttft_ns", "ns"),
            Column("ITL P50", "itl_ns.p50", "ns", "ITL"),
            Column("prompt tokens", "prompt_tokens", "count", "prefill"),
            Column("output tokens", "output_tokens", "count", "decode"),
            Column("status", "status"),
            *_classes(minor=True),
            Column("ITL max", "itl_ns.max", "ns", "ITL", minor=True),
            Column("shared", "shared_ns", "ns", minor=True),
            Column("held up", _made("interference", _held_up), "ns", "interference", minor=True),
            Column("client latency", "client_latency_ns", "ns", minor=True),
            Column("HTTP before", "http.before_ns", "ns", minor=True),
            Column("HTTP after", "http.after_ns", "ns", minor=True),
        ],
        "latency",
        4000,
    ),
    Grid(
        "windows",
        "Windows",
        "Steps or ranges, judged one by one because the trace names no requests.",
        [Column("window", "name"), Column("length", _length, "ns"), *_shares()],
        "length",
        1000,
    ),
    Grid(
        "steps",
        "Steps",
        "What each engine step computed and what its time went to.",
        [
            Column("step", "id", "count"),
            Column("rank", "rank", "count"),
            Column("length", _length, "ns"),
            Column("prefill", "prefill_tokens", "count"),
            Column("decode", "decode_tokens", "count"),
            Column("requests", _made("requests", _how_many), "count"),
            Column("launches", "launches", "count"),
            Column("kernels", "kernels", "count"),
            Column("mode", "mode"),
            MADE_OF,
            *_classes(minor=True),
        ],
        "length",
        1500,
    ),
    Grid(
        "kernels",
        "Kernels",
        "One row a kernel name and launch shape, as it was really launched.",
        [
            Column("kernel", "name"),
            Column("part", "class", "class"),
            Column("second part", "also", "class", "also", minor=True),
            Column("total", "total_ns", "ns", "sum"),
            Column("share", "share", "share", "share of kernel time"),
            Column("count", "count", "count"),
            Column("grid", _made("grid", _shape)),
            Column("block", _made("block", _shape)),
            Column("occupancy", "occupancy", "share"),
            Column("registers", "registers", "count", minor=True),
            Column("shared memory", "shared_bytes", "bytes", minor=True),
            Column("FLOP", "flops", "count", minor=True),
            Column("least bytes", "dram_bytes", "bytes", minor=True),
        ],
        "total",
    ),
    Grid(
        "copies",
        "Copies",
        "Copies by direction and kind of host memory.",
        [
            Column("direction", "kind"),
            Column("memory", "memory"),
            Column("count", "count", "count"),
            Column("bytes", "bytes", "bytes"),
            Column("total", "total_ns", "ns"),
            Column("rate", _per_second, "rate"),
        ],
        "total",
    ),
    Grid(
        "collectives",
        "Collectives",
        "Each collective: how long ranks waited for the last one, and how long data moved.",
        [
            Column("communicator", "comm"),
            Column("operation", "op"),
            Column("length", _length, "ns"),
            Column("longest wait", _made("wait_ns", _largest), "ns", "wait"),
            Column("transfer", "transfer_ns", "ns"),
            Column("last rank", "last_rank", "count"),
            Column("missing", _made("missing", _rank_list)),
            Column("bytes", "bytes", "bytes"),
            Column("bus bandwidth", "busbw_bytes_s", "rate", "busbw"),
            Column("number", "seq", "count", minor=True),
            Column("type", "dtype", minor=True),
            Column("ranks", _made("ranks", _rank_list), minor=True),
            Column("algorithm", "algo", minor=True),
            Column("protocol", "proto", minor=True),
            Column("contended", "contended_ns", "ns", minor=True),
        ],
        "length",
        1500,
    ),
    Grid(
        "groups",
        "Groups",
        "Ranks that communicate with each other, and who holds whom up; most waiting first.",
        [
            Column("communicator", "comm"),
            Column("kind", "kind"),
            Column("ranks", _made("ranks", _rank_list)),
            Column("collectives", "collectives", "count"),
            Column("judged", "judged", "count"),
            Column("waiting", "waiting_ns", "ns"),
            Column("straggler", "straggler", "count"),
            Column("longest waiting rank", _made("wait_ns", _largest), "ns"),
            Column("MoE imbalance", "moe_imbalance", "count"),
        ],
        "waiting",
    ),
    Grid(
        "transfers",
        "KV transfers",
        "KV-cache hand-over and off-load.",
        [
            Column("request", "request", "request"),
            Column("bytes", "bytes", "bytes"),
            Column("pieces", "pieces", "count"),
            Column("posting", "post_ns", "ns"),
            Column("total", "total_ns", "ns"),
            Column("link", "link_bytes_s", "rate"),
        ],
        "total",
    ),
    Grid(
        "ranges",
        "Ranges",
        "NVTX and probe ranges, annotations and CPU operators.",
        [
            Column("range", "name"),
            Column("domain", "domain"),
            Column("count", "count", "count"),
            Column("total", "total_ns", "ns"),
            Column("self", "self_ns", "ns"),
            Column("GPU time", "gpu_ns", "ns"),
            Column("kernels", "kernels", "count"),
        ],
        "total",
    ),
    Grid(
        "api",
        "API calls",
        "CUDA or HIP calls on the host.",
        [
            Column("call", "name"),
            Column("count", "count", "count"),
            Column("total", "total_ns", "ns"),
            Column("blocked", "blocked_ns", "ns"),
            Column("launch delay P50", "launch_delay_ns.p50", "ns", "launch delay"),
            Column("launch delay P99", "launch_delay_ns.p99", "ns", "launch delay"),
            Column("launch delay max", "launch_delay_ns.max", "ns", "launch delay"),
        ],
        "total",
    ),
    Grid(
        "devices",
        "Devices",
        "How busy each device was. A device that was not traced is not idle.",
        [
            Column("rank", "rank", "count"),
            Column("device", "device", "count"),
            Column("name", "name"),
            Column("status", "status"),
            Column("utilization", "utilization", "share"),
            Column("busy", "busy_ns", "ns"),
            Column("idle", "idle_ns", "ns"),
            Column("copies", "copy_ns", "ns", "device copies"),
            Column("sum", "sum_ns", "ns"),
            Column("span", "span_ns", "ns"),
            Column("kernels", "kernels", "count"),
            Column("process", _made("process", str)),
        ],
        "busy",
    ),
    Grid(
        "ranks",
        "Ranks",
        "The ranks of the job and how their clocks were aligned.",
        [
            Column("rank", "rank", "count"),
            Column("host", "host"),
            Column("status", "status"),
            Column("span", "span_ns", "ns"),
            *_shares(),
            Column("offset", "offset_ns", "ns"),
            Column("uncertainty", "uncertainty_ns", "ns"),
        ],
        "span",
    ),
    Grid(
        "tracks",
        "Threads",
        "The threads that recorded something.",
        [
            Column("rank", "rank", "count"),
            Column("process", _made("process", str)),
            Column("thread", _made("thread", str)),
            Column("name", "name"),
            Column("events", "events", "count"),
        ],
        "events",
    ),
    Grid(
        "inputs",
        "Inputs",
        "What was read.",
        [
            Column("path", "path"),
            Column("format", "format"),
            Column("tool", "tool"),
            Column("version", "tool_version"),
            Column("rank", "rank", "count"),
            Column("events", "events", "count"),
        ],
        "events",
    ),
)
"""All tables in the order of the page; those without rows are left out."""
