"""API-call classes: every row decides its example, and all tracers' spellings agree."""

from __future__ import annotations

import re

import pytest

from rca_llm.attribute import calls
from rca_llm.attribute.calls import CALL_CLASSES, CallRule, call_class


@pytest.mark.parametrize("rule", calls.call_rules(), ids=[r.pattern for r in calls.call_rules()])
def test_a_row_decides_its_own_example(rule: CallRule) -> None:
    text = calls.operation(rule.example)
    first = next(row for row in calls.call_rules() if re.fullmatch(row.pattern, text))
    assert first == rule
    assert call_class(rule.example) == rule.call_class


def test_every_class_but_other_has_a_row() -> None:
    assert {rule.call_class for rule in calls.call_rules()} == set(CALL_CLASSES) - {"other"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("cudaLaunchKernel cudaLaunchKernel_v7000 cudaLaunchKernel_ptsz_v7000", "launch"),
        ("cuLaunchKernel cuLaunchKernelEx cudaLaunchKernelExC_v11060", "launch"),
        ("hipLaunchKernel hipExtModuleLaunchKernel hipModuleLaunchKernel", "launch"),
        ("hipExtLaunchKernel cudaLaunchCooperativeKernel", "launch"),
        ("cudaGraphLaunch cuGraphLaunch_ptsz hipGraphLaunch", "graph_launch"),
        ("cudaStreamSynchronize_v3020 cuCtxSynchronize hipEventSynchronize", "sync"),
        ("cudaMemcpy_v3020 cuMemcpyHtoD_v2 hipMemcpyWithStream", "copy_sync"),
        ("cudaMemcpyAsync_v3020 cuMemcpyDtoHAsync_v2 hipMemcpyAsync cuMemcpyDtoD_v2", "copy"),
        ("cudaMemsetAsync cuMemsetD8Async hipMemsetAsync", "copy"),
        ("cudaMalloc cudaFree_v3020 cuMemAlloc_v2 cudaMallocAsync_v11020", "alloc"),
        ("cudaHostAlloc hipHostMalloc cuMemHostRegister_v2 hipFree", "alloc"),
        ("cuModuleLoadDataEx cuLibraryLoadData hipModuleLoad cudaFuncGetAttributes", "jit"),
        ("cudaStreamBeginCapture_v10000 cuStreamEndCapture cudaGraphInstantiate", "graph_capture"),
        ("cudaStreamWaitEvent cudaEventQuery_v3020 cudaStreamIsCapturing cudaEventRecord", "other"),
        ("hipGetDevicePropertiesR0600 cudaGraphDestroy INVALID cuda cu", "other"),
    ],
)
def test_all_spellings_agree(names: str, expected: str) -> None:
    assert {call_class(name) for name in names.split()} == {expected}


@pytest.mark.parametrize("name", ["", "launchKernel", "mycudaMalloc", "cudaLaunchKernelOf(x)"])
def test_look_alikes_are_other(name: str) -> None:
    assert call_class(name) == "other"
