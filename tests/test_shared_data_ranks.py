"""Recorded jobs of several ranks are read as one: ranks, matched collectives, and their clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rca_llm import load
from tests.conftest import SHARED
from tests.timelines import findings

DATA = SHARED / "data"
if not DATA.is_dir():
    pytest.skip("no recorded traces in ../shared/data", allow_module_level=True)

MEGATRON = "kineto_multirank/astra-sim__astra-sim__tp8__megatron_kineto_*.json.gz"
SAMPLED = "kineto_multirank/facebookresearch__HolisticTraceAnalysis__sampled_rank-*.json.gz"
TWO_GPUS = "nsys_sqlite/GindaChen__nsys-ai__mfu_2gpu_before.sqlite"


@dataclass(frozen=True)
class Expected:
    """What stands in the documentation (docs/communication.md) about a set."""

    pattern: str
    ranks: int
    absent: int
    collectives: int
    parts: int
    unmatched: int
    judged: int


SETS = (
    Expected(MEGATRON, 8, 0, 84, 672, 0, 52),
    Expected(SAMPLED, 2, 126, 20, 20, 20, 0),
    Expected(TWO_GPUS, 2, 0, 33, 66, 0, 33),
)


def summary(pattern: str) -> dict[str, Any]:
    return load(*sorted(DATA.glob(pattern))).attribute().summary


def statuses(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """How many ranks were traced, and how many are missing."""
    missing = sum(row["status"] == "missing" for row in rows)
    return len(rows) - missing, missing


@pytest.mark.parametrize("expected", SETS, ids=lambda one: Path(one.pattern).stem[:24])
def test_ranks_are_one_job(expected: Expected) -> None:
    found = summary(expected.pattern)
    rows = found["collectives"]
    assert statuses(found["ranks"]) == (expected.ranks, expected.absent)
    assert len(rows) == expected.collectives
    assert sum(len(row["ranks"]) for row in rows) == expected.parts
    alone = [row for row in findings(found, "unlinked_kernels") if row["where"] == "collectives"]
    assert sum(row["count"] for row in alone) == expected.unmatched
    assert sum(row["wait_ns"] is not None for row in rows) == expected.judged


def test_the_clocks_of_eight_ranks_are_told_with_their_uncertainty() -> None:
    """No host is named, so that each file has a clock of its own, refined on 84 all-reduces."""
    found = summary(MEGATRON)
    rows = found["ranks"]
    assert (rows[0]["offset_ns"], rows[0]["uncertainty_ns"]) == (0, 0)
    for row in rows[1:]:
        assert abs(row["offset_ns"]) < 20_000
        assert 0 < row["uncertainty_ns"] < 100_000
    worst = max(row["uncertainty_ns"] for row in rows)
    for row in found["collectives"]:
        waits = list((row["wait_ns"] or {}).values())
        assert not waits or max(waits) - min(waits) > 0
        if row["last_rank"] is not None:
            assert sorted(waits)[1] > 0
    assert worst < 100_000


def test_ranks_whose_clocks_cannot_be_compared_say_so() -> None:
    found = summary(SAMPLED)
    first, second = (row for row in found["ranks"] if row["status"] != "missing")
    assert (first["uncertainty_ns"], second["uncertainty_ns"]) == (0, None)
    assert found["collectives"][0]["wait_ns"] is None
