"""Whatever a program records, and whatever it decorates, C and Python write the same records of it.

The same examples are played in a process with the recorder in C and in one without; the records of
each are compared one by one, followers and all, their times left out.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rca_llm.probes import format as layout
from tests.native.conftest import COMPILER
from tests.native.segments import Segment, read_run
from tests.native.test_recorder import INCLUDE, SCRIPT, compile_recorder, copy_probes, run
from tests.native.test_recorder import fast_probes as fast_probes
from tests.native.test_recorder import slow_probes as slow_probes

_PRELUDE = """
import asyncio, enum, fractions, gc, inspect, os, pathlib, pickle, sys
gc.disable()
probes = sys.modules["_rca_llm_probes"]
span, record, request, probe = probes.span, probes.record, probes.request, probes.probe
suspendable = sys.modules["_rca_llm_probes.span"].suspendable
"""

_ODD = """
class Raises:
    def _fail(self, *a): raise OSError("mine")
    __str__ = __repr__ = __int__ = __index__ = __float__ = __bool__ = __hash__ = __eq__ = _fail
    __len__ = __iter__ = __fspath__ = __format__ = __trunc__ = _fail
class Text(str):
    def encode(self, *a): raise OSError("mine")
    def __eq__(self, other): raise OSError("mine")
    __getitem__ = __len__ = __contains__ = encode
    __hash__ = str.__hash__
class Hashed(str):
    def __hash__(self): return 7
class Key(str):
    def encode(self, *a): raise OSError("mine")
    __getitem__ = __len__ = __str__ = encode
class Number(int):
    def __int__(self): return 17
    def __index__(self): raise OSError("mine")
    def __lt__(self, other): raise OSError("mine")
    __le__ = __gt__ = __ge__ = __eq__ = __lt__
    __hash__ = int.__hash__
class Real(float):
    def __float__(self): return 0.5
class Whole:
    def __index__(self): return 12
    def __str__(self): return "whole"
class Records:
    "Records while it is asked what it is."
    def __str__(self):
        record("inner", asked=1)
        with span("while asked", bytes=2): pass
        return "records"
    def __float__(self): return float(len(str(self)))
    def __int__(self): return len(str(self))
class Kind(str, enum.Enum):
    HOST = "host"
class Deep:
    def __str__(self): return str(Deep()) if False else self.__str__()
    __float__ = __int__ = __str__

ODD = [Raises(), Text("text"), Hashed("hashed"), Number(5), Real(2.5), Whole(), Records(),
    Kind.HOST, Deep(), float("inf"), float("-inf"), float("nan"), -0.0, 5e-324, -1.5, 3.99, -1, 0,
    True, False, None, "", b"b", 2**31, 2**32, 2**63 - 1, 2**63, -2**63, -2**63 - 1, 2**70, 10**400,
    "\\ud800", "a\\udfff", "\\x00", "x" * 5000, "\\u00e9" * 3000, "\\U0001f600", "17", " 4 ", "1.5",
    pathlib.PurePosixPath("/w/x"), fractions.Fraction(7, 2), 3j, [], {}, object, print, sys]
"""

_PLAYED = (
    _PRELUDE
    + _ODD
    + """
from hypothesis import HealthCheck, given, settings, strategies as st

odd = st.integers(0, len(ODD) - 1).map(ODD.__getitem__)
thing = odd | st.text(st.characters(), max_size=6) | st.integers() | st.floats() | st.none()
name = st.sampled_from(["a", "b", "a longer name"]) | thing
key = st.sampled_from(["waiting", "kind", "step", "bytes", "path", "self", "a b", "", "\\u00e9"])
key |= st.text(st.characters(), max_size=4).filter(lambda k: k not in ("name", "request"))
key |= key.map(Key) | key.map(Hashed)
call = st.sampled_from(["kind", "request", "step", "bytes", "path"])
many = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(), min_size=30, max_size=40)
numbers = st.dictionaries(key, thing, max_size=5) | many.filter(lambda d: "name" not in d)

@settings(max_examples=400, deadline=None, database=None, derandomize=True,
          suppress_health_check=list(HealthCheck))
@given(st.lists(thing, max_size=4), st.dictionaries(call, thing, max_size=5), name,
       st.none() | thing, numbers, st.booleans())
