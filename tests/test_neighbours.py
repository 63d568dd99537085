"""Processes outside of a run that use the CPUs its threads wait for are named."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rca_llm.probes.neighbours import Neighbours, name_of
from tests.traced import texts, trace_code

_HOG = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


def _start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code, "--token=secret"])


@pytest.fixture
def hog() -> Iterator[subprocess.Popen[bytes]]:
    """A process that never rests, on the first CPU that this one may use."""
    child = _start(_HOG)
    os.sched_setaffinity(child.pid, {min(os.sched_getaffinity(0))})
    yield child
    child.kill()
    child.wait()


def _found(neighbours: Neighbours, own: set[int], waiting: list[int]) -> dict[int, float]:
    """What a second look finds, by process, after two seconds in which everything may run."""
    neighbours.look(own, waiting)
    time.sleep(2.0)
    return {one.pid: one.cpus for one in neighbours.look(own, waiting)}


@pytest.mark.clocks  # on a busy machine it may get hardly any of its CPU
def test_who_has_the_cpu_is_named_while_somebody_waits(hog: subprocess.Popen[bytes]) -> None:
    neighbours = Neighbours(most=1000)
    assert neighbours.look(set(), [os.getpid()]) == []  # nothing to compare with yet
    time.sleep(2.0)
    (found,) = [one for one in neighbours.look(set(), [os.getpid()]) if one.pid == hog.pid]
    assert found.name == name_of(hog.pid)
    assert "secret" not in found.name
    assert 0 < found.cpus < 1.1
    assert hog.pid not in _found(Neighbours(most=1000), {hog.pid}, [os.getpid()])  # one of the run


def test_nobody_is_looked_for_while_nobody_waits(hog: subprocess.Popen[bytes]) -> None:
    assert _found(Neighbours(most=1000), set(), []) == {}


def test_who_uses_other_cpus_keeps_nobody_waiting(hog: subprocess.Popen[bytes]) -> None:
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        pytest.skip("one CPU: everybody shares it")
    waiting = _start("import time; time.sleep(60)")
    os.sched_setaffinity(waiting.pid, {max(cpus)})
    try:
        assert hog.pid not in _found(Neighbours(most=1000), set(), [waiting.pid])
    finally:
        waiting.kill()
        waiting.wait()


_PINNED = """
import os, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
end = time.monotonic() + 4
while time.monotonic() < end: pass
"""


def test_a_trace_names_who_had_the_cpu(tmp_path: Path, hog: subprocess.Popen[bytes]) -> None:
    done = trace_code(tmp_path, _PINNED)
    timeline = done.timeline()
    metrics = texts(timeline, "samples", "metric")
    rows = [row for row, metric in enumerate(metrics) if metric == "cpu.neighbour"]
    others = {str(pid) for pid in timeline["samples"]["process"][rows].tolist()}
    names = timeline.header.extra["neighbours"]
    assert rows  # the hog; on a busy machine others may come before it
    assert others <= set(names)
    assert str(done.run.manifest()["pid"]) not in others
    assert not any("secret" in name for name in names.values())
