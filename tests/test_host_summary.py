"""Why devices were idle, what a start-up took, and what threads did, from traced programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rca_llm import stacks
from rca_llm.exporters.page import context
from rca_llm.launch import preload_library
from rca_llm.readers import load
from rca_llm.summary.host import short_call_rows
from tests.traced import Traced, environment, trace, trace_code

_SERVER = """
import os, tempfile, time
from rca_llm import span, step
def schedule(until):
    while time.monotonic() < until:
        sum(range(1000))
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.safetensors")
    with open(path, "wb") as file:
        file.write(bytes(30_000_000))
    with open(path, "rb") as file:
        file.read()
with span("convert", "cast"):
    time.sleep(0.2)
time.sleep(0.3)
for number in range(5):
    with step(number, {}):
        with span("schedule"):
            schedule(time.monotonic() + 0.2)
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """The server above, with its stacks sampled where py-spy is installed."""
    options = ("--stacks",) if stacks.find() else ()
    return trace_code(tmp_path_factory.mktemp("server"), _SERVER, *options)


@pytest.fixture(scope="module")
def summary(traced: Traced) -> dict[str, Any]:
    return load(traced.run.path).attribute().summary


def test_idle_time_is_charged_to_the_innermost_named_range(summary: dict[str, Any]) -> None:
    rows = summary["idle"]
    steps = sum(row["end_ns"] - row["start_ns"] for row in summary["steps"])
    assert sum(row["ns"] for row in rows) <= steps
    named = sum(row["ns"] for row in rows if row["range"] == "schedule")
    assert named > 0.9 * steps
    assert {row["part"] for row in rows if row["range"] == "schedule"} <= {
        *("scheduling.host", "scheduling.cpu_wait", "scheduling.gc", "io.page_fault"),
        *("scheduling.other", "scheduling.gil"),
    }


def test_stacks_name_the_function_that_ran(traced: Traced, summary: dict[str, Any]) -> None:
    if stacks.find() is None:
        pytest.skip("py-spy is not installed (rca-llm[stacks])")
    if not list((traced.run.path / stacks.FOLDER).glob("*.start")):
        pytest.skip(f"py-spy may not read other processes here: {traced.stderr.strip()}")
    rows = [row for row in summary["idle"] if row["function"] is not None]
    assert rows
    assert max(rows, key=lambda row: row["ns"])["function"].startswith(("schedule (", "<module>"))
    assert not any("script.py" in str(row["name"]) for row in summary["ranges"])


def test_the_phases_of_a_start_up_add_up_to_it(summary: dict[str, Any]) -> None:
    (row,) = summary["load"]
    phases = [value for name, value in row.items() if name.endswith("_ns")]
    assert row["ready_ns"] - row["start_ns"] == row["total_ns"]
    assert sum(phases) == 2 * row["total_ns"] + row["start_ns"] + row["ready_ns"]
    assert row["ready_ns"] == min(step["start_ns"] for step in summary["steps"])
    assert 0 < row["cast_ns"] < row["total_ns"]
    assert row["read_ns"] > 0
    weights = [own for own in row["files"] if own["path"].endswith("model.safetensors")]
    assert sum(own["bytes"] for own in weights) >= 30_000_000


_SHORT = """
import os
from rca_llm import step
with open("a.txt", "wb") as one, open("model.safetensors", "wb") as other:
    one.write(bytes(4096)), other.write(bytes(512))
with step(0, {}):
    first, second = os.open("a.txt", 0), os.open("model.safetensors", 0)
    for _ in range(20000):
        os.pread(first, 4096, 0)
    for _ in range(5000):
        os.pread(second, 512, 0)
"""


def test_short_calls_are_told_by_kind_and_are_no_part_of_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if preload_library() is None:
        pytest.skip("the interposer is not built")
    monkeypatch.chdir(tmp_path)
    env = environment(RCA_LLM_IO_US="1000000")  # all calls are short: only sums are left
    done = trace(tmp_path, sys.executable, "-c", _SHORT, env=env)
    report = load(done.run.path).attribute()
    rows = {row["kind"]: row for row in report.summary["short_calls"]}
    assert 20_000 <= rows["file"]["calls"] < 21_000
    assert 20_000 * 4096 <= rows["file"]["bytes"] < 21_000 * 4096
    assert (rows["load"]["part"], rows["load"]["calls"]) == ("io.file", pytest.approx(5000, abs=9))
    assert rows["load"]["bytes"] == pytest.approx(5000 * 512, abs=9 * 512)
    assert rows["file"]["total_ns"] > rows["load"]["total_ns"] > 0
    assert not report.summary["parts"].get("io.file")
    page = context(report.summary)["short_calls"]
    assert page[0].startswith("file (reading or writing files): 20")


def test_a_trace_without_the_interposer_tells_of_no_short_calls(summary: dict[str, Any]) -> None:
    assert short_call_rows([[], []]) == []
    assert {"kind", "part", "calls", "bytes", "total_ns"} >= {
        key for row in summary["short_calls"] for key in row
    }


def test_threads_say_how_long_they_ran_waited_and_blocked(summary: dict[str, Any]) -> None:
    main = summary["threads"][0]
    assert main["name"] == "MainThread"
    assert main["on_cpu_ns"] > 0
    told = main["on_cpu_ns"] + main["run_queue_ns"] + main["blocked_ns"]
    assert told == pytest.approx(main["span_ns"], rel=0.01)
