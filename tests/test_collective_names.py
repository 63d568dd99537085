"""Names of operations and element types, whoever spells them."""

from __future__ import annotations

import pytest

from rca_llm.attribute.collective_names import element_type, operation, operation_in


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("AllReduce", "all_reduce"),
        ("ncclAllGather", "all_gather"),
        ("Bcast", "broadcast"),
        ("AlltoAll", "all_to_all"),
        ("SendRecv", "send_recv"),
        ("Recv", "recv"),
        ("_allgather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("allreduce_coalesced", "all_reduce"),
        ("Reduce", "reduce"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclArgs<4096ul>)",
            "all_reduce",
        ),
        ("wait", "wait"),
        ("", ""),
        (None, None),
    ],
)
def test_an_operation_in_one_spelling(name: str | None, wanted: str | None) -> None:
    assert operation(name) == wanted


def test_a_kernel_of_no_known_operation_has_none() -> None:
    assert operation_in("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)") is None


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("ncclBfloat16", ("bf16", 2)),
        ("c10::BFloat16", ("bf16", 2)),
        ("torch.float32", ("fp32", 4)),
        ("Half", ("fp16", 2)),
        ("Float8_e4m3fn", ("fp8_e4m3", 1)),
        ("ncclFloat8e5m2", ("fp8_e5m2", 1)),
        ("Long", ("int64", 8)),
        ("complex64", ("complex64", None)),
        (None, (None, None)),
    ],
)
def test_an_element_type_in_one_spelling(
    name: str | None, wanted: tuple[str | None, int | None]
) -> None:
    assert element_type(name) == wanted
