"""Whatever a program hands to the probes, nothing of ours is raised into it, with C and without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rca_llm.probes import format as layout
from rca_llm.readers import read
from rca_llm.table import UNKNOWN
from tests.traced import texts

PROBES = Path(__file__).resolve().parent.parent / "probes"
BUILT = PROBES / "native" / f"_recorder{sysconfig.get_config_var('EXT_SUFFIX')}"

_HOSTILE = """
import asyncio, enum, sys
from hypothesis import HealthCheck, given, settings, strategies as st
import rca_llm

class Raises:
    def _fail(self, *a): raise OSError("mine")
    __str__ = __repr__ = __int__ = __index__ = __float__ = __bool__ = __hash__ = __eq__ = _fail
    __len__ = __iter__ = __fspath__ = __format__ = _fail
class Garbage:
    def __str__(self): return 5
    __hash__ = None
    def __int__(self): return "x"
class Sub(str):
    def encode(self, *a): raise OSError("mine")
    __getitem__ = __hash__ = __eq__ = __len__ = __contains__ = encode
class MakesSub:
    def __str__(self): return Sub("made")
class Number(int):
    def __lt__(self, other): raise OSError("mine")
    __le__ = __gt__ = __ge__ = __eq__ = __lt__
    __hash__ = int.__hash__
class Mapping:
    def items(self): raise OSError("mine")
    def __bool__(self): raise OSError("mine")
class Kind(str, enum.Enum):
    HOST = "host"
class Spoken:
    def __getattr__(self, name): raise OSError("mine")
    def __call__(self): return 7

ODD = ([Raises(), Garbage(), Sub("sub"), MakesSub(), Number(5), Kind.HOST, Spoken(),
    float("inf"), float("nan"), -1.5, -1, -(1 << 70), 1 << 63, 1 << 70, 10**400, True, None, "",
    b"b", "\\ud800", "a\\udfff", "\\x00", "x" * 10_000, [], {}, set(), object, print, rca_llm])
odd = st.integers(0, len(ODD) - 1).map(ODD.__getitem__)
thing = odd | st.text() | st.text(st.characters()) | st.integers() | st.floats() | st.binary()
mapping = thing | st.dictionaries(st.text(), st.tuples(thing, thing) | thing) | st.just(Mapping())

class Mine(Exception): pass

def passes(manager):
    "The program's own exception comes through as it is."
    mine = Mine()
    try:
        with manager: raise mine
    except Mine as error:
        assert error is mine
    else: raise AssertionError("swallowed")

@settings(max_examples=200, deadline=None, database=None,
          suppress_health_check=list(HealthCheck))
@given(thing, thing, thing, thing, thing, thing, mapping)
def drive(a, b, c, d, e, f, batch):
    from rca_llm import probe, record, request, span, step
    passes(span(a, b, c, d, e, f))
    passes(span(a, kind=b)); passes(span(a, request=c)); passes(span("n", step=d, bytes=e, path=f))
    record(a); record(a, b); record(a, request=b, tokens=c, share=d)
    passes(step(a, batch, b))
    one = step(a, batch); one.mode = b; passes(one)
    made = request(a, prompt_tokens=b, output_tokens=c)
    passes(made)
    made.token(d); made.finish(e); made.abort(); made.prompt_tokens = f
    with request(a): record("in"); passes(span("in")); passes(span(b, c))
    probe(a); probe(a, kind=b)
    assert probe(name=a, kind=b)(len)([1]) == 1
    def plain(x): return x
    assert probe(name=a, kind=b)(plain)(c) is c
    async def later(x): return x
    assert asyncio.run(probe(kind=a)(later)(b)) is b

drive()
for odd_one in (Spoken(), print, Raises(), Garbage, property(len), {}): rca_llm.probe(odd_one)
for name in ODD[:7]:
    with rca_llm.request(name): rca_llm.record("once")
with rca_llm.request("count", prompt_tokens=float("inf")): pass
with rca_llm.request("minus", prompt_tokens=-3): pass
with rca_llm.request("\\ud800"): pass
with rca_llm.request("\\udfff"): pass
print("driven", rca_llm.probe.__module__, sys.modules["_rca_llm_probes"].recorder.fast is not None)
"""

_ALARMS = """
import signal, time
from rca_llm import record, span
class Beep(Exception): pass
sent, caught = 0, 0
def handler(*_):
    global sent
    sent += 1
    raise Beep
signal.signal(signal.SIGALRM, handler)
while sent < 200:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while True:
            with span("work"): record("mark")
    except Beep:
        caught += 1
print(sent == caught)
"""


@pytest.fixture(params=["C", "Python"])
def probes(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The probes with the recorder in C, and a copy of them without it."""
    if request.param == "C":
        if not BUILT.exists():
            pytest.skip(f"the C recorder is not built for this Python ({BUILT.name})")
        return PROBES
    copy = tmp_path / "probes"
    shutil.copytree(PROBES, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return copy


def _run(probes: Path, run: Path, code: str) -> str:
    (run / layout.SEGMENTS_NAME).mkdir(parents=True)
    (run / layout.CONTROL_NAME).write_bytes(b"\1".ljust(layout.CONTROL_BYTES, b"\0"))
    path = f"{probes / 'bootstrap'}{os.pathsep}{PROBES.parent}"
    env = os.environ | {"RCA_LLM_RUN": str(run), "PYTHONPATH": path}
    env.pop("NVTX_INJECTION64_PATH", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_no_argument_makes_a_probe_raise(probes: Path, tmp_path: Path) -> None:
    out = _run(probes, tmp_path / "run", _HOSTILE)
    assert out == f"driven _rca_llm_probes.decorate {probes == PROBES}\n"
    timeline = read(tmp_path / "run").timelines[0]
    table = timeline["requests"]
    told = table["prompt_tokens"]
    counts = dict(zip(texts(timeline, "requests", "id"), told.tolist(), strict=True))
    assert (told[told != UNKNOWN] >= 0).all()
    assert counts["count"] == counts["minus"] == UNKNOWN
    assert {"\\ud800", "\\udfff"} <= set(counts)
    assert {"(unprintable)", "made", "sub"} <= set(counts)


def test_exceptions_of_signal_handlers_reach_the_program(probes: Path, tmp_path: Path) -> None:
    assert _run(probes, tmp_path / "run", _ALARMS) == "True\n"
