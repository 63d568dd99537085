"""What the summary says of requests, span kinds and marks that cannot be taken as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rca_llm.attribute.codes import SPAN_PART
from rca_llm.exporters import html, verdict
from rca_llm.exporters import page as pages
from rca_llm.readers import load
from rca_llm.readers.run_requests import Requests
from rca_llm.report import Report
from rca_llm.trace import Input, Timeline
from tests.timelines import findings
from tests.traced import trace_code

HEADER = {"type": "header", "schema": "rca-llm/events/1", "clock": "utc", "rank": 0}
SPAN = {"type": "span", "start": 0, "end": 1000, "name": "f", "kind": "compute", "pid": 1, "tid": 1}
HOSTILE = "\x1b[31m\u202eneg"


def reported(folder: Path, *records: dict[str, Any]) -> Report:
    path = folder / "events"
    path.write_text("".join(json.dumps(one) + "\n" for one in (HEADER, SPAN, *records)))
    return load(path).attribute()


def request(id: str, arrival: object, finished: object) -> dict[str, Any]:
    return {"type": "request", "id": id, "arrival": arrival, "finished": finished}


def test_a_request_that_ends_before_it_arrives_has_no_latency(tmp_path: Path) -> None:
    report = reported(tmp_path, request(HOSTILE, 100, 50), request("a", 0, 80), request("b", 9, 9))
    [told] = findings(report.summary, "ends_before_arrival")
    assert (told["count"], told["where"]) == (1, "requests")
    assert r"as '\x1b[31m\u202eneg'" in told["detail"]
    latency = {row["id"]: row["latency_ns"] for row in report.summary["requests"]}
    assert latency == {HOSTILE: None, "a": 80, "b": 0}
    assert report.summary["latency"]["count"] == 2
    assert report.summary["class_stats"]["compute"]["mean_ns"] == 40
    assert verdict.judged(report.summary).count == 2  # as many as the percentiles are of


def test_records_of_one_id_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    again = {"type": "request", "id": "dup", "prompt_tokens": 7, "arrival": 700}
    report = reported(
        tmp_path, request("dup", 100, 500), request("dup", 700, 900), again, request("a", 0, 80)
    )
    [told] = findings(report.summary, "contradicting_requests")
    assert told["count"] == 1
    assert "'dup'" in told["detail"]
    [row] = [row for row in report.summary["requests"] if row["id"] == "dup"]
    assert (row["start_ns"], row["latency_ns"], row["prompt_tokens"]) == (700, 200, 7)


@pytest.mark.parametrize(
    ("times", "words", "ttft"),
    [
        ({"first_token": 90}, "a first token", None),
        ({"first_token": 9}, "a first token", None),
        ({"scheduled": 9, "first_token": 20}, "a scheduling", 10),
        ({"first_token": 20, "token_times": [20, 50, 90]}, "times of tokens", 10),
        ({"first_token": 20, "token_times": [20, 50, 40]}, "times of tokens that go back", 10),
    ],
)
def test_times_that_contradict_each_other_are_told_and_not_used(
    tmp_path: Path, times: dict[str, Any], words: str, ttft: int | None
) -> None:
    report = reported(tmp_path, request(HOSTILE, 10, 80) | times, request("a", 0, 80))
    [told] = findings(report.summary, "contradicting_requests")
    assert told["detail"].startswith(words)
    assert r"'\x1b[31m\u202eneg'" in told["detail"]
    assert told["count"] == 1
    [row] = [row for row in report.summary["requests"] if row["id"] == HOSTILE]
    assert (row["latency_ns"], row["ttft_ns"]) == (70, ttft)
    assert set(row["itl_ns"].values()) == {None}


def test_times_in_order_are_believed(tmp_path: Path) -> None:
    told = {"scheduled": 10, "first_token": 20, "token_times": [20, 20, 80]}
    report = reported(tmp_path, request("a", 10, 80) | told)
    [row] = report.summary["requests"]
    assert not report.summary["quality"]
    assert (row["ttft_ns"], row["itl_ns"]["max"]) == (10, 60)


def test_a_time_that_no_clock_shows_is_unknown(tmp_path: Path) -> None:
    report = reported(tmp_path, request("never", 10, 2**63 - 1), request("a", 10, 80))
    [told] = findings(report.summary, "repaired")
    assert (told["count"], told["where"]) == (1, "requests.finished")
    assert report.summary["latency"]["count"] == 1
    assert report.summary["latency"]["p99"] == 70


def test_an_id_that_a_live_program_gives_again_is_named(tmp_path: Path) -> None:
    code = """
