"""Wrappers of functions that are not ours: long calls are reported, and nothing else changes."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rca_llm.probes.engines import patch, timing

Make = Callable[[Any], Any]
heard: list[tuple[int, int, Any]] = []
"""The calls that were reported: begun and ended, in ns, and the first argument."""


def hear(begun: int, ended: int, first: Any) -> None:
    """A report that tests read."""
    heard.append((begun, ended, first))


def nothing(begun: int, ended: int, first: Any) -> None:
    """A report that nobody reads."""


@pytest.fixture(params=["C", "Python"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Wraps functions, as `patch.wrap` does, so that every call of them is heard."""
    if request.param == "Python":
        monkeypatch.setattr(timing, "Timed", None)
    elif timing.Timed is None:
        pytest.skip("_timed.c is not built for this Python")
    monkeypatch.setattr(timing, "SHORTEST_NS", 0)
    heard.clear()

    def wrapped(function: Any) -> Any:
        home = SimpleNamespace(function=function)
        assert patch.wrap(home, "function", timing.reporting(hear))
        return home.function

    return wrapped


def test_calls_pass_what_they_are_given_and_what_comes_back(make: Make) -> None:
    def function(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    wrapped = make(function)
    assert wrapped(1, 2, key=3) == ((1, 2), {"key": 3})
    assert wrapped() == ((), {})
    assert [first for _, _, first in heard] == [1, None]


def test_a_long_call_is_told_with_its_times(make: Make) -> None:
    before = time.monotonic_ns()
    make(time.sleep)(0.01)
    ((begun, ended, _),) = heard
    assert before <= begun <= ended - 10_000_000 <= ended <= time.monotonic_ns()


def test_short_calls_are_not_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SHORTEST_NS", 3_600_000_000_000)
    make(len)("abc")
    assert not heard


def test_exceptions_pass_as_they_are(make: Make) -> None:
    error = KeyError("mine")

    def function() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        make(function)()
    assert caught.value is error
    assert error.__context__ is None
    assert len(heard) == 1


def test_what_a_signal_handler_raises_in_a_report_goes_on() -> None:
    def report(begun: int, ended: int, first: Any) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        timing.reporting(report)(time.sleep)(0.001)


def test_methods_are_bound(make: Make) -> None:
    def method(self: Any, more: int) -> tuple[Any, int]:
        return self, more

    kind: Any = type("Kind", (), {"method": make(method)})
    one = kind()
    assert one.method(4) == (one, 4)
    assert kind.method(one, 4) == (one, 4)


def test_functions_in_c_are_not_bound() -> None:
    if timing.Timed is None:
        pytest.skip("_timed.c is not built for this Python")
    kind: Any = type("Kind", (), {"size": timing.reporting(nothing)(len)})
    assert kind().size("abc") == 3


def test_a_wrapper_says_of_itself_what_the_function_says(make: Make) -> None:
    def function(value: int = 3) -> int:
        """What it does."""
        return value

    function.mark = "kept"  # type: ignore[attr-defined]  # an attribute of the program
    wrapped = make(function)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.mark) == (
        "function",
        "What it does.",
        "kept",
    )
    assert wrapped.__module__ == __name__
    assert inspect.signature(wrapped) == inspect.signature(function)
    assert wrapped.__defaults__ == (3,) or timing.Timed is None
    assert weakref.ref(wrapped)() is wrapped
    assert copy.deepcopy(wrapped) is wrapped


def test_a_wrapper_is_pickled_by_the_name_that_leads_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = sys.modules[__name__]
    original = hear
    monkeypatch.setattr(module, "hear", hear)  # puts back what stood there
    patch.wrap(module, "hear", timing.reporting(nothing))
    assert pickle.loads(pickle.dumps(module.hear)) is module.hear is not original


def test_no_frame_of_ours_is_in_a_traceback() -> None:
    if timing.Timed is None:
        pytest.skip("_timed.c is not built for this Python")

    def function() -> None:
        raise ValueError

    with pytest.raises(ValueError) as caught:
        timing.reporting(nothing)(function)()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_no_frame_of_ours_is_in_a_traceback", "function"]


PROGRAM = """
import json, logging, multiprocessing.reduction, pickle, sys

class Handler(logging.Handler):
    def emit(self, record):
        raise RuntimeError("in a handler")

logging.raiseExceptions = True
log = logging.getLogger("program")
log.addHandler(Handler())
class Hidden:
    def __reduce__(self):
        raise OverflowError("cannot be pickled")
for attempt in (lambda: log.error("x"), lambda: pickle.dumps(Hidden()), lambda: pickle.loads(b"no"),
                lambda: json.loads("{")):
    try:
        attempt()
    except Exception:
        import traceback
        traceback.print_exc()
pickle.dumps(Hidden())
"""


def test_what_a_program_prints_of_its_errors_is_the_same_in_a_trace(tmp_path: Path) -> None:
    if timing.Timed is None:
        pytest.skip("_timed.c is not built for this Python")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    plain = [sys.executable, str(program)]
    traced = [sys.executable, "-m", "rca_llm", "trace", "-o", str(tmp_path / "run.rca"), "--"]
    untouched = subprocess.run(plain, capture_output=True, text=True, check=False)
    seen = subprocess.run([*traced, *plain], capture_output=True, text=True, check=False)
    assert seen.returncode == untouched.returncode == 1
    assert seen.stderr == untouched.stderr
