"""Collectives from NCCL's profiler plugin and from its NVTX payloads, put onto kernels."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rca_llm import readers
from rca_llm.readers import nccl, nccl_rows
from rca_llm.table import UNKNOWN, Table
from rca_llm.trace import API, GPU, KERNEL, Input, Timeline
from tests.nsys_export import Export as NsysExport

PID, THREAD = 7, 70
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
TEXTS = ("", "AllReduce", "AllGather", "Send", "Recv", "ncclBfloat16", "ncclInt8", "RING", "LL")


class Scene:
    """A process with NCCL kernels, their launches and what NCCL told."""

    def __init__(self) -> None:
        self.timeline = Timeline(Input("scene", "run"))
        self.gpu: list[dict[str, Any]] = []
        self.api: list[dict[str, Any]] = []
        self.tasks: list[dict[str, Any]] = []
        self.calls: list[nccl_rows.Call] = []

    def kernel(
        self, name: str, start: int, *, launch: int | None = None, node: int = UNKNOWN, id: int = 0
    ) -> None:
        """A kernel of 50 ns, launched by the thread at a time where launches are recorded."""
        id = id or len(self.gpu) + 1
        code = self.timeline.strings.code(name)
        row = {"kind": KERNEL, "start": start, "end": start + 50, "name": code, "process": PID}
        self.gpu.append(row | {"correlation": id, "graph_node": node, "device": 0})
        if launch is not None:
            row = {"start": launch, "end": launch + 5, "process": PID, "thread": THREAD}
            self.api.append(row | {"correlation": id})

    def task(self, func: str, at: int, plan: int, count: int = 512, **named: Any) -> None:
        """A task that NCCL handed over."""
        row: dict[str, Any] = {"start": at, "plan": plan, "task": len(self.tasks) + 1, "comm": 255}
        row |= {"func": func, "datatype": "ncclBfloat16", "algo": "RING", "proto": "LL"}
        row |= {"count": count, "ranks": 4, "rank": 1, "thread": THREAD, "seq": -1, "peer": -1}
        self.tasks.append(row | named)

    def call(self, name: str, start: int, end: int, **numbers: int) -> None:
        """An NVTX range of NCCL."""
        fields = {
            "comm": nccl_rows.COMM,
            "bytes": nccl_rows.SIZE,
            "peer": nccl_rows.PEER_RANK,
            "ranks": nccl_rows.RANKS,
        }
        told = {fields[name]: value for name, value in numbers.items()}
        self.calls.append(nccl_rows.Call(name, start, end, THREAD, told))

    def read(self) -> list[dict[str, Any]]:
        """The collectives by start, as plain values."""
        timeline = self.timeline
        timeline.add("gpu", table(GPU, self.gpu))
        timeline.add("api", table(API, self.api))
        rows = nccl_rows.Rows(calls=self.calls)
        rows.add(nccl_rows.ROW_TASK, nccl_rows.TASK.itemsize, self._payload(), self._codes())
        nccl.add_rows(timeline, rows, PID)
        found = timeline["collectives"].sorted_by("start")
        return [_plain(timeline, found, row) for row in range(len(found))]

    def _codes(self) -> Any:
        return np.array(
            [-1, *(self.timeline.strings.code(text) for text in TEXTS[1:]), -1], np.int32
        )

    def _payload(self) -> bytes:
        rows = np.zeros(len(self.tasks), nccl_rows.TASK)
        for row, task in zip(rows, self.tasks, strict=True):
            for name, value in task.items():
                row[name] = TEXTS.index(value) if isinstance(value, str) else value
        return rows.tobytes()


def table(schema: Any, rows: Sequence[dict[str, Any]]) -> Table:
    """Rows as a table."""
    names = rows[0] if rows else {}
    return Table(schema, {name: [row[name] for row in rows] for name in names})


def _plain(timeline: Timeline, found: Table, row: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in ("comm", "op", "dtype", "algo", "proto"):
        values[name] = timeline.text(int(found[name][row]))
    for name in ("seq", "bytes", "group_size", "start", "correlation"):
        value = int(found[name][row])
        values[name] = None if value == UNKNOWN else value
    return values


def ops(found: Iterable[dict[str, Any]]) -> list[tuple[str, int | None]]:
    """Operation and size of each."""
    return [(one["op"], one["bytes"]) for one in found]


def test_a_task_is_that_of_the_launch_before_it() -> None:
    scene = Scene()
    scene.kernel(ALL_REDUCE, 1000, launch=100)
    scene.kernel(ALL_GATHER, 2000, launch=200)
    scene.task("AllReduce", 110, 1, seq=9)
    scene.task("AllGather", 210, 2, count=64, datatype="ncclInt8", asked_type="ncclBfloat16")
    first, second = scene.read()
    assert first == {
        "comm": "0xff", "op": "all_reduce", "dtype": "bf16", "algo": "RING", "proto": "LL",
        "seq": 9, "bytes": 1024, "group_size": 4, "start": 1000, "correlation": 1,
    }  # fmt: skip
    assert (second["op"], second["bytes"], second["dtype"]) == ("all_gather", 64, "bf16")
    assert scene.timeline.header.extra["nccl"]["by_plugin"] == 2


def test_a_launch_that_told_nothing_takes_nothing_of_its_neighbours() -> None:
    scene = Scene()
    for number in range(3):
        scene.kernel(ALL_REDUCE, 1000 * (number + 1), launch=100 * (number + 1))
    scene.task("AllReduce", 110, 1, seq=1)
    scene.task("AllReduce", 310, 2, seq=3)
    assert [(one["start"], one["seq"]) for one in scene.read()] == [(1000, 1), (3000, 3)]


def test_tasks_of_one_plan_are_one_kernel() -> None:
    scene = Scene()
    scene.kernel(ALL_REDUCE, 1000, launch=100)
    for _ in range(3):
        scene.task("AllReduce", 110, 1)
    assert ops(scene.read()) == [("all_reduce", 3 * 1024)]


@pytest.mark.parametrize(
    ("sends", "receives", "op", "comm"),
    [
        (range(4), range(4), "all_to_all", "0xff"),
        ([2], [], "send", "0xff 1-2"),
        ([], [0], "recv", "0xff 0-1"),
        ([3], [3], "send_recv", "0xff 1-3"),
        ([2], [0], "send_recv", "0xff"),
    ],
)
def test_an_exchange_by_its_peers(
    sends: Iterable[int], receives: Iterable[int], op: str, comm: str
) -> None:
    scene = Scene()
    scene.kernel(SEND_RECV, 1000, launch=100)
    for func, peers in (("Send", sends), ("Recv", receives)):
        for peer in peers:
            scene.task(func, 110, 1, peer=peer, kind=nccl_rows.PEER)
    (found,) = scene.read()
    assert (found["op"], found["comm"], found["bytes"]) == (op, comm, 1024)


def test_without_launches_kernels_follow_the_order_of_plans() -> None:
    """The first and the last kernel were lost; the device had nothing to do before the third."""
    scene = Scene()
    scene.kernel(ALL_GATHER, 250)
    scene.kernel(ALL_GATHER, 310)
    for number, func in enumerate(("AllReduce", "AllGather", "AllGather", "AllGather")):
        at = 100 * (number + 1)
        scene.task(func, at, number + 1, seq=number, launch=at - 10)
    assert [(one["start"], one["seq"]) for one in scene.read()] == [(250, 1), (310, 2)]


def test_a_kernel_may_begin_before_its_plan_is_handed_over() -> None:
    """NCCL hands the tasks over after the launch, and before 2.28 does not tell when that was."""
    scene = Scene()
    for number in range(3):
        scene.kernel(ALL_GATHER, 100 * (number + 1) - 5)
        scene.task("AllGather", 100 * (number + 1), number + 1, seq=number)
    assert [one["seq"] for one in scene.read()] == [0, 1, 2]


def test_kernels_that_fit_no_order_stay_alone() -> None:
    scene = Scene()
    scene.kernel(ALL_GATHER, 250)
    scene.kernel(ALL_REDUCE, 310)
    scene.task("AllReduce", 100, 1)
    scene.task("AllGather", 200, 2)
    assert scene.read() == []


def test_every_replay_of_a_captured_call_is_one() -> None:
    scene = Scene()
    for graph, at in ((1, 1000), (2, 3000), (1, 5000)):
        scene.kernel(ALL_REDUCE, at, node=graph << 32 | 3, id=at)
        scene.kernel(ALL_GATHER, at + 100, node=graph << 32 | 5, id=at)
    for plan in range(4):
        func = "AllGather" if plan % 2 else "AllReduce"
        scene.task(func, 10 + plan, plan + 1, count=plan + 1, capture=nccl_rows.CAPTURED, seq=4)
    found = scene.read()
    assert ops(found) == [
        ("all_reduce", 2), ("all_gather", 4), ("all_reduce", 6), ("all_gather", 8),
        ("all_reduce", 2), ("all_gather", 4),
    ]  # fmt: skip
    assert {one["seq"] for one in found} == {None}


def test_a_call_tells_of_the_kernel_launched_in_it() -> None:
    scene = Scene()
    scene.kernel(ALL_REDUCE, 1000, launch=110)
    scene.kernel(SEND_RECV, 2000, launch=250)
    scene.call("ncclCommInitRank", 1, 9, comm=255, ranks=2)
    scene.call("ncclAllReduce", 100, 120, comm=255, bytes=4096)
    scene.call("ncclGroupStart", 200, 201)
    for peer in (0, 1):
        scene.call("ncclSend", 210 + peer, 211 + peer, comm=255, bytes=64, peer=peer)
        scene.call("ncclRecv", 220 + peer, 221 + peer, comm=255, bytes=64, peer=peer)
    scene.call("ncclGroupEnd", 240, 260)
    found = scene.read()
    assert ops(found) == [("all_reduce", 4096), ("all_to_all", 64)]
    assert [one["comm"] for one in found] == ["0xff", "0xff"]
    assert [one["group_size"] for one in found] == [2, 2]


def test_of_several_launches_in_one_group_nobody_knows_which_is_whose() -> None:
    scene = Scene()
    scene.kernel(ALL_REDUCE, 1000, launch=110)
    scene.kernel(ALL_REDUCE, 2000, launch=112)
    scene.call("ncclGroupStart", 100, 101)
    scene.call("ncclAllReduce", 102, 103, comm=255, bytes=64)
    scene.call("ncclAllReduce", 104, 105, comm=256, bytes=64)
    scene.call("ncclGroupEnd", 106, 120)
    assert scene.read() == []


def test_both_sources_are_compared() -> None:
    scene = Scene()
    for number in range(2):
        at = 100 * (number + 1)
        scene.kernel(ALL_REDUCE, 1000 * (number + 1), launch=at)
        scene.task("AllReduce", at + 5, number + 1)
        scene.call("ncclAllReduce", at - 5, at + 10, comm=255, bytes=1024 * (number + 1))
    assert [one["bytes"] for one in scene.read()] == [1024, 1024]
    counts = scene.timeline.header.extra["nccl"]
    assert (counts["by_both"], counts["agree"]) == (2, 1)


def test_rows_that_grew_at_their_end_are_read() -> None:
    rows = nccl_rows.Rows()
    one = np.zeros(1, nccl_rows.TASK)
    one["count"] = 5
    rows.add(
        nccl_rows.ROW_TASK,
        nccl_rows.TASK.itemsize + 8,
        one.tobytes() + bytes(8),
        np.array([-1, -1]),
    )
    assert rows.all_tasks()["count"].tolist() == [5]


def test_the_release_is_told() -> None:
    timeline = Timeline(Input("scene", "run"))
    nccl.add_facts(timeline, [("nccl.interface", 5, None), ("nccl.version", 22809, None)])
    assert timeline.header.nccl == "2.28.9"


def test_payloads_in_an_export_of_nsight_systems(tmp_path: Path) -> None:
    export = NsysExport()
    for at, (name, type, offset) in enumerate(
        [(nccl_rows.COMM, 18, None), (nccl_rows.SIZE, 22, 8)]
    ):
        row = {"domainId": 3, "schemaId": 16777220, "idx": at, "name": name, "type": type}
        export.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", offset=offset, **row)
    head = struct.pack("<QQQQ", 3, 16777220, 16, 0)
    for number in range(2):
        at = 1000 * (number + 1)
        export.api("cudaLaunchKernelExC", at + 10, at + 20, number + 1)
        export.kernel(ALL_REDUCE, at + 50, at + 90, number + 1)
        blob = head + struct.pack("<QQ", 0xABCD, 4096 * (number + 1))
        text = export.string("ncclAllReduce")
        export.nvtx(59, at, at + 30, textId=text, domainId=3, binaryData=blob)
    trace = readers.load(export.write(tmp_path / "ranks.sqlite"))
    found = trace.timelines[0]["collectives"]
    assert found["bytes"].tolist() == [4096, 8192]
    assert {trace.timelines[0].text(code) for code in found["comm"].tolist()} == {"0xabcd"}
    assert set(found["process"].tolist()) == set(trace.timelines[0]["gpu"]["process"].tolist())


@pytest.mark.parametrize("blob", [b"", b"x" * 40, struct.pack("<QQQQ", 3, 16777220, 99, 0)])
def test_a_payload_that_is_none(blob: bytes, tmp_path: Path) -> None:
    export = NsysExport()
    export.add(
        "NVTX_PAYLOAD_SCHEMA_ENTRIES", schemaId=16777220, name=nccl_rows.SIZE, type=22, offset=0
    )
    export.api("cudaLaunchKernelExC", 10, 20, 1)
    export.kernel(ALL_REDUCE, 50, 90, 1)
    export.nvtx(59, 0, 30, textId=export.string("ncclAllReduce"), domainId=3, binaryData=blob)
    trace = readers.load(export.write(tmp_path / "ranks.sqlite"))
    assert not len(trace.timelines[0]["collectives"])
