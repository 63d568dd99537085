"""Kernel classes: every row of the table decides its example, and known names get their part."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm.attribute import classify as c
from rca_llm.attribute.classify import ARGS, LONGEST, OTHER, Rule, classify, classify_all
from rca_llm.attribute.parts import CODE

ROWS = [rule for rule in c.rules() if rule.part != ARGS]
ARGS_ROWS = [rule for rule in c.rules() if rule.part == ARGS]


def shown(rule: Rule) -> str:
    return f"{rule.part} {rule.pattern[:40]}"


def first_row(name: str) -> Rule | None:
    """The deciding row found the slow way: every row is tried, in order."""
    text = c.subject(name)
    return next((rule for rule in ROWS if re.search(rule.pattern, text)), None)


@pytest.mark.parametrize("rule", ROWS, ids=shown)
def test_a_row_decides_its_own_example(rule: Rule) -> None:
    assert first_row(rule.example) == rule
    assert c.deciding_rule(rule.example) == rule
    assert classify(rule.example) == (rule.part, rule.also)


@pytest.mark.parametrize("rule", ARGS_ROWS, ids=shown)
def test_arguments_are_kept_for_the_names_that_need_them(rule: Rule) -> None:
    others = [row.pattern for row in ARGS_ROWS if row != rule]
    function = re.split("[<(]", c.subject(rule.example))[0]
    assert re.search(rule.pattern, function)
    assert not any(re.search(pattern, function) for pattern in others)
    assert len(c.subject(rule.example)) > len(function)


@pytest.mark.parametrize("rule", ROWS, ids=shown)
def test_a_row_names_parts_of_the_contract(rule: Rule) -> None:
    assert rule.part in CODE
    assert rule.part.startswith(("compute.", "communication."))
    assert rule.also is None or (rule.also in CODE and rule.also != rule.part)
    assert re.sub(r"\\.", "", rule.pattern).islower()
    assert rule.example
    assert rule.source


KNOWN = [
    # what the acceptance cases and the papers call communication
    ("ncclKernel_AllReduce_RING_LL_Sum_half", "communication.collective", None),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "communication.collective", None),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "communication.p2p", None),
    ("ncclSymkDevKernel_ReduceScatter_LL_sum_f8e4m3", "communication.collective", None),
    ("ncclSymDevKernel_AllGather_STMC", "communication.collective", None),
    (
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 4>(vllm::RankData*)",
        "communication.collective",
        None,
    ),
    (
        "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>()",
        "communication.collective",
        None,
    ),
    (
        "flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport",
        "communication.collective",
        "compute.norm",
    ),
    (
        "void flashinfer::trtllm_moe_allreduce_fusion::moereduction_allreduce_fusion_kernel"
        "_oneshot_lamport<(AllReduceFusionPattern)1, __half, 8>()",
        "communication.collective",
        "compute.norm",
    ),
    (
        "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8>()",
        "communication.collective",
        "compute.norm",
    ),
    (
        "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<8>()",
        "communication.collective",
        "compute.norm",
    ),
    ("multimem_all_reduce_kernel", "communication.collective", None),
    ("two_shot_all_reduce_kernel_inplace", "communication.collective", None),
    ("void one_shot_all_reduce_kernel<c10::BFloat16, 16>()", "communication.collective", None),
    ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>()", "communication.collective", None),
    (
        "void deep_ep::internode::notify_dispatch<false, 4>()",
        "communication.collective",
        None,
    ),
    ("moeA2ADispatchKernel", "communication.collective", None),
    ("a2a_combine_recv_kernel", "communication.collective", None),
    ("lmc::load_and_reshape_multi_layer_kernel<long, true>", "communication.kv_transfer", None),
    # a name that lists operators is not their kernel
    ("triton_poi_fused_all_reduce_add_0", "compute.elementwise", None),
    ("triton_poi_fused_constant_pad_nd_moe_forward_0", "compute.elementwise", None),
    # namespaces must not decide
    ("void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>()", "compute.norm", None),
    (
        "void flashinfer::sampling::TopPSamplingFromProbKernel<1024u>()",
        "compute.sampling",
        None,
    ),
    ("void fbgemm_gpu::permute_2D_data_kernel<false, int, int>()", "compute.memory", None),
    # nor element types
    (
        "void vllm::reshape_and_cache_kernel<unsigned short, unsigned char, "
        "(vllm::Fp8KVCacheDataType)1>(unsigned short const*)",
        "compute.memory",
        None,
    ),
    (
        "_Z32paged_attention_ll4mi_QKV_kernelIDF16_hLN4vllm18Fp8KVCacheDataTypeE1ELi16EEvPKT_",
        "compute.attention",
        None,
    ),
    # the template arguments decide
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>()", "compute.attention", None),
    (
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(Params)",
        "compute.gemm",
        None,
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
        "at::native::ArgMaxOps<float>, unsigned int, long, 4, 4> >(T3)",
        "compute.sampling",
        None,
    ),
    (
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, (deep_gemm::GemmType)0>",
        "compute.gemm",
        None,
    ),
    ("void marlin_moe_wna16::Marlin<1125899906909960l, 4>()", "compute.moe", None),
    ("fused_moe_kernel", "compute.moe", None),
    ("_gumbel_sample_kernel", "compute.sampling", None),
    ("kernel_unified_attention_2d", "compute.attention", None),
    ("void cunn_SoftMaxForward<4, float, float, float>(float*)", "compute.reduce", None),
    ("fusedQKNormRopeKernel", "compute.norm", None),
    ("gemm_x", "compute.gemm", None),
    ("norm_y", "compute.norm", None),
    ("stray_kernel", OTHER, None),
    ("", OTHER, None),
]


@pytest.mark.parametrize(("name", "part", "also"), KNOWN, ids=[k[0][:60] for k in KNOWN])
def test_known_names(name: str, part: str, also: str | None) -> None:
    assert classify(name) == (part, also)


def test_a_plain_all_reduce_of_the_fusion_kernel_has_no_second_class() -> None:
    name = "void allreduce_fusion_kernel_twoshot_sync<(trt::AllReduceFusionPattern){}, __half>()"
    found = [classify(name.format(pattern)).also for pattern in range(4)]
    assert found == [None, "compute.norm", "compute.norm", "compute.norm"]


def test_all_forms_of_one_kernel_agree() -> None:
    """Kineto demangles, ROCm traces often do not, Nsight's short name has no arguments."""
    forms = [
        "void vllm::rotary_embedding_kernel<c10::Half, true>(long const*, c10::Half*)",
        "_ZN4vllm23rotary_embedding_kernelIN3c104HalfELb1EEEvPKlPS2_",
        "rotary_embedding_kernel",
        "void vllm::rotary_embedding_kernel<c10::Half, (bool)1>(const long *, T1 *)",
    ]
    assert {classify(form) for form in forms} == {("compute.elementwise", None)}


def test_many_names_at_once_are_classified_like_single_ones() -> None:
    names = [rule.example for rule in c.rules()] * 2
    random.Random(1).shuffle(names)
    assert classify_all(names) == [classify(name) for name in names]


FRAGMENTS = (
    *("all_reduce", "gemm", "norm", "quant", "flash", "moe", "copy", "top", "k", "void "),
    *("::", "_", "<", ">", "(", ")", "_ZN", "4", "9999", "\x00", "é"),
)
words = st.sampled_from(FRAGMENTS)


@given(st.lists(words, max_size=30).map("".join))
def test_the_quick_search_decides_like_the_slow_one(name: str) -> None:
    slow = first_row(name)
    assert classify(name) == ((slow.part, slow.also) if slow else (OTHER, None))


@given(st.text(max_size=60))
def test_any_text_gets_a_part(name: str) -> None:
    assert classify(name).part in CODE


@pytest.mark.parametrize("name", ["a" * 10**6, "<" * 10**6, "_ZN" + "1a" * 10**6, "_Z9999x"])
def test_little_of_a_long_name_is_looked_at(name: str) -> None:
    assert len(c.subject(name)) <= LONGEST
    assert classify(name).part == OTHER
