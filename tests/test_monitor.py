"""The monitor on a run that is still being written, and its objectives."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import rca_llm
from rca_llm.cli import main
from rca_llm.errors import RcaError
from rca_llm.monitor import FEWEST, Monitor, Objective, last, objective
from rca_llm.readers import load
from rca_llm.run import Run
from tests.sample_trace import T0, Shape, trace
from tests.traced import TRACE, environment

SERVING = """
import sys, time
from rca_llm import request, span
for number in range(15):
    with request(f"R{number}"), span("forward", kind="compute"):
        time.sleep(0.005)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("text", "name", "limit"),
    [("ttft=800ms", "ttft", 800_000_000), ("latency=1.5s", "latency", 1_500_000_000)],
)
def test_objectives_are_read(text: str, name: str, limit: int) -> None:
    assert objective(text) == Objective(name, limit)


@pytest.mark.parametrize(
    "text", ["ttft", "ttft=8", "p50=8ms", "ttft=ms", "ttft=-1ms", "ttft=1.2.3s"]
)
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(RcaError, match="expected an objective"):
        objective(text)


def test_a_percentile_needs_enough_requests() -> None:
    rows = [{"status": "finished", "latency_ns": n, "ttft_ns": None} for n in range(1, 101)]
    assert Objective("latency", 1).measured(rows) == 99
    assert Objective("latency", 1).measured(rows[: FEWEST - 1]) is None
    assert Objective("ttft", 1).measured(rows) is None
    assert Objective("latency", 1).measured([row | {"status": "aborted"} for row in rows]) is None


def test_the_window_is_what_began_last() -> None:
    whole = trace(Shape(steps=100, kernels=10, requests=10))
    [line] = last(whole, 5_000_000).timelines
    [before] = whole.timelines
    latest = max(int(before["gpu"]["end"].max()), int(before["requests"]["finished"].max()))
    assert 0 < len(line["gpu"]) < len(before["gpu"])
    assert int(line["gpu"]["start"].min()) >= latest - 5_000_000 > T0


def test_a_broken_objective_is_told_and_kept_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    trace(Shape(steps=40, kernels=10, requests=20)).save(source)
    told: list[str] = []
    goals = [Objective("latency", 1), Objective("ttft", 10**15)]
    watched = Monitor(source, 10**12, goals, tmp_path, told.append)
    watched.look()
    watched.look()
    assert len(told) == 1
    assert re.match(r"p99 of latency is \d+\.\d ms; the window is in ", told[0])
    kept = next(tmp_path.glob("latency-*"))
    again = rca_llm.load(kept).attribute().summary
    assert again["latency"]["count"] == 20
    assert 'rca_llm_monitor_breaches{objective="latency"} 1\n' in watched.text
    assert 'rca_llm_monitor_breaches{objective="ttft"} 0\n' in watched.text
    assert "rca_llm_class_seconds" in watched.text


def test_a_running_trace_is_served_until_it_ends(tmp_path: Path) -> None:
    script, run = tmp_path / "serve.py", tmp_path / "run.rca"
    script.write_text(SERVING)
    started = [*TRACE, "-o", str(run), "--", sys.executable, str(script)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    traced = subprocess.Popen(started, env=environment(), **pipes)
    assert traced.stdout is not None and traced.stdin is not None
    assert traced.stdout.readline() == "ready\n"
    assert Run(run).manifest()["state"] == "running"
    options = ["--every", "100ms", "--serve", ":0", "--slo", "latency=1us", "--window", "1h"]
    command = [sys.executable, "-m", "rca_llm", "monitor", str(run), *options]
    monitor = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert monitor.stderr is not None
    try:
        address = re.search(r"http://\S+", monitor.stderr.readline())
        assert address
        told = monitor.stderr.readline()
        assert "p99 of latency" in told, told + monitor.stderr.read()
        text = scraped(address.group())
        assert 'rca_llm_requests{status="finished"} 15\n' in text
    finally:
        traced.communicate("")
        assert monitor.wait(timeout=120) == 0
    assert load(run).timelines


def scraped(address: str) -> str:
    """What the endpoint answers once the run was read."""
    while True:
        with urllib.request.urlopen(address, timeout=60) as answer:
            text: str = answer.read().decode()
        if text:
            return text


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rca_llm", "monitor", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_the_folder_for_windows_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, dumps = tmp_path / "source", tmp_path / "new" / "breaches"
    trace(Shape(steps=40, kernels=10, requests=20)).save(tmp_path)
    (tmp_path / "0000").rename(run)
    (run / "manifest.json").write_text('{"schema": "rca-llm/run/1", "state": "finished"}')
    options = ["--window", "1h", "--slo", "latency=1us", "--dump", str(dumps)]
    assert main(["monitor", str(run), *options]) == 0, capsys.readouterr().err
    assert [path.name[:8] for path in dumps.iterdir()] == ["latency-"]
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["monitor", str(run), "--dump", str(blocked)]) == 2
    assert "cannot be made" in capsys.readouterr().err
