"""Hostile names and secrets: whatever a trace says is text in every output, and no secret is."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import rca_llm
from rca_llm.exporters import FORMATS, exporter, html, notebook, prometheus
from rca_llm.trace import Device
from tests.sample_trace import Shape, trace
from tests.traced import TRACE, environment

NAMES = {
    "script": "</script><script>pwned=1</script><img src=x onerror=pwned=1>\"'`&amp;",
    "reordering": "\u202egnp.\u2066exe\u200f\u061c",
    "controls": "\x1b[31m\x00\x07\r\n\x85",
    "long": "n" * 100_000,
    "formula": '=HYPERLINK("http://x","y")',
}
RAW = re.compile("[\x00\x07\x1b\x85\u200f\u202e\u2066\u061c]")
SECRET = "sk-verysecret0123456789abcdef"
PEOPLE = ("html", "csv", "prometheus", "notebook")
"""Outputs whose texts people read as they are: nothing in them may control or reorder."""


@pytest.fixture(scope="module", params=NAMES)
def hostile(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A name, and a folder with every output of a trace in which everything is called so."""
    folder, name = tmp_path_factory.mktemp("hostile"), NAMES[request.param]
    found = trace(Shape(steps=4, kernels=10, requests=2, prefix=name))
    [line] = found.timelines
    line.header = replace(line.header, host=name, engine=name, job=name, nccl=name)
    line.header.extra["command"] = ["serve", name]
    line.devices.append(Device(1, name, 1, {}))
    report = found.attribute()
    for format in FORMATS:
        exporter(format).write(report, folder / format)
    html.write(report, folder / "html")
    (folder / "notebook").write_text(notebook.fragment(report.summary), encoding="utf-8")
    return name, folder


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def test_every_text_output_is_utf_8(hostile: tuple[str, Path]) -> None:
    _, folder = hostile
    for path in files(folder):
        if path.name != "perfetto" and path.suffix != ".parquet":
            path.read_bytes().decode("utf-8")


def test_nothing_that_people_read_controls_or_reorders(hostile: tuple[str, Path]) -> None:
    _, folder = hostile
    for path in files(folder):
        if path.relative_to(folder).parts[0] in PEOPLE:
            assert RAW.search(without_plotly(path)) is None, path


def without_plotly(path: Path) -> str:
    """A file's text; the newlines that end lines are no text of a name."""
    text = re.sub("\r?\n", "\n", path.read_bytes().decode("utf-8"))
    return text.replace(html._template(html.PLOTLY), "")


def test_no_markup_comes_from_a_name(hostile: tuple[str, Path]) -> None:
    _, folder = hostile
    for name in ("html", "notebook"):
        text = without_plotly(folder / name)
        assert "<img" not in text
        assert "<script>pwned" not in text


def test_no_cell_is_a_formula(hostile: tuple[str, Path]) -> None:
    _, folder = hostile
    for path in files(folder / "csv"):
        csv.field_size_limit(10**7)
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                assert not [cell for cell in row if re.match(r"\s*[=@|%]|\s*[+-]\D", cell)]


def test_json_is_json_and_prometheus_has_one_line_a_sample(hostile: tuple[str, Path]) -> None:
    _, folder = hostile
    for name in ("otlp", "chrome"):
        json.loads((folder / name).read_text(encoding="utf-8"))
    for line in (folder / "events").read_text(encoding="utf-8").split("\n")[:-1]:
        json.loads(line)
    sample = re.compile(r'(#.*|[a-z_]+(\{([a-z]+="([^"\\]|\\.)*",?)*\})? [-+.e\d]+)')
    for line in (folder / "prometheus").read_text(encoding="utf-8").split("\n")[:-1]:
        assert sample.fullmatch(line), line[:200]
        assert len(line) < 2_000


def test_invalid_bytes_and_lone_surrogates_of_a_file_go_through(tmp_path: Path) -> None:
    source = tmp_path / "events.jsonl"
    lines = [
        b'{"type":"header","schema":"rca-llm/events/1","clock":"utc","engine":"\\ud800"}',
        b'{"type":"request","id":"\xff\xfe\\ud800","arrival":0,"scheduled":5,"finished":90}',
        b'{"type":"span","pid":1,"tid":1,"name":"\xc3(\\udfff\\u202e","kind":"host",'
        b'"start":5,"end":80}',
    ]
    source.write_bytes(b"\n".join(lines) + b"\n")
    command = [sys.executable, "-m", "rca_llm", "report", str(source), "--json", "-"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.decode("utf-8"))
    assert "\ufffd" in summary["requests"][0]["id"]
    page = subprocess.run(
        [*command[:-2], "-o", str(tmp_path / "page.html")], capture_output=True, check=False
    )
    assert page.returncode == 0, page.stderr
    assert RAW.search(page.stdout.decode("utf-8")) is None
    report = rca_llm.load(source).attribute()
    for name in FORMATS:
        exporter(name).write(report, tmp_path / name)


def test_no_secret_reaches_an_output(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(
        "import sys\nfrom rca_llm import request, span\n"
        "with request('A'), span('work', kind='compute'):\n    sum(range(10**6))\n"
    )
    run = tmp_path / "run.rca"
    env = environment(OPENAI_API_KEY=SECRET, HF_TOKEN=SECRET, DB_URL=f"pg://me:{SECRET}@db/x")
    secrets = [f"--api-key={SECRET}", "--token", SECRET, f"https://u:{SECRET}@host/?key={SECRET}"]
    command = [*TRACE, "-o", str(run), "--", sys.executable, str(script), *secrets]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = rca_llm.load(run).attribute()
    assert report.summary["requests"]
    texts = [text for line in report.trace.timelines for text in line.strings.texts]
    assert not [text for text in texts if SECRET in text]
    for name in FORMATS:
        exporter(name).write(report, tmp_path / name)
    html.write(report, tmp_path / "html")
    (tmp_path / "summary").write_text(json.dumps(report.summary), encoding="utf-8")
    (tmp_path / "more").write_text(prometheus.text(report.summary) + done.stderr, "utf-8")
    for path in files(tmp_path):
        assert SECRET.encode() not in path.read_bytes(), path
    assert "--api-key=***" in (tmp_path / "html").read_text("utf-8")
    assert SECRET in env["OPENAI_API_KEY"] and os.environ.get("OPENAI_API_KEY") != SECRET
