"""What admitting every request at once would save, when larger batches take longer."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from rca_llm.hints.admitting import fitted
from tests.scenes import GEMM, MS, Scene, hint

CONSTANT, PROMPT = 10 * MS, 8 * MS


def engine(most: int, requests: int = 8, tokens: int = 6) -> tuple[Scene, int]:
    """A burst of requests to an engine that runs `most`: the scene, and the summed latencies."""
    scene, now, number = Scene(), 0, 0
    waiting, running = deque(range(requests)), dict[int, list[int]]()
    scheduled, latency = dict[int, int](), 0
    while waiting or running:
        while waiting and len(running) < most:
            one = waiting.popleft()
            running[one], scheduled[one] = [], now
        phases = {f"r{one}": "decode" if made else "prefill" for one, made in running.items()}
        lasting = CONSTANT + PROMPT * sum(phase == "prefill" for phase in phases.values())
        scene.step(number, now, now + lasting, **phases)
        scene.work(GEMM, now, now + lasting, graph=True)
        now, number = now + lasting, number + 1
        for one, made in list(running.items()):
            made.append(now)
            if len(made) == tokens:
                scene.request(f"r{one}", 0, running.pop(one), scheduled=scheduled[one])
                latency += now
    return scene, latency


def test_larger_batches_are_taken_off_the_saving() -> None:
    limited, before = engine(2)
    _, after = engine(8)
    found = hint(limited.summary(), "R01")
    assert found["evidence"]["larger_batches_considered"]
    assert found["saving_ns"] == pytest.approx(before - after, rel=0.01)
    assert found["saving_ns"] < 0.9 * found["evidence"]["saving_at_most_ns"]


def test_without_batches_the_whole_wait_is_the_most() -> None:
    limited, _ = engine(2)
    limited.rows.pop("batch")
    found = hint(limited.summary(), "R01")
    assert not found["evidence"]["larger_batches_considered"]
    assert found["saving_ns"] == found["evidence"]["saving_at_most_ns"]


def test_a_limit_that_does_not_give_the_latencies_back_is_not_trusted() -> None:
    limited, _ = engine(2)
    for n in range(8):  # the engine ran ten at once, so its limit cannot be why others wait
        limited.row("batch", step=20, request=f"other{n}", phase="decode", tokens=1)
    found = hint(limited.summary(), "R01")
    assert not found["evidence"]["larger_batches_considered"]
    assert found["saving_ns"] == found["evidence"]["saving_at_most_ns"]


def test_the_period_of_steps_by_tokens_and_requests() -> None:
    rng = np.random.default_rng(1)
    tokens, requests = rng.integers(0, 4, 200) * 16, rng.integers(1, 9, 200)
    lasting = 5_000_000 + 1_000 * tokens + 200_000 * requests
    noisy = lasting + rng.integers(-50_000, 50_000, 200)
    found = fitted(noisy, tokens, requests)
    assert found.constant == pytest.approx(5_000_000, rel=0.05)
    assert found.token == pytest.approx(1_000, rel=0.05)
    assert found.request == pytest.approx(200_000, rel=0.05)


def test_what_a_step_does_not_surely_grow_with_is_left_out() -> None:
    rng = np.random.default_rng(2)
    lasting = 5_000_000 + rng.integers(-900_000, 900_000, 40)
    found = fitted(lasting, np.full(40, 16), rng.integers(1, 3, 40))
    assert found.token == 0
    assert found.request == 0
    assert found.constant == pytest.approx(lasting.mean())


def test_a_machine_that_is_slow_for_a_while_makes_no_step_grow_with_its_requests() -> None:
    rng = np.random.default_rng(3)
    place = np.arange(160)
    slow = (place >= 100) & (place < 120)
    requests = np.where(slow | (place % 7 == 0), 2, 1)
    tokens = 16 * (place % 5 == 0)
    lasting = 8_000_000 + 500_000 * tokens + rng.integers(-100_000, 100_000, 160)
    found = fitted(np.where(slow, lasting * 6 // 5, lasting), tokens, requests)
    assert found.request == 0
    assert found.token == pytest.approx(500_000, rel=0.1)
