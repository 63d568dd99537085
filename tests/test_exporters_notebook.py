from __future__ import annotations

from html.parser import HTMLParser

import pytest

from rca_llm.attribute.parts import CLASSES
from rca_llm.exporters import notebook
from tests.sample_trace import Shape, trace


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_fragment_says_what_the_report_says() -> None:
    report = trace().attribute()
    found = Tags(report._repr_html_())
    total = sum(row["shares"]["compute"] for row in report.summary["requests"])
    assert f"{total / 1e6:,.3f} ms" in found.text
    assert "of the latency of 6 requests" in found.text


def test_hostile_names_are_text() -> None:
    report = trace(Shape(prefix="<script>x</script>\u202e")).attribute()
    report.summary["hints"] = [
        {"id": "x", "title": "<img src=x>\u202e", "saving_ns": None, "class": "io"}
    ]
    found = Tags(notebook.fragment(report.summary))
    assert not {"script", "img"} & found.tags
    assert "<img src=x>⟨U+202E⟩" in found.text


def test_every_list_is_a_frame_with_exact_integers() -> None:
    report = trace().attribute()
    frames = report.frames()
    assert frames["requests"]["latency_ns"].tolist() == [
        row["latency_ns"] for row in report.summary["requests"]
    ]
    report.summary["requests"][0]["latency_ns"] = None
    report.summary["requests"][1]["latency_ns"] = 2**62 + 1
    gaps = notebook.frames(report.summary)["requests"]["latency_ns"]
    assert gaps[1] == 2**62 + 1
    assert gaps.isna().tolist()[:2] == [True, False]
    assert str(frames["steps"]["start_ns"].dtype) == "Int64"
    assert frames["steps"]["start_ns"].tolist() == [
        row["start_ns"] for row in report.summary["steps"]
    ]


def test_figures_hold_the_figures_of_the_summary() -> None:
    pytest.importorskip("plotly", reason="plotly is not installed (pip install .[plots])")
    report = trace().attribute()
    found = report.figures()
    assert set(found) == {"shares", "latency", "kernels"}
    requests = report.summary["requests"]
    judged = {name: sum(row["shares"][name] for row in requests) for name in CLASSES}
    assert {bar.name: bar.x[0] for bar in found["shares"].data} == {
        name: ns / 1e6 for name, ns in judged.items()
    }
    assert len(found["latency"].data[0].x) == len(requests)