from rca_llm import request
import threading, time
for _ in range(2):
    with request("again"): pass
    time.sleep(0.001)
with request("once"):
    with request("once"): pass
    thread = threading.Thread(target=request("once").__enter__().__exit__, args=(None,) * 3)
    thread.start(); thread.join()
for id in ("told", "next"):
    r = request(id)
    r.arrival(); r.finish()
r = request("told"); r.arrival(); r.finish()
"""
    [told] = findings(
        load(trace_code(tmp_path, code).run.path).attribute().summary, "contradicting_requests"
    )
    assert told["count"] == 2
    assert "'again'" in told["detail"]


def test_a_request_that_another_thread_takes_over_is_one() -> None:
    requests = Requests()
    for start, end, thread in ((0, 10, 1), (20, 30, 2), (40, 50, 1)):
        requests.scope("a", (start, end), (7, thread), failed=False)
    timeline = Timeline(Input("x", "run"))
    requests.note(timeline)
    assert not timeline.findings
    requests.scope("a", (60, 70), (7, 1), failed=False)
    requests.note(timeline)
    assert [found.code for found in timeline.findings] == ["contradicting_requests"]


def test_records_that_complete_each_other_are_no_finding(tmp_path: Path) -> None:
    first = {"type": "request", "id": "a", "arrival": 3}
    report = reported(tmp_path, first, {"type": "request", "id": "a", "finished": 8})
    assert not report.summary["quality"]


def test_a_request_without_an_arrival_is_told_unless_an_event_has_it(tmp_path: Path) -> None:
    queued = {"type": "event", "t": 5, "name": "queued", "request": "told"}
    report = reported(tmp_path, request("bad", "soon", 500), request("told", None, 600), queued)
    [told] = findings(report.summary, "no_arrival")
    assert (told["count"], told["where"]) == (1, "requests")
    assert "'bad'" in told["detail"]
    assert [row["id"] for row in report.summary["requests"]] == ["told"]


def test_span_kinds_that_do_not_exist_are_named(tmp_path: Path) -> None:
    wrong = [
        SPAN | {"kind": kind} for kind in ("io", "io", "\x1b[1m" + "x" * 300, "a", "b", "c", "d")
    ]
    known = [SPAN | {"kind": kind} for kind in SPAN_PART]
    report = reported(tmp_path, *wrong, *known)
    [told] = findings(report.summary, "unknown_kind")
    assert told["count"] == 7
    assert "exist, 'io', " in told["detail"]
    assert "and 1 more" in told["detail"]
    assert "\x1b" not in told["detail"]
    assert "page_fault" in told["detail"]
    assert len(told["detail"]) < 600


def test_an_unknown_kind_leaves_a_traced_program_alone(tmp_path: Path) -> None:
    code = "from rca_llm import span\nwith span('work', 'bogus'): print('done')"
    traced = trace_code(tmp_path, code)
    assert (traced.status, traced.stdout.strip()) == (0, "done")
    [told] = findings(load(traced.run.path).attribute().summary, "unknown_kind")
    assert "'bogus'" in told["detail"]


def test_marks_from_outside_are_in_the_summary_and_on_the_page(tmp_path: Path) -> None:
    marks = [{"type": "event", "t": 30 - at, "name": f"deploy-{at}"} for at in range(2)]
    own = {"type": "event", "t": 7, "name": "own", "pid": 1}
    state = {"type": "event", "t": 8, "name": "queued", "request": "a"}
    report = reported(tmp_path, *marks, own, state, {"type": "event", "t": 40, "name": "<b>x"})
    told = [{"name": n, "t_ns": t} for n, t in (("deploy-1", 29), ("deploy-0", 30), ("<b>x", 40))]
    assert report.summary["marks"] == told
    html.write(report, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "deploy-0 after 30 ns; &lt;b&gt;x after 40 ns" in text


def test_more_marks_than_fit_are_counted(tmp_path: Path) -> None:
    marks = [{"type": "event", "t": at, "name": "m"} for at in range(pages.MOST_MARKS + 3)]
    report = reported(tmp_path, *marks)
    assert len(report.summary["marks"]) == len(marks)
    assert pages.marks(report.summary)[-1] == "3 more"
