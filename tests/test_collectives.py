"""Collectives are matched across ranks only where that is no guess; broken ranks cost no others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rca_llm import load
from rca_llm.errors import UnreadableInput
from rca_llm.trace import Trace
from tests.timelines import Builder, findings

US = 1_000
BASE = 1_700_000_000_000_000_000
KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
SEND = "ncclDevKernel_SendRecv"


def rank(number: int, world: int = 2) -> Builder:
    return Builder(rank=number, world_size=world, host="h")


def summary(*builders: Builder) -> dict[str, Any]:
    return Trace([builder.build() for builder in builders]).attribute().summary


def collective(builder: Builder, seq: int | None, start: int, end: int, **more: Any) -> None:
    values = {"comm": "tp", "op": "all_reduce", "process": 1} | more
    if seq is not None:
        values["seq"] = seq
    builder.row("collectives", start=BASE + start, end=BASE + end, **values)


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 4 * 0.75),
        ("reduce_scatter", 4 * 0.75),
        ("all_to_all", 4 * 0.75),
        ("gather", 4 * 0.75),
        ("scatter", 4 * 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(op: str, factor: float) -> None:
    """1 MB a rank on four ranks in 100 us after the last arrival, by doc/PERFORMANCE.md."""
    builders = [rank(number, 4) for number in range(4)]
    for number, builder in enumerate(builders):
        collective(builder, 0, number * US, 103 * US, op=op, bytes=1_000_000)
    [row] = summary(*builders)["collectives"]
    assert row["transfer_ns"] == 100 * US
    assert row["busbw_bytes_s"] == round(1_000_000 * factor / 100e-6)


def test_kernels_without_a_number_are_matched_by_order_on_each_stream() -> None:
    """The streams have other ids, and their kernels interleave otherwise, on the second rank."""
    first, second = rank(0), rank(1)
    for start, stream in ((0, 7), (100, 9), (200, 7)):
        first.kernel(KERNEL, BASE + start * US, BASE + (start + 50) * US, stream=stream)
    for start, stream in ((10, 17), (110, 19), (210, 17)):
        second.kernel(KERNEL, BASE + start * US, BASE + (start + 40) * US, stream=stream)
    found = summary(first, second)
    assert [row["last_rank"] for row in found["collectives"]] == [1, 1, 1]
    assert {row["wait_ns"]["0"] for row in found["collectives"]} == {10 * US}
    assert not findings(found, "unlinked_kernels")


def test_kernels_of_unequal_number_are_left_alone_and_counted() -> None:
    first, second = rank(0), rank(1)
    for start in (0, 100, 200):
        first.kernel(KERNEL, BASE + start * US, BASE + (start + 50) * US)
    for start in (110, 210):
        second.kernel(KERNEL, BASE + start * US, BASE + (start + 40) * US)
    found = summary(first, second)
    assert {row["wait_ns"] is None for row in found["collectives"]} == {True}
    [row] = findings(found, "unlinked_kernels")
    assert row["count"] == 5
    assert "100.0%" in row["detail"]


def test_groups_that_cannot_be_one_are_not_matched() -> None:
    """Equally many on both ranks, but the one leaves before the other comes."""
    first, second = rank(0), rank(1)
    for start in (0, 1000, 2000):
        first.kernel(KERNEL, BASE + start * US, BASE + (start + 50) * US)
        second.kernel(KERNEL, BASE + (start + 400) * US, BASE + (start + 450) * US)
    assert {len(row["ranks"]) for row in summary(first, second)["collectives"]} == {1}


@pytest.mark.parametrize(("world", "together"), [(2, 2), (4, 1)])
def test_sends_are_matched_only_where_there_is_one_pair(world: int, together: int) -> None:
    builders = [rank(number, world) for number in range(world)]
    for builder in builders:
        builder.kernel(SEND, BASE, BASE + 50 * US)
    assert {len(row["ranks"]) for row in summary(*builders)["collectives"]} == {together}


def test_a_group_of_some_ranks_is_complete_without_the_others() -> None:
    builders = [rank(number, 4) for number in range(4)]
    for number, builder in enumerate(builders):
        collective(builder, 0, (number % 2) * 10 * US, 60 * US, comm=f"tp{number // 2}")
    rows = summary(*builders)["collectives"]
    assert sorted((row["ranks"], row["last_rank"]) for row in rows) == [([0, 1], 1), ([2, 3], 3)]


def test_with_a_rank_missing_nobody_is_called_last() -> None:
    builders = [rank(number, 3) for number in range(2)]
    for number, builder in enumerate(builders):
        collective(builder, 0, number * 10 * US, 60 * US)
    found = summary(*builders)
    [row] = found["collectives"]
    assert (row["last_rank"], row["wait_ns"], row["transfer_ns"]) == (None, None, None)
    assert findings(found, "missing_rank")[0]["count"] == 1


def test_arriving_at_once_nobody_is_last() -> None:
    builders = [rank(0), rank(1)]
    for builder in builders:
        collective(builder, 0, 0, 50 * US)
    [row] = summary(*builders)["collectives"]
    assert row["last_rank"] is None
    assert row["transfer_ns"] == 50 * US


def events(folder: Path, number: int, **header: Any) -> Path:
    """An event file of one rank of two, with one kernel and its launch."""
    first = {"type": "header", "schema": "rca-llm/events/1", "clock": "utc", "job": "a"}
    first |= {"host": "h", "rank": number, "world_size": 2} | header
    kernel = {"type": "gpu", "kind": "kernel", "device": 0, "stream": 7, "pid": 1}
    kernel |= {"start": BASE + number, "end": BASE + 100, "name": "gemm_x", "correlation": 1}
    call = {"type": "api", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "correlation": 1}
    call |= {"start": BASE + number - 10, "end": BASE + number - 5}
    path = folder / f"rank{number}{header.get('job', '')}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (first, call, kernel)), "utf-8")
    return path


def codes(folder: Path) -> tuple[list[int], set[str]]:
    """The ranks that were analysed in a folder, and what was found wrong."""
    found = load(folder).attribute().summary
    ranks = [row["rank"] for row in found["ranks"] if row["status"] == "traced"]
    return ranks, {row["code"] for row in found["quality"]}


def test_a_truncated_rank_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    events(tmp_path, 0)
    path = events(tmp_path, 1)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"type":"gpu","kind":"ker')
    ranks, found = codes(tmp_path)
    assert ranks == [0, 1]
    assert "truncated" in found


@pytest.mark.parametrize("rest", [b"", b'{"type":"header","schema":"rca-llm/events/1"}\n'])
def test_an_empty_rank_is_missing(tmp_path: Path, rest: bytes) -> None:
    events(tmp_path, 0)
    events(tmp_path, 1).write_bytes(rest)
    ranks, found = codes(tmp_path)
    assert (ranks, found) == ([0], {"truncated"})


def test_a_broken_rank_among_several_paths_costs_no_other(tmp_path: Path) -> None:
    sound, broken = events(tmp_path, 0), tmp_path / "broken"
    broken.write_bytes(b"\x00\x01 no trace")
    found = load(sound, broken).attribute().summary
    assert [row["status"] for row in found["ranks"]] == ["traced", "missing"]
    assert findings(found, "truncated")[0]["where"] == str(broken)
    with pytest.raises(UnreadableInput):
        load(broken, broken)


def test_a_rank_of_another_job_is_left_out(tmp_path: Path) -> None:
    events(tmp_path, 0)
    events(tmp_path, 1)
    events(tmp_path, 5, job="b")
    assert codes(tmp_path) == ([0, 1], {"foreign_rank"})


def test_a_rank_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    events(tmp_path, 0)
    shutil.copy(events(tmp_path, 1), tmp_path / "copy.jsonl")
    assert codes(tmp_path) == ([0, 1], {"duplicate_rank"})


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", "all_reduce"),
        (
            "quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>",
            "all_reduce",
        ),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()",
            "all_reduce",
        ),
        (
            "flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport",
            "all_reduce",
        ),
        ("ncclSymkDevKernel_AllGather_ST(ncclSymkDevWorkArgs4K)", "all_gather"),
        ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)", "dispatch"),
        ("void deep_ep::intranode::combine<8>(void*)", "combine"),
        ("void a2a_dispatch_send_kernel<true, 8, 8>()", "dispatch"),
        ("nvshmemi_barrier_all_kernel", "barrier"),
    ],
)
def test_kernels_that_bypass_torch_are_collectives_by_their_names(name: str, op: str) -> None:
    """vLLM's and SGLang's own, PyTorch's symmetric memory, FlashInfer, NCCL and DeepEP."""
    builders = [rank(number) for number in range(2)]
    for number, builder in enumerate(builders):
        builder.kernel(name, BASE + number * US, BASE + 9 * US)
    [row] = summary(*builders)["collectives"]
    assert (row["op"], row["ranks"], row["last_rank"]) == (op, [0, 1], 1)


