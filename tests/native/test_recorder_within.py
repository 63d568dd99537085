"""What records inside a record loses neither: the garbage collector and signal handlers come in
anywhere, also where the first record of a thread opens its segment, and where a block is made."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rca_llm.probes import format as layout
from tests.native.segments import Segment, read_run
from tests.native.test_recorder import fast_probes as fast_probes
from tests.native.test_recorder import run
from tests.native.test_recorder import slow_probes as slow_probes

RECORDERS = ("fast_probes", "slow_probes")

FIRST = ("scope", "event", "span", "rich", "instant", "numbers", "step", "held step")
"""What may be the first record of a thread, by the name that it leaves."""

_COLLECTED = """
import gc, sys, threading
probes = sys.modules["_rca_llm_probes"]
span, record, request, step = probes.span, probes.record, probes.request, probes.step
within = 0
def on_collection(phase, info):
    global within
    if phase == "stop":
        within += 1
        with span("within"): pass
def scope(name):
    with request(name): pass
def event(name): request(name).arrival()
def spanned(name):
    with span(name): pass
def rich(name):
    with span(name, path="/p", bytes=1): pass
def instant(name): record(name)
def numbers(name): record(name, tokens=3)
def stepped(name):
    with step(int(name)): pass
def held(name):
    with step(int(name), {"A": ("decode", 1)}): pass
def work(first, name, before):
    kept = [[] for _ in range(before)]
    gc.set_threshold(often)
    first(name)
    gc.set_threshold(0)
gc.set_threshold(0)
gc.callbacks.append(on_collection)
firsts = (scope, event, spanned, rich, instant, numbers, stepped, held)
for often in (1, 3, 8):
    for before in range(8):
        for i, first in enumerate(firsts):
            number = (often * 8 + before) * 8 + i
            probes.recorder._spare.clear()
            thread = threading.Thread(target=work, args=(first, str(number), before))
            thread.start(); thread.join()
gc.callbacks.remove(on_collection)
print(probes.recorder.fast is not None, within)
"""


@pytest.mark.parametrize("which", RECORDERS)
def test_a_collection_in_the_first_record_of_a_thread_loses_none(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    said, folder = run(request.getfixturevalue(which), tmp_path / "run", _COLLECTED)
    recorder, within = said.split()
    assert recorder == str(which == "fast_probes")
    found: Counter[str | None] = Counter()
    for segment in read_run(folder):
        assert segment.number("dropped") == 0
        found.update(outer(segment))
    wanted = {str((o * 8 + b) * 8 + i) for o in (1, 3, 8) for b in range(8) for i in range(8)}
    assert found.pop("within") == int(within) > len(wanted)
    assert {name: found[name] for name in wanted} == dict.fromkeys(wanted, 1)


def outer(segment: Segment) -> list[str | None]:
    """What the records of a segment are called: the request's id of scopes and events, a step's
    number."""
    names = segment.names
    told = [
        names[cell.e] if names[cell.e] != "request" else names.get(cell.c)
        for cell in segment.of(layout.SPAN)
    ]
    told += [names[cell.e] for cell in segment.of(layout.MARK)]
    told += [names.get(cell.d) for cell in segment.of(layout.REQUEST)]
    steps = {cell.at + layout.CELL_BYTES for cell in segment.of(layout.STEP)}
    return told + [str(cell.a) for cell in segment.of(layout.MORE) if cell.at in steps]


_NESTED = """
import sys, threading
probes = sys.modules["_rca_llm_probes"]
recorder, record = probes.recorder, probes.record
name, deep = recorder._thread_name, [0]
def recording():
    deep[0] += 1
    record("depth %d" % deep[0])
    return name()
recorder._thread_name = recording
def work():
    record("first"); record("second")
thread = threading.Thread(target=work); thread.start(); thread.join()
print(deep[0])
"""


@pytest.mark.parametrize("which", RECORDERS)
def test_records_while_a_segment_is_opened_are_kept_or_counted(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The one that opens a segment inside of opening is kept; a handler in a handler is counted."""
    said, folder = run(request.getfixturevalue(which), tmp_path / "run", _NESTED)
    segments = read_run(folder)
    marks = Counter(s.names[cell.e] for s in segments for cell in s.of(layout.MARK))
    assert marks == dict.fromkeys(("depth 1", "first", "second"), 1)
    assert sum(s.number("dropped") for s in segments) == 1 == int(said) - 1


_GROWN = """
import sys
probes = sys.modules["_rca_llm_probes"]
recorder, record = probes.recorder, probes.record
made, within = recorder.ref, [0]
def recording(words):
    for _ in range(2):
        within[0] += 1
        record("within", n=within[0])
        record("within short")
    return made(words)
record("within"); record("within short", n=0); record("outer")
recorder.ref = recording
for i in range(60_000):
    record("outer", i=i, j=i)
print(within[0])
"""


@pytest.mark.parametrize("which", RECORDERS)
def test_records_while_a_block_is_made_are_kept_or_counted(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    said, folder = run(request.getfixturevalue(which), tmp_path / "run", _GROWN)
    (segment,) = read_run(folder)
    names = segment.names
    marks = Counter(names[cell.e] for cell in segment.of(layout.MARK))
    assert marks["outer"] == 60_001
    within = marks["within"] + marks["within short"] - 2
    assert within + segment.number("dropped") == 2 * int(said) > 4
    told = [cell.b for cell in segment.of(layout.NUMBER) if names[cell.e] == "i"]
    whole = told == list(range(60_000))
    assert whole, f"{len(told)} of 60000, not in their order or not all"
