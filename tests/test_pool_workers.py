"""A pool's worker is given the request of each piece of its work, not of the scope it began in."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rca_llm.trace import Timeline, Trace
from tests.scenes import MS
from tests.traced import trace, trace_code

EXECUTOR = """
import asyncio, concurrent.futures, time
from rca_llm import request
async def serve(id):
    with request(id):
        await asyncio.to_thread(time.sleep, 0.05)
async def main():
    for id in ("A", "B", "C"):
        await serve(id)
    await asyncio.sleep(0.3)
asyncio.run(main())
with concurrent.futures.ThreadPoolExecutor(1) as pool:
    for id in ("D", "E"):
        with request(id):
            pool.submit(time.sleep, 0.05).result()
"""

ANYIO = """
import anyio, anyio.to_thread, time
from rca_llm import request
async def main():
    for id in ("A", "B", "C"):
        with request(id):
            await anyio.to_thread.run_sync(time.sleep, 0.05)
    await anyio.sleep(0.3)
anyio.run(main)
"""

THREAD_POOL = """
import time
from multiprocessing.pool import ThreadPool
from rca_llm import request
def pause(_): time.sleep(0.05)
def fail(_): raise KeyError("as without us")
with request("A"):
    pool = ThreadPool(1)  # born in a scope, and of use to others
    pool.apply(time.sleep, (0.05,))
with request("B"):
    pool.map(pause, (1,))
time.sleep(0.2)
with request("C"):
    list(pool.imap(pause, (1,)))
pool.map(pause, (1,))  # nobody's
with request("D"):
    try:
        pool.apply_async(fail, (1,)).get()
    except KeyError:
        pass
pool.close()
pool.join()
"""

THREADS = """
import threading, time
from rca_llm import request
for id in ("A", "B"):
    with request(id):
        thread = threading.Thread(target=time.sleep, args=(0.05,))
        thread.start()
    thread.join()
"""


def _spans(timeline: Timeline, kind: str) -> list[tuple[str, int, int]]:
    """The spans of a kind, such as those of given work: the request, begin and end, in order."""
    ranges, strings = timeline["ranges"], timeline.strings
    rows = np.flatnonzero(ranges["kind"] == strings.find(kind))
    found = [
        (strings[int(ranges["request"][row])], int(ranges["start"][row]), int(ranges["end"][row]))
        for row in rows
    ]
    return sorted(found, key=lambda span: span[1])


@pytest.mark.parametrize(
    ("code", "requests"),
    [(EXECUTOR, "ABCDE"), (ANYIO, "ABC"), (THREAD_POOL, "ABCD"), (THREADS, "AB")],
)
def test_every_piece_of_work_is_one_span_of_its_request(
    tmp_path: Path, code: str, requests: str
) -> None:
    if code is ANYIO:
        pytest.importorskip("anyio", reason="anyio's own pool is not there")
    work = _spans(trace_code(tmp_path, code).timeline(), "work")
    assert [id for id, _, _ in work] == list(requests)
    # One after the other: no worker's life covers what it did for others, nor its idle time.
    assert all(one[2] <= other[1] for one, other in pairwise(work))


BUSY = """
import concurrent.futures, time
from rca_llm import request, span
def compute():
    with span("piece", kind="compute"):
        time.sleep(0.2)
with concurrent.futures.ThreadPoolExecutor(1) as pool:
    with request("A"):
        first = pool.submit(compute)
    with request("B"):
        pool.submit(compute).result()
"""


@pytest.mark.clocks
def test_a_request_waits_for_the_worker_that_computes_for_another(tmp_path: Path) -> None:
    rows = Trace([trace_code(tmp_path, BUSY).timeline()]).attribute().summary["requests"]
    (parts,) = [row["parts"] for row in rows if row["id"] == "B"]
    assert 150 * MS <= parts["scheduling.queue"] <= 250 * MS, parts
    assert 150 * MS <= parts["compute.cpu"] <= 250 * MS, parts


CANCELLED = """
import asyncio, concurrent.futures, time
from rca_llm import record, request
async def main():
    loop = asyncio.get_running_loop()
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
    busy = asyncio.to_thread(time.sleep, 0.5)
    async def first():
        with request("A"):
            await busy
    async def second():
        with request("B"):
            try:
                await asyncio.wait_for(asyncio.to_thread(print, "never"), 0.1)
            except asyncio.TimeoutError:
                record("given up")
    await asyncio.gather(first(), second())
