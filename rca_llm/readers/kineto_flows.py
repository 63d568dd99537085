"""Links between calls and device work that a Kineto file tells by its flow arrows alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from rca_llm.readers.exact import ints, nanoseconds
from rca_llm.readers.files import Source
from rca_llm.readers.jsontext import UNDECODABLE
from rca_llm.readers.kineto_events import Columns, Flow, decode_flows
from rca_llm.readers.pieces import Pieces
from rca_llm.table import UNKNOWN, Array, Ints

_Place = tuple[int, int, int]
"""Where an arrow begins or ends: track (pid and tid) and time."""

_BEGIN, _END = "s", "f"


def link_by_flows(source: Source, tables: Mapping[str, Columns]) -> None:
    """Complete the correlations of a file in which no device record has one.

    An arrow begins at the start of a call and ends at the start of what it launched, on the same
    tracks. The file is read once more for this, so that all others need not keep their arrows.
    """
    gpu, api = tables.get("gpu"), tables.get("api")
    if gpu is None or api is None or bool(np.any(gpu["correlation"] != UNKNOWN)):
        return
    begins, ends = _arrows(source)
    gpu["correlation"] = _found(ends, gpu["device"], gpu["stream"], gpu)
    calls = _found(begins, api["process"], api["thread"], api)
    api["correlation"] = np.where(api["correlation"] == UNKNOWN, calls, api["correlation"])


def _arrows(source: Source) -> tuple[dict[_Place, int], dict[_Place, int]]:
    """The ids of all arrows by where they begin, and by where they end."""
    begins: dict[_Place, int] = {}
    ends: dict[_Place, int] = {}
    for flows in _flows(source):
        for kind, places in ((_BEGIN, begins), (_END, ends)):
            group = [flow for flow in flows if flow.ph == kind]
            pids, tids = ints([flow.pid for flow in group]), ints([flow.tid for flow in group])
            times, ids = nanoseconds([f.ts for f in group]), ints([flow.id for flow in group])
            keys = zip(pids.tolist(), tids.tolist(), times.tolist(), strict=True)
            places.update(zip(keys, ids.tolist(), strict=True))
    return begins, ends


def _flows(source: Source) -> Iterator[list[Flow]]:
    """The arrows of the undamaged pieces of a file."""
    with source.open() as stream:
        for piece in Pieces(stream).take(itertools.count()):
            end = piece.text.rfind(b"]") + 1 if piece.last else len(piece.text)
            try:
                yield decode_flows(piece.text[:end])
            except UNDECODABLE:
                continue


def _found(places: Mapping[_Place, int], pids: Array, tids: Array, columns: Columns) -> Ints:
    keys = zip(pids.tolist(), tids.tolist(), columns["start"].tolist(), strict=True)
    return np.array([places.get(key, UNKNOWN) for key in keys], np.int64)
