"""Steps and their batches out of traces that other tools made of engines (`data/h200/vllm-*`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rca_llm
from tests.timelines import Builder

H200 = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "h200"
PAIRS = {
    "nsys": ("vllm-node.nsys.sqlite.gz", "vllm-node.requests.jsonl"),
    "kineto": ("vllm.kineto.json.gz", "vllm.requests.jsonl"),
}
MS = 1_000_000
Summary = dict[str, Any]


@pytest.fixture(scope="module")
def vllm() -> Callable[[str], Summary]:
    if not H200.is_dir():
        pytest.skip(f"no {H200}")
    known: dict[str, Summary] = {}

    def summarise(tool: str) -> Summary:
        if tool not in known:
            paths = [str(H200 / name) for name in PAIRS[tool]]
            known[tool] = rca_llm.load(*paths).attribute().summary
        return known[tool]

    return summarise


def _told(tool: str) -> list[dict[str, Any]]:
    lines = (H200 / PAIRS[tool][1]).read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["type"] == "request"]


@pytest.mark.parametrize("tool", PAIRS)
def test_batches_add_up_to_what_the_requests_asked_for(
    vllm: Callable[[str], Summary], tool: str
) -> None:
    steps, told = vllm(tool)["steps"], _told(tool)
    assert sum(step["prefill_tokens"] for step in steps) == sum(r["prompt_tokens"] for r in told)
    # The first token of a request comes out of its prefill.
    decoded = sum(r["output_tokens"] - 1 for r in told)
    surplus = sum(step["decode_tokens"] for step in steps) - decoded
    assert 0 <= surplus <= 2 * len(told)  # asynchronous scheduling runs a step ahead of the end


@pytest.mark.parametrize("tool", PAIRS)
def test_every_kernel_belongs_to_a_step_and_both_tools_tell_the_same_steps(
    vllm: Callable[[str], Summary], tool: str
) -> None:
    summary = vllm(tool)
    assert sum(step["kernels"] for step in summary["steps"]) == summary["totals"]["kernels"]
    steps = [(s["prefill_tokens"], s["decode_tokens"], s["kernels"]) for s in summary["steps"]]
    other = [(s["prefill_tokens"], s["decode_tokens"], s["kernels"]) for s in vllm("nsys")["steps"]]
    assert len(steps) == len(other)
    assert sorted(steps) == sorted(other)


@pytest.mark.parametrize("tool", PAIRS)
def test_requests_of_the_file_beside_are_explained_by_the_trace(
    vllm: Callable[[str], Summary], tool: str
) -> None:
    rows = {row["id"]: row for row in vllm(tool)["requests"]}
    for request in _told(tool):
        row = rows.pop(request["id"])
        assert row["latency_ns"] == request["finished"] - request["arrival"]
        assert sum(row["parts"].values()) == row["latency_ns"]
        assert row["shares"]["compute"] > 0
        assert row["shared_ns"] > 0
    assert not rows


NAMES = [
    ("execute_context_2(300)_generation_5(5)", (300, 5, 7)),
    ("execute_context_0(0)_generation_8(8)", (0, 8, 8)),
    ("step[DECODE bs=4]", (0, 4, 4)),
    ("step[EXTEND bs=2 toks=700]", (700, 0, 2)),
    ("step[MIXED bs=3 toks=90]", (None, None, None)),
    ("[Executor] _forward_step 12: 1 ctx reqs, 128 ctx tokens, 3 gen reqs", (128, 3, 4)),
    ("[Executor] _forward_step 12: 1 ctx reqs, 3 gen reqs", (None, 3, 4)),
    ("[Executor] _forward_step 13: 0 ctx reqs, 3 gen reqs", (0, 3, 3)),
    ("forward", (None, None, None)),
]


@pytest.mark.parametrize(("name", "batch"), NAMES, ids=[name for name, _ in NAMES])
def test_names_that_engines_write_tell_steps_and_batches(
    name: str, batch: tuple[int | None, int | None, int | None]
) -> None:
    builder = Builder()
    builder.span(None, 0, 40, name=name)
    builder.launch("gemm", (10, 12), (14, 50))
    (step,) = builder.summary()["steps"]
    assert (step["prefill_tokens"], step["decode_tokens"], step["requests"]) == batch
    assert (step["start_ns"], step["end_ns"], step["kernels"]) == (0, 50, 1)


def test_a_range_called_forward_within_another_is_no_step() -> None:
    """Modules within modules are called so too: the outermost is the step."""
    builder = Builder()
    builder.span(None, 0, 40, name="forward")
    builder.span(None, 5, 20, name="forward")
    builder.launch("gemm", (10, 12), (14, 50))
    assert [step["kernels"] for step in builder.summary()["steps"]] == [1]
