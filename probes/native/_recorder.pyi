"""What the C extension offers; `_recorder.c` has the words."""

from _contextvars import ContextVar
from collections.abc import Callable
from typing import Any

class Room:
    at: int
    last: int
    end: int
    begin: int
    path: str
    words: memoryview[int]
    spans: dict[str, int]
    marks: dict[str, int]
    ids: Any
    kinds: Any

def span(
    name: str,
    kind: str = "host",
    request: str | None = None,
    step: int | None = None,
    bytes: int | None = None,
    path: str | None = None,
) -> Any: ...
def record(name: str, request: str | None = None, **numbers: float) -> None: ...
def suspendable(name: str, kind: str, request: str | None = None) -> Any: ...
def over(
    name: str, kind: str, start: int, end: int, request: str | None, overlaps: bool
) -> bool: ...
def step(words: memoryview[int], at: int, id: int, start: int, batch: bytes, back: int) -> Any: ...
def step_over(step: Any, end: int, tokens: int) -> None: ...
def event(code: int, request: str, count: int, time: int | None = None) -> bool: ...
def enter_step(number: int, requests: object, mode: int, phases: dict[str, int]) -> Any: ...
def leave_step(step: object, mode: int) -> bool: ...
def single(objects: list[Any], name: str) -> bool: ...
def adopt(recorder: object) -> None: ...
def watch_gate(view: memoryview[int]) -> None: ...
def watch_requests() -> None: ...
def look(within: bool) -> bool: ...
def edge() -> None: ...
def prepare(
    span: Callable[..., object],
    record: Callable[..., object],
    suspendable: Callable[..., object],
    text: Callable[[object], str],
    whole: Callable[[object], int],
    number: Callable[[object], int | float | None],
    off: object,
    variable: ContextVar[str | None],
    faults: tuple[type[BaseException], ...],
    /,
) -> None: ...
