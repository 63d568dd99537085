"""What a process leaves open lasts until it ended or became another program, where known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rca_llm import sampling
from rca_llm.exporters.verdict import details, headline
from rca_llm.probes import format as layout
from rca_llm.readers import load, read
from rca_llm.readers.run_ends import Ends
from rca_llm.readers.segments import parse
from rca_llm.run import Run, create
from rca_llm.table import UNKNOWN
from tests.traced import environment, trace_code, trace_ready

_STALLS = """
import os, threading, time
from rca_llm import request, span
for number in range(3):
    with request(f"ok{number}"), span("forward", kind="compute"):
        time.sleep(0.02)
lock = threading.Lock()
lock.acquire()
def kill():
    time.sleep(1.5)
    os.kill(os.getpid(), SIGNAL)
threading.Thread(target=kill, daemon=True).start()
with request("stalled"), span("forward", kind="compute"):
    lock.acquire()
"""

_WORKER = """
import multiprocessing, os, signal, sys, time
from rca_llm import request, span
def work(pipe):
    with request("W"), span("forward", kind="compute"):
        pipe.send(time.perf_counter_ns())
        time.sleep(60)
if __name__ == "__main__":
    with request("W"):
        mine, theirs = multiprocessing.Pipe()
        worker = multiprocessing.get_context("spawn").Process(target=work, args=[theirs])
        worker.start()
        began = mine.recv()
        time.sleep(1)
        killed = time.perf_counter_ns()
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        print(began, killed, time.perf_counter_ns(), worker.pid)
        time.sleep(0.5)
"""

_REPLACES = """
import os, sys, time
from rca_llm import request, span
if len(sys.argv) == 1:
    with request("before"), span("forward", kind="compute"):
        time.sleep(0.1)
        os.execv(sys.executable, [sys.executable, __file__, "again"])
with request("after"), span("forward", kind="compute"):
    time.sleep(0.5)
