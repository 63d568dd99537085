"""The first task of a rank: read its recording, keep it for later, tell what concerns the others.

What travels is the recording without nearly all of its records: its header, its collectives, its
requests, and the first and the last time in it. That is what decides about a whole job: who
belongs to it, on which clock, and who waited for whom.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rca_llm import __version__
from rca_llm.align import DIGEST, edges
from rca_llm.attribute import device, requests
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import CODE
from rca_llm.attribute.ranks import find_ranks
from rca_llm.errors import RcaError
from rca_llm.quality import repair
from rca_llm.readers import EXPECTED, kineto_pieces, reader_of
from rca_llm.readers.files import source
from rca_llm.readers.foreign import described
from rca_llm.table import Ints, Mask, Strings, Table
from rca_llm.trace import COPY_KINDS, KERNEL, MEMCPY, TABLES, Finding, Origin, Timeline

_OF_JOBS = ("collectives", "requests", "tokens", "processes")
"""Tables that concern the whole job, all of their rows."""


@dataclass(frozen=True)
class Ask:
    """A path to read; `listed`: it was found in a directory, where other files may lie too.

    `folder` is where the recording may be kept, if this process can write there.
    """

    path: str
    number: int
    listed: bool = False
    folder: str | None = None


@dataclass(frozen=True)
class Survey:
    """What a path holds that concerns the job: timelines with few of their records, findings."""

    timelines: list[Timeline] = field(default_factory=list[Timeline])
    findings: list[Finding] = field(default_factory=list[Finding])
    requests: bool = False
    refused: str | None = None
    """Why it could not be read at all."""
    version: str = __version__


def survey(ask: Ask) -> Survey:
    """Read a path; what is wrong with it is part of the answer."""
    kineto_pieces.alone()
    try:
        return _survey(ask)
    except RcaError as error:
        return Survey(refused=str(error))


def _survey(ask: Ask) -> Survey:
    found = source(ask.path)
    reader = reader_of(found)
    if reader is None:
        empty = not found.head
        if ask.listed and not empty:
            return Survey()
        what = f"found {described(found)}" if empty else f"{EXPECTED}; found {described(found)}"
        return Survey(refused=f"{ask.path}: byte 0: {what}")
    trace = reader.read(found)
    few: list[Timeline] = []
    asked = False
    for place, timeline in enumerate(trace.timelines):
        repair(timeline)
        asked |= bool(requests.requests_of(timeline))
        ranks = tuple((rank.number, rank.processes) for rank in find_ranks(timeline))
        kept = _keep(timeline, ask, place)
        few.append(_reduced(timeline, Origin(ask.path, place, kept, ranks)))
    return Survey(few, trace.findings, asked)


def _keep(timeline: Timeline, ask: Ask, place: int) -> str | None:
    """Put a recording into the folder, None where that cannot be done: it is then read again."""
    if ask.folder is None or not os.path.isdir(ask.folder):
        return None
    path = Path(ask.folder, f"{ask.number}-{place}")
    try:
        with path.open("xb") as file:
            pickle.dump(timeline, file, protocol=pickle.HIGHEST_PROTOCOL)
    except OSError:
        path.unlink(missing_ok=True)
        return None
    return str(path)


def recording(origin: Origin) -> Timeline:
    """The recording that a survey told of: kept, or read again."""
    if origin.kept is not None and os.path.exists(origin.kept):
        # Of the private folder that this run has made for itself, so not a foreign pickle.
        with Path(origin.kept).open("rb") as file:
            kept: Timeline = pickle.load(file)
            return kept
    kineto_pieces.alone()
    found = source(origin.path)
    reader = reader_of(found)
    if reader is None:
        raise RcaError(f"{origin.path}: changed while it was analysed")
    timeline = reader.read(found).timelines[origin.place]
    repair(timeline)
    return timeline


def _reduced(timeline: Timeline, origin: Origin) -> Timeline:
    """A timeline without all that concerns its own rank alone."""
    tables = {name: timeline[name] for name in _OF_JOBS if len(timeline[name])}
    tables["gpu"] = timeline["gpu"].take(_communication(timeline))
    marks, ranges = timeline["marks"], timeline["ranges"]
    tables["marks"] = marks.take(marks["request"] >= 0)
    tables["ranges"] = ranges.take(requests.named_rows(timeline))
    # Alignment tells by how much it moved the first and the last time of a timeline.
    tables["samples"] = Table(TABLES["samples"], {"t": np.array(edges(timeline), np.int64)})
    extra = {**timeline.header.extra, DIGEST: _digest(timeline)}
    return replace(
        timeline,
        header=replace(timeline.header, extra=extra),
        strings=thinned(timeline.strings, tables),
        tables=tables,
        origin=origin,
    )


def _communication(timeline: Timeline) -> Mask:
    """The device records that collectives are made of, and the peer copies beside them."""
    gpu = timeline["gpu"]
    parts = device.gpu_parts(gpu, timeline.strings)
    told = np.isin(gpu["correlation"], timeline["collectives"]["correlation"])
    kernel = gpu["kind"] == KERNEL
    wanted = [CODE["communication.collective"], CODE["communication.p2p"]]
    copy = (gpu["kind"] == MEMCPY) & (gpu["copy"] == COPY_KINDS.index("P2P"))
    return np.asarray((kernel & (told | among(parts, wanted))) | copy)


def thinned(strings: Strings, tables: dict[str, Table], more: Ints | None = None) -> Strings:
    """The same texts with the same codes, empty where no table uses them."""
    used: set[int] = set() if more is None else set(more.tolist())
    for name, table in tables.items():
        for column, values in table.known.items():
            if TABLES[name][column] == "text":
                used.update(np.unique(values).tolist())
    found = Strings()
    for code, text in enumerate(strings.texts):
        if code in used:
            found.put(code, text)
        else:
            found.texts.append("")
    return found


def _digest(timeline: Timeline) -> str:
    """What tells the records of two timelines apart."""
    found = hashlib.blake2b(digest_size=16)
    found.update("\0".join(timeline.strings.texts).encode("utf-8", "surrogatepass"))
    for name, table in sorted(timeline.tables.items()):
        for column, values in sorted(table.known.items()):
            found.update(f"{name}.{column}".encode())
            found.update(np.ascontiguousarray(values).data)
    return found.hexdigest()