asyncio.run(main())
"""

SHUT_DOWN = """
import concurrent.futures, time
from rca_llm import record, request
pool = concurrent.futures.ThreadPoolExecutor(1)
with request("A"):
    busy = pool.submit(time.sleep, 0.5)
with request("B"):
    pool.submit(print, "never")
    pool.shutdown(wait=False, cancel_futures=True)
    try:
        pool.submit(print, "refused")
    except RuntimeError:
        pass
    record("given up")
busy.result()
"""

LIMITED = """
import anyio, anyio.to_thread, time
from rca_llm import record, request
async def main():
    one = anyio.CapacityLimiter(1)
    async def first():
        with request("A"):
            await anyio.to_thread.run_sync(time.sleep, 0.5, limiter=one)
    async def second():
        with request("B"):
            with anyio.move_on_after(0.1):
                await anyio.to_thread.run_sync(print, "never", limiter=one)
            record("given up")
    async with anyio.create_task_group() as both:
        both.start_soon(first)
        await anyio.sleep(0.01)
        both.start_soon(second)
anyio.run(main)
"""

TORN_DOWN = """
import threading, time
from multiprocessing.pool import ThreadPool
from rca_llm import record, request
begun, over = threading.Event(), threading.Event()
def busy():
    begun.set()
    over.wait()
with ThreadPool(1) as pool:
    with request("A"):
        pool.apply_async(busy)
    begun.wait()
    with request("B"):
        pool.apply_async(print, ("never",))
    time.sleep(0.1)  # the pool's own thread hands it over meanwhile
    threading.Timer(0.1, over.set).start()
record("given up")
time.sleep(0.3)
"""


@pytest.mark.parametrize("code", [CANCELLED, SHUT_DOWN, LIMITED, TORN_DOWN])
def test_a_wait_for_a_worker_ends_where_the_work_is_given_up(tmp_path: Path, code: str) -> None:
    if code is LIMITED:
        pytest.importorskip("anyio", reason="anyio's own pool is not there")
    done = trace_code(tmp_path, code)
    assert (done.status, done.stdout, done.stderr) == (0, "", "")
    timeline = done.timeline()
    marks = timeline["marks"]
    (given_up,) = marks["t"][marks["name"] == timeline.strings.find("given up")]
    waits = [(start, end) for id, start, end in _spans(timeline, "queue") if id == "B"]
    assert waits
    assert all(start <= end <= given_up for start, end in waits)


POOLS = """
import concurrent.futures
from multiprocessing import Pool
from multiprocessing.pool import ThreadPool
from rca_llm import request
class Interpreters(concurrent.futures.ThreadPoolExecutor):  # as Python 3.14's, which pickles
    __module__ = "concurrent.futures.interpreter"
    def _adjust_thread_count(self):
        print(self._work_queue.get().fn is abs)
if __name__ == "__main__":
    with request("A"):
        Interpreters().submit(abs, -1)
        with Pool(1) as pool:  # what processes are given must be pickled
            print(pool.apply(abs, (-1,)), pool.map(abs, [-2, -3]))
        with ThreadPool(2) as pool:
            print(pool.apply_async(func=abs, args=(-4,)).get(), list(pool.imap(abs, [-5], 2)))
            def broken():
                yield -6
                raise ValueError("of the program")
            try:
                list(pool.imap(abs, broken()))
            except ValueError as error:
                print(error)
"""


def test_pools_return_and_raise_what_they_did(tmp_path: Path) -> None:
    script = tmp_path / "pools.py"
    script.write_text(POOLS)
    done = trace(tmp_path, sys.executable, str(script))
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "1 [2, 3]", "4 [5]", "of the program"]
