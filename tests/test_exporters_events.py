from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rca_llm.exporters import events
from rca_llm.readers import load
from rca_llm.report import Report
from rca_llm.trace import Trace, merge
from tests.sample_trace import Shape, trace

RECORDED = (
    "h200/generate.nsys.sqlite.gz",
    "h200/generate.kineto.json.gz",
    "kineto/AMD-AGI__TraceLens__mi300_bert-small.json.gz",
    "kineto/facebookresearch__HolisticTraceAnalysis__critical_path_event_sync_multi_stream.json.gz",
    "nsys_sqlite/GindaChen__nsys-ai__h100_2gpu_1s.sqlite",
)


def said(report: Report) -> dict[str, Any]:
    """The summary without what names the files it was read from."""
    summary = {key: value for key, value in report.summary.items() if key != "inputs"}
    summary["quality"] = sorted((row["code"], row["count"]) for row in report.summary["quality"])
    return summary


def again(report: Report, target: Path) -> Report:
    events.write(report, target)
    return load(target).attribute()


@pytest.mark.parametrize("requests", [0, 6])
def test_a_trace_comes_back_as_it_was(tmp_path: Path, requests: int) -> None:
    report = trace(Shape(requests=requests)).attribute()
    assert said(again(report, tmp_path / "out.jsonl")) == said(report)


def test_several_ranks_come_back_from_a_folder(tmp_path: Path) -> None:
    ranks: list[Trace] = [trace(Shape(rank=0)), trace(Shape(rank=1, requests=0))]
    report = merge(ranks).attribute()
    assert len(report.summary["ranks"]) == 2
    assert said(again(report, tmp_path / "out")) == said(report)


def test_hostile_names_come_back_as_they_were(tmp_path: Path) -> None:
    report = trace(Shape(prefix="</script>\u202e\x1b\"'\n\U0001f600")).attribute()
    assert said(again(report, tmp_path / "out.jsonl")) == said(report)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_traces_come_back_as_they_were(shared: Path, tmp_path: Path, name: str) -> None:
    report = load(shared / "data" / name).attribute()
    assert said(again(report, tmp_path / "out.jsonl")) == said(report)
