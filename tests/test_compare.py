"""Comparing two traces: real changes are named with their reason, noise is not."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from rca_llm.cli import main
from rca_llm.commands.variadic import spread
from rca_llm.compare import compare
from rca_llm.exporters import comparison
from rca_llm.trace import Trace
from tests.scenes import MS, US, Scene

SHAPE = {"grid_x": 132, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}


def scene(
    gemm: int = 2 * MS, norms: int = 4, *, seed: int = 1, block: int = 128, jitter: int = 20 * US
) -> Scene:
    """Thirty requests, each a step of a matrix product and some norms, with noise."""
    found, t, dice = Scene(), 0, random.Random(seed)
    for i in range(30):
        start = t
        for name, usual in [("nvjet_gemm", gemm), *[("rms_norm_kernel", 100 * US)] * norms]:
            lasting = usual + dice.randrange(-jitter, jitter + 1)
            found.kernel(name, t, t + lasting, **SHAPE | {"block_x": block})
            t += lasting
        found.span(None, start, t, name="forward", domain="nvtx")
        found.step(i, start, t, **{f"r{i}": "decode"})
        found.request(f"r{i}", start, [t])
    return found


def compared(base: Scene, other: Scene) -> dict[str, Any]:
    """The comparison of two scenes."""
    return compare(*(Trace([one.build()]).attribute() for one in (base, other)))


def row(found: dict[str, Any], table: str, name: str) -> dict[str, Any]:
    """A row by its name."""
    return next(row for row in found[table] if row["name"] == name)


def told(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """What makes two sides incomparable."""
    return {row["what"]: (row["base"], row["other"]) for row in found["not_comparable"]}


def test_the_same_work_is_comparable() -> None:
    found = compared(scene(seed=1), scene(seed=2))
    assert found["not_comparable"] == []
    assert found["not_judged"] == ["model"]
    page = comparison.page(found)
    assert "Not comparable" not in page
    assert "Whether the two differ in the model is not known" in page
    assert 'name="viewport"' in page
    assert 'name="color-scheme" content="light dark"' in page


def test_other_work_is_told() -> None:
    base, other = scene(seed=1), scene(seed=2)
    for one, engine, words in (
        (base, "vllm 0.9.1", ["vllm", "serve", "org/small"]),
        (other, "sglang 0.5", ["python", "-m", "sglang", "--model-path=org/large"]),
    ):
        one.timeline.header.engine = engine
        one.timeline.header.extra["command"] = words
        one.device(name="NVIDIA H200" if one is base else "NVIDIA H100")
    for row in base.rows["requests"]:
        row["prompt_tokens"] = 512
    for n, row in enumerate(other.rows["requests"]):
        row["prompt_tokens"] = 64 if n % 2 else 960  # the same mean, another mix
    found = compared(base, other)
    assert told(found) == {
        "engine": ("vllm", "sglang"),
        "model": ("org/small", "org/large"),
        "devices": ("1 × NVIDIA H200", "1 × NVIDIA H100"),
        "prompt tokens": (
            "mean 512 (P10 512, P50 512, P90 512)",
            "mean 512 (P10 64, P50 64, P90 960)",
        ),
    }
    [line] = comparison.warnings(found)
    assert line.startswith("Not comparable because of other engine: vllm → sglang; other model: ")
    assert "Not comparable because of other engine" in comparison.page(found)


def test_another_version_of_an_engine_is_a_change_to_measure() -> None:
    base, other = scene(seed=1), scene(seed=2)
    base.timeline.header.engine, other.timeline.header.engine = "vllm 0.9.1", "vllm 0.10.0"
    assert told(compared(base, other)) == {}


def test_noise_is_no_change() -> None:
    found = compared(scene(seed=1), scene(seed=2))
    assert found["unit"] == "request"
    assert found["latency"]["changed"] is False
    assert found["kernels"] == []
    assert found["hints"] == {"new": [], "gone": []}
    assert comparison.headline(found).startswith("No change")


def test_a_longer_kernel_is_named() -> None:
    found = compared(scene(seed=1), scene(2_300 * US, seed=2))
    assert found["latency"]["changed"] is True
    assert found["latency"]["delta_ns"] == pytest.approx(300 * US, abs=30 * US)
    kernel = row(found, "kernels", "nvjet_gemm")
    assert kernel["why"] == "longer calls"
    assert kernel["delta_ns"] == pytest.approx(300 * US, abs=20 * US)
    assert [r["name"] for r in found["kernels"]] == ["nvjet_gemm"]
    assert row(found, "parts", "compute.gemm")["changed"] is True
    assert row(found, "parts", "compute.norm")["changed"] is False
    assert row(found, "ranges", "forward")["why"] == "longer calls"


def test_more_calls_are_told_from_longer_ones() -> None:
    kernel = row(compared(scene(seed=1), scene(norms=6, seed=2)), "kernels", "rms_norm_kernel")
    assert kernel["why"] == "more calls"
    assert (kernel["base_count"], kernel["other_count"]) == (4, 6)


def test_another_launch_shape_is_shown() -> None:
    found = compared(scene(seed=1), scene(3 * MS, seed=2, block=32))
    kernel = row(found, "kernels", "nvjet_gemm")
    assert kernel["why"] == "longer calls, launch shape changed"
    assert kernel["base_shape"]["block"] == [128, 1, 1]
    assert "block 128×1×1 → 32×1×1" in comparison.why(kernel)


def test_kernels_that_came_and_went() -> None:
    other = scene(seed=2)
    for gpu in other.rows["gpu"]:
        if gpu["name"] == other.timeline.strings.code("nvjet_gemm"):
            gpu["name"] = other.timeline.strings.code("cutlass_gemm")
    found = compared(scene(seed=1), other)
    assert row(found, "kernels", "nvjet_gemm")["why"] == "gone"
    assert row(found, "kernels", "cutlass_gemm")["why"] == "new"
    assert found["latency"]["changed"] is False


def test_one_window_a_side_has_no_known_noise() -> None:
    scenes = [Scene(), Scene()]
    for n, one in enumerate(scenes):
        one.kernel("nvjet_gemm", 0, (n + 1) * MS)
    found = compared(*scenes)
    assert found["unit"] == "window"
    assert found["latency"]["changed"] is None
    assert "too few" in comparison.headline(found)


def test_new_hints_are_told() -> None:
    other = scene(seed=2)
    other.kernel("nvjet_gemm", -400 * MS, -399 * MS)
    other.span("gc", -390 * MS, -300 * MS, name="gc gen 2")
    other.request("slow", -400 * MS, [-200 * MS])
    found = compared(scene(seed=1), other)
    assert [hint["id"] for hint in found["hints"]["new"]] == ["R08"]


def test_the_page_escapes_hostile_names() -> None:
    other = scene(seed=2)
    other.kernel("<script>alert(1)</script>", 0, 30 * MS, stream=9)
    page = comparison.page(compared(scene(seed=1), other))
    assert "&lt;script&gt;" in page
    assert "<script" not in page


def test_everything_after_with_is_the_other_side() -> None:
    given = ["a", "b", "--with", "c", "d", "--json", "x", "-o", "y"]
    wanted = ["a", "b", "--with", "c", "--with", "d", "--json", "x", "-o", "y"]
    assert spread(given, "--with", ["--json", "-o"]) == wanted


def events(path: Path, kernel: int) -> str:
    """A small event file."""
    lines = [{"type": "header", "schema": "rca-llm/events/1", "clock": "utc", "rank": 0}]
    for i in range(5):
        start = 10**18 + i * 10 * MS
        lines.append(
            {
                "type": "gpu",
                "kind": "kernel",
                "pid": 1,
                "device": 0,
                "stream": 7,
                "name": "nvjet_gemm",
                "start": start,
                "end": start + kernel,
            }
        )
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_the_command_writes_both_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, other = events(tmp_path / "a.jsonl", MS), events(tmp_path / "b.jsonl", 2 * MS)
    document, page = tmp_path / "c.json", tmp_path / "c.html"
    arguments = ["compare", base, "--with", other, "--json", str(document), "-o", str(page)]
    assert main(arguments) == 0
    assert json.loads(document.read_text())["schema"] == "rca-llm/compare/1"
    assert "<html" in page.read_text()
    assert "nvjet_gemm" in capsys.readouterr().out
    assert main(arguments) == 2
    assert "will not overwrite" in capsys.readouterr().err


def test_a_missing_side_is_wrong_usage(tmp_path: Path) -> None:
    assert main(["compare", events(tmp_path / "a.jsonl", MS)]) == 2


def test_long_names_that_are_cut_alike_stand_whole_in_a_title() -> None:
    row = {"base_ns": 1, "other_ns": 2, "delta_ns": 1, "noise_ns": None, "changed": None}
    long = [comparison.cells(row | {"name": f"{'k' * 100}<{end}>"})[0] for end in "ab"]
    assert long[0] == long[1]
    found = compared(scene(seed=1), scene(seed=2))
    found["kernels"] = [row | {"name": f"{'k' * 100}<{end}>"} for end in "ab"] + [
        row | {"name": "short"}
    ]
    page = comparison.page(found)
    for end in "ab":
        assert f'<td title="{"k" * 100}&lt;{end}&gt;">' in page
    assert "<td>short</td>" in page


def test_heads_stand_over_their_numbers() -> None:
    page = comparison.page(compared(scene(seed=1), scene(seed=2)))
    assert ":is(th, td):nth-child(n + 2):nth-child(-n + 5) { text-align: right;" in page
