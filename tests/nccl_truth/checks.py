"""The checks of each scenario, by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.nccl_truth.calls import (
    check_one,
    compare_bandwidth,
    compare_calls,
    compare_ranks,
    compare_sources,
)
from tests.nccl_truth.clocks import compare_offsets
from tests.nccl_truth.contention import check_contention
from tests.nccl_truth.truth import Findings, Recording, Truth
from tests.nccl_truth.waiting import check_delays, check_late


def check_sizes(recorded: Recording, told: Sequence[Truth]) -> Findings:
    """Everything about the sweep of sizes."""
    found = Findings()
    compare_calls(found, recorded, told)
    if len(told) > 1:
        compare_ranks(found, recorded, told)
        compare_bandwidth(found, recorded, told)
        compare_offsets(found, recorded)
        compare_sources(found, recorded)
    return found


def check_model(recorded: Recording, told: Sequence[Truth], sizes_known: bool = True) -> Findings:
    """The model's collectives, and the waiting for the steps that began late."""
    found = Findings()
    compare_calls(found, recorded, told, sizes_known)
    if len(told) > 1:
        compare_ranks(found, recorded, told)
        compare_offsets(found, recorded)
    for phase in told[0].phases if len(told) > 1 else ():
        check_late(found, recorded, told, phase["name"])
    return found


CHECKS: dict[str, Callable[[Recording, Sequence[Truth]], Findings]] = {
    "sizes": check_sizes,
    "tp": check_model,
    "tp-names": lambda recorded, told: check_model(recorded, told, sizes_known=False),
    "one": check_one,
    "delays": check_delays,
    "contention": check_contention,
}
