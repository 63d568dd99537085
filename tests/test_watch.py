"""Looks at threads from outside: both implementations say what the kernel says."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rca_llm.probes import format as layout
from rca_llm.probes import watch as in_python

try:
    from rca_llm.probes.native import _watch as in_c
except ImportError:
    in_c = None

_WORK = """
import sys
import time
for line in sys.stdin:
    sum(range(200_000))
    print("done", flush=True)
"""


@pytest.fixture(params=["python", "c"])
def how(request: pytest.FixtureRequest) -> Any:
    if request.param == "c" and in_c is None:
        pytest.skip("no C compiler at the installation")
    return in_c if request.param == "c" else in_python


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", _WORK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    _work(child)
    yield child
    child.kill()
    child.communicate()


def _work(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    assert child.stdout.readline() == "done\n"


def _room(cells: int) -> memoryview:
    return memoryview(bytearray(cells * layout.CELL_BYTES)).cast("q")


def _counted(pid: int) -> tuple[int, ...]:
    return tuple(map(int, Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()))


def _settled(pid: int) -> tuple[int, ...]:
    """What the kernel says once the thread waits and nothing moves any more."""
    before: tuple[int, ...] = ()
    while before != (before := _counted(pid)):
        pass
    return before


def test_a_look_writes_what_the_kernel_says(how: ModuleType, worker: Any) -> None:
    watch, words = how.Watch(worker.pid, worker.pid), _room(4)
    before = _settled(worker.pid)
    at = how.look([watch], words, 0)
    assert before == _settled(worker.pid), "the thread was not at rest"
    assert at == 8
    assert watch.ran
    on_cpu, delay, slices = before
    assert (words[1], words[4], words[5]) == (on_cpu, delay, slices)
    faults, kernel, cpu = in_python.thread_stat(worker.pid, worker.pid) or (-1, -1, -1)
    assert words[2] == cpu + 1 | worker.pid << 32
    assert words[3] == worker.pid | layout.tag(layout.SCHED, layout.FLAG_MORE) << 32
    assert words[7] >> 32 == layout.tag(layout.MORE)
    assert words[6] == faults | layout.SCHED_FAULTS << 32
    assert words[7] & layout.ALL == kernel


def test_a_thread_at_rest_writes_nothing_and_one_that_ran_does(
    how: ModuleType, worker: Any
) -> None:
    watch, words = how.Watch(worker.pid, worker.pid), _room(6)
    _settled(worker.pid)
    at = how.look([watch], words, 0)
    assert how.look([watch], words, at) == at
    assert not watch.ran
    _work(worker)
    assert how.look([watch], words, at) == at + 8
    assert words[at] > words[0]
    assert words[at + 1] > words[1]


def test_a_busy_thread_is_asked_for_its_cpu_at_every_look_where_that_is_wanted(
    how: ModuleType,
) -> None:
    busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, {cpu := min(os.sched_getaffinity(busy.pid))})
        watch, words, at = how.Watch(busy.pid, busy.pid, every=1), _room(40), 0
        until = time.monotonic() + 60
        while at < len(words) and time.monotonic() < until:
            at = how.look([watch], words, at)
    finally:
        busy.kill()
        busy.wait()
    told = [words[place + 2] & layout.ALL for place in range(0, at, 8)]
    assert len(told) > 2
    assert 0 not in told
    last = told[len(told) // 2 :]  # at first it may still be where it was started
    assert set(last) == {cpu + 1}


def test_a_thread_that_has_ended_is_known(how: ModuleType, worker: Any) -> None:
    watch, words = how.Watch(worker.pid, worker.pid), _room(4)
    worker.kill()
    worker.wait()
    assert how.look([watch], words, 0) == 0
    assert watch.ended
    assert not watch.ran
    with pytest.raises(OSError, match="No such"):
        how.Watch(worker.pid, worker.pid)


def test_what_does_not_fit_is_left_for_the_next_look(how: ModuleType, worker: Any) -> None:
    watches = [how.Watch(worker.pid, worker.pid) for _ in range(2)]
    words = _room(3)
    assert how.look(watches, words, 0) == 8
    assert (watches[0].ran, watches[1].ran) == (True, False)
    assert words[8:].tolist() == [0] * 4
    assert how.look([watches[1]], _room(3), 0) == 8


def test_descriptors_are_given_back(how: ModuleType) -> None:
    before = os.listdir("/proc/self/fd")
    watches = [how.Watch(os.getpid(), os.getpid()) for _ in range(8)]
    how.look(watches, _room(16), 0)
    assert len(os.listdir("/proc/self/fd")) >= len(before) + 8
    del watches
    assert os.listdir("/proc/self/fd") == before


def _watch(pid: int) -> Any:
    return (in_python if in_c is None else in_c).Watch(pid, pid)


def _follow(watches: list[Any], words: memoryview[int], seconds: float, **flags: int) -> int:
    """Looks each millisecond; `gate` and `ends` as they are to be found."""
    if in_c is None:
        pytest.skip("no C compiler at the installation")
    gate, ends = (bytes([flags.get(name, default)]) for name, default in (("gate", 1), ("ends", 0)))
    until = time.monotonic_ns() + int(seconds * 1e9)
    at: int = in_c.follow(watches, words, 0, gate, ends, 1_000_000, until)
    return at


@pytest.mark.clocks  # the busy program must get a CPU between two looks
def test_a_thread_that_is_followed_is_looked_at_again_and_again() -> None:
    busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        words = _room(400)
        at = _follow([_watch(busy.pid)], words, 0.1)
    finally:
        busy.kill()
        busy.wait()
    looks = [words[place : place + 4].tolist() for place in range(0, at, 8)]
    assert len(looks) > 2
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(looks))
    assert {look[3] & layout.ALL for look in looks} == {busy.pid}


@pytest.mark.parametrize("flags", [{"gate": 0}, {"ends": 1}])
def test_following_ends_with_the_first_look_where_it_is_not_wanted(flags: dict[str, int]) -> None:
    began = time.monotonic()
    at = _follow([_watch(os.getpid())], _room(400), 600.0, **flags)
    assert at == 8
    assert time.monotonic() - began < 300


def test_following_ends_with_a_thread_and_with_the_room(worker: Any) -> None:
    watch = _watch(worker.pid)
    assert _follow([watch, watch], _room(3), 600.0) == 0, "no room for both"
    assert _follow([watch], _room(3), 600.0) == 8, "none for a second look"
    worker.kill()
    worker.wait()
    assert _follow([watch], _room(400), 600.0) == 0
    assert watch.ended


def test_what_is_no_watch_is_not_followed() -> None:
    assert _follow([object()], _room(400), 600.0) == 0
