"""Parquet, CSV and Prometheus: the summary's figures in the formats of other tools."""

from __future__ import annotations

import csv as reader
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm import columns, saved
from rca_llm.errors import RcaError
from rca_llm.exporters import FORMATS, csv, exporter, flat, parquet, prometheus
from rca_llm.report import Report
from rca_llm.trace import TABLES
from tests.sample_trace import Shape, trace

FORMULAS = ("=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", " =1", "|cmd", "%x")


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(reader.DictReader(file))


@pytest.fixture(scope="module")
def report() -> Report:
    return trace().attribute()


def test_csv_holds_the_summary(report: Report, tmp_path: Path) -> None:
    csv.write(report, tmp_path / "out")
    rows = csv_rows(tmp_path / "out/summary/requests.csv")
    assert [row["id"] for row in rows] == [r["id"] for r in report.summary["requests"]]
    for row, request in zip(rows, report.summary["requests"], strict=True):
        assert int(row["latency_ns"]) == request["latency_ns"]
        assert int(row["shares.compute"]) == request["shares"]["compute"]
    (overview,) = csv_rows(tmp_path / "out/summary/overview.csv")
    assert int(overview["window.span_ns"]) == report.summary["window"]["span_ns"]
    kernels = csv_rows(tmp_path / "out/trace/00000/gpu.csv")
    assert len(kernels) == len(report.trace.timelines[0]["gpu"])


def test_csv_names_are_never_formulas(tmp_path: Path) -> None:
    for number, formula in enumerate(FORMULAS):
        folder = tmp_path / str(number)
        csv.write(trace(Shape(prefix=formula)).attribute(), folder)
        for path in folder.rglob("*.csv"):
            for row in csv_rows(path):
                for value in row.values():
                    assert not value.lstrip(" ").startswith(csv.FORMULA) or is_number(value)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@given(st.text())
def test_no_text_of_a_cell_begins_a_formula(text: str) -> None:
    found = csv.cell(text)
    assert isinstance(found, str)
    assert not found.lstrip(" ").startswith(csv.FORMULA)


def test_negative_numbers_stay_numbers() -> None:
    assert csv.cell(-5) == -5
    assert csv.cell(None) is None


def test_parquet_holds_the_summary_and_the_trace(report: Report, tmp_path: Path) -> None:
    parquet.write(report, tmp_path / "out")
    found = columns.read(tmp_path / "out/summary/requests.parquet")
    latencies = columns.to_integers(found["latency_ns"], -1).tolist()
    assert latencies == [row["latency_ns"] for row in report.summary["requests"]]
    causes = found["cause"]
    assert [causes[i].as_py() for i in range(len(causes))] == [
        row["cause"] for row in report.summary["requests"]
    ]
    again = saved.load(tmp_path / "out/trace/00000")
    original = report.trace.timelines[0]
    for name in TABLES:
        for column, values in original[name].known.items():
            if TABLES[name][column] != "text":
                assert (again[name][column] == values).all(), (name, column)


def test_every_list_of_the_summary_is_a_table(report: Report) -> None:
    lists = {name for name, value in report.summary.items() if isinstance(value, list)}
    assert lists == set(flat.TABLES)


def metrics(text: str) -> dict[str, float]:
    """Samples of the text format by name and labels."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_prometheus_figures_add_up(report: Report) -> None:
    found = metrics(prometheus.text(report.summary))
    whole = found["rca_llm_trace_seconds"]
    assert math.isclose(whole, report.summary["window"]["span_ns"] / 1e9)
    for family in ("rca_llm_class_seconds", "rca_llm_part_seconds"):
        assert math.isclose(sum(v for k, v in found.items() if k.startswith(family)), whole)
    p99 = found['rca_llm_request_latency_seconds{percentile="99"}']
    assert math.isclose(p99, report.summary["latency"]["p99"] / 1e9)


def test_unknown_is_not_written(report: Report) -> None:
    summary: dict[str, Any] = report.summary | {"latency": None, "hints": []}
    text = prometheus.text(summary)
    assert "rca_llm_request_latency_seconds" not in text
    assert "rca_llm_hint_saving_seconds" not in text
    assert "None" not in text
    assert "NaN" not in text


@pytest.mark.parametrize("prefix", ["", '\\"}\n# {', "\u202e\ud800{}"])
def test_promtool_accepts_the_text(tmp_path: Path, prefix: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH (Debian: apt-get install prometheus)")
    report = trace(Shape(prefix=prefix)).attribute()
    target = tmp_path / "out.prom"
    prometheus.write(report, target)
    done = subprocess.run(
        [promtool, "check", "metrics"], input=target.read_bytes(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_an_exporter_and_is_documented(name: str) -> None:
    found = exporter(name)
    assert isinstance(found.suffix, str)
    assert callable(found.write)
    docs = Path(__file__).parent.parent / "docs" / "export.md"
    assert f"`{name}`" in docs.read_text(encoding="utf-8")


def test_an_unknown_format_is_one_line() -> None:
    with pytest.raises(RcaError, match="no such format; there are perfetto"):
        exporter("pdf")


def test_the_dashboard_asks_for_metrics_that_exist(report: Report) -> None:
    dashboard = json.loads((Path(prometheus.__file__).parent / "grafana/rca-llm.json").read_text())
    written = {family.name for family in prometheus.families(report.summary)}
    asked = set(re.findall(r"rca_llm_\w+", json.dumps(dashboard)))
    assert asked <= written
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(panel["description"] for panel in dashboard["panels"])


def test_promql_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH (Debian: apt-get install prometheus)")
    dashboard = json.loads((Path(prometheus.__file__).parent / "grafana/rca-llm.json").read_text())
    rules = [
        {"record": f"panel:{panel['id']}:{number}", "expr": target["expr"]}
        for panel in dashboard["panels"]
        for number, target in enumerate(panel["targets"])
    ]
    target = tmp_path / "rules.json"  # JSON is YAML
    target.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(target)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
