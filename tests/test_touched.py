"""Requests without steps are explained by what worked for them, not by the rest of the tree."""

from __future__ import annotations

from rca_llm.table import UNKNOWN
from rca_llm.trace import Trace
from tests.timelines import Builder

BASE = 1_700_000_000_000_000_000
MS = 1_000_000
OTHERS, POOL = 7, 5


def _parts(b: Builder) -> dict[str, int]:
    (row,) = Trace([b.build()]).attribute().summary["requests"]
    assert sum(row["parts"].values()) == row["latency_ns"]
    return {part: ns // MS for part, ns in row["parts"].items()}


def _request() -> Builder:
    b = Builder()
    times = {"arrival": 0, "scheduled": 0, "finished": 40}
    b.row("requests", id="A", **{name: BASE + ms * MS for name, ms in times.items()})
    return b


def _span(b: Builder, kind: str, start: int, end: int, **more: object) -> None:
    b.span(kind, BASE + start * MS, BASE + end * MS, **more)


def test_computing_of_a_process_that_a_request_never_touched_is_not_its() -> None:
    b = _request()
    _span(b, "compute", 0, 10, request="A")
    _span(b, "compute", 0, 30, process=OTHERS, thread=OTHERS)
    assert _parts(b) == {"compute.cpu": 10, "scheduling.other": 30}


def test_computing_of_a_touched_process_counts_with_nothing_that_names_the_request() -> None:
    b = _request()
    _span(b, "compute", 0, 20, process=OTHERS, thread=OTHERS)
    _span(b, "serialize", 30, 35, process=OTHERS, thread=OTHERS, request="A")
    parts = _parts(b)
    assert parts == {"compute.cpu": 20, "communication.serialization": 5, "scheduling.other": 15}


def test_where_nothing_names_the_request_all_that_is_known_counts() -> None:
    b = _request()
    _span(b, "compute", 0, 30, process=OTHERS, thread=OTHERS)
    assert _parts(b) == {"compute.cpu": 30, "scheduling.other": 10}


def test_a_thread_that_was_given_the_work_of_a_request_explains_it() -> None:
    b = _request()
    _span(b, "host", 0, 5)  # the thread that drives all
    _span(b, "work", 10, 30, thread=POOL, request="A")
    for state, start, end in (("running", 12, 20), ("runnable", 20, 24), ("running", 35, 40)):
        where = {"process": 1, "thread": POOL, "state": state}
        b.row("states", start=BASE + start * MS, end=BASE + end * MS, **where)
    parts = _parts(b)
    # What the thread did after it was done with the request is not the request's.
    assert parts == {"scheduling.host": 13, "scheduling.cpu_wait": 4, "scheduling.other": 23}


def test_a_coroutine_that_sleeps_is_no_host_code() -> None:
    b = _request()
    _span(b, "host", 0, 30, thread=UNKNOWN, request="A", name="handler")
    _span(b, "network", 5, 15, thread=UNKNOWN, request="A")
    assert _parts(b) == {"io.network": 10, "scheduling.other": 30}
