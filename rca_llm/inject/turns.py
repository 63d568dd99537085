"""Runs a cause between two runs of the same load without it: a pair that little else tells apart.

Runs that follow each other in one process meet the same machine, which runs minutes apart do not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rca_llm.inject.catalogue import Order, workload

OWN_LOAD = ("queue",)
"""Causes whose size changes the load itself; those of others are the same without the cause."""

APART = 1000
"""Between the numbers of the first requests of two runs: more than a run has."""

Document = dict[str, Any]


def orders(wanted: Order, sizes: Sequence[float]) -> Iterator[Order]:
    """Every size between two runs without the cause, which follow each other's requests."""
    every: list[tuple[float, bool]] = []
    for size in sizes:
        if not every or wanted.cause.name in OWN_LOAD:
            every.append((size, True))
        every += [(size, False), (size, True)]
    for number, (size, without) in enumerate(every):
        folder = Path(wanted.folder) / f"turn-{number}"
        yield replace(
            wanted, magnitude=size, without=without, first=number * APART, folder=str(folder)
        )


def run(wanted: Order, sizes: Sequence[float], target: Path) -> None:
    """Run them all; what each cost goes to `target`, one `turn-N.json` a run."""
    target.mkdir(parents=True, exist_ok=True)
    for number, order in enumerate(orders(wanted, sizes)):
        os.makedirs(order.folder, exist_ok=True)
        workload(order.cause)(order).write(target / f"turn-{number}.json")


@dataclass(frozen=True)
class Turn:
    """A run with the cause and those without it before and after; `number` is its place."""

    number: int
    truth: Document
    without: tuple[Document, Document]


def found(target: Path) -> list[Turn]:
    """What `run` has written, as far as it came."""
    every: list[Document] = []
    while (path := target / f"turn-{len(every)}.json").exists():
        every.append(json.loads(path.read_text(encoding="utf-8")))
    places = [place for place, one in enumerate(every) if not one["without"]]
    return [
        Turn(place, every[place], (every[place - 1], every[place + 1]))
        for place in places
        if place + 1 < len(every)
    ]


__all__ = ["OWN_LOAD", "Turn", "found", "orders", "run"]
