"""Why devices were idle, what a start-up took, and what threads did, from traced programs."""

from __future__ import annotations

from typing import Any

import pytest

from rca_llm import stacks
from rca_llm.readers import load
from tests.traced import Traced, trace_code

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


def test_threads_say_how_long_they_ran_waited_and_blocked(summary: dict[str, Any]) -> None:
    main = summary["threads"][0]
    assert main["name"] == "MainThread"
    assert main["on_cpu_ns"] > 0
    told = main["on_cpu_ns"] + main["run_queue_ns"] + main["blocked_ns"]
    assert told == pytest.approx(main["span_ns"], rel=0.01)
