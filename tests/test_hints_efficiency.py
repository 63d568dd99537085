"""Hints about the device: launch shapes, unfused attention, clocks, shared and sliced devices."""

from __future__ import annotations

import pytest

from rca_llm.hardware import tail_share
from tests.scenes import GEMM, MS, US, S, Scene, hint, ids

PERIOD = 10 * MS
ELEMENTWISE = "vectorized_elementwise_kernel"


def shaped(
    blocks: int,
    threads: int,
    registers: int = 32,
    *,
    part: int = 2 * MS,
    name: str = ELEMENTWISE,
    shared: int = 0,
) -> Scene:
    """Steps of which `part` is one kernel of a shape, the rest a kernel that fills the device."""
    scene, tokens = Scene(), []
    fine = {"grid_x": 1056, "grid_y": 1, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1}
    odd = fine | {"grid_x": blocks, "block_x": threads}
    for i in range(20):
        start = i * PERIOD
        scene.step(i, start, start + PERIOD, R="decode" if i else "prefill")
        scene.work(GEMM, start, start + PERIOD - part, graph=True, registers=32, shared=0, **fine)
        begin = start + PERIOD - part
        scene.kernel(name, begin, begin + part, registers=registers, shared=shared, **odd)
        tokens.append(start + PERIOD)
    scene.request("R", 0, tokens)
    return scene


def on(scene: Scene, name: str = "NVIDIA H200", **limits: int) -> Scene:
    """The same scene on a known device."""
    scene.device(name=name, **limits)
    return scene


def test_a_block_of_32_threads() -> None:
    found = hint(on(shaped(100_000, 32)).summary(), "R27")
    assert found["class"] == "compute"
    assert found["confidence"] == "low"
    assert found["title"].startswith("Possible")
    assert found["evidence"]["theoretical_occupancy"] == 0.5
    assert found["saving_ns"] is None


def test_few_warps_for_want_of_shared_memory_cost_at_most_the_warps_that_are_missing() -> None:
    found = hint(on(shaped(100_000, 32, shared=32 << 10)).summary(), "R27")
    assert found["evidence"]["theoretical_occupancy"] == 6 / 64
    assert found["saving_ns"] == found["evidence"]["saving_most_ns"]
    assert found["saving_ns"] == pytest.approx(20 * 2 * MS * (1 - 6 / 64))
    # Registers take the place of warps in many kernels; nobody knows what more warps would save.
    many = hint(on(shaped(100_000, 32, 64, shared=32 << 10)).summary(), "R27")
    assert many["saving_ns"] is None


def test_tiny_blocks_are_seen_without_the_device_where_the_grid_exceeds_any() -> None:
    assert "R27" in ids(shaped(100_000, 32).summary())
    assert "R27" not in ids(shaped(200, 32).summary())


def test_registers_that_allow_little_occupancy() -> None:
    found = hint(on(shaped(132, 256, 255, part=3 * MS)).summary(), "R27")
    assert found["evidence"]["theoretical_occupancy"] == 0.125


@pytest.mark.parametrize(
    "scene",
    [
        on(shaped(1056, 256, 128)),
        on(shaped(100_000, 32, part=400 * US)),
        on(shaped(132, 256, 255, name=GEMM)),
        on(shaped(132, 256, 255, name="flash_fwd_kernel")),
        shaped(132, 256, 255),
    ],
    ids=["25 %", "4 % of the step", "matrix product", "attention", "unknown device"],
)
def test_shapes_that_are_no_finding(scene: Scene) -> None:
    assert "R27" not in ids(scene.summary())


def test_a_grid_that_leaves_multiprocessors_empty() -> None:
    found = hint(on(shaped(66, 1024)).summary(), "R28")
    assert "fills 66 of 132 SMs" in found["title"]
    assert found["evidence"]["filled_share"] == 0.5
    assert found["saving_ns"] == 20 * 1 * MS


def test_a_last_wave_that_is_hardly_filled() -> None:
    found = hint(on(shaped(1100, 256)).summary(), "R28")
    assert found["evidence"]["waves"] == pytest.approx(1100 / 1056)
    assert found["evidence"]["filled_share"] == pytest.approx(1100 / 2112)
    # Eight blocks of eight warps take 8 of the time of one among them, one alone 2.
    assert found["saving_ns"] == pytest.approx(20 * 2 * MS * (1 - (1100 / 132) / 10), rel=1e-3)
    assert found["evidence"]["saving_most_ns"] == pytest.approx(20 * 2 * MS * (1012 / 2112))


def test_a_block_alone_on_a_multiprocessor_is_quicker_where_its_warps_suffice() -> None:
    # Two blocks of 32 warps share the schedulers; one alone fills them, and takes half as long.
    assert tail_share(266, 1024, 2, 132) == pytest.approx(1 - (266 / 132) / 3)
    # A warp alone is as slow as 16 of them together: a last wave of it takes as long as those.
    assert tail_share(132 * 16 + 1, 32, 16, 132) == pytest.approx(1 - (2113 / 132) / 32)
    assert tail_share(264, 1024, 2, 132) is None
    assert tail_share(0, 1024, 2, 132) is None


