"""Injected causes: the ledger's arithmetic, the command, and each cause found in a real run."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rca_llm
from rca_llm.attribute.parts import PARTS
from rca_llm.cli import main
from rca_llm.errors import RcaError
from rca_llm.hints import RULES
from rca_llm.inject import turns
from rca_llm.inject.arithmetic import PRODUCTS, Arithmetic
from rca_llm.inject.catalogue import CAUSES, order, workload
from rca_llm.inject.truth import Delay, Ledger, Truth
from rca_llm.inject.verdict import Row, figures, judged
from rca_llm.inject.windows import between
from rca_llm.trace import Trace
from tests.scenes import MS, Scene
from tests.timelines import Builder

matrix: Any = importlib.import_module("benchmarks.matrix")

ROOT = Path(__file__).resolve().parent.parent
HOST = [name for name, cause in CAUSES.items() if not cause.gpu and name != "clean"]


def test_every_cause_names_rules_and_parts_that_exist() -> None:
    known = {rule.id for rule in RULES} | {"R25", "R46", "R47"}
    page = (ROOT / "docs" / "inject.md").read_text(encoding="utf-8")
    for cause in CAUSES.values():
        assert set(cause.hints) <= known, cause.name
        assert set(cause.parts) <= set(PARTS), cause.name
        assert f"`{cause.name}`" in page
        assert callable(workload(cause))


@pytest.mark.parametrize("name, size", [("nonsense", 1.0), ("gc", 0.0), ("gc", -1.0)])
def test_wrong_orders_are_one_line(name: str, size: float, tmp_path: Path) -> None:
    with pytest.raises(RcaError) as caught:
        order(name, size, 0, str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_delay_that_is_cut_counts_in_proportion() -> None:
    delay = Delay(100, 200, 50)
    assert delay.within(0, 300) == 50
    assert delay.within(100, 150) == 25
    assert delay.within(200, 300) == 0


def ledger() -> Ledger:
    """Two requests; the second is admitted late and is delayed by itself too."""
    found = Ledger()
    for id, arrival, scheduled, last in (("a", 0, 10, 100), ("b", 0, 60, 100)):
        one = found.served(id)
        one.arrival, one.scheduled, one.last_token, one.finished = arrival, scheduled, last, last
    found.add(20, 40, 20)
    found.add(70, 90, 10)
    found.add(0, 30, 30, "b")
    return found


def test_a_shared_delay_costs_whoever_is_in_the_engine(tmp_path: Path) -> None:
    document = Truth(order("gc", None, 3, str(tmp_path)), ledger()).document()
    costs = {row["id"]: row["injected_ns"] for row in document["requests"]}
    assert costs == {"a": 30, "b": 40}
    assert document["share"] == pytest.approx(70 / 200)
    assert (document["seed"], document["hints"]) == (3, ["R08"])


def test_a_window_of_a_trace_is_a_trace() -> None:
    scene = Scene()
    scene.serve(steps=10)
    whole = Trace([scene.build()])
    steps = whole.timelines[0]["steps"]
    cut = between(whole, int(steps["start"][4]), int(steps["start"][8]))
    report = cut.attribute().summary
    assert report["totals"]["steps"] == 4
    assert [row["requests"] for row in report["steps"]] == [1] * 4


def test_a_launch_is_cut_with_its_kernel() -> None:
    """Calls at 100 and 300 with kernels inside; at 350 and 380 with kernels after the end."""
    line = Builder()
    for id, called, begun in ((1, 40, 120), (2, 100, 150), (3, 350, 420), (4, 380, 390)):
        line.api("cudaLaunchKernel", called, called + 5, correlation=id)
        line.api("cuLaunchKernel", called + 1, called + 4, correlation=id)
        line.kernel("k", begun, begun + 30, correlation=id)
    line.kernel("replayed", 410, 440, correlation=4)
    line.kernel("nobody's", 395, 405)
    cut = between(Trace([line.build()]), 100, 400).timelines[0]
    # What was launched before keeps the device busy; what begins later was launched for later.
    assert cut["gpu"]["start"].tolist() == [120, 150, 390, 410, 395]
    assert cut["api"]["start"].tolist() == [100, 101, 380, 381]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_weights_are_cast_without_another_fault(tmp_path: Path) -> None:
    copies, service = (
        importlib.import_module(f"rca_llm.inject.{name}") for name in ("gpu_copies", "gpu_service")
    )
    own = service.Engine("cpu", rows=4, width=8)
    made = order("dtype_conversion", 1.0, 0, str(tmp_path))
    found = copies.convert(own, made).document()
    assert found["occurrences"] == 4
    assert 0 < found["injected_ns"] < found["latency_ns"]
    assert not list(tmp_path.iterdir())


def test_a_hint_says_what_a_cause_costs_whose_parts_are_those_of_any_host() -> None:
    assert CAUSES["alloc_churn"].charged and not CAUSES["gc"].charged
    truth: dict[str, Any] = {"cause": "alloc_churn", "magnitude": 1, "seed": 0, "hints": ["R38"]}
    truth |= {"parts": ["scheduling.alloc"], "share": 0.5, "injected_ns": 5}
    truth["requests"] = [{"id": "a"}]
    own: dict[str, Any] = {"id": "R38", "share": 0.4, "confidence": "high", "saving_ns": 1}
    own["evidence"] = {}
    said = {"id": "a", "latency_ns": 100, "parts": {"scheduling.alloc": 20}}
    assert judged({"hints": [own], "requests": [said]}, truth).said == 0.4
    assert judged({"hints": [], "requests": [said]}, truth).said is None


def test_without_requests_a_saving_is_held_against_the_latency_and_not_the_window() -> None:
    truth: dict[str, Any] = {"cause": "gemm_shape", "magnitude": 8, "seed": 0, "hints": ["R25"]}
    truth |= {"parts": [], "share": 0.5, "injected_ns": 50, "latency_ns": 100, "requests": []}
    own: dict[str, Any] = {"id": "R25", "share": 0.6, "confidence": "medium", "saving_ns": 48}
    own["evidence"] = {"of_ns": 160}  # the device rests between the requests
    assert judged({"hints": [own], "requests": []}, truth).said == 0.48


def test_verdicts_and_figures() -> None:
    truth: dict[str, Any] = {"cause": "gc", "magnitude": 1, "seed": 0, "hints": ["R08"]}
    truth |= {"parts": ["scheduling.gc"], "share": 0.5, "injected_ns": 5}
    truth["requests"] = [{"id": "a"}]
    hints = [
        {
            "id": id,
            "share": 0.1,
            "confidence": "high",
            "saving_ns": 1,
            "evidence": {"charged_ns": 7},
        }
        for id in ("R07", "R08")
    ]
    said = {"id": "a", "latency_ns": 100, "parts": {"scheduling.gc": 48}}
    row = judged({"hints": hints, "requests": [said]}, truth)
    assert (row.rank, row.high, row.said, row.charged_ns) == (2, ["R07"], 0.48, 7)
    quiet = Row("clean", 1, 0, None, [], None, None, [])
    found = figures([row, quiet])
    assert (found["first"], found["first_two"], found["clean_quiet"]) == (0.0, 1.0, 1.0)
    assert found["points_worst"] == pytest.approx(2)


def removed(seed: int, predicted: float, with_ns: int, *without: int, size: float = 40) -> Row:
    """A run of a cause and of the same load without it."""
    row = Row("gc", size, seed, 1, ["R08"], 0.5, 0.5, [], predicted_ns=predicted)
    return replace(row, with_ns=with_ns, without_ns=without)


def test_savings_are_held_against_the_noise_of_the_same_load() -> None:
    rows = [removed(seed, 100, 1100, 1000, 1010) for seed in range(3)]
    rows += [removed(seed, 900, 2010, 1010, 1022 + seed, size=80) for seed in range(3)]
    small, large = matrix.removals(rows)
    assert small.measured == pytest.approx(95)
    assert small.noise == large.noise == pytest.approx(1.4826 * 11)
    assert small.judged
    assert large.apart == pytest.approx(abs(900 - large.measured) / large.measured)
    found = matrix.whatif_figures(rows)
    assert (found["whatif_judged"], found["whatif_drowned_in_noise"]) == (2, 0)
    assert found["whatif_pairs_without_prediction"] == 0


def test_a_pair_counts_with_its_own_load() -> None:
    rows = [removed(0, 110, 1100, 1000, 1000), removed(1, 990, 2000, 1000, 1000)]
    rows.append(removed(2, 550, 1500, 1000, 1000))
    (found,) = matrix.removals(rows)
    assert (found.measured, found.off) == (500, 10)
    silent = replace(rows[0], predicted_ns=None)
    assert matrix.whatif_figures([silent])["whatif_pairs_without_prediction"] == 1


def test_loads_that_differ_have_noise_of_their_own() -> None:
    rows = [removed(0, 900, 2000, 1000, 1002), removed(0, 900, 2000, 1000, 1100, size=80)]
    rows = [replace(row, cause="queue") for row in rows]
    assert [one.judged for one in matrix.removals(rows)] == [True, True]
    assert len({one.noise for one in matrix.removals(rows)}) == 2


def test_every_size_runs_between_two_runs_without_the_cause(tmp_path: Path) -> None:
    wanted = order("gc", None, 3, str(tmp_path))
    found = list(turns.orders(wanted, [1, 2]))
    assert [(one.magnitude, one.without) for one in found] == [
        *((1, True), (1, False), (1, True)),
        *((2, False), (2, True)),
    ]
    assert len({one.first for one in found}) == len({one.folder for one in found}) == 5
    queue = list(turns.orders(order("queue", None, 3, str(tmp_path)), [6, 9]))
    assert [(one.magnitude, one.without) for one in queue] == [
        *((6, True), (6, False), (6, True)),
        *((9, True), (9, False), (9, True)),
    ]


def test_turns_leave_the_truth_of_each(tmp_path: Path) -> None:
    target = tmp_path / "truths"
    call = [sys.executable, "-m", "rca_llm.inject", "tokeniser", "--in-turns", "1,2"]
    call += ["--truth", str(target), "--folder", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), PRODUCTS: "1"}
    subprocess.run(call, env=env, timeout=300, check=True)
    first, second = turns.found(target)
    assert (first.truth["magnitude"], second.truth["magnitude"]) == (1, 2)
    assert first.without[1] == second.without[0]
    assert all(one["injected_ns"] == 0 for one in (*first.without, *second.without))
    ids = [row["id"] for one in (first, second) for row in one.truth["requests"]]
    assert len(set(ids)) == len(ids) == 40
    (target / "turn-4.json").unlink()
    assert [one.number for one in turns.found(target)] == [1]


def on_a_gpu(seed: int, *without: int, cause: str = "block_32") -> Row:
    """A run on a GPU that took 2,000 ns with the cause and 1,300 ns with the advice followed."""
    row = Row(cause, 512, seed, 1, ["R27"], 0.5, 0.5, [], saving_ns=900, injected_ns=1000)
    row = replace(row, predicted_ns=630, measured_ns=700, with_ns=2000)
    return replace(row, without_ns=without)


def test_on_a_gpu_both_the_cause_and_the_advice_are_compared() -> None:
    rows = [on_a_gpu(0, 1000, 1010), on_a_gpu(1, 1010, 1000)]
    removed, advised = (matrix.without_cause, matrix.with_advice)
    (one,), (other,) = matrix.removals(rows, removed), matrix.removals(rows, advised)
    assert (one.predicted, one.measured, one.apart) == (900, 1000, 0.1)
    assert (other.predicted, other.measured, other.apart) == (630, 700, 0.1)
    found = matrix.saving_figures(rows, "advice", advised)
    assert (found["advice_judged"], found["advice_worst"]) == (1, pytest.approx(10))
    text = matrix.savings_tables(rows)
    assert text.count("`block_32`") == 2
    # What is not larger than what chance makes is listed; what the workload timed itself is judged.
    (noisy,) = matrix.removals([on_a_gpu(0, 1000, 1300)], removed)
    assert not noisy.judged
    (timed,) = matrix.removals([on_a_gpu(0, cause="dtype_conversion")], removed)
    assert timed.judged
    copied = replace(rows[0], cause="small_copies", charged_ns=990)
    assert removed(copied) == (990, 1000)
    assert removed(replace(rows[0], cause="launch_bound", removed_ns=980.0)) == (980, 1000)
    silent = replace(rows[0], saving_ns=None)
    assert matrix.saving_figures([silent], "x", removed)["x_pairs_without_prediction"] == 1


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_what_is_compared_on_a_gpu_is_served_on_both_sides(tmp_path: Path) -> None:
    copies, service = (
        importlib.import_module(f"rca_llm.inject.{name}") for name in ("gpu_copies", "gpu_service")
    )
    own = service.Engine("cpu", rows=4, width=8)
    wanted = replace(order("small_copies", 2, 0, str(tmp_path)), named=True)
    found = service.measure(copies.Small(own, wanted)).document()
    assert [len(side) for side in found["off_ns"]] == [3, 3]
    assert [row["id"] for row in found["requests"]] == [f"small_copies-2-0-{n}" for n in range(3)]
    assert found["figures"]["mended_ns"] > 0
    assert found["off_window"]["end_ns"] <= found["window"]["start_ns"]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_device_rests_before_each_request_as_long_as_it_served_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launching, service = (
        importlib.import_module(f"rca_llm.inject.gpu_{name}") for name in ("launching", "service")
    )
    rests: list[float] = []
    monkeypatch.setattr(service.time, "sleep", rests.append)
    own = service.Engine("cpu", rows=4, width=8)
    wanted = order("sync_in_loop", 2, 0, str(tmp_path))
    found = service.measure(launching.Waits(own, wanted)).document()
    assert len(rests) == 2 + 3 + 3 + 3 + 3
    before = [ns / 1e9 for ns in found["off_ns"][0]]
    assert rests[3:6] == [max(service.REST_S, last) for last in before]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_whoever_is_prefilled_first_has_not_waited_for_it(tmp_path: Path) -> None:
    sharing, service = (
        importlib.import_module(f"rca_llm.inject.gpu_{name}") for name in ("sharing", "service")
    )
    own = service.Engine("cpu", rows=4, width=8)
    truth = sharing.prefill_first(own, order("prefill_before_decode", 4, 0, str(tmp_path)))
    served, steps = truth.ledger.requests, truth.ledger.steps
    assert steps[3][1] <= served["prefill_before_decode-4-0-b"].arrival <= steps[4][0]
    found = truth.document()
    assert [row["injected_ns"] > 0 for row in found["requests"]] == [True, False]


def test_savings_below_the_noise_are_listed_and_not_judged() -> None:
    rows = [removed(0, 100, 1100, 1000, 1060), removed(0, 100, 1100, 1060, 1000, size=80)]
    assert not any(one.judged for one in matrix.removals(rows))
    assert matrix.whatif_figures(rows)["whatif_median"] is None
    assert matrix.whatif_table(rows).count("drowned in noise") == 2
    assert not any(one.judged for one in matrix.removals([removed(0, 100, 1100, 1000)]))


def test_runs_that_do_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRODUCTS, "7")
    work = Arithmetic()
    work.warm_up()
    assert work.products == 7


def run(cause: str, target: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The summary and the truth of a cause in its middle size."""
    call = [sys.executable, "-m", "rca_llm", "inject", cause, "-o", str(target)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RCA_LLM_")}
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(call, env=env, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 2 and cause == "cpu_quota":
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    report = rca_llm.load(str(target)).attribute()
    return report.summary, json.loads((target / "truth.json").read_text())


def test_a_run_holds_its_trace_and_its_truth(tmp_path: Path) -> None:
    summary, truth = run("serialisation", tmp_path / "run.rca")
    told = {row["id"]: row["latency_ns"] for row in truth["requests"]}
    assert {row["id"] for row in summary["requests"]} == set(told)
    for row in summary["requests"]:
        assert row["latency_ns"] == pytest.approx(told[row["id"]], rel=0.1, abs=20 * MS)
    assert 0 < truth["injected_ns"] < truth["latency_ns"]
    assert "R48" in {hint["id"] for hint in summary["hints"]}


@pytest.mark.slow
@pytest.mark.parametrize("cause", HOST)
def test_the_cause_is_found(cause: str, tmp_path: Path) -> None:
    """The short form of the matrix. What else a busy machine does is no miss: any place counts."""
    summary, truth = run(cause, tmp_path / "run.rca")
    row = judged(summary, truth)
    if cause == "cpu_hog" and row.truth is not None and row.truth < 0.2:
        pytest.skip(f"the neighbours got little of the CPU here: {row.truth:.2f} of the latency")
    assert row.rank is not None, (row.hints, row.said, row.truth)


def test_an_output_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "run.rca" / "kept"
    kept.parent.mkdir()
    kept.write_text("precious")
    assert main(["inject", "clean", "-o", str(kept.parent)]) == 2
    assert "--force" in capsys.readouterr().err
    assert [*kept.parent.iterdir()] == [kept]
