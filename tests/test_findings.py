"""What the summary says of requests, span kinds and marks that cannot be taken as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rca_llm.attribute.codes import SPAN_PART
from rca_llm.exporters import html, verdict
from rca_llm.exporters import page as pages
from rca_llm.readers import load
from rca_llm.report import Report
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
