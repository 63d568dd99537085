from __future__ import annotations

import io
import re

from rich.console import Console

from rca_llm.exporters import terminal, units
from rca_llm.exporters.verdict import details, judged, part_words, whole
from rca_llm.hints.model import Charge
from rca_llm.report import Report
from rca_llm.trace import Trace, merge
from tests.sample_trace import Shape, trace
from tests.scenes import Scene

HOSTILE = "\x1b[31m\u202e[bold red]<script>"


def printed(report: Report, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    terminal.show(report, console)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def with_hint(report: Report, **fields: object) -> Report:
    hint = {
        "id": "queue-dominated",
        "title": "Requests wait for the queue",
        "class": "scheduling",
        "confidence": "high",
        "share": 0.5,
        "saving_ns": 2_000_000,
        "evidence": {},
        "requests": [],
        "window": None,
        "advice": "Add replicas.",
    }
    report.summary["hints"] = [hint | fields]
    return report


def test_one_row_a_class_with_mean_share_and_variation() -> None:
    report = trace().attribute()
    text = printed(report)
    stats, latency = report.summary["class_stats"], report.summary["latency"]
    whole = sum(row["latency_ns"] for row in report.summary["requests"])
    for name in ("compute", "communication", "io", "scheduling"):
        row = next(row for row in text.splitlines() if re.match(rf"\s*{name}\s\s", row, re.I))
        assert f"{stats[name]['mean_ns'] / 1e6:.3f} ms" in row
        share = sum(request["shares"][name] for request in report.summary["requests"]) / whole
        assert f"{share * 100:.1f} %" in row
        assert f"{stats[name]['cv'] * 100:.1f} %" in row
    assert f"{latency['count']} finished requests" in text


def test_hints_and_findings_are_printed() -> None:
    report = with_hint(trace().attribute())
    text = printed(report)
    assert "1. Requests wait for the queue  (saves up to 2.00 ms, confidence high)" in text
    assert "truncated × 1" in text


def test_an_unjudged_saving_is_not_zero() -> None:
    text = printed(with_hint(trace().attribute(), saving_ns=None))
    assert "saving not judged" in text


def test_a_saving_of_nothing_is_said_in_words() -> None:
    text = printed(with_hint(trace().attribute(), saving_ns=0, requests=["a", "b"]))
    assert "(saves nothing by itself, confidence high)" in text


def test_no_hint_is_said() -> None:
    report = trace().attribute()
    report.summary["hints"] = []
    assert "No hint" in printed(report)


def test_hostile_names_reach_no_terminal() -> None:
    report = with_hint(trace(Shape(prefix=HOSTILE)).attribute(), title=HOSTILE)
    report.summary["quality"].append(
        {"code": "bad_text", "count": 1, "where": HOSTILE, "detail": HOSTILE}
    )
    text = printed(report)
    ours = re.sub("\x1b\\[[0-9;]*m", "", text)  # rich's own styles
    assert "\x1b" not in ours
    assert "\u202e" not in text
    assert "[bold red]" in text
    assert "[31m" in ours


def test_without_requests_the_trace_is_judged() -> None:
    text = printed(trace(Shape(requests=0)).attribute())
    assert "of the traced time" in text
    assert "mean" not in text.splitlines()[3]


def test_sums_over_requests_say_so() -> None:
    report = with_hint(trace().attribute(), requests=["a", "b", "c"])
    summary = report.summary
    assert "(saves up to 2.00 ms summed over 3 requests, confidence high)" in printed(report, 120)
    assert judged(summary).whole.endswith(" summed over 6 requests")
    assert details(summary)[-1].startswith("What would save most, up to 2.00 ms summed over 3 ")
    assert whole(summary).whole == units.duration(summary["window"]["span_ns"])  # one rank: no sum
    ranks = merge([trace(Shape(rank=0)), trace(Shape(rank=1))]).attribute().summary
    assert whole(ranks).whole.endswith(" summed over 2 ranks")


def test_a_title_says_over_how_many_requests_its_time_is_summed() -> None:
    assert Charge(3_000_000, 9, ("a", "b")).told == "3 ms summed over 2 requests"
    assert Charge(3_000_000, 9, ("a",)).told == Charge(3_000_000, 9).told == "3 ms"


def test_an_engine_on_the_cpu_that_marks_no_compute_is_told_how() -> None:
    scene = Scene()
    scene.span(None, 0, 10_000_000, name="forward", domain="probe")
    assert 'kind="compute"' in printed(Trace([scene.build()]).attribute(), 200)
    scene.span("compute", 1_000_000, 9_000_000, name="model")
    assert 'kind="compute"' not in printed(Trace([scene.build()]).attribute(), 200)
    assert 'kind="compute"' not in printed(trace().attribute(), 200)  # a GPU tells by itself


def test_a_finding_names_its_file_among_several() -> None:
    report = trace().attribute()
    finding = {"code": "truncated", "count": 1, "where": "/job/r3.json", "detail": "ends early"}
    report.summary["quality"] = [finding]
    row = report.summary["inputs"][0]
    report.summary["inputs"] = [row]
    assert "truncated × 1: ends early" in printed(report)
    report.summary["inputs"] = [row, row]
    assert "truncated × 1 (r3.json): ends early" in printed(report)


def test_collectives_without_known_waits_are_not_called_moving() -> None:
    summary = trace().attribute().summary
    summary["collectives"] = [{"wait_ns": None}]
    assert part_words(summary)["communication.collective"] == "collectives (waiting or moving)"
    summary["collectives"] += [{"wait_ns": {"0": 0}}]
    assert part_words(summary)["communication.collective"] == "collectives: data moving"
    assert part_words(summary)["communication.p2p"] == "transfers between GPUs"