def test_groups_of_ranks_say_who_holds_whom_up_and_how_even_experts_are() -> None:
    """Two tensor-parallel groups and one of experts; rank 3 comes late in its own."""
    builders = [rank(number, 4) for number in range(4)]
    for number, builder in enumerate(builders):
        group = "tp [0,1]" if number < 2 else "tp [2,3]"
        for seq in range(10):
            start, late = seq * 1000 * US, 400 * US * (number == 3)
            times = start + late, start + 500 * US
            collective(builder, seq, *times, comm=group, group_size=2, bytes=4096)
            meet = start + 700 * US + number
            collective(builder, seq, meet, start + 750 * US, comm="ep [0-3]", op="all_to_all")
            moe = 50 * US * (1 + number)
            begin = BASE + start + 510 * US
            builder.kernel("fused_moe_kernel", begin, begin + moe)
    found = {row["comm"]: row for row in summary(*builders)["groups"]}
    assert {name: row["kind"] for name, row in found.items()} == {
        "tp [0,1]": "tensor",
        "tp [2,3]": "tensor",
        "ep [0-3]": "expert",
    }
    assert found["tp [0,1]"]["straggler"] is None
    assert found["tp [2,3]"]["straggler"] == 3
    assert found["tp [2,3]"]["wait_ns"] == {"2": 10 * 400 * US, "3": 0}
    assert found["tp [2,3]"]["last"] == {"2": 0, "3": 10}
    bucket = found["tp [2,3]"]["buckets"][0]
    assert (bucket["op"], bucket["bytes"], bucket["count"]) == ("all_reduce", 4096, 10)
    assert bucket["transfer_ns"] == {"p50": 100 * US, "p99": 100 * US}
    experts = found["ep [0-3]"]
    assert experts["moe_ns"] == {str(n): 10 * 50 * US * (1 + n) for n in range(4)}
    assert experts["moe_imbalance"] == pytest.approx(1.6)


def test_files_of_several_ranks_each_are_counted_on() -> None:
    """Two hosts of two ranks, whose files count their own ranks from 0."""
    builders = [Builder(host=f"h{number}") for number in range(2)]
    for builder in builders:
        for process in (1, 2):
            builder.row("processes", process=process, name=f"Worker_{process - 1}")
            builder.kernel("gemm", BASE, BASE + 100, process=process)
    assert [row["rank"] for row in summary(*builders)["ranks"]] == [0, 1, 2, 3]
