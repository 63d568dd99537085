"""Where the pages of a process lie: sampled, counted, or unknown, and never of a file."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm.probes import nodes, pages

# Of a machine with two sockets: the program's file, its heap, two mappings of its own, huge pages
# (two of 2 MiB), shared memory, the page cache of a weight file, its stack.
NUMA_MAPS = b"""\
55d1c0000000 default file=/usr/bin/python3.11 mapped=612 active=4 N1=612 kernelpagesize_kB=4
55d1c1000000 default heap anon=300 dirty=300 active=0 N0=290 N1=10 kernelpagesize_kB=4
7f0000000000 default anon=1000 dirty=1000 active=0 N0=1 N1=999 kernelpagesize_kB=4
7f1000000000 bind:1 anon=5 dirty=5 N1=5 kernelpagesize_kB=4
7f2000000000 default file=/anon_hugepage\\040(deleted) huge anon=2 dirty=2 N1=2 kernelpagesize_kB=2048
7f3000000000 default file=/dev/shm/ring\\040(deleted) mapped=8 mapmax=2 N0=8 kernelpagesize_kB=4
7f4000000000 default file=/models/model.safetensors mapped=90000 N0=90000 kernelpagesize_kB=4
7ffd00000000 default stack anon=7 dirty=7 N0=7 kernelpagesize_kB=4
7ffd10000000 default
"""  # noqa: E501 - lines as the kernel writes them


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process with 16 MiB of its own."""
    code = "import os; own = bytearray(os.urandom(1 << 20)) * 16; print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_pages_of_a_real_process_are_found_on_nodes_of_this_machine(child: Any) -> None:
    found = pages.pages_by_node(child.pid)
    online = Path("/sys/devices/system/node/online")
    if not found or not online.exists():
        pytest.skip("this machine tells of no process where its pages are")
    assert sum(found.values()) > 1000
    assert set(found) <= set(nodes.numbers(online.read_text().strip()))


def test_both_ways_agree_about_a_real_process(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path(f"/proc/{child.pid}/numa_maps").exists():
        pytest.skip("this kernel has no numa_maps")
    sampled = pages.pages_by_node(child.pid)
    monkeypatch.setattr(pages, "_MOVE_PAGES", None)
    counted = pages.pages_by_node(child.pid)
    assert sum(counted.values()) >= 4096
    if len(counted) == 1 and sampled:
        assert set(sampled) == set(counted)


def test_a_large_process_is_not_walked(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MOVE_PAGES", None)
    monkeypatch.setattr(pages, "MOST_COUNTED", 1 << 20)
    assert pages.pages_by_node(child.pid) == {}


def test_a_process_that_has_ended_or_may_not_be_seen_is_unknown() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert pages.pages_by_node(ended.pid) == {}


def test_lines_of_a_machine_of_two_sockets_are_counted_without_files() -> None:
    found: dict[int, int] = {}
    for line in NUMA_MAPS.splitlines():
        for node, count in pages.line_pages(line):
            found[node] = found.get(node, 0) + count
    assert found == {0: 290 + 1 + 8 + 7, 1: 10 + 999 + 5 + 2 * 512}


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_whatever_a_line_says_it_is_counts_by_node(words: list[bytes]) -> None:
    for node, count in pages.line_pages(b" ".join(words)):
        assert node >= 0
        assert count >= 0


AREAS = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 400)), max_size=12)


@given(AREAS, st.integers(1, 64))
def test_pages_are_spread_evenly_over_all_areas(found: list[tuple[int, int]], most: int) -> None:
    at, areas = 0, list[tuple[int, int]]()
    for gap, size in found:
        first = (at + gap) * pages.PAGE
        areas.append((first, first + size * pages.PAGE))
        at += gap + size
    places = pages.spread(areas, most)
    every = [page for first, last in areas for page in range(first, last, pages.PAGE)]
    assert len(places) == min(most, len(every))
    assert places == sorted(set(places))
    rank = [every.index(place) for place in places]
    steps = {len(every) // len(places), -(-len(every) // len(places))} if places else set[int]()
    assert {one - other for other, one in itertools.pairwise(rank)} <= steps


class Sink:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int, float]] = []

    def process(self, metric: str, pid: int, value: float) -> None:
        self.written.append((metric, pid, value))


def _seven(pid: int) -> dict[int, int]:
    return {1: 7} if pid == 5 else {}


def test_each_process_is_looked_at_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looked = [0.0], list[tuple[float, int]]()
    monkeypatch.setattr(pages, "monotonic", lambda: now[0])
    monkeypatch.setattr(pages, "pages_by_node", _seven)
    sink = Sink()
    looks = pages.Pages(sink, [0, 1])  # type: ignore[arg-type]  # all of it that is used
    while now[0] < 200:
        pid = looks.look([5, 6] if now[0] < 20 else [5])
        looked += [(now[0], pid)] if pid else []
        now[0] += 0.5
    assert [time for time, pid in looked if pid == 5] == [1, 3, 7, 15, 31, 63, 123, 183]
    assert [time for time, pid in looked if pid == 6] == [1.5, 3.5, 7.5, 15.5]
    assert sink.written[:2] == [("process.numa_pages.0", 5, 0.0), ("process.numa_pages.1", 5, 7.0)]
    assert {pid for _, pid, _ in sink.written} == {5}, "of what is unknown nothing is written"