def play(arguments, keywords, name, asked, numbers, scoped):
    def use():
        for make in (lambda: span(name, *arguments), lambda: span(name, **keywords),
                     lambda: span(name, *arguments[:1], **keywords), lambda: span(name=name),
                     lambda: suspendable(name, "kind"), lambda: suspendable(name, asked, asked),
                     lambda: span("rich", "file", bytes=4096, path="/weights", step=len(numbers))):
            try: made = make()
            except TypeError: record("wrong")  # two values of one argument
            else:
                try:
                    with made: record("inside")
                    with make(): raise KeyError
                except KeyError: pass
        record(name); record(name, asked); record(name, request=asked, tokens=3, share=0.5)
        for at in ((), (asked,)):
            try: record(name, *at, **numbers)
            except TypeError: record("wrong mark")
    if not scoped: use()
    else:
        with request("scope"): use()

play()
for index in range(3000):
    with span("many", path="/%d" % (index % 70), bytes=index):
        record("n", index=index, half=index / 2)
print("played", probes.recorder.fast is not None)
"""
)


def told(segment: Segment) -> list[tuple[object, ...]]:
    """Records in the order in which they were reserved, by what they say, without their times.

    Collections of garbage, which come when they like, are left out.
    """
    names = segment.names
    found: list[tuple[object, ...]] = []
    for cell in segment.cells:
        if cell.kind == layout.SPAN and names.get(cell.d) != "gc":
            texts = names.get(cell.c), names.get(cell.d), names[cell.e]
            found.append(("span", cell.flags, *texts, cell.a > 0, cell.b >= cell.a))
        elif cell.kind == layout.MARK:
            found.append(("mark", cell.flags, names.get(cell.c), names[cell.e], cell.a > 0))
        elif cell.kind == layout.MORE:
            found.append(("more", cell.flags, cell.a, cell.b, names.get(cell.c), cell.d, cell.e))
        elif cell.kind == layout.NUMBER and names[cell.e] not in ("generation", "collected"):
            bits = struct.pack("<q", cell.b)
            found.append(("number", cell.flags, cell.a, bits, cell.c, cell.d, names[cell.e]))
    return found


def both(fast: Path, slow: Path, folder: Path, code: str) -> tuple[str, list[tuple[object, ...]]]:
    """What a script says and records, which must be the same with both recorders."""
    said_fast, in_c = run(fast, folder / "fast", code)
    said_slow, in_python = run(slow, folder / "slow", code)
    first, *rest_fast = said_fast.splitlines()
    last, *rest_slow = said_slow.splitlines()
    assert (first.split()[-1], last.split()[-1]) == ("True", "False")
    assert rest_fast == rest_slow
    (one,), (other,) = read_run(in_c), read_run(in_python)
    assert told(one) == told(other)
    return "\n".join(rest_fast), told(one)


def test_all_that_a_span_or_mark_is_given_is_recorded_alike(
    fast_probes: Path, slow_probes: Path, tmp_path: Path
) -> None:
    _, records = both(fast_probes, slow_probes, tmp_path, _PLAYED)
    kinds = [record[0] for record in records]
    assert {kind: kinds.count(kind) > 3000 for kind in ("span", "mark", "more", "number")} == {
        "span": True,
        "mark": True,
        "more": True,
        "number": True,
    }
    assert ("more", 0, -1, 4096, "/weights", 0, 0) not in records  # its step is known
    assert ("more", 0, 3, 4096, "/weights", 0, 0) in records


_DECORATED = (
    _PRELUDE
    + """
print("decorated", probes.recorder.fast is not None)
default = object()

def positional(a, b=default, /, c=3): return a, b, c
def named(a, *, b, c=default): return a, b, c
def rest(a, *args, b=2, **kwargs): return a, args, b, kwargs
def nothing(): return "nothing"
def ours(rca_llm_span, span=1, name=2, function=3): return rca_llm_span, span, name, function
def greek(\u03b1, self=4): return \u03b1, self
def everything(a, b=1, /, c=2, *d, e, f=6, **g): return a, b, c, d, e, f, g
def only(*, call): return call
def fails(a): raise KeyError(a)
async def later(a, *, b=2): return a, b
def numbers(n, *, by=1):
    got = yield n
    return got, (yield n + by)
async def stream(n, by=1):
    for i in range(n): yield i * by

def tried(function, *args, **kwargs):
    try: return repr(function(*args, **kwargs)).replace(repr(default), "default")
    except Exception as error: return type(error).__name__ + ": " + str(error)

CALLS = [((), {}), ((1,), {}), ((1, 2), {}), ((1, 2, 3, 4), {}), ((), {"a": 1}), ((1,), {"b": 2}),
    ((1,), {"b": 2, "z": 3}), ((1,), {"a": 2}), ((1, 2, 3, 4), {"e": 5, "z": 6}), ((), {"call": 7}),
    ((1,), {"\u03b1": 2}), ((), {"rca_llm_span": 1})]
