"""Copies between host and device as columns: when they ran, who asked for them, and what for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm.attribute.codes import COPY
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.hints.case import Case, Spans
from rca_llm.table import Array, Ints, Mask, known
from rca_llm.trace import COPY_KINDS, MEMCPY, MEMORY_KINDS

COPY_PARTS = ("io.h2d", "io.d2h", "scheduling.launch", "scheduling.sync")
"""What a host copy can be charged as: on the device, and while the host prepares it."""

DELAYED_PARTS = (*COPY_PARTS, "scheduling.host", "scheduling.other")
"""What copies, and the idle time that follows from them, can be charged as."""

H2D, D2H = COPY_KINDS.index("H2D"), COPY_KINDS.index("D2H")
PAGEABLE = MEMORY_KINDS.index("pageable")


@dataclass(frozen=True)
class HostCopies:
    """Some copies between host and device, of all recordings.

    `rank` is an index, `to_device` the direction. `call_start` and `call_end` are those of the call
    that asked for each, the copy's own where that was not recorded, and `thread` its thread, an
    index of the host records, else -1. `step` is a row of the steps, -1 for none; `decode` says
    which belong to steps that only decode, `inside` which serve (`Case.serving`), `steady` which
    belong to a steady step, all where there are no steps.
    """

    rank: Ints
    start: Ints
    end: Ints
    size: Ints
    to_device: Mask
    call_start: Ints
    call_end: Ints
    thread: Ints
    step: Ints
    asynchronous: Mask
    decode: Mask
    inside: Mask
    steady: Mask
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
    return case.once(("host copies",), lambda: _host_copies(case))


def _host_copies(case: Case) -> HostCopies:
    found = [_copies_of(case, number) for number in range(len(case.job.ranks))]
    if not found:
        columns: dict[str, Array] = dict.fromkeys(_FIELDS, np.empty(0, np.int64))
        return HostCopies(**columns)
    columns = {name: np.concatenate([getattr(c, name) for c in found]) for name in _FIELDS}
    return HostCopies(**columns)


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
    called = recording.links.api_row[rows]
    return HostCopies(
        np.full(len(rows), number, np.int64),
        gpu["start"][rows],
        gpu["end"][rows],
        gpu["bytes"][rows],
        gpu["copy"][rows] == H2D,
        begin,
        end,
        np.where(called >= 0, np.append(recording.host.api_thread, -1)[called], -1),
        np.asarray(step, np.int64),
        _asynchronous(recording, rows),
        decodes[step],
        case.serving(recording, step, (np.minimum(begin, gpu["start"][rows]), gpu["end"][rows])),
        np.isin(step, partition.steps[case.steady(number)]) | (len(partition.steps) == 0),
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
    return np.asarray((found >= 0) & (recording.calls[np.maximum(found, 0)] == COPY))
