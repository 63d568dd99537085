"""A real vLLM on the CPU: every request explained, as vLLM and its clients time it.

Needs an environment with vLLM for the CPU; RCA_LLM_VLLM_PYTHON names its interpreter.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from rca_llm.readers import read
from rca_llm.trace import Timeline
from tests.engines import compare, load, server

PYTHON = os.environ.get("RCA_LLM_VLLM_PYTHON", "")
if not PYTHON:
    pytest.skip("RCA_LLM_VLLM_PYTHON is not set (make test-engines)", allow_module_level=True)

MS = 1_000_000
CLOSE = 2 * MS


@dataclass(frozen=True)
class Recorded:
    """One load on one server, seen by the client, by vLLM and by us."""

    calls: dict[str, load.Call]
    trips: list[int]
    """To the health check and back meanwhile, ns, sorted."""
    hung_up: load.Call
    cut_off: load.Call
    """Under way when the engine's process was killed."""
    alone: list[list[int]]
    """The tokens of requests that ran one at a time."""
    preemptions: float
    """As vLLM counted them."""
    stamps: dict[str, dict[str, Any]]
    timeline: Timeline
    summary: dict[str, Any]

    @property
    def requests(self) -> dict[str, dict[str, Any]]:
        """The rows of the requests, without those that did not end by themselves."""
        rows = {row["id"]: row for row in self.summary["requests"]}
        given_up = (self.hung_up.id, self.cut_off.id)
        return {id: row for id, row in rows.items() if not id.startswith(given_up)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return server.make_model(PYTHON, tmp_path_factory.mktemp("model"))


def _record(model: Path, folder: Path, *options: str) -> Recorded:
    calls = load.calls(40)
    hung_up, cut_off = load.Call(50, 400), load.Call(50, 400)
    with server.serve(server.on_cpu(PYTHON, model, *options), folder) as served:
        alone = _alone(served.port)
        trips = load.run(served.port, calls, 0.03)
        load.stream(served.port, hung_up, stop_after=3)
        load.stream(served.port, load.Call(16, 8))  # the server notices the hang-up meanwhile
        preemptions = served.counter("vllm:num_preemptions_total")
        _cut_off(served, cut_off)
    assert not [call.error for call in calls if call.error]
    trace = read(served.run)
    summary = trace.attribute().summary
    # The OpenAI server appends the number of the prompt to the id that it gives its client.
    by_id = {f"{call.id}-0": call for call in calls}
    stamps, timeline = served.stamps(), trace.timelines[0]
    return Recorded(by_id, trips, hung_up, cut_off, alone, preemptions, stamps, timeline, summary)


def _alone(port: int) -> list[list[int]]:
    """What the server answers to a few requests, each alone in its steps."""
    calls = load.calls(4)
    for call in calls:
        load.stream(port, call)
    assert not [call.error for call in calls if call.error]
    return [call.tokens for call in calls]


def _cut_off(served: server.Served, call: load.Call) -> None:
    """Kill the engine when a request has had a few tokens."""
    thread = threading.Thread(target=load.stream, args=(served.port, call))
    thread.start()
    ends = time.monotonic() + 120
    while call.pieces < 5 and time.monotonic() < ends:
        time.sleep(0.01)
    served.kill_engine()
    thread.join(120)


@pytest.fixture(scope="module")
def loaded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return _record(model, tmp_path_factory.mktemp("loaded"), "--max-num-seqs=4")


@pytest.fixture(scope="module")
def preempted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    options = ("--max-num-seqs=8", "--block-size=32", "--num-gpu-blocks-override=20")
    return _record(model, tmp_path_factory.mktemp("preempted"), *options)


def test_no_request_is_missing_and_none_is_extra(loaded: Recorded) -> None:
    extra = set(loaded.requests) - set(loaded.calls)
    assert set(loaded.calls) <= set(loaded.requests)
    assert len(extra) == len(loaded.alone) + 1


def test_times_are_those_of_vllm(loaded: Recorded) -> None:
    """For three requests of four: on a busy machine a thread may wait between the two clocks."""
    ids, rows = loaded.calls, loaded.requests
    found = compare.differences(loaded.timeline, ids, rows, loaded.stamps)
    for name, values in found.items():
        print(f"{name}: median {median(values) / MS:.2f} ms, worst {values[-1] / MS:.2f} ms")
        assert values[len(values) * 3 // 4] < CLOSE, (name, values)


def test_requests_end_between_the_two_times_that_vllm_gives(loaded: Recorded) -> None:
    """vLLM's e2e latency ends when the last output reaches the frontend, its span once written."""
    for id in loaded.calls:
        row, told = loaded.requests[id], loaded.stamps[id]
        end = row["start_ns"] + row["latency_ns"]
        assert told["start"] + told["gen_ai.latency.e2e"] * 1e9 <= end <= told["end"]


def test_token_counts_are_those_that_were_asked_for(loaded: Recorded) -> None:
    for id, call in loaded.calls.items():
        row = loaded.requests[id]
        assert (row["prompt_tokens"], row["output_tokens"]) == (call.prompt_tokens, call.max_tokens)


def test_shares_add_up_and_leave_little_unexplained(loaded: Recorded) -> None:
    rows = loaded.requests.values()
    for row in rows:
        assert sum(row["shares"].values()) == row["latency_ns"] == sum(row["parts"].values())
    total = sum(row["latency_ns"] for row in rows)
    assert sum(row["parts"].get("scheduling.other", 0) for row in rows) <= 0.03 * total


def test_above_capacity_most_time_is_the_queue_and_the_rest_computes(loaded: Recorded) -> None:
    sums: dict[str, int] = {}
    for row in loaded.requests.values():
        for name, ns in row["parts"].items():
            sums[name] = sums.get(name, 0) + ns
    assert sums.pop("scheduling.queue") > sum(sums.values())
    assert max(sums, key=lambda name: sums[name]) == "compute.cpu"
    assert sums["scheduling.tokenize"] > 0
    assert sums["scheduling.detokenize"] > 0


def test_the_client_saw_the_same_with_the_way_there_and_back(loaded: Recorded) -> None:
    """A request's life and what HTTP added to it are the client's time but for the network's."""
    rows = loaded.requests
    life = [c.ended - c.submitted - rows[id]["latency_ns"] for id, c in loaded.calls.items()]
    answered = [_beyond(call, rows[id]) for id, call in loaded.calls.items()]
    print(f"client beyond the request's life: median {median(life) / MS:.1f} ms")
    print(f"client beyond the HTTP exchange: median {median(answered) / MS:.1f} ms")
    assert min(life) >= 0
    # A server may lose the processor between its last write and its look at the clock, and the
    # client be done by then: medians.
    assert 0 < median(answered) < 5 * MS
    for row in rows.values():
        http = row["http"]
        assert sum(http["parts"].values()) == http["before_ns"] + http["after_ns"]
        assert set(http["parts"]) <= {"io.network", "scheduling.cpu_wait"}


def _beyond(call: load.Call, row: dict[str, Any]) -> int:
    """What of a client's time lies outside what its server recorded of the exchange, ns."""
    http = row["http"]
    exchange: int = http["before_ns"] + row["latency_ns"] + http["after_ns"]
    return call.closed - call.submitted - exchange


def test_a_request_whose_client_hung_up_is_aborted(loaded: Recorded) -> None:
    ids = {row["id"]: row["status"] for row in loaded.summary["requests"]}
    assert ids[f"{loaded.hung_up.id}-0"] == "aborted"


def test_a_request_of_a_killed_engine_is_unfinished_and_none_of_it_is_lost(
    loaded: Recorded,
) -> None:
    rows = {row["id"]: row for row in loaded.summary["requests"]}
    row = rows[f"{loaded.cut_off.id}-0"]
    assert row["status"] in ("unfinished", "aborted")
    tokens = loaded.timeline["tokens"]
    mine = tokens["request"] == loaded.timeline.strings.find(row["id"])
    assert int(mine.sum()) >= loaded.cut_off.pieces >= 5


def test_the_answers_are_those_of_an_untraced_server(
    loaded: Recorded, model: Path, tmp_path: Path
) -> None:
    setup = server.on_cpu(PYTHON, model, "--max-num-seqs=4", traced=False)
    with server.serve(setup, tmp_path / "untraced") as served:
        untraced = _alone(served.port)
    assert not served.run.exists()
    assert [len(tokens) for tokens in untraced] == [call.max_tokens for call in load.calls(4)]
    assert loaded.alone == untraced


def test_every_step_has_its_batch_and_the_killed_engine_lost_none(loaded: Recorded) -> None:
    steps = loaded.summary["steps"]
    assert [step["id"] for step in steps] == list(range(1, len(steps) + 1))
    assert all(step["requests"] for step in steps)
    assert sum(step["prefill_tokens"] for step in steps) >= sum(
        call.prompt_tokens for call in loaded.calls.values()
    )
    assert max(step["requests"] for step in steps) == 4


def test_preempted_requests_show_it_and_compute_again(preempted: Recorded) -> None:
    told = preempted.timeline.strings.find("preempted")
    count = int((preempted.timeline["marks"]["name"] == told).sum())
    assert count == preempted.preemptions > 0
    hit = [row for row in preempted.requests.values() if row["parts"].get("scheduling.preempt")]
    assert 0 < len(hit) <= count
    assert any(row["parts"].get("scheduling.recompute") for row in hit)
    for row in preempted.requests.values():
        assert sum(row["parts"].values()) == row["latency_ns"]
