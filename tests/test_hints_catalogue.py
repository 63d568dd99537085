"""The catalogue as a whole: documented, limited, ordered, and honest about what it lacks."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm.errors import RcaError
from rca_llm.hints import RULES, advice, document, thresholds
from rca_llm.hints.judge import judge
from rca_llm.hints.model import Stage
from tests.scenes import GEMM, MS, Scene, hint, spread

PAGE = Path(__file__).parent.parent / "docs" / "hints.md"
CLASSES = {"compute", "communication", "io", "scheduling", "unknown"}


def test_the_page_is_what_the_rules_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == document.page()


def test_ids_are_unique_and_of_a_known_class() -> None:
    ids = [rule.id for rule in RULES]
    assert len(ids) == len(set(ids))
    assert {rule.class_ for rule in RULES} <= CLASSES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_says_what_it_compares_and_what_disproves_it(rule: object) -> None:
    text = inspect.getdoc(rule.function) or ""  # type: ignore[attr-defined]
    assert "Symptom:" in text
    assert "Source:" in text
    assert rule.disproof  # type: ignore[attr-defined]
    assert advice.table()[rule.id]["any"]  # type: ignore[attr-defined]


def test_every_threshold_has_a_source_and_is_named_where_it_is_used() -> None:
    rules = {rule.id: rule for rule in RULES}
    for id, rows in thresholds.documented().items():
        module = inspect.getsource(inspect.getmodule(rules[id].function))  # type: ignore[arg-type]
        for name, row in rows.items():
            assert row["source"] in thresholds.SOURCES
            assert f'["{name}"]' in module, f"{id}.{name}"


def test_thresholds_can_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[R08]\npause_ns = 5\n")
    assert thresholds.load(file)["R08"]["pause_ns"] == 5
    assert thresholds.load()["R08"]["pause_ns"] == 20_000_000


@pytest.mark.parametrize(
    "text", ["[R08]\nnothing = 1\n", "[R99]\nx = 1\n", '[R08]\npause_ns = "x"\n', "R08 = 1", "["]
)
def test_wrong_thresholds_are_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(RcaError) as caught:
        thresholds.load(file)
    assert "\n" not in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_rows_have_the_form_of_the_contract() -> None:
    scene = Scene(engine="vllm 0.20.2")
    scene.serve(steps=20, period=100 * MS, idle={9: [(10 * MS, 60 * MS)]})
    scene.span("gc", 910 * MS, 970 * MS, name="gc gen 2")
    summary = scene.summary()
    found = hint(summary, "R08")
    assert set(found) == {
        *("id", "title", "class", "confidence", "share", "saving_ns", "evidence"),
        *("requests", "window", "advice"),
    }
    assert found["window"] == {"start_ns": 910 * MS, "end_ns": 970 * MS}
    assert found["share"] == pytest.approx(0.03)
    assert found["evidence"]["thresholds"]["pause_ns"] == 20_000_000
    assert found["evidence"]["population"] == "1 request"
    assert summary["class_stats"]["scheduling"]["hint"] == found["title"]


def test_advice_names_the_settings_of_the_engine_at_hand() -> None:
    assert "--async-scheduling" in advice.advice("R09", "vllm")[0]
    assert len(advice.advice("R09", None)) == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_advice_leaves_out_what_is_on(engine: str) -> None:
    texts = advice.advice("R09", engine, on=["async_scheduling"])
    assert len(texts) == 2
    assert not any("--async" in text or "Overlap" in text or "Do not" in text for text in texts)
    assert advice.advice("R09", engine, on=["another"]) == advice.advice("R09", engine)


@pytest.mark.parametrize(
    ("told", "advised", "known"),
    [({"async_scheduling": True}, False, True), ({"async_scheduling": False}, True, False)]
    + [(anything, True, None) for anything in ({}, None, "on", {"async_scheduling": "on"})],
)
def test_a_hint_knows_what_the_engine_told(told: object, advised: bool, known: bool | None) -> None:
    scene = Scene(engine="vllm 0.20.2")
    scene.serve(idle=spread(range(20), 0, 3 * MS))
    scene.timeline.header.extra["settings"] = told
    found = hint(scene.summary(), "R09")
    assert any("--async-scheduling" in text for text in found["advice"]) == advised
    assert found["evidence"]["async_scheduling"] is known


def test_a_trace_of_nothing_gives_no_hint() -> None:
    assert Scene().summary()["hints"] == []


NAMES = st.sampled_from([GEMM, "flash_fwd_kernel", "softmax_warp_forward", "fused_moe_kernel", ""])
TIMES = st.integers(0, 2_000).map(lambda t: t * 100_000)
KINDS = st.sampled_from(
    ["gc", "file", "log", "jit", "load", "cast", "network", "kv_transfer", None]
)
CALLS = st.sampled_from(
    [
        "cudaLaunchKernel",
        "cudaStreamSynchronize",
        "cudaMalloc",
        "cudaGraphLaunch",
        "cudaMemcpy",
        "cuModuleLoadData",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_was_recorded_the_order_of_hints_holds(data: st.DataObject) -> None:
    scene = Scene(rank=0, world_size=1)
    for _ in range(data.draw(st.integers(0, 12))):
        start, length = data.draw(TIMES), data.draw(st.integers(0, 20 * MS))
        scene.launch(
            data.draw(NAMES),
            (start, start + 10),
            (start, start + length),
            stream=data.draw(st.integers(0, 2)),
        )
    for _ in range(data.draw(st.integers(0, 12))):
        start, length = data.draw(TIMES), data.draw(st.integers(0, 40 * MS))
        scene.span(
            data.draw(KINDS),
            start,
            start + length,
            bytes=data.draw(st.integers(0, 9**9)),
            request=data.draw(st.sampled_from(["a", "b", None])),
            path="x.safetensors",
        )
        scene.api(data.draw(CALLS), start, start + length)
    for i in range(data.draw(st.integers(0, 8))):
        start = data.draw(TIMES)
        scene.step(i, start, start + 5 * MS, a=data.draw(st.sampled_from(["prefill", "decode"])))
    for id in ("a", "b"):
        if data.draw(st.booleans()):
            arrival = data.draw(TIMES)
            tokens = sorted(data.draw(st.lists(TIMES, min_size=1, max_size=4)))
            scene.request(id, arrival, tokens)
    for metric in ("gpu.sm_clock_mhz", "gpu.power_w", "kv.usage", "process.major_faults"):
        for _ in range(data.draw(st.integers(0, 3))):
            scene.sample(metric, data.draw(TIMES), data.draw(st.floats(0, 1e9)), device=0)
    rows = scene.summary()["hints"]
    savings = [row["saving_ns"] for row in rows]
    known = [ns for ns in savings if ns is not None]
    assert savings == sorted(known, reverse=True) + [None] * (len(savings) - len(known))
    for row in rows:
        assert row["share"] is None or 0 <= row["share"] <= 1
        assert row["confidence"] != "low" or "ossibl" in row["title"]


def test_gates_run_first() -> None:
    gates = [rule for rule in RULES if rule.stage is Stage.GATE]
    assert [rule.id for rule in gates] == ["G1", "G2", "G3", "G4", "G5", "G6"]
    assert callable(judge)
