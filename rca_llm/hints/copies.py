"""Causes in the way data moves: host copies, weight loading, PCIe, NUMA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.codes import COPY
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.hints import records
from rca_llm.hints.case import Case, Spans
from rca_llm.hints.model import Charge, Hint, Stage, rule
from rca_llm.hints.wording import plural, rate
from rca_llm.table import Array, Ints, Mask, known
from rca_llm.trace import COPY_KINDS, MEMCPY, MEMORY_KINDS

COPY_PARTS = ("io.h2d", "io.d2h", "scheduling.launch", "scheduling.sync")
"""What a host copy can be charged as: on the device, and while the host prepares it."""

H2D, D2H = COPY_KINDS.index("H2D"), COPY_KINDS.index("D2H")
PAGEABLE = MEMORY_KINDS.index("pageable")


@dataclass(frozen=True)
class HostCopies:
    """Some copies between host and device, of all recordings.

    `call_start` and `call_end` are those of the call that asked for each, the copy's own where
    that was not recorded; `decode` says which belong to steps that only decode.
    """

    start: Ints
    end: Ints
    size: Ints
    call_start: Ints
    call_end: Ints
    asynchronous: Mask
    decode: Mask
    inside: Mask
    pageable: Mask

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Array) -> HostCopies:
        """A selection."""
        return HostCopies(*(getattr(self, name)[rows] for name in _FIELDS))

    @property
    def spans(self) -> Spans:
        """When the copies ran or were asked for."""
        return (
            np.concatenate([self.start, self.call_start]),
            np.concatenate([self.end, self.call_end]),
        )

    @property
    def bytes(self) -> int:
        """All bytes of known size."""
        return int(self.size[known(self.size)].sum())

    @property
    def lasting(self) -> int:
        """The plain sum of their times, ns."""
        return int((self.end - self.start).sum())

    @property
    def rate(self) -> float | None:
        """Bytes a second while they ran."""
        return self.bytes * 1e9 / self.lasting if self.lasting and self.bytes else None


_FIELDS = tuple(HostCopies.__dataclass_fields__)


def host_copies(case: Case) -> HostCopies:
    """The copies between host and device that have a time, ranks one after another."""
    found = [_copies_of(case, number) for number in range(len(case.job.ranks))]
    if not found:
        nothing, none = np.empty(0, np.int64), np.empty(0, bool)
        return HostCopies(*[nothing] * 5, *[none] * 4)
    return HostCopies(*(np.concatenate([getattr(c, name) for c in found]) for name in _FIELDS))


def _copies_of(case: Case, number: int) -> HostCopies:
    recording, partition = case.job.ranks[number]
    gpu = recording.timeline["gpu"]
    rows = np.flatnonzero(
        (gpu["kind"] == MEMCPY)
        & among(gpu["copy"], [H2D, D2H])
        & among(gpu["process"], [*partition.rank.processes])
        & known(gpu["start"])
    )
    steps, step = recording.steps, partition.step_of[rows]
    decodes = np.append((steps.decode_tokens > 0) & (steps.prefill_tokens == 0), False)
    begin, end = _calls(recording, rows)
    return HostCopies(
        gpu["start"][rows],
        gpu["end"][rows],
        gpu["bytes"][rows],
        begin,
        end,
        _asynchronous(recording, rows),
        decodes[step],
        step >= 0 if len(steps) else np.ones(len(rows), bool),
        (gpu["src"][rows] == PAGEABLE) | (gpu["dst"][rows] == PAGEABLE),
    )


def _calls(recording: Recording, rows: Ints) -> tuple[Ints, Ints]:
    gpu, api, row = recording.timeline["gpu"], recording.timeline["api"], recording.links.api_row
    found = row[rows]
    own = (gpu["start"][rows], gpu["end"][rows])
    if not len(api):
        return own
    begin, end = api["start"][np.maximum(found, 0)], api["end"][np.maximum(found, 0)]
    return np.where(found >= 0, begin, own[0]), np.where(found >= 0, end, own[1])


def _asynchronous(recording: Recording, rows: Ints) -> Mask:
    """Which copies were asked for by a call that is meant to return at once."""
    found = recording.links.api_row[rows]
    if not len(recording.calls):
        return np.zeros(len(rows), bool)
    return (found >= 0) & (recording.calls[np.maximum(found, 0)] == COPY)


@rule(
    "R18",
    "PAGEABLE-COPY",
    "io",
    Stage.DATA,
    disproof="copies of the same size from pinned memory that take as long",
)
def pageable_copies(case: Case) -> Hint | None:
    """Copies use pageable host memory, which blocks the caller and halves the rate.

    Symptom: they take `step_share` of the steps, or an asynchronous one over `async_bytes` runs
    in a decode step. Source: proposal; threads C53, C54. Disproof: pinned copies as slow.
    """
    limits = case.limits("R18")
    copies = host_copies(case)
    copies = copies.take(copies.pageable & copies.inside)
    if not len(copies):
        return None
    spans = intervals.union(*copies.spans)
    loss, charge = case.of_steps(COPY_PARTS, spans), case.charge(COPY_PARTS, spans)
    blocking = copies.asynchronous & copies.decode & (copies.size > limits["async_bytes"])
    if not charge.ns or not (loss.share >= limits["step_share"] or blocking.any()):
        return None
    speed = copies.rate
    return Hint(
        f"{plural(len(copies), 'copy').replace('copys', 'copies')} use pageable memory"
        f" (blocking{', ' + rate(speed) if speed else ''})",
        "high",
        charge,
        {
            "copies": len(copies),
            "bytes": copies.bytes,
            "copy_ns": copies.lasting,
            "rate_bytes_s": speed,
            "step_share": loss.share,
            "asynchronous_in_decode": int(blocking.sum()),
        },
    )


__all__ = ["Charge"]