@pytest.mark.parametrize(
    "scene",
    [
        on(shaped(1056, 256)),
        on(shaped(1056 * 4 + 10, 256)),
        on(shaped(132, 256)),
        on(shaped(1100, 256, part=400 * US)),
        shaped(66, 1024),
    ],
    ids=["one full wave", "over four waves", "a block each", "4 % of the step", "unknown device"],
)
def test_grids_that_are_no_finding(scene: Scene) -> None:
    assert "R28" not in ids(scene.summary())


def test_device_efficiency_is_silent_under_a_larger_queue() -> None:
    scene = on(shaped(66, 1024))
    scene.rows["requests"][0]["arrival"] = -300 * MS
    scene.rows["requests"][0]["scheduled"] = 0
    summary = scene.summary()
    assert summary["hints"][0]["id"] == "R01" if summary["hints"] else True
    assert "R28" not in ids(summary) or summary["hints"][0]["id"] != "R28"


def test_device_efficiency_is_silent_where_an_unnamed_queue_explains_more() -> None:
    scene = on(shaped(66, 1024))
    for n in range(20):
        scene.request(f"q{n}", 0, [100 * MS + n, 200 * MS], scheduled=30 * MS)
    summary = scene.summary()
    assert not ids(summary) & {"R01", "R28"}


SEQUENCE = (
    "ampere_bf16_s16816gemm_bf16_128x64",
    "elementwise_kernel",
    "softmax_warp_forward",
    "ampere_bf16_s16816gemm_bf16_64x64",
)


def attention(layers: int, each: int, *, names: tuple[str, ...] = SEQUENCE) -> Scene:
    """A prefill of `layers` attention sequences and other products, then decodes."""
    scene, t = Scene(), 0
    for _ in range(layers):
        for name in names:
            scene.kernel(name, t, t + each)
            t += each
        scene.kernel("rms_norm_kernel", t, t + 50 * US)
        scene.kernel("nvjet_gemm", t + 50 * US, t + 1 * MS)
        scene.kernel("silu_elementwise", t + 1 * MS, t + 1_050 * US)
        scene.kernel("rms_norm_kernel", t + 1_050 * US, t + 1_100 * US)
        t += 1_100 * US
    scene.step(0, 0, t, R="prefill")
    scene.request("R", 0, [t])
    return scene


def test_attention_as_products_and_softmax() -> None:
    found = hint(attention(4, 100 * US).summary(), "R26")
    assert found["evidence"]["sequences"] == 4
    evidence = found["evidence"]
    # Without the kernels between, and with a quarter of them for each product's way to memory.
    assert evidence["saving_least_ns"] == evidence["between_products_ns"] == 4 * 200 * US
    assert evidence["saving_most_ns"] == 4 * 300 * US
    assert found["saving_ns"] == 4 * 250 * US


def test_a_small_part_of_the_prefill() -> None:
    assert "R26" not in ids(attention(4, 20 * US).summary())


def test_fused_attention_in_the_same_run() -> None:
    scene = attention(4, 100 * US)
    scene.kernel("flash_fwd_splitkv_kernel", 0, 50 * US, stream=9)
    assert "R26" not in ids(scene.summary())


def test_the_softmax_of_sampling_is_no_attention() -> None:
    names = ("nvjet_gemm", "softmax_warp_forward", "top_k_sampling_kernel", "nvjet_gemm")
    assert "R26" not in ids(attention(4, 100 * US, names=names).summary())


def clocked(slow_ratio: float, clock: float, reasons: int, *, power: float = 700.0) -> Scene:
    """40 steps, the second half with another clock, power and speed; three kinds of kernels."""
    scene, t, tokens = Scene(), 0, []
    scene.device()
    for i in range(40):
        slow = i >= 20
        start = t
        for name in ("nvjet_gemm", "rms_norm_kernel", ELEMENTWISE):
            lasting = round(3 * MS * (slow_ratio if slow else 1))
            scene.kernel(name, t, t + lasting)
            t += lasting
        scene.step(i, start, t, R="decode" if i else "prefill")
        scene.sample("gpu.sm_clock_mhz", start, clock if slow else 1980.0, device=0)
        scene.sample("gpu.throttle_reasons", start, float(reasons if slow else 0), device=0)
        scene.sample("gpu.power_w", start, power if slow else 700.0, device=0)
        tokens.append(t)
    scene.request("R", 0, tokens)
    return scene


def test_a_clock_that_fell_for_a_reason() -> None:
    found = hint(clocked(1.5, 1320.0, 0x4).summary(), "R22")
    assert found["confidence"] == "high"
    assert "power cap" in found["title"]
    assert found["saving_ns"] == pytest.approx(20 * 4_500 * US, rel=0.02)


@pytest.mark.parametrize(
    "scene",
    [
        clocked(1.5, 1320.0, 0),
        clocked(1.5, 1320.0, 0x1),
        clocked(1.0, 1320.0, 0x4),
        clocked(1.08, 1830.0, 0x4),
    ],
    ids=["no reason", "idle", "kernels keep their speed", "92 % of the clock"],
)
def test_clocks_that_are_not_throttled(scene: Scene) -> None:
    assert "R22" not in ids(scene.summary())


