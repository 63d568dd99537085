from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rca_llm.exporters import chrome
from rca_llm.readers import load
from rca_llm.report import Report
from rca_llm.trace import merge
from tests.sample_trace import Shape, trace

KINETO = (
    "h200/generate.kineto.json.gz",
    "kineto/AMD-AGI__TraceLens__mi300_bert-small.json.gz",
    "kineto/facebookresearch__HolisticTraceAnalysis__critical_path_event_sync_multi_stream.json.gz",
    "kineto/facebookresearch__HolisticTraceAnalysis__nccl_data.json.gz",
)


def said(report: Report) -> dict[str, Any]:
    """The summary, ids of threads aside that viewers cannot take, and what rests on findings.

    Kineto tells its own overhead by events that are no record of a trace; the finding about it,
    and gates that it fails (`G…`), are not written. Nor are the shapes of operands, so that what
    products compute, and the rule about it (`R25`), do not come back.
    """
    summary = {k: v for k, v in report.summary.items() if k not in ("inputs", "quality")}
    summary["hints"] = [row for row in summary["hints"] if not row["id"].startswith(("G", "R25"))]
    summary["class_stats"] = {
        name: {k: v for k, v in row.items() if k != "hint"}
        for name, row in summary["class_stats"].items()
    }
    shapeless = ("flops", "dram_bytes")
    summary["kernels"] = [
        {k: v for k, v in row.items() if k not in shapeless} for row in summary["kernels"]
    ]
    summary["tracks"] = sorted((str(row["name"]), row["events"]) for row in summary["tracks"])
    return summary


@pytest.mark.parametrize("name", KINETO)
def test_a_kineto_trace_reads_back_to_the_same_report(
    shared: Path, tmp_path: Path, name: str
) -> None:
    report = load(shared / "data" / name).attribute()
    chrome.write(report, tmp_path / "out.json")
    again = load(tmp_path / "out.json").attribute()
    assert said(again) == said(report)


def test_device_work_and_calls_of_any_trace_read_back(tmp_path: Path) -> None:
    report = trace(Shape(requests=0)).attribute()
    chrome.write(report, tmp_path / "out.json")
    again = load(tmp_path / "out.json").attribute()
    for name in ("kernels", "copies", "api"):
        without = [
            {k: v for k, v in row.items() if k != "occupancy"} for row in report.summary[name]
        ]
        assert [
            {k: v for k, v in row.items() if k != "occupancy"} for row in again.summary[name]
        ] == without


def test_several_ranks_are_a_folder_of_files(tmp_path: Path) -> None:
    report = merge([trace(Shape(rank=0)), trace(Shape(rank=1, requests=0))]).attribute()
    chrome.write(report, tmp_path / "out")
    again = load(tmp_path / "out").attribute()
    assert [row["rank"] for row in again.summary["ranks"]] == [0, 1]
    assert again.summary["totals"]["kernels"] == report.summary["totals"]["kernels"]


def test_no_slices_overlap_on_a_stream(tmp_path: Path) -> None:
    source = trace()
    gpu = source.timelines[0].tables["gpu"]
    gpu["end"][:] = gpu["start"] + 30_000  # every kernel now reaches into the next ones
    chrome.write(source.attribute(), tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    busy: dict[tuple[int, int], float] = {}
    for event in sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"]):
        track = (event["pid"], event["tid"])
        assert event["ts"] >= busy.get(track, 0) - 1e-6
        busy[track] = event["ts"] + event["dur"]
    assert len(busy) > 1


def test_hostile_names_are_text(tmp_path: Path) -> None:
    chrome.write(trace(Shape(prefix='"\\\n</script>\u202e')).attribute(), tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert any(event["name"].startswith('"\\\n</script>\u202e') for event in events)
