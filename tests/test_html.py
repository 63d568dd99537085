from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rca_llm.exporters import html, units
from rca_llm.exporters.tables import GRIDS, _head
from rca_llm.hints import RULES
from rca_llm.report import Report
from tests.browser import chromium, opened
from tests.sample_trace import Shape, trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ATTACK = "</script><script>window.pwned=1</script><img src=x onerror=pwned=1><b>\"'&\u202e\u2028 "
HINT = {
    "id": "R01",
    "title": "Requests wait for the queue",
    "class": "scheduling",
    "confidence": "high",
    "share": 0.52,
    "saving_ns": 2_000_000,
    "evidence": {"queue_ns": 2_000_000, "requests": 4},
    "requests": ["request-4"],
    "window": None,
    "advice": "Add replicas.",
}


class Elements(HTMLParser):
    """All start tags of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def page_data(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match
    data: dict[str, Any] = json.loads(match.group(1))
    return data


def grid(text: str, name: str) -> list[dict[str, Any]]:
    """A table of the page as rows by column head."""
    found = next(grid for grid in page_data(text)["grids"] if grid["id"] == name)
    heads = [column["head"] for column in found["columns"]]
    return [dict(zip(heads, row, strict=True)) for row in found["rows"]]


@pytest.fixture(scope="module")
def report() -> Report:
    found = trace().attribute()
    found.summary["hints"] = [HINT]
    return found


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    html.write(report, target)
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_the_page_refers_to_nothing_outside(report: Report) -> None:
    for tag, attributes in Elements(html.render(report)).found:
        for name in ("src", "href", "action", "data", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, value)
    assert "default-src 'none'" in html.render(report)


def test_every_link_leads_to_a_section(report: Report) -> None:
    elements = Elements(html.render(report)).found
    ids = {attributes.get("id") for _, attributes in elements}
    links = {a["href"] for tag, a in elements if tag == "a" and a.get("href")}
    assert links
    assert {link.removeprefix("#") for link in links if link} <= ids


def test_table_figures_are_those_of_the_summary(report: Report) -> None:
    rows = {row["request"]: row for row in grid(html.render(report), "requests")}
    assert len(rows) == len(report.summary["requests"])
    for request in report.summary["requests"]:
        row = rows[request["id"]]
        assert row["latency"] == request["latency_ns"]
        assert row["TTFT"] == request["ttft_ns"]
        assert row["made of"] == list(request["shares"].values())


def test_columns_without_records_are_named_and_not_shown(report: Report) -> None:
    text = html.render(report)
    collectives = next(g for g in page_data(text)["grids"] if g["id"] == "collectives")
    assert "bytes" in collectives["unrecorded"]
    assert "bytes" not in [column["head"] for column in collectives["columns"]]
    assert "Not recorded here: " in text


def test_collectives_of_which_no_waiting_is_known_are_nowhere_called_moving() -> None:
    one = trace(Shape(steps=8)).attribute()
    one.summary["collectives"] = [{**row, "wait_ns": None} for row in one.summary["collectives"]]
    text = html.render(one)
    assert "data moving" not in text
    assert page_data(text)["words"]["communication.collective"] in text
    one.summary["collectives"] = [{**one.summary["collectives"][0], "wait_ns": {"0": 0}}]
    assert "data moving" in page_data(html.render(one))["words"]["communication.collective"]


def test_every_column_is_defined() -> None:
    heads = [_head(column) for grid in GRIDS for column in grid.columns]
    assert [head["head"] for head in heads if not head["about"]] == []


def test_findings_are_always_there(report: Report) -> None:
    text = html.render(report)
    for finding in report.summary["quality"]:
        assert finding["code"].replace("_", " ") in text
    assert '<details class="findings" open>' in text


def test_no_hint_and_no_finding_are_said() -> None:
    report = trace().attribute()
    report.summary["hints"] = []
    report.summary["quality"] = []
    text = html.render(report)
    assert "No hint: no rule found a cause" in text
    assert "No finding about the quality of this data." in text


@pytest.mark.parametrize("requests", [0, 6])
def test_a_trace_with_and_without_requests(requests: int) -> None:
    text = html.render(trace(Shape(requests=requests)).attribute())
    assert ('id="requests"' in text) == bool(requests)
    assert 'id="timeline"' in text


def test_data_cannot_end_its_script_element() -> None:
    text = html.safe_json({"name": ATTACK})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["name"] == ATTACK


def test_hostile_names_are_text() -> None:
    report = trace(Shape(prefix=ATTACK)).attribute()
    report.summary["hints"] = [
        HINT | {"title": ATTACK, "advice": [ATTACK], "evidence": {ATTACK: 1}}
    ]
    report.summary["quality"].append(
        {"code": ATTACK, "count": 1, "where": ATTACK, "detail": ATTACK}
    )
    text = html.render(report)
    elements = Elements(text).found
    assert "img" not in [tag for tag, _ in elements]
    assert sum(tag == "script" for tag, _ in elements) == len(html.SCRIPTS) + 2
    assert "\u202e" not in text.replace(html._template("report.html.j2"), "")


def test_a_name_of_any_length_costs_little() -> None:
    short = len(html.render(trace().attribute()))
    long = len(html.render(trace(Shape(prefix="n" * 100_000)).attribute()))
    assert long - short < 200_000


def test_the_page_of_a_large_trace_stays_small() -> None:
    text = html.render(trace(Shape(steps=400, kernels=250, requests=40)).attribute())
    assert len(text.encode()) < 8_000_000


def test_a_chromium_draws_it_without_errors_or_requests(browser: Browser, page: Path) -> None:
    with opened(browser, page) as (tab, seen):
        assert tab.locator("#timeline-plot .bars path").count() > 50
        for plot in ("latency", "curve", "cohorts", "steps"):
            tab.locator(f"#{plot}-plot").scroll_into_view_if_needed()
            tab.wait_for_selector(f"#{plot}-plot .plot-container path", state="attached")
        assert tab.locator("#latency-plot .bars path").count() > 0
        assert seen.errors == []
        assert seen.requests == [page.as_uri()]


def test_numbers_on_the_page_are_those_of_the_summary(
    browser: Browser, page: Path, report: Report
) -> None:
    with opened(browser, page) as (tab, _):
        latencies = [
            int(value)
            for value in tab.eval_on_selector_all(
                "[data-grid=requests] tbody tr td:nth-child(2)",
                "cells => cells.map(cell => cell.dataset.value)",
            )
        ]
        assert latencies == sorted(
            (r["latency_ns"] for r in report.summary["requests"]), reverse=True
        )
        for name, ns in report.summary["shares"].items():
            cell = tab.locator(f"tr[data-class={name}] [data-whole]")
            if ns:
                assert cell.inner_text() == units.milliseconds(ns)


def test_scripts_and_server_write_numbers_alike(browser: Browser, page: Path) -> None:
    values = [0, 7, 999, 1_000, 1_004, 12_345, 999_600, 123_456_789, 5_000_000_000, -2_500]
    with opened(browser, page) as (tab, _):
        assert tab.evaluate("v => v.map(x => format(x, 'ns'))", values) == [
            units.duration(value) for value in values
        ]
        assert tab.evaluate("v => v.map(x => format(x, 'bytes'))", values) == [
            units.size(value) for value in values
        ]
        shares = [0, 0.0001, 0.05, 0.333, 1]
        assert tab.evaluate("v => v.map(x => format(x, 'share'))", shares) == [
            units.percent(share) for share in shares
        ]
        assert tab.evaluate("format(null, 'ns')") == units.UNKNOWN


def test_sorting_filtering_zooming_and_choosing(browser: Browser, page: Path) -> None:
    with opened(browser, page) as (tab, seen):
        tab.click("[data-grid=steps] thead button:has-text('prefill')")
        first = tab.locator("[data-grid=steps] tbody tr").first.inner_text()
        assert "512" in first
        assert tab.locator("[data-grid=steps] th[aria-sort=descending]").count() == 1
        tab.fill("[data-grid=collectives] input", "all_reduce nothing-like-it")
        assert tab.locator("[data-grid=collectives] tbody tr").count() == 0
        tab.click("[data-grid=requests] tbody button >> nth=2")
        chosen = tab.locator("#timeline-view option:checked").inner_text()
        assert chosen.startswith("request request-")
        before = tab.evaluate("timeline.to - timeline.from")
        tab.focus("#timeline-plot")
        tab.keyboard.press("+")
        assert tab.evaluate("timeline.to - timeline.from") == pytest.approx(before / 2)
        tab.keyboard.press("0")
        assert tab.evaluate("timeline.to - timeline.from") == before
        drag_across(tab)
        assert tab.evaluate("timeline.to - timeline.from") < before * 0.8
        assert seen.errors == []


def test_columns_that_matter_less_stand_behind_a_button(browser: Browser, page: Path) -> None:
    with opened(browser, page, width=400) as (tab, seen):
        minor = tab.locator("[data-grid=requests] th.minor")
        assert minor.count() > 3
        assert not minor.first.is_visible()
        button = tab.locator("[data-grid=requests] .grid-head button")
        button.click()
        assert minor.first.is_visible()
        assert button.get_attribute("aria-pressed") == "true"
        head = tab.locator("[data-grid=requests] thead th").nth(1).inner_text()
        unit = re.match(r"latency, (s|ms|µs)\b", head)
        assert unit
        factor = {"s": 1e9, "ms": 1e6, "µs": 1e3}[unit[1]]
        cells = tab.locator("[data-grid=requests] tbody td:nth-child(2)")
        for cell in cells.all():  # one unit a column: what is shown is the value in it
            exact = int(cell.get_attribute("data-value") or 0)
            assert cell.inner_text() == f"{exact / factor:,.2f}"
        first = tab.locator("[data-grid=requests] tbody th").first
        tab.eval_on_selector("[data-grid=requests] .scroll", "node => { node.scrollLeft = 300; }")
        assert (first.bounding_box() or {})["x"] >= 0  # the first column stays
        assert seen.errors == []


def test_a_columns_unit_leaves_small_values_readable(browser: Browser, page: Path) -> None:
    with opened(browser, page) as (tab, _):
        told = """values => {
          const unit = columnUnit(values, "ns");
          return [unit.name, ...values.map(value => inUnit(value, unit))];
        }"""
        assert tab.evaluate(told, [2_000_000_000, 400_000, 500_000, 1_000]) == [
            "ms", "2,000.00", "0.40", "0.50", "< 0.01",
        ]  # fmt: skip
        assert tab.evaluate(told, [5, 0, 7]) == ["ns", "5", "0", "7"]
        assert tab.evaluate("columnUnit([null, null], 'ns')") is None


def drag_across(tab: Any) -> None:
    """Zoom with the mouse into the middle of the timeline."""
    tab.locator("#timeline-plot").scroll_into_view_if_needed()
    box = tab.locator(
        "#timeline-plot .bglayer, #timeline-plot .draglayer .nsewdrag"
    ).last.bounding_box()
    middle = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + box["width"] * 0.3, middle)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=5)
    tab.mouse.up()
    tab.wait_for_timeout(500)


def test_definitions_show_on_focus(browser: Browser, page: Path) -> None:
    with opened(browser, page) as (tab, _):
        tab.focus(".facts abbr >> nth=0")
        assert "took this long or less" in tab.locator("#tip").inner_text()
        tab.keyboard.press("Escape")
        assert not tab.locator("#tip").is_visible()


def test_hostile_names_do_nothing_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    target = tmp_path / "hostile.html"
    report = trace(Shape(prefix=ATTACK)).attribute()
    report.summary["hints"] = [HINT | {"title": ATTACK}]
    html.write(report, target)
    with opened(browser, target) as (tab, seen):
        assert tab.evaluate("window.pwned") is None
        assert tab.locator("img").count() == 0
        box = tab.locator("#timeline-plot .bars path").nth(3).bounding_box()
        assert box
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        names = tab.locator("[data-grid=kernels] tbody th").all_inner_texts()
        assert any("</script><script>window.pwned=1" in name for name in names)
        assert any("⟨U+202E⟩" in name for name in names)
        assert seen.errors == []
        assert seen.dialogs == []
        assert seen.requests == [target.as_uri()]


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, False), (400, True)])
def test_the_page_fits_its_window(
    browser: Browser, page: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    with opened(browser, page, width=width, dark=dark) as (tab, seen):
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert seen.errors == []
        artefacts = os.environ.get("RCA_LLM_ARTEFACTS")
        shot = tmp_path / f"report-{width}-{'dark' if dark else 'light'}.png"
        tab.screenshot(path=str(shot), full_page=True)
        assert shot.stat().st_size > 20_000
        if artefacts:
            shutil.copy(shot, artefacts)


def test_tables_work_before_plots_do(browser: Browser, page: Path, tmp_path: Path) -> None:
    begin, bundle, end = re.split(
        r"(?<=id=\"plotly\">)(.*?)(?=</script>)", page.read_text("utf-8"), flags=re.DOTALL
    )
    assert len(bundle) > 500_000
    without = tmp_path / "page.html"
    without.write_text(begin + end, encoding="utf-8")
    tab = browser.new_page()
    tab.goto(without.as_uri())
    assert tab.locator("[data-grid=requests] tbody tr").count() == 6
    tab.click("[data-grid=requests] tbody button >> nth=0")
    tab.close()


NUMBERS_WITHOUT_A_DEFINITION = """() => {
  const aside = "svg, bdi, code, select, #rules, #environment, #definitions, .about, .legend,"
    + " .links, .grid-foot, caption, figcaption, .number, .sr, script, noscript, button.link";
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const place = node.parentElement;
    if (/\\d/.test(node.data) && !place.closest(aside) && !place.closest("[title], [data-tip]")) {
      found.push(`${place.tagName} ${place.className}: ${node.data.trim()}`);
    }
  }
  return found;
}"""


def test_every_number_has_a_definition_on_hover_and_tap(browser: Browser, page: Path) -> None:
    with opened(browser, page) as (tab, _):
        tab.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
        assert tab.evaluate(NUMBERS_WITHOUT_A_DEFINITION) == []
        cell = tab.locator("[data-grid=kernels] tbody td.num").first
        cell.hover()
        assert "Plain sum of kernel durations" in tab.locator("#tip").inner_text()
        assert re.search(r"[\d,]+ ns\.", tab.locator("#tip").inner_text())


def test_a_keyboard_and_a_finger_reach_definitions(browser: Browser, page: Path) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 900}, has_touch=True)
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]")
    tab.locator("[data-grid=requests] tbody td.num").first.tap()
    assert "From the request's arrival" in tab.locator("#tip").inner_text()
    tab.keyboard.press("Escape")
    reached = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.getElementById('tip').hidden ? '' : tip.textContent"))
    context.close()
    assert len(reached) > 20


def test_every_hint_links_to_its_page_in_the_file(report: Report) -> None:
    hints = [HINT | {"id": rule.id, "title": rule.name} for rule in RULES]
    elements = Elements(html.render(replace(report, summary=report.summary | {"hints": hints})))
    links = [a["href"] for tag, a in elements.found if tag == "a" and a.get("href")]
    pages = {a.get("id") for tag, a in elements.found if tag == "article"}
    assert {f"rule-{rule.id}" for rule in RULES} == pages
    assert {f"#rule-{rule.id}" for rule in RULES} <= set(links)


def test_a_link_unfolds_the_page_of_its_hint(browser: Browser, page: Path) -> None:
    with opened(browser, page) as (tab, _):
        assert not tab.locator("#rule-R01").is_visible()
        tab.click("a[href='#rule-R01'] >> nth=0")
        assert tab.locator("#rule-R01").is_visible()
        told = tab.locator("#rule-R01").inner_text()
        assert "Disproved by" in told
        assert "<code>" not in told
        assert tab.locator("#rule-R01 dd code").count() > 0


def test_a_roofline_is_drawn_from_what_is_known_alone(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    assert "Roofline is not judged" in html.render(report)
    first, *rest = report.summary["kernels"]
    known = first | {"flops": first["total_ns"] * 400_000, "dram_bytes": first["total_ns"] * 1000}
    told = replace(report, summary=report.summary | {"kernels": [known, *rest]})
    data = page_data(html.render(told))["kernels"]["roofline"]
    assert [point["intensity"] for point in data["rows"]] == [400]
    assert [point["flops_s"] for point in data["rows"]] == [4e14]
    assert {roof["name"] for roof in data["roofs"]} == {"bf16", "fp8", "tf32", "fp32"}
    target = tmp_path / "roofline.html"
    html.write(told, target)
    with opened(browser, target) as (tab, seen):
        tab.evaluate("drawAll()")
        assert tab.locator("#roofline-plot .scatterlayer .point").count() == 1
        assert seen.errors == []
