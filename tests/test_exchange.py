"""What HTTP adds around a request of an engine is told apart from its life."""

from __future__ import annotations

from rca_llm.table import UNKNOWN
from rca_llm.trace import Trace
from tests.timelines import Builder

BASE = 1_700_000_000_000_000_000
MS = 1_000_000
SERVER = 9


def _row(b: Builder) -> dict[str, object]:
    summary = Trace([b.build()]).attribute().summary
    (row,) = summary["requests"]
    return dict(row)


def _served() -> Builder:
    """An engine in one process, an HTTP server in front of it in another."""
    b = Builder()
    b.row(
        "requests", id="A", arrival=BASE + 3 * MS, finished=BASE + 10 * MS, scheduled=BASE + 4 * MS
    )
    b.step(1, BASE + 4 * MS, BASE + 9 * MS, A="decode")
    b.span("compute", BASE + 4 * MS, BASE + 9 * MS)
    return b


def _http(b: Builder, when: str, start: int, end: int) -> None:
    where = {"process": SERVER, "thread": UNKNOWN, "request": "A"}
    name = f"http {when} engine"
    b.span("network", BASE + start * MS, BASE + end * MS, name=name, **where)


def test_time_before_and_after_is_network_or_a_wait_for_a_cpu() -> None:
    b = _served()
    _http(b, "before", 1, 4)
    _http(b, "after", 10, 15)
    b.row(
        "states",
        process=SERVER,
        thread=SERVER,
        start=BASE + 11 * MS,
        end=BASE + 13 * MS,
        state="runnable",
    )
    row = _row(b)
    assert row["latency_ns"] == 7 * MS
    # What lies within the life, after the arrival, is not told twice.
    assert row["http"] == {
        "before_ns": 2 * MS,
        "after_ns": 5 * MS,
        "parts": {"io.network": 5 * MS, "scheduling.cpu_wait": 2 * MS},
    }


def test_without_both_spans_it_is_unknown() -> None:
    b = _served()
    assert _row(b)["http"] is None
    b = _served()
    _http(b, "before", 1, 4)
    assert _row(b)["http"] is None


def test_a_server_that_let_go_before_the_finish_added_nothing_after_it() -> None:
    b = _served()
    _http(b, "before", 3, 4)
    _http(b, "after", 9, 10)
    assert _row(b)["http"] == {"before_ns": 0, "after_ns": 0, "parts": {}}
