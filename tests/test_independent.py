"""Shares recomputed from the raw records by other arithmetic than the toolkit's own.

The device's part of every window is added up here by a sweep over sorted edges, straight from the
SQL rows of Nsight exports and from the collector's raw rows; nothing of `rca_llm.attribute` or
`rca_llm.intervals` takes part. On what two H200 sessions recorded, both must agree to the
nanosecond (within the conversion of clocks where there is one).
"""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rca_llm
from rca_llm.readers import cupti_rows, segments
from tests.traced import ROOT

COMPUTE, COMMUNICATION, IO, MEMORY = "compute", "communication", "io", "memory"
"""What a device does, in the order in which it is believed."""
Record = tuple[int, int, str]
Call = tuple[int, int, str]


def swept(records: Sequence[Record], start: int, end: int) -> Counter[str]:
    """ns of a window by what the device did, each instant told by the first kind that runs."""
    edges: list[tuple[int, int, str]] = []
    for begun, ended, kind in records:
        if ended > start and begun < end and ended > begun:
            edges += [(max(begun, start), 1, kind), (min(ended, end), -1, kind)]
    edges.sort()
    found: Counter[str] = Counter()
    running: Counter[str] = Counter()
    last = start
    for at, change, kind in edges:
        on = [name for name in (COMPUTE, COMMUNICATION, IO, MEMORY) if running[name]]
        found[on[0] if on else "idle"] += at - last
        running[kind] += change
        last = at
    found["idle"] += end - last
    return found


def apart(shares: dict[str, int], records: Sequence[Record], start: int, end: int) -> list[int]:
    """What the shares say more than the sweep, class by class."""
    mine = swept(records, start, end)
    return [
        shares["compute"] - mine[COMPUTE] - mine[MEMORY],
        shares["communication"] - mine[COMMUNICATION],
        shares["io"] - mine[IO],
        shares["scheduling"] - mine["idle"],
        shares["unknown"],
    ]


# ------------------------------------------------------------------ Nsight


class Export:
    """The raw rows of an Nsight export, times in UTC."""

    def __init__(self, path: Path) -> None:
        with sqlite3.connect(path) as database:
            self._rows = database.execute
            self._names = dict(self._rows("SELECT id, value FROM StringIds"))
            ((self._utc,),) = self._rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
            self.device = self._device()
            self.calls = self._calls()
        database.close()

    def _table(self, name: str, columns: str) -> list[tuple[int, ...]]:
        there = self._rows("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchall()
        found = self._rows(f"SELECT start, end, {columns} FROM {name}") if there else ()
        return [(row[0] + self._utc, row[1] + self._utc, *row[2:]) for row in found]

    def _device(self) -> list[Record]:
        kind = {1: IO, 2: IO, 8: MEMORY}
        found: list[Record] = []
        for begun, ended, name in self._table("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"):
            nccl = self._names[name].lower().startswith("nccl")
            found.append((begun, ended, COMMUNICATION if nccl else COMPUTE))
        for begun, ended, _ in self._table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graphId"):
            found.append((begun, ended, COMPUTE))
        for begun, ended, copy in self._table("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind"):
            found.append((begun, ended, kind[copy]))
        for begun, ended, _ in self._table("CUPTI_ACTIVITY_KIND_MEMSET", "bytes"):
            found.append((begun, ended, MEMORY))
        return found

    def _calls(self) -> list[Call]:
        """Calls of the thread that launches most."""
        rows = self._table("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId, globalTid")
        launching = Counter(row[3] for row in rows if "Launch" in self._names[row[2]])
        ((thread, _),) = launching.most_common(1)
        return [(row[0], row[1], self._names[row[2]]) for row in rows if row[3] == thread]


def called(export: Export, start: int, end: int, *begins: str) -> int:
    """ns of a window in which the device is idle and the innermost call is one of these."""
    records = (*export.device, *export.calls)
    inside = {edge for one in records for edge in one[:2] if start < edge < end}
    edges = sorted({start, end} | inside)
    places = {edge: place for place, edge in enumerate(edges)}
    busy, inner = np.zeros(len(edges), bool), np.full(len(edges), -1)
    for begun, ended, _ in export.device:
        if ended > start and begun < end:
            busy[places[max(begun, start)] : places[min(ended, end)]] = True
    ours = sorted((c for c in export.calls if c[1] > start and c[0] < end), key=lambda c: c[0])
    for number, (begun, ended, _) in enumerate(ours):  # a later one lies inside an earlier one
        inner[places[max(begun, start)] : places[min(ended, end)]] = number
    wanted = np.array([name.startswith(begins) for _, _, name in ours])
    lengths = np.diff(edges, append=edges[-1])
    chosen = ~busy & (inner >= 0)
    chosen[chosen] = wanted[inner[chosen]]
    return int(lengths[chosen].sum())


NSIGHT = {
    "generate": ("generate.nsys.sqlite.gz", None),
    "vLLM, nodes": ("vllm-node.nsys.sqlite.gz", "vllm-node.requests.jsonl"),
    "vLLM, graphs": ("vllm-graph.nsys.sqlite.gz", "vllm-graph.requests.jsonl"),
}


@pytest.fixture(scope="module", params=NSIGHT)
def nsight(
    request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Export, dict[str, Any]]:
    """An export's raw rows, and what the toolkit says of it."""
    name, requests = NSIGHT[request.param]
    folder = shared / "data" / "h200"
    path = tmp_path_factory.mktemp("nsight") / "export.sqlite"
    with gzip.open(folder / name) as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)
    inputs = [folder / name, *([folder / requests] if requests else [])]
    return Export(path), rca_llm.load(*inputs).attribute().summary


