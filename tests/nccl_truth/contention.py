"""All-reduces beside peer copies, which share their links."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rca_llm.report import build
from tests.nccl_truth.calls import compare_calls, compare_ranks
from tests.nccl_truth.truth import TOLERANCE, Findings, Recording, Truth


def check_contention(recorded: Recording, told: Sequence[Truth]) -> Findings:
    """All-reduces beside peer copies: R24, with the slow-down that the events show."""
    found = Findings()
    compare_calls(found, recorded, told)
    compare_ranks(found, recorded, told)

    def measured(mode: str) -> float:
        sides = [truth.phase(f"contention {mode}")["times_us"] for truth in told]
        return median(min(side) for side in zip(*sides, strict=True))

    usual = (measured("alone") + measured("alone again")) / 2
    slower = measured("copies") / usual
    summary = build(recorded.trace).summary
    hint = next((hint for hint in summary["hints"] if hint["id"] == "R24"), None)
    evidence = hint["evidence"] if hint else {}
    ratio = evidence["median_with_copies_ns"] / evidence["median_without_ns"] if evidence else None
    copies = [
        sum(part.contended_ns or 0 for part, _ in recorded.within(truth.rank, "contention copies"))
        for truth in told
    ]
    found.facts["contention"] = {
        "alone_us": [measured("alone"), measured("alone again")],
        "copies_us": measured("copies"),
        "overlap_ns": copies,
        "hint": hint and hint["title"],
        "evidence": evidence,
    }
    found.hold("R24 names the contention", hint is not None or slower < 1.3, bool(hint), slower)
    close = ratio is not None and abs(ratio / slower - 1) <= TOLERANCE
    found.hold("R24: slow-down within 5 %", close or (hint is None and slower < 1.3), ratio, slower)
    return found
