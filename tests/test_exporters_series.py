"""The series that the page's plots draw, where there is more than fits."""

from __future__ import annotations

from typing import Any

from rca_llm.exporters import series

STEP_NS = 10


def _steps(starts: list[int]) -> dict[str, Any]:
    rows = [
        {"id": n, "start_ns": t, "end_ns": t + STEP_NS, "prefill_tokens": 0, "decode_tokens": 4}
        for n, t in enumerate(starts)
    ]
    drawn = series.steps({"steps": rows}, 0)
    assert drawn is not None
    assert sum(drawn["decode"]) == 4 * len(rows)
    return drawn


def test_few_steps_are_drawn_as_they_are() -> None:
    drawn = _steps([0, 10, 5_000])
    assert not drawn["merged"]
    assert drawn["start"] == [0, 10, 5_000]
    assert drawn["length"] == [STEP_NS] * 3


def test_many_steps_are_merged_but_never_across_a_gap() -> None:
    """A bar across a pause would show work where there was none."""
    bursts = [first + STEP_NS * n for first in (0, 50_000, 90_000) for n in range(1000)]
    drawn = _steps(bursts)
    assert drawn["merged"]
    assert len(drawn["start"]) <= series.MOST_POINTS
    assert max(drawn["length"]) <= 2 * STEP_NS * len(bursts) / (series.MOST_POINTS / 2)
    assert sum(drawn["length"]) == STEP_NS * len(bursts)


def test_steps_that_overlap_leave_no_gap() -> None:
    starts = [0, *range(1, 1000)]
    drawn = series.steps(
        {
            "steps": [
                {
                    "id": n,
                    "start_ns": t,
                    "end_ns": 100_000 if n == 0 else t + 1,
                    "prefill_tokens": None,
                    "decode_tokens": None,
                }
                for n, t in enumerate(starts)
            ]
        },
        0,
    )
    assert drawn is not None
    assert len(drawn["start"]) == series.MOST_POINTS // 2
