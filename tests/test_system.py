"""The launcher samples processes, threads and the machine while a command runs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rca_llm.table import UNKNOWN
from tests.traced import texts, trace, trace_code

_BUSY = """
import subprocess, sys, threading, time
from rca_llm import span
def spin(seconds):
    end = time.monotonic() + seconds
    with span("spin"):
        while time.monotonic() < end: pass
thread = threading.Thread(target=spin, args=[0.8], name="spinner")
thread.start(); thread.join()
subprocess.run([sys.executable, "-c", "import time; time.sleep(0.7)"])
"""


def test_a_busy_thread_is_seen_to_run_and_a_sleeping_process_is_not(tmp_path: Path) -> None:
    done = trace_code(tmp_path, _BUSY)
    timeline = done.timeline()
    states, threads = timeline["states"], timeline["threads"]
    names = texts(timeline, "threads", "name")
    spinner = int(threads["thread"][names.index("spinner")])
    occupied = (states["end"] - states["start"])[states["thread"] == spinner].sum()
    assert occupied > 300_000_000  # running, or waiting for a processor on a busy machine
    parent = done.run.manifest()["pid"]
    # Starting it waits for a processor on a busy machine, which is not running.
    running = states["state"] == timeline.strings.find("running")
    sleeper = (states["process"] != parent) & running
    assert (states["end"] - states["start"])[sleeper].sum() < 400_000_000


def test_samples_have_a_subject_and_utc_anchors_are_there(tmp_path: Path) -> None:
    done = trace(tmp_path, sys.executable, "-c", "import time; time.sleep(2.3)")
    timeline = done.timeline()
    metrics = texts(timeline, "samples", "metric")
    samples = timeline["samples"]
    rss = [i for i, name in enumerate(metrics) if name == "process.rss_anon_bytes"]
    assert len(rss) >= 3
    assert set(samples["process"][rss].tolist()) == {done.run.manifest()["pid"]}
    assert (samples["value"][rss] > 0).all()
    assert "process.major_faults" in metrics
    assert "process.swap_bytes" in metrics
    host = [i for i, name in enumerate(metrics) if str(name).startswith("pressure.")]
    assert set(samples["process"][host].tolist()) <= {UNKNOWN}
    anchors = np.array(timeline.header.anchors)
    assert len(anchors) >= 4  # at the start, each second, at the end
    offsets = anchors[:, 1] - anchors[:, 0]
    assert np.ptp(offsets) < 1_000_000_000


def test_processes_without_probes_are_named_too(tmp_path: Path) -> None:
    # A run in which no thread was seen to do anything has nothing to show.
    work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
    script = f"sleep 0.6 --secret=x 2>/dev/null; sleep 0.6; {work}"
    timeline = trace(tmp_path, "sh", "-c", script).timeline()
    names = texts(timeline, "processes", "name")
    assert "sleep 0.6" in names
    assert not any("secret" in str(name) for name in names)