for function in (positional, named, rest, nothing, ours, greek, everything, only, fails):
    made = probe(function)
    assert made is not function and inspect.isfunction(made)
    assert inspect.signature(made) == inspect.signature(function)
    assert (made.__name__, made.__module__) == (function.__name__, function.__module__)
    for args, kwargs in CALLS:
        expected, got = tried(function, *args, **kwargs), tried(made, *args, **kwargs)
        assert got == expected, (function, args, kwargs, got, expected)

made = probe(positional)
assert made(1)[1] is default and made.__defaults__ is positional.__defaults__
assert probe(named).__kwdefaults__ is named.__kwdefaults__
assert asyncio.run(probe(later)(1, b=3)) == (1, 3)
assert tried(probe(later), 1, c=2) == tried(later, 1, c=2)
it = probe(numbers)(5, by=2)
assert (next(it), it.send("x")) == (5, 7)
try: next(it)
except StopIteration as stop: assert stop.value == ("x", None)
it = probe(numbers)(5); next(it); it.close()
async def consume(): return [i async for i in probe(stream)(3, by=2)]
assert asyncio.run(consume()) == [0, 2, 4]

class Model:
    @probe
    def method(self, x, *, y=1): return self, x, y
    @classmethod
    @probe
    def made(cls, x): return cls, x
    @probe
    @staticmethod
    def static(x=5): return x
    @probe
    def __secret(self, __x): return __x
    def secret(self): return self.__secret(6)
model = Model()
assert model.method(1, y=2) == (model, 1, 2) and Model.made(3) == (Model, 3)
assert Model.static() == 5 and model.secret() == 6
assert pickle.loads(pickle.dumps(positional)) is positional
positional = probe(positional)
assert pickle.loads(pickle.dumps(positional)) is positional

# Code that no compiler made: its parameters may have any name, and must not become code of ours.
names = ("a): print('mine') #", "None", "b", "\u00aa")
odd = type(nothing)(rest.__code__.replace(co_varnames=names), {})
for name in ("x", "y"):
    print(tried(probe(odd), name), probe(odd).__name__)
twice = type(nothing)(named.__code__.replace(co_varnames=("a", "a", "c")), {})
assert probe(twice) is twice
"""
)


def test_decorated_functions_take_what_they_took_and_are_recorded_alike(
    fast_probes: Path, slow_probes: Path, tmp_path: Path
) -> None:
    said, records = both(fast_probes, slow_probes, tmp_path, _DECORATED)
    assert "mine" not in said
    names = [record[4] for record in records if record[0] == "span"]
    assert names.count("positional") == 3
    suspended = {record[4] for record in records if record[:2] == ("span", layout.FLAG_ASYNC)}
    assert suspended == {"later", "numbers", "stream"}


_INTERRUPTED = (
    _PRELUDE
    + """
print("interrupted", probes.recorder.fast is not None)
class Stop(BaseException): pass
class Stops:
    def __str__(self): raise Stop
    __int__ = __float__ = __index__ = __str__
for call in (
    lambda: span(Stops()), lambda: span("x", path=Stops()), lambda: span("x", bytes=Stops()),
    lambda: suspendable(Stops(), "host"), lambda: record(Stops()),
    lambda: record("x", request=Stops()), lambda: record("x", n=Stops()),
):
    try: call()
    except Stop: print("stopped")
with span("after", bytes=1): record("after", n=1)
"""
)


def test_what_is_the_programs_own_to_stop_stops_it(
    fast_probes: Path, slow_probes: Path, tmp_path: Path
) -> None:
    said, records = both(fast_probes, slow_probes, tmp_path, _INTERRUPTED)
    assert said == "\n".join(["stopped"] * 7)
    assert [record[0] for record in records] == ["span", "more", "mark", "number"]


_FORKED = (
    _PRELUDE
    + """
print("forked", probes.recorder.fast is not None)
class Forks:
    def __str__(self):
        if os.fork() == 0:
            made.append(True)
        else: os.wait()
        return "forks"
    def __float__(self): return float(len(str(self)))
