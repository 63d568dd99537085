"""A trace is a value: attributing it changes nothing, and saving and loading it loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import rca_llm
from rca_llm.errors import UnreadableInput
from rca_llm.trace import Timeline, Trace
from tests.timelines import Builder

BASE = 1_700_000_000_000_000_000


def trace() -> Trace:
    timelines: list[Timeline] = []
    for rank in (0, 1):
        builder = Builder(rank=rank, world_size=2, host="h0")
        builder.launch("gemm_x", (BASE, BASE + 5), (BASE + 10, BASE + 20))
        builder.kernel("gemm_x", BASE + 15, BASE + 30)
        builder.row("requests", id=f"R{rank}", arrival=BASE, finished=BASE + 40)
        timelines.append(builder.build())
    return Trace(timelines)


def test_attributing_twice_gives_the_same_answer() -> None:
    same = trace()
    assert same.attribute().summary == same.attribute().summary


def test_a_saved_trace_gives_the_same_answer(tmp_path: Path) -> None:
    original = trace()
    original.save(tmp_path / "saved")
    loaded = rca_llm.load(tmp_path / "saved")
    one, other = original.attribute().summary, loaded.attribute().summary
    assert one == other


def test_damaged_tables_are_refused_in_one_line(tmp_path: Path) -> None:
    trace().save(tmp_path / "saved")
    (tmp_path / "saved" / "0000" / "tables" / "gpu.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(UnreadableInput, match=r"0000.*expected saved tables") as refused:
        rca_llm.load(tmp_path / "saved" / "0000")
    assert "\n" not in str(refused.value)