def test_every_window_of_an_export_is_what_its_rows_add_up_to(
    nsight: tuple[Export, dict[str, Any]],
) -> None:
    export, summary = nsight
    window = summary["window"]
    shares = summary["shares"]
    assert apart(shares, export.device, window["start_ns"], window["end_ns"]) == [0] * 5
    for step in summary["steps"]:
        found = apart(step["shares"], export.device, step["start_ns"], step["end_ns"])
        assert found == [0] * 5, step["id"]
    assert summary["requests"]
    for row in summary["requests"]:
        end = row["start_ns"] + row["latency_ns"]
        queue = row["parts"].get("scheduling.queue", 0)  # the device works for others meanwhile
        served = row["shares"] | {"scheduling": row["shares"]["scheduling"] - queue}
        assert apart(served, export.device, row["start_ns"] + queue, end) == [0] * 5, row["id"]


def test_launching_and_waiting_of_an_export_are_what_its_calls_add_up_to(
    nsight: tuple[Export, dict[str, Any]],
) -> None:
    export, summary = nsight
    for row in summary["requests"][:5]:
        parts = row["parts"]
        start = row["start_ns"] + parts.get("scheduling.queue", 0)
        end = row["start_ns"] + row["latency_ns"]
        launches = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemset")
        assert parts["scheduling.launch"] == called(export, start, end, *launches), row["id"]
        waits = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
        assert parts.get("scheduling.sync", 0) == called(export, start, end, *waits), row["id"]


# ------------------------------------------------------------------ our own recording


CLOCKS_NS = 200
"""By how much the edges of a step may move between our clock and UTC."""


def test_every_step_of_a_recording_is_what_its_raw_rows_add_up_to(tmp_path: Path) -> None:
    with tarfile.open(ROOT / "tests" / "data" / "h200" / "vllm.rca.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    run = tmp_path / "vllm.rca"
    records = sorted(raw(run))
    starts = np.array([begun for begun, _, _ in records])
    trace = rca_llm.load(run)
    summary = trace.attribute().summary
    monotonic, utc = trace.timelines[0].header.anchors[0]
    longest = max(ended - begun for begun, ended, _ in records)
    assert len(summary["steps"]) == 425
    for step in summary["steps"]:
        start, end = (step[name] - utc + monotonic for name in ("start_ns", "end_ns"))
        first, last = np.searchsorted(starts, (start - longest, end))
        mine = swept(records[first:last], start, end)
        compute = mine[COMPUTE] + mine[MEMORY]
        assert abs(step["shares"]["compute"] - compute) <= CLOCKS_NS, step["id"]
        # The host's own files and sockets count as well, while the device is idle.
        assert step["shares"]["io"] >= mine[IO] - CLOCKS_NS, step["id"]
        assert sum(step["shares"].values()) == step["end_ns"] - step["start_ns"]


def raw(run: Path) -> list[Record]:
    """The collector's rows of kernels and copies, as they lie in the segments."""
    found: list[Record] = []
    for path in sorted((run / "segments").glob("*.seg")):
        segment = segments.parse(path.name, path.read_bytes())
        for buffer in segment.buffers if segment is not None else ():
            kind = int(buffer.cell["c"])
            if kind not in (1, 2):
                continue
            size, known = int(buffer.cell["d"]), cupti_rows.ROWS[kind]
            names = ["start", "end", *(["copy"] if kind == 2 else [])]
            places = [known.fields[name] for name in names] if known.fields else []
            row = np.dtype(
                {
                    "names": names,
                    "formats": [place[0] for place in places],
                    "offsets": [place[1] for place in places],
                    "itemsize": size,  # collectors of other versions write longer or shorter rows
                }
            )
            rows = np.frombuffer(buffer.data, row)
            told = [COMPUTE] * len(rows)
            if kind == 2:
                told = [IO if copy in (1, 2) else MEMORY for copy in rows["copy"].tolist()]
            found += zip(rows["start"].tolist(), rows["end"].tolist(), told, strict=True)
    return found