"""


def _request(summary: dict[str, Any], id: str) -> dict[str, Any]:
    found: dict[str, Any]
    [found] = [row for row in summary["requests"] if row["id"] == id]
    return found


def _repaired(summary: dict[str, Any]) -> list[str]:
    return [row["detail"] for row in summary["quality"] if row["code"] == "repaired"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stall_lasts_until_its_process_was_killed(tmp_path: Path, number: int) -> None:
    done = trace_code(tmp_path, _STALLS.replace("SIGNAL", str(int(number))))
    assert done.status == 128 + number
    summary = load(done.run.path).attribute().summary
    stalled = _request(summary, "stalled")
    assert (stalled["status"], stalled["latency_ns"]) == ("unfinished", None)
    assert sum(stalled["parts"].values()) > 1e9
    assert summary["window"]["span_ns"] > 1e9
    assert "1 request had not finished when its recording ended: stalled (after " in headline(
        summary
    )
    [told] = _repaired(summary)
    assert "never closed; taken to last until process " in told
    assert " ended, " in told
    assert " s after the command began" in told


@pytest.mark.clocks
def test_a_killed_worker_computes_until_its_death(tmp_path: Path) -> None:
    done = trace_code(tmp_path, _WORKER)
    began, killed, reaped, pid = map(int, done.stdout.split())
    summary = load(done.run.path).attribute().summary
    [row] = [row for row in summary["ranges"] if row["name"] == "forward"]
    assert killed - began <= row["total_ns"] <= reaped - began + 300_000_000
    found = _request(summary, "W")  # its process went on, and left the scope of the request
    assert found["status"] == "finished"
    assert found["parts"]["compute.cpu"] > 0.5 * (killed - began)
    assert f"until process {pid} ended" in "".join(_repaired(summary))
    assert "No phase is marked" not in "".join(details(summary))


def test_the_headline_names_those_that_lasted_longest(tmp_path: Path) -> None:
    done = trace_code(
        tmp_path,
        "import os, time\nfrom rca_llm import request\n"
        "scopes = [request(f'r\\x1b{number}') for number in range(5)]\n"
        "for scope in scopes:\n    scope.__enter__()\n    time.sleep(0.1)\n"
        "os.kill(os.getpid(), 9)\n",
    )
    told = headline(load(done.run.path).attribute().summary)
    [_, names] = told.split("5 requests had not finished when their recording ended: ")
    assert [name.split(" ")[0] for name in names.split(", ")[:3]] == [
        f"r\u27e8U+001B\u27e9{number}" for number in range(3)
    ]
    assert names.endswith(", 2 more.")


def test_a_span_ends_where_its_process_becomes_another_program(tmp_path: Path) -> None:
    done = trace_code(tmp_path, _REPLACES)
    timeline = done.timeline()
    spans = timeline["ranges"]
    rows = spans["name"] == timeline.strings.find("forward")
    first, again = sorted(
        zip(spans["start"][rows].tolist(), spans["end"][rows].tolist(), strict=True)
    )
    assert first[0] + 100_000_000 <= first[1] <= again[0]
    summary = load(done.run.path).attribute().summary
    assert _request(summary, "before")["status"] == "unfinished"
    assert _request(summary, "after")["status"] == "finished"
    assert "recorded as another program (exec)" in "".join(_repaired(summary))


def test_without_a_launcher_the_last_record_is_the_end(tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\nfrom rca_llm import request, span\n"
        "with request('A'), span('forward'):\n    print(os.getpid(), flush=True)\n"
        "    time.sleep(60)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "rca_llm", "trace", "-o", str(run), "--", sys.executable, script],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    launcher.kill()
    launcher.wait(timeout=60)
    os.kill(pid, signal.SIGKILL)
    launcher.stdout.close()
    time.sleep(0.2)
    timeline = read(run).timelines[0]
    told = [finding.detail for finding in timeline.findings if finding.code == "repaired"]
    assert told == ["never closed; taken to end with the last record of their process"]
    assert timeline["requests"]["until"].tolist() == [UNKNOWN]


def test_what_lasts_into_a_pause_ends_with_its_beginning(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    segment = sampling.open_segment(run)
    segment.cell(layout.GAP, 500, 900, segment.ids["paused"])
    for pid, time_ns in ((7, 300), (7, 700), (8, 950)):
        segment.cell(layout.INFO, time_ns, 1, segment.ids[layout.PROCESS_END], 0, pid)
    segment.close()
    [file] = run.segment_files()
    found = parse(file.name, file.read_bytes())
    assert found is not None
    ends = Ends([found], {"pid": 9, "ended_ns": 1000})
    assert ends.after(7, 100) == (300, "ended")
    assert ends.after(7, 400) == (500, "was not recorded any more (paused)")
    assert ends.after(7, 600) == (600, "was not recorded any more (paused)")
    assert ends.after(7, 701) is None
    assert ends.after(8, 600) == (950, "ended")
    assert ends.after(9, 600) == (1000, "ended")
    assert ends.after(1, 0) is None


@pytest.mark.clocks
def test_the_end_of_each_process_is_recorded_when_it_is(tmp_path: Path) -> None:
    """Of one that the command started, not only of the command."""
    run = tmp_path / "run"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '1.05'])\n"
        "print('ready', flush=True)\n"
        "child.wait()\nprint(child.pid, time.perf_counter_ns(), flush=True)\ntime.sleep(0.6)\n"
    )
    launcher = trace_ready(run, sys.executable, "-c", code)
    assert launcher.stdout is not None
    pid, reaped = map(int, launcher.stdout.readline().split())
    assert launcher.wait(timeout=60) == 0
    files = Run(run).segment_files()
    ends = [
        (int(cell["e"]), int(cell["a"]))
        for file in files
        if (segment := parse(file.name, file.read_bytes())) is not None
        for cell in segment.cells[segment.of(layout.INFO)]
        if segment.names.get(int(cell["c"])) == layout.PROCESS_END
    ]
    assert len(ends) == len(set(ends))
    assert abs(dict(ends)[pid] - reaped) < 100_000_000
