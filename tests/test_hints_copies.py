"""Hints about data on its way: pageable and small copies, PCIe, loads of weights."""

from __future__ import annotations

import pytest

from tests.scenes import GEMM, GIB, MS, US, S, Scene, hint, ids, spread

H2D, D2H = 0, 1
PAGEABLE, PINNED, DEVICE = 0, 1, 2
PERIOD = 10 * MS
STEPS = range(20)


def copying(
    length: int, size: int, *, src: int = PAGEABLE, each: int = 1, call: str = "cudaMemcpy"
) -> Scene:
    """Steps in each of which copies take `length` together, with nothing else running."""
    scene = Scene()
    scene.serve(idle=spread(STEPS, 2 * MS, length))
    number = 100_000
    for i in STEPS:
        for j in range(each):
            number += 1
            start = i * PERIOD + 2 * MS + j * length // each
            end = start + length // each
            scene.api(call, start, end, correlation=number)
            scene.copy(H2D, start, end, bytes=size, src=src, dst=DEVICE, correlation=number)
    return scene


def test_pageable_copies_of_a_twentieth_of_the_steps() -> None:
    found = hint(copying(600 * US, 4_800_000).summary(), "R18")
    assert found["class"] == "io"
    assert found["confidence"] == "high"
    assert found["evidence"]["rate_bytes_s"] == pytest.approx(8e9)
    assert "8 GB/s" in found["title"]
    assert found["saving_ns"] == 20 * 600 * US


@pytest.mark.parametrize(("copied", "confidence"), [(499 * US, "low"), (500 * US, "high")])
def test_calls_that_wait_for_earlier_work_are_no_proof_of_pageable_memory(
    copied: int, confidence: str
) -> None:
    """A quarter of a call of 2 ms is its copy, or less."""
    scene = Scene()
    scene.serve(idle=spread(STEPS, 2 * MS, 2 * MS))
    for i in STEPS:
        start, end = i * PERIOD + 2 * MS, i * PERIOD + 4 * MS
        scene.api("cudaMemcpy", start, end, correlation=100_000 + i)
        own = {"bytes": 1000, "src": PAGEABLE, "dst": DEVICE, "correlation": 100_000 + i}
        scene.copy(H2D, end - copied, end, **own)
    found = hint(scene.summary(), "R18")
    assert found["confidence"] == confidence
    assert ("wait for earlier work" in found["title"]) == (confidence == "low")


def test_few_pageable_copies() -> None:
    assert "R18" not in ids(copying(400 * US, 1_000_000).summary())


def test_an_asynchronous_pageable_copy_in_a_decode_blocks() -> None:
    large = copying(100 * US, 70_000, call="cudaMemcpyAsync")
    small = copying(100 * US, 60_000, call="cudaMemcpyAsync")
    assert "R18" in ids(large.summary())
    assert "R18" not in ids(small.summary())


def test_pinned_copies_are_not_pageable() -> None:
    assert "R18" not in ids(copying(2 * MS, 4_800_000, src=PINNED).summary())


def test_pageable_copies_under_device_work_delay_nothing() -> None:
    scene = Scene()
    scene.serve()
    for i in STEPS:
        start = i * PERIOD + 2 * MS
        scene.copy(H2D, start, start + 2 * MS, bytes=1 << 24, src=PAGEABLE, dst=DEVICE)
    assert "R18" not in ids(scene.summary())


def test_many_small_copies_a_step() -> None:
    found = hint(copying(1 * MS, 4096, src=PINNED, each=60).summary(), "R19")
    assert found["evidence"]["copies_per_step"] == 60
    assert found["evidence"]["median_bytes"] == 4096
    assert found["saving_ns"] == pytest.approx(20 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("each", "size", "length"),
    [(40, 50_000, 1 * MS), (60, 1 << 20, 1 * MS)],
    ids=["40 a step", "1 MiB"],
)
def test_copies_that_are_few_or_large(each: int, size: int, length: int) -> None:
    assert "R19" not in ids(copying(length, size, src=PINNED, each=each).summary())


def test_one_tiny_copy_a_token_is_normal() -> None:
    scene = Scene()
    scene.serve(steps=150, idle=spread(range(150), 9_990 * US, 10 * US))
    for i in range(150):
        end = (i + 1) * PERIOD
        scene.copy(D2H, end - 5 * US, end, bytes=4, src=DEVICE, dst=PINNED)
    assert "R19" not in ids(scene.summary())