made = []
with span("before", path="/p"): pass
record("before", n=1)
with span("before", path=Forks()): pass
if made: os._exit(0)
record("before", n=Forks())
if made: os._exit(0)
with span("before", path="/p"): pass
"""
)


def test_a_fork_while_an_argument_is_asked_harms_nothing(fast_probes: Path, tmp_path: Path) -> None:
    """The record goes to the child's own segment there, not to its parent's."""
    _, folder = run(fast_probes, tmp_path / "run", _FORKED)
    parent, *children = sorted(read_run(folder), key=lambda s: s.number("pid"))
    assert [record[0] for record in told(parent)] == [
        *("span", "more", "mark", "number", "span", "more", "mark", "number", "span", "more")
    ]
    assert len(children) == 2


def test_another_interpreter_of_the_process_records_in_python(
    fast_probes: Path, tmp_path: Path
) -> None:
    if sys.version_info < (3, 10) or sys.version_info >= (3, 13):
        pytest.skip("subinterpreters have another module in this Python")
    code = (
        "import sys, _xxsubinterpreters as interpreters\n"
        "probes = sys.modules['_rca_llm_probes']\n"
        "inside = '''import sys\n"
        "probes = sys.modules['_rca_llm_probes']\n"
        "assert probes.recorder.fast is None\n"
        "with probes.span('inside', bytes=1): probes.record('inside', n=1)'''\n"
        "other = interpreters.create()\n"
        "interpreters.run_string(other, inside)\n"
        "with probes.span('between'): pass\n"
        "interpreters.destroy(other)\n"
        "with probes.span('after', path='/p'): pass\n"
        "print(probes.recorder.fast is not None)\n"
    )
    said, folder = run(fast_probes, tmp_path / "run", code)
    assert said == "True\n"
    names = {record[4] for segment in read_run(folder) for record in told(segment)}
    assert {"inside", "between", "after"} <= names


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """One where pages may be mapped many at once, and one where they are not."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
        yield Path(temporary)


def test_pages_written_ahead_hold_no_record_and_lose_none(
    fast_probes: Path, slow_probes: Path, folder: Path
) -> None:
    """Over several blocks, with records of many cells and names between them."""
    code = _PRELUDE + (
        "print('long', probes.recorder.fast is not None)\n"
        "for i in range(60_000):\n"
        "    record('m', i=i)\n"
        "    if i % 501 == 0: record('wide', **{'n%d' % k: k for k in range(20)})\n"
        "    if i % 997 == 0: record('n' * (i % 4000 + 1))\n"
    )
    _, records = both(fast_probes, slow_probes, folder, code)
    told_numbers = [
        struct.unpack("<q", record[3])[0]  # type: ignore[arg-type]  # bytes, as `told` makes them
        for record in records
        if record[0] == "number" and record[6] == "i"
    ]
    assert told_numbers == list(range(60_000))


def test_calls_keep_nothing_of_what_they_are_given(fast_probes: Path, tmp_path: Path) -> None:
    code = _PRELUDE + (
        "class Odd:\n"
        "    def __str__(self): return 'odd'\n"
        "    def __float__(self): return 1.5\n"
        "given = [Odd(), 'a text' + chr(33), 1 << 40, 1 << 70, 2.5]\n"
        "def use():\n"
        "    for one in given:\n"
        "        with span('s', path=one, bytes=one, step=one, request=one): pass\n"
        "        with span(one, one): pass\n"
        "        with suspendable(one, one): pass\n"
        "        record(one, one, n=one); record('m', n=one, m=one)\n"
        "        try: span('s', path=one, none=one)\n"
        "        except TypeError: pass\n"
        "        try: record('m', one, request=one)\n"
        "        except TypeError: pass\n"
        "use()\n"
        "before = [sys.getrefcount(one) for one in given]\n"
        "for _ in range(500): use()\n"
        "kept = [sys.getrefcount(one) - had for one, had in zip(given, before)]\n"
        "print(all(abs(count) < 20 for count in kept), kept)\n"
    )
    # A few texts are remembered by their address, until others take their places.
    assert run(fast_probes, tmp_path / "run", code)[0].startswith("True")


@pytest.fixture(scope="module")
def checked_probes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The probes with a recorder that checks its memory, and the environment that this needs."""
    if shutil.which(COMPILER) is None or not INCLUDE.joinpath("Python.h").exists():
        pytest.skip(f"no C compiler ({COMPILER}) or no Python.h")
    libraries = [
        subprocess.run(
            [COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(library).is_file() for library in libraries):
        pytest.skip("the compiler has no sanitizers as libraries")
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    probes = compile_recorder(copy_probes(tmp_path_factory.mktemp("checked")), *flags)
    return probes, {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaves much behind
        "PYTHONMALLOC": "malloc",
    }


@pytest.mark.parametrize(
    "code",
    [SCRIPT, _PLAYED, _DECORATED, _INTERRUPTED, _FORKED],
    ids=["script", "played", "decorated", "interrupted", "forked"],
)
def test_sanitizers_find_nothing(
    checked_probes: tuple[Path, dict[str, str]], tmp_path: Path, code: str
) -> None:
    probes, variables = checked_probes
    said, _ = run(probes, tmp_path / "run", code, b"\1", **variables)
    assert "True" in said.splitlines()[0]
