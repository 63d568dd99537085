"""Wrappers against the signatures that real versions of vLLM give their functions.

The table is made by `tests/engines/signatures.py` from wheels; see there.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rca_llm.probes.engines import WATCHED
from tests.engines import signatures

TABLE = Path(__file__).with_name("data") / "signatures" / "vllm.tsv"
VERSIONS = ("0.9.2", "0.11.0", "0.14.1", "0.20.2", "0.32.0", "0.33.0")
Row = tuple[str, str, str, str]

EVERYWHERE = (
    "EngineCore.step",
    "EngineCore.step_with_batch_queue",
    "OutputProcessor.abort_requests",
    "OutputProcessor.add_request",
    "OutputProcessor.process_outputs",
    "Scheduler.add_request",
    "Scheduler.schedule",
    "Scheduler.update_from_output",
    "Worker.execute_model",
)
"""Without these nothing is explained, so every version must have them."""

BY_PLACE = {
    "BaseRenderer.process_for_engine": "self prompt arrival_time",
    "BaseRenderer.process_for_engine_async": "self prompt arrival_time",
    "OutputProcessor._update_stats_from_finished": "self req_state",
    "OutputProcessor.add_request": "self request",
    "OutputProcessor.process_outputs": "self engine_core_outputs engine_core_timestamp?",
    "Scheduler._preempt_request": "self request",
    "Scheduler.add_request": "self request",
    "Scheduler.update_from_output": "self scheduler_output",
    "Worker.execute_model": "self scheduler_output",
}
"""What wrappers take by place rather than pass on unseen."""


def _rows() -> list[Row]:
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()]
    return [(version, module, name, told) for version, module, name, told in rows]


PRESENT = [row for row in _rows() if row[3]]


def test_every_target_was_looked_up_in_every_version() -> None:
    looked_up = {row[:3] for row in _rows()}
    targets = signatures.targets("vllm")
    assert looked_up == {(v, module, name) for v in VERSIONS for module, name in targets}
    found = {(module, name) for _, module, name, _ in PRESENT}
    assert found == set(targets), "no version has them"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_explanations_rest_on_is_in_every_version(version: str) -> None:
    found = {name for v, _, name, _ in PRESENT if v == version}
    assert found >= set(EVERYWHERE)


@pytest.mark.parametrize("row", PRESENT, ids=lambda row: f"{row[0]}-{row[2]}")
def test_a_wrapper_passes_on_what_it_is_given_and_returns_what_it_gets(row: Row) -> None:
    _, module, name, told = row
    parameters = told.split()
    if name in BY_PLACE:
        places = BY_PLACE[name].split()
        assert parameters[: len(places)] == places
    make = import_module(f"rca_llm.probes.engines.{WATCHED[module]}").TARGETS[module][name]
    given: dict[str, object] = {}
    stand_in = _stand_in(parameters, given)
    wrapped = make(_awaited(stand_in) if inspect.iscoroutinefunction(make(stand_in)) else stand_in)
    by_place = [object() for p in parameters if not p.startswith("*") and not p.endswith("?")]
    by_name = {_bare(p): object() for p in parameters if p.startswith("*") and p != "*args"}
    result = wrapped(*by_place, **by_name)
    if inspect.isawaitable(result):
        result = asyncio.run(_wait(result))
    assert result is given
    names = [_bare(p) for p in parameters if not p.startswith("*") and not p.endswith("?")]
    assert given == dict(zip(names, by_place, strict=True)) | by_name


def _bare(parameter: str) -> str:
    return parameter.strip("*?")


def _stand_in(parameters: list[str], given: dict[str, object]) -> Callable[..., Any]:
    """A function with these parameters that keeps what it is given, and returns that."""
    keyword = [f"{_bare(p)}=None" for p in parameters if p.startswith("*") and p.endswith("?")]
    plain = [p.replace("?", "=None") for p in parameters if not p.startswith("*")]
    head = ", ".join([*plain, *(["*", *keyword] if keyword else [])])
    scope: dict[str, Any] = {"given": given}
    body = "given.update({k: v for k, v in locals().items() if v is not None}); return given"
    exec(f"def stand_in({head}): {body}", scope)
    found: Callable[..., Any] = scope["stand_in"]
    return found


def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


async def _wait(result: Any) -> Any:
    return await result