def test_a_uniform_slowdown_without_a_reason_is_not_called_throttling() -> None:
    summary = clocked(1.5, 1980.0, 0, power=450.0).summary()
    found = hint(summary, "R44")
    assert "not called throttling" in found["title"]
    assert "R22" not in ids(summary)


@pytest.mark.parametrize(
    "scene",
    [
        clocked(1.5, 1980.0, 0, power=600.0),
        clocked(1.0, 1980.0, 0, power=450.0),
        clocked(1.5, 1320.0, 0x4, power=450.0),
    ],
    ids=["power hardly lower", "no slowdown", "throttled"],
)
def test_no_hidden_slow_state(scene: Scene) -> None:
    assert "R44" not in ids(scene.summary())


def idled(pause: int, ratio: float, *, rising: bool = True) -> Scene:
    """Steps, a pause, then four slow steps and more."""
    scene, t = Scene(), 0
    for i in range(40):
        t += pause if i == 20 else 0
        slow = 20 <= i < 24
        lasting = round(PERIOD * (ratio if slow else 1))
        scene.step(i, t, t + lasting, **{"R" if i < 20 else "Q": "decode"})
        scene.work(GEMM, t, t + lasting, graph=True)
        low = 1000.0 + 200 * (i - 20) if rising else 1980.0
        scene.sample("gpu.sm_clock_mhz", t + 1, low if slow else 1980.0, device=0)
        t += lasting
    scene.request("R", 0, [PERIOD * (i + 1) for i in range(20)], scheduled=0)
    begin = 20 * PERIOD + pause
    scene.request("Q", begin, [begin + round(PERIOD * ratio), t])
    return scene


def test_a_clock_that_rises_after_a_pause() -> None:
    found = hint(idled(12 * S, 1.5).summary(), "R23")
    assert found["evidence"]["slow_steps"] == 4
    assert found["requests"] == ["Q"]
    assert found["saving_ns"] == 4 * 5 * MS


@pytest.mark.parametrize(
    "scene",
    [idled(9 * S, 1.5), idled(12 * S, 1.2), idled(12 * S, 1.5, rising=False)],
    ids=["9 s", "1.2 times", "steady clock"],
)
def test_no_clock_ramp(scene: Scene) -> None:
    assert "R23" not in ids(scene.summary())


def two_processes(ratio: float) -> Scene:
    """A process alone, then two on one device."""
    scene = Scene()
    for i in range(20):
        scene.kernel("nvjet_gemm", i * PERIOD, i * PERIOD + 5 * MS)
    for i in range(20, 40):
        scene.kernel("nvjet_gemm", i * PERIOD, i * PERIOD + round(5 * MS * ratio))
        scene.kernel("other_gemm", i * PERIOD, i * PERIOD + 10 * MS, process=2, stream=9)
    return scene


def test_two_processes_slow_each_other_down() -> None:
    found = hint(two_processes(1.8).summary(), "R29")
    assert found["evidence"]["kernel_ratio"] == pytest.approx(1.8)


def test_two_processes_that_do_not_slow_each_other() -> None:
    assert "R29" not in ids(two_processes(1.2).summary())


def test_a_device_that_changes_hands() -> None:
    scene = Scene()
    for i in range(30):
        start = i * 2 * MS
        scene.kernel("nvjet_gemm", start, start + 1_800 * US, process=1 + i % 2)
    found = hint(scene.summary(), "R29")
    assert found["evidence"]["median_gap_ns"] == 200 * US
    assert found["evidence"]["switches"] == 29


def with_a_process_outside(share: float, *, ours: bool = True) -> Scene:
    """An engine, with NVML's samples of its process and of one that is not traced."""
    scene = Scene()
    scene.serve(200)
    scene.timeline.header.extra["neighbours"] = {"99": "other\x1b"}
    for second in (1, 2):
        scene.sample("gpu.process_sm", second * S, 0.4, process=1 if ours else 98)
        scene.sample("gpu.process_sm", second * S, share, process=99)
    return scene


def test_a_process_outside_of_the_trace_is_named_without_a_price() -> None:
    found = hint(with_a_process_outside(0.3).summary(), "R29")
    assert "other\ufffd (process 99, outside the trace) kept 30" in found["title"]
    assert found["confidence"] == "low"
    assert found["saving_ns"] is None
    assert found["evidence"]["outside_sm"] == pytest.approx(0.3)


def test_ids_of_another_container_accuse_nobody() -> None:
    assert "R29" not in ids(with_a_process_outside(0.3, ours=False).summary())
    assert "R29" not in ids(with_a_process_outside(0.01).summary())


def test_a_slice_of_a_device_is_told() -> None:
    scene = Scene()
    scene.serve()
    scene.device(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", sms=16, memory_bytes=10_000_000_000)
    found = hint(scene.summary(), "R41")
    assert found["evidence"]["sms"] == 16
    assert found["evidence"]["sms_of_the_model"] == 132


def test_a_whole_device_is_no_slice() -> None:
    scene = Scene()
    scene.serve()
    scene.device()
    assert "R41" not in ids(scene.summary())
