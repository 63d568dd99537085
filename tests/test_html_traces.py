"""The pages of the demo, of recordings on an H200 and of a million events in a real Chromium."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rca_llm
from rca_llm.exporters import html, units
from rca_llm.report import Report
from tests.browser import chromium, opened
from tests.sample_trace import Shape, trace
from tests.traced import trace as run_traced

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("demo", "h200", "h200-vllm", "million")
MOST_BYTES = 8_000_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module", params=NAMES)
def opened_report(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Report, Path]:
    """A report by name, and its page."""
    folder = tmp_path_factory.mktemp(request.param)
    report: Report = globals()[f"_{request.param.replace('-', '_')}"](folder)
    html.write(report, folder / "report.html")
    return request.param, report, folder / "report.html"


def _demo(folder: Path) -> Report:
    """The example server under load, traced here and now."""
    script = str(ROOT / "examples" / "demo.py")
    done = run_traced(folder, sys.executable, script, "--requests", "8")
    assert done.status == 0, done.stderr
    return rca_llm.load(done.run.path).attribute()


def _h200(folder: Path) -> Report:
    """A model's generate, recorded by the collector on an H200."""
    with tarfile.open(ROOT / "tests" / "data" / "h200" / "generate.rca.tar.gz") as archive:
        archive.extractall(folder)
    return rca_llm.load(next(folder.glob("*.rca"))).attribute()


def _h200_vllm(folder: Path) -> Report:
    """A vLLM on an H200, recorded by Nsight Systems, with the engine's own request times."""
    data = ROOT.parent / "shared" / "data" / "h200"
    if not data.is_dir():
        pytest.skip("no folder ../shared with recorded traces")
    inputs = ("vllm-node.nsys.sqlite.gz", "vllm-node.requests.jsonl")
    return rca_llm.load(*(data / name for name in inputs)).attribute()


def _million(folder: Path) -> Report:
    """A million events, half of them kernels and half the calls that launched them."""
    found = trace(Shape(steps=2000, kernels=250, requests=250))
    assert sum(len(table) for line in found.timelines for table in line.tables.values()) > 10**6
    return found.attribute()


def test_it_opens_without_errors_or_requests_and_is_small(
    browser: Browser, opened_report: tuple[str, Report, Path]
) -> None:
    _, _, page = opened_report
    assert page.stat().st_size < MOST_BYTES
    with opened(browser, page) as (tab, seen):
        tab.evaluate("drawAll()")
        assert tab.locator("#timeline-plot .bars path").count() > 10
        assert seen.errors == []
        assert seen.requests == [page.as_uri()]


def test_its_numbers_are_those_of_the_json(
    browser: Browser, opened_report: tuple[str, Report, Path]
) -> None:
    _, report, page = opened_report
    summary = json.loads(json.dumps(report.summary))
    with opened(browser, page) as (tab, _):
        for name, ns in summary["shares"].items():
            cell = tab.locator(f"tr[data-class={name}] [data-whole]")
            assert cell.all_inner_texts() == ([units.milliseconds(ns)] if cell.count() else [])
            assert cell.count() or ns == 0
        for table, key, head in (
            ("requests", "latency_ns", "latency"),
            ("kernels", "total_ns", "total"),
            ("ranges", "total_ns", "total"),
            ("api", "total_ns", "total"),
        ):
            rows = [row[key] for row in summary[table] if row[key] is not None]
            shown = column(tab, table, head)
            assert shown == sorted(rows, reverse=True)[: len(shown)]
            assert bool(shown) == bool(rows)


def column(tab: Page, table: str, head: str) -> list[int]:
    """The exact values of a table's column, as the page holds them."""
    found: list[int] = tab.evaluate(
        """([id, head]) => {
          const grid = DATA.grids.find((grid) => grid.id === id);
          const at = grid ? grid.columns.findIndex((column) => column.head === head) : -1;
          const cells = [...document.querySelectorAll(`[data-grid="${id}"] tbody tr`)];
          return cells.map((row) => Number(row.children[at].dataset.value));
        }""",
        [table, head],
    )
    return found


def test_zooming_and_filtering_work(
    browser: Browser, opened_report: tuple[str, Report, Path]
) -> None:
    _, _, page = opened_report
    with opened(browser, page) as (tab, seen):
        whole = tab.evaluate("timeline.to - timeline.from")
        tab.focus("#timeline-plot")
        for key in ("+", "+", "ArrowRight"):
            tab.keyboard.press(key)
        assert tab.evaluate("timeline.to - timeline.from") == pytest.approx(whole / 4)
        assert tab.evaluate("timeline.from") > 0
        tab.keyboard.press("0")
        assert tab.evaluate("timeline.to - timeline.from") == pytest.approx(whole)
        box = tab.locator(".grid-head input").first
        if box.count():
            box.fill("no row holds this")
            assert tab.locator(".grid-foot [role=status]", has_text="0 of 0 rows").count() >= 1
        assert seen.errors == []


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, False), (1400, True)])
def test_screenshots(
    browser: Browser,
    opened_report: tuple[str, Report, Path],
    tmp_path: Path,
    width: int,
    dark: bool,
) -> None:
    name, _, page = opened_report
    with opened(browser, page, width=width, dark=dark) as (tab, seen):
        tab.evaluate("drawAll()")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert seen.errors == []
        shot = tmp_path / f"report-{name}-{width}{'-dark' if dark else ''}.png"
        tab.screenshot(path=str(shot), full_page=True)
        kept(shot)


def test_print(browser: Browser, opened_report: tuple[str, Report, Path], tmp_path: Path) -> None:
    name, _, page = opened_report
    with opened(browser, page) as (tab, seen):
        shot = tmp_path / f"report-{name}-print.pdf"
        tab.pdf(path=str(shot), prefer_css_page_size=True, print_background=False)
        assert seen.errors == []
        assert shot.stat().st_size > 20_000
        kept(shot)


def kept(file: Path) -> None:
    """Keep a file where CI collects artefacts."""
    if folder := os.environ.get("RCA_LLM_ARTEFACTS"):
        shutil.copy(file, folder)


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(
    browser: Browser, opened_report: tuple[str, Report, Path], dark: bool
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed (pip install .[dev])"
    )
    _, _, page = opened_report
    with opened(browser, page, dark=dark) as (tab, _):
        tab.evaluate("drawAll()")
        found: list[dict[str, Any]] = axe.Axe().run(tab).response["violations"]
        told = [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found]
        assert told == []
