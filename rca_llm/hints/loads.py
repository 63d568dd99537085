"""The load of the weights: when it was, what it read, from where, and in pieces of what size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.hints import records
from rca_llm.hints.case import Case, Spans, used
from rca_llm.table import Array, Ints, Table, known

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ckpt", ".npz")
"""How the files of weights end."""

NETWORK = (
    *("nfs", "lustre", "ceph", "cifs", "smb", "gpfs", "beegfs", "fuse", "efs", "s3", "weka", "9p"),
)
"""How the names of file systems begin that are reached over a network."""

Found = list[tuple[Recording, Table]]
"""Some spans of each recording."""


@dataclass(frozen=True)
class Load:
    """A load of weights from `start` to `end`, ns.

    `reads` are the spans that read in it, `told` those whose bytes, pieces and file systems count:
    the reads, or the load itself where they do not say.
    """

    start: int
    end: int
    reads: Found
    told: Found

    @property
    def spans(self) -> Spans:
        """When it read."""
        return intervals.union(*times(self.reads))

    @property
    def count(self) -> int:
        """How many spans read."""
        return sum(len(table) for _, table in self.reads)

    @property
    def faults(self) -> int:
        """How many of them wait for page faults."""
        return sum(
            int(np.count_nonzero(table["kind"] == recording.timeline.strings.find("page_fault")))
            for recording, table in self.reads
        )

    @property
    def bytes(self) -> int:
        """What was read, as far as it is told."""
        return sum(int(table["bytes"][known(table["bytes"])].sum()) for _, table in self.told)

    @property
    def read_bytes(self) -> float | None:
        """The median size of one read: bytes of a span over its pieces; None where not told."""
        sizes: list[Array] = [np.empty(0)]
        for _, table in self.told:
            rows = table["bytes"] > 0
            sizes.append(table["bytes"][rows] / np.maximum(table["pieces"][rows], 1))
        return records.median(np.concatenate(sizes))

    @property
    def file_systems(self) -> list[str]:
        """The file systems that it read from."""
        return sorted({r.timeline.strings[c] for r, table in self.told for c in used(table["fs"])})


def times(found: Found) -> Spans:
    """The times of some spans."""
    return records.joined([(table["start"], table["end"]) for _, table in found])


def find_load(case: Case) -> Load | None:
    """The load of the weights: spans that say so, else the reads of weight files."""
    loads = _of_kind(case, "load")
    reads = _of_kind(case, "file", "page_fault")
    start, end = times(loads if _any(loads) else _weights(reads))
    if not len(start):
        return None
    begin, stop = int(start.min()), int(end.max())
    inside = [
        (recording, table.take((table["start"] < stop) & (table["end"] > begin)))
        for recording, table in reads
    ]
    silent = not any((table["bytes"] > 0).any() for _, table in inside)
    told = loads if silent and _any(loads) else inside
    return Load(begin, stop, inside if _any(inside) else loads, told)


def _any(found: Sequence[tuple[Recording, Table]]) -> bool:
    return any(len(table) for _, table in found)


def _of_kind(case: Case, *kinds: str) -> Found:
    return [(recording, case.spans(recording, *kinds)) for recording in case.job.recordings]


def _weights(reads: Found) -> Found:
    """The reads of files that hold weights."""
    found: Found = []
    for recording, table in reads:
        strings = recording.timeline.strings
        codes = [c for c in used(table["path"]) if strings[c].lower().endswith(WEIGHTS)]
        found.append((recording, table.take(among(table["path"], codes))))
    return found


def casts(case: Case, start: int, end: int) -> Spans:
    """When weights were cast in some time."""
    begins, ends = times(_of_kind(case, "cast"))
    inside = (begins < end) & (ends > start)
    return intervals.union(begins[inside], ends[inside])


def window(case: Case, load: Load | None) -> tuple[int, int]:
    """A load with the casts that begin in it; the casts alone where nothing tells of a load."""
    start, end = times(_of_kind(case, "cast"))
    if load is None:
        return (int(start.min()), int(end.max())) if len(start) else (0, 0)
    late: Ints = end[(start >= load.start) & (start <= load.end)]
    return load.start, max(load.end, int(late.max(initial=load.end)))