def test_copies_at_the_rate_of_the_link() -> None:
    scene = copying(4 * MS, 200_000_000, src=PINNED)
    scene.device()
    found = hint(scene.summary(), "R32")
    assert found["evidence"]["rate_bytes_s"] == pytest.approx(50e9)
    assert found["evidence"]["link_bytes_s"] == 64e9


@pytest.mark.parametrize(
    ("length", "size", "name"),
    [
        (2_500 * US, 125_000_000, "NVIDIA H200"),
        (4 * MS, 160_000_000, "NVIDIA H200"),
        (4 * MS, 200_000_000, "Unknown Accelerator"),
    ],
    ids=["25 % of the step", "40 GB/s", "unknown device"],
)
def test_copies_that_the_link_does_not_hold_up(length: int, size: int, name: str) -> None:
    scene = copying(length, size, src=PINNED)
    scene.device(name=name)
    assert "R32" not in ids(scene.summary())


def loading(
    reading: int, *, size: int = 8 * GIB, fs: str = "nfs", pieces: int = 8, cast: int = 0
) -> Scene:
    """A load of ten seconds, some of it reading and some casting, before anything is served."""
    scene = Scene()
    begin = -20 * S
    scene.span("load", begin, begin + 10 * S, name="load_weights")
    scene.span(
        "file",
        begin,
        begin + reading,
        name="read",
        bytes=size,
        path="/m/a.safetensors",
        fs=fs,
        pieces=pieces,
    )
    if cast:
        scene.span("cast", begin + reading, begin + reading + cast, name="to(float32)")
    scene.serve()
    return scene


def test_weights_from_a_slow_network_file_system() -> None:
    found = hint(loading(9 * S).summary(), "R16")
    assert found["class"] == "io"
    assert found["saving_ns"] == 9 * S
    assert found["evidence"]["rate_bytes_s"] == pytest.approx(8 * GIB / 9)
    assert "nfs" in found["title"]
    assert found["requests"] == []


@pytest.mark.parametrize(
    "scene",
    [
        loading(4 * S, size=2 * GIB),
        loading(6 * S),
        loading(9 * S, fs="ext4"),
    ],
    ids=["40 % of the load", "1.4 GB/s", "local"],
)
def test_loads_that_storage_does_not_hold_up(scene: Scene) -> None:
    assert "R16" not in ids(scene.summary())


def test_small_reads_are_slow_on_any_file_system() -> None:
    found = hint(loading(9 * S, fs="ext4", pieces=8 * GIB // 65536).summary(), "R16")
    assert found["evidence"]["median_read_bytes"] == 65536


def test_page_faults_tell_of_a_mapped_file_and_the_load_of_its_bytes() -> None:
    scene = Scene()
    scene.span("load", -20 * S, -10 * S, name="load", bytes=4 * GIB, fs="lustre")
    for i in range(90):
        start = -20 * S + i * 100 * MS
        scene.span("page_fault", start, start + 90 * MS)
    scene.serve()
    found = hint(scene.summary(), "R16")
    assert found["evidence"]["page_fault_waits"] == 90
    assert found["evidence"]["rate_bytes_s"] == pytest.approx(4 * GIB / 8.1)
    assert "lustre (mmap" in found["title"]


def test_casts_in_a_load() -> None:
    found = hint(loading(3 * S, cast=2 * S).summary(), "R17")
    assert found["saving_ns"] == 2 * S
    assert found["evidence"]["cast_share"] == pytest.approx(0.2)


def test_a_short_cast() -> None:
    assert "R17" not in ids(loading(3 * S, cast=900 * MS).summary())


@pytest.mark.parametrize(("factor", "fires"), [(2.0, True), (1.0, False), (1.5, False)])
def test_bytes_that_double_on_the_way(factor: float, fires: bool) -> None:
    scene = loading(3 * S)
    scene.copy(H2D, -15 * S, -14 * S, bytes=round(8 * GIB * factor), src=PINNED, dst=DEVICE)
    summary = scene.summary()
    assert ("R17" in ids(summary)) == fires
    if fires:
        assert hint(summary, "R17")["saving_ns"] is None


def test_memory_that_grows_past_the_checkpoint() -> None:
    scene = loading(3 * S)
    scene.sample("process.rss_anon_bytes", -21 * S, 1e9, process=1)
    scene.sample("process.rss_anon_bytes", -15 * S, 1e9 + 1.6 * 8 * GIB, process=1)
    assert hint(scene.summary(), "R17")["confidence"] == "low"


def test_kernels_alone_are_no_copies() -> None:
    scene = Scene()
    scene.work(GEMM, 0, 10 * MS)
    assert not ids(scene.summary()) & {"R16", "R17", "R18", "R19", "R32"}
