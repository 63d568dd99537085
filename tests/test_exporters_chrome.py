from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rca_llm.exporters import chrome
from rca_llm.readers import load
from rca_llm.report import Report
from rca_llm.trace import Trace, merge
from tests.sample_trace import T0, Shape, trace
from tests.scenes import MS, Scene

KINETO = (
    "h200/generate.kineto.json.gz",
    "kineto/AMD-AGI__TraceLens__mi300_bert-small.json.gz",
    "kineto/facebookresearch__HolisticTraceAnalysis__critical_path_event_sync_multi_stream.json.gz",
    "kineto/facebookresearch__HolisticTraceAnalysis__nccl_data.json.gz",
)


def said(report: Report) -> dict[str, Any]:
    """The summary, but for what was read, and ids of threads that viewers cannot take."""
    summary = {k: v for k, v in report.summary.items() if k not in ("inputs", "quality")}
    summary["tracks"] = sorted((str(row["name"]), row["events"]) for row in summary["tracks"])
    return summary


def host_only() -> Trace:
    """An engine that computes on the CPU, with requests, steps, thread states and samples."""
    scene, t = Scene(), T0
    for i in range(6):
        scene.step(i, t, t + 10 * MS, **{f"r{i}": "prefill"})
        scene.span("tokenize", t, t + MS, name="tokenize", request=f"r{i}")
        scene.span("compute", t + MS, t + 7 * MS, name="forward", domain="probe")
        scene.span("file", t + 7 * MS, t + 8 * MS, name="read", path="/data/w", bytes=4096)
        scene.state("runnable", t + 8 * MS, t + 9 * MS)
        scene.request(f"r{i}", t, [t + 10 * MS])
        scene.mark("queued", t, f"r{i}")
        scene.sample("queue.waiting", t, i / 2)
        t += 12 * MS
    return Trace([scene.build()])


@pytest.mark.parametrize("name", KINETO)
def test_a_kineto_trace_reads_back_to_the_same_report(
    shared: Path, tmp_path: Path, name: str
) -> None:
    report = load(shared / "data" / name).attribute()
    chrome.write(report, tmp_path / "out.json")
    again = load(tmp_path / "out.json").attribute()
    assert said(again) == said(report)


def test_a_host_only_trace_reads_back_to_the_same_report(tmp_path: Path) -> None:
    report = host_only().attribute()
    chrome.write(report, tmp_path / "out.json")
    again = load(tmp_path / "out.json").attribute()
    assert report.summary["parts"]["compute.cpu"] == 36 * MS
    assert said(again) == said(report)


def test_a_trace_of_requests_steps_and_samples_reads_back_whole(tmp_path: Path) -> None:
    report = trace().attribute()
    chrome.write(report, tmp_path / "out.json")
    again = load(tmp_path / "out.json").attribute()
    assert said(again) == said(report)
    assert [row["code"] for row in again.summary["quality"]] == [
        row["code"] for row in report.summary["quality"]
    ]


def test_an_export_that_lost_its_block_says_so(tmp_path: Path) -> None:
    chrome.write(host_only().attribute(), tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    del document["rcaLlm"]
    (tmp_path / "out.json").write_text(json.dumps(document))
    again = load(tmp_path / "out.json").attribute().summary
    [finding] = [row for row in again["quality"] if row["code"] == "dropped_records"]
    assert "exported by RCA-LLM" in finding["detail"]
    assert again["parts"]["compute.cpu"] == 36 * MS  # the spans still tell their kinds


@pytest.mark.parametrize(
    "block",
    [
        {"tables": {"states": {"start": [1], "end": []}}},
        {"tables": {"states": {"start": {}}, "gpu": [], "nothing": 3}, "header": 7},
        {"tables": {"batch": {"step": [0, 2**63 - 1, -1], "request": ["a", "b", None]}}},
        {"tables": [], "header": {"devices": [3, {}], "findings": "x", "job": 5}},
    ],
)
def test_a_damaged_block_costs_itself(tmp_path: Path, block: dict[str, Any]) -> None:
    chrome.write(host_only().attribute(), tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    document["rcaLlm"] = {"schema": "rca-llm/chrome/1"} | block
    for event in document["traceEvents"]:
        if "rca" in event.get("args", {}):
            event["args"]["rca"] = {"kind": 5, "bytes": "x", "step": [1], "domain": {}}
    (tmp_path / "out.json").write_text(json.dumps(document))
    assert load(tmp_path / "out.json").attribute().summary["totals"]["ranges"]


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
