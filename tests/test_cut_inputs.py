"""Inputs that end early: device work that is missing is unknown, never idle time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rca_llm import load
from rca_llm.exporters import chrome, events

KERNELS = 4
MS = 1000
"""In the microseconds of Kineto."""


def kineto(path: Path, rank: int, kept: int | None = None, devices: int = 1) -> Path:
    """A trace with host work first and then kernels, each a collective; `kept` of them are left."""
    late = 0.1 * rank
    host = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": MS}
    listed: list[dict[str, Any]] = [host | {"dur": 10 * MS}]
    for number in range(KERNELS):
        call = {
            "name": "cudaLaunchKernel",
            "ts": 2 * (number + 1) * MS,
            "dur": 5,
            "pid": 1,
            "tid": 1,
        }
        told = {"ph": "X", "cat": "cuda_runtime", "args": {"correlation": number}}
        listed.append(call | told)
    for number in range(KERNELS):
        args = {"device": 0, "stream": 7, "correlation": number}
        kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"}
        at = {"ts": (2 * number + 3 + late) * MS, "dur": (1 - late) * MS, "pid": 0, "tid": 7}
        listed.append(kernel | at | {"args": args})
    head: dict[str, Any] = {
        "deviceProperties": [{"id": number, "name": "GPU"} for number in range(devices)],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "host_name": "h",
        "distributedInfo": {"rank": rank, "world_size": 2},
    }
    whole = json.dumps(head | {"traceEvents": listed})
    if kept is not None:
        after = json.dumps(listed[-KERNELS + kept]) if kept < KERNELS else "]}"
        whole = whole[: whole.index(after) + 20]
    path.write_text(whole)
    return path


def summary(*paths: Path) -> dict[str, Any]:
    return load(*paths).attribute().summary


def parts(found: dict[str, Any]) -> dict[str, int]:
    return {name: ns for name, ns in found["parts"].items() if ns}


def rows(found: dict[str, Any], name: str, code: str) -> list[dict[str, Any]]:
    key = "id" if name == "hints" else "code"
    return [row for row in found[name] if row[key] == code]


def test_without_any_device_record_the_device_counts_as_not_traced(tmp_path: Path) -> None:
    found = summary(kineto(tmp_path / "cut.json", 0, kept=0))
    assert parts(found) == {"unknown.not_traced": found["window"]["span_ns"]}
    assert found["ranks"][0]["status"] == "not_traced"
    assert "ends before any record of a device" in rows(found, "quality", "not_traced")[0]["detail"]
    assert not rows(found, "hints", "G1")
    assert "ends early" in rows(found, "hints", "G2")[0]["title"]


def test_the_name_of_a_device_is_enough_to_expect_work(tmp_path: Path) -> None:
    path = kineto(tmp_path / "cut.json", 0)
    text = path.read_text()
    path.write_text(text[: text.index("cudaLaunchKernel")])
    assert set(parts(summary(path))) == {"unknown.not_traced"}


def test_on_a_machine_without_devices_nothing_is_missing(tmp_path: Path) -> None:
    path = kineto(tmp_path / "cut.json", 0, devices=0)
    text = path.read_text()
    path.write_text(text[: text.index("cudaLaunchKernel")])
    assert not summary(path)["shares"]["unknown"]


def test_idle_time_among_device_records_is_unknown(tmp_path: Path) -> None:
    found = summary(kineto(tmp_path / "cut.json", 0, kept=2))
    assert parts(found) == {
        "communication.collective": 2_000_000,
        "unknown.not_recorded": found["window"]["span_ns"] - 2_000_000,
    }
    assert [hint["id"] for hint in found["hints"]] == ["G2"]


def test_a_whole_file_has_nothing_unknown(tmp_path: Path) -> None:
    found = summary(kineto(tmp_path / "whole.json", 0))
    assert not found["shares"]["unknown"]
    assert not rows(found, "hints", "G2")


@pytest.mark.parametrize("kept", [0, 2, 3])
def test_ranks_are_not_compared_with_one_that_is_cut(tmp_path: Path, kept: int) -> None:
    one, two = kineto(tmp_path / "0.json", 0), kineto(tmp_path / "1.json", 1)
    waits = [row["wait_ns"] for row in summary(one, two)["collectives"]]
    assert all(wait and wait["0"] == 100_000 for wait in waits)
    found = summary(one, kineto(tmp_path / "1.json", 1, kept=kept))
    assert {row["wait_ns"] and 1 for row in found["collectives"]} == {None}
    assert len(found["collectives"]) == KERNELS + kept
    assert "communication.wait" not in parts(found)


@pytest.mark.parametrize("exporter", [events, chrome])
@pytest.mark.parametrize("kept", [0, 2])
def test_exports_stay_cut(tmp_path: Path, exporter: Any, kept: int) -> None:
    report = load(kineto(tmp_path / "cut.json", 0, kept=kept)).attribute()
    target = tmp_path / f"again{exporter.suffix}"
    exporter.write(report, target)
    assert summary(target)["parts"] == report.summary["parts"]


def test_an_export_that_ends_early_lacks_device_work_too(tmp_path: Path) -> None:
    target = tmp_path / "again.jsonl"
    events.write(load(kineto(tmp_path / "whole.json", 0)).attribute(), target)
    text = target.read_text()
    target.write_text(text[: text.index('"kernel"')])
    assert set(parts(summary(target))) == {"unknown.not_traced"}
