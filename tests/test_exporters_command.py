from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rca_llm.exporters import FORMATS, events
from tests.sample_trace import trace


def export(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rca_llm", "export", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("source") / "trace.jsonl"
    events.write(trace().attribute(), target)
    return target


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_written(source: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "out"
    done = export(source, "--to", name, "-o", target)
    assert (done.returncode, done.stderr) == (0, "")
    size = sum(path.stat().st_size for path in [target, *target.rglob("*")] if path.is_file())
    assert size > 1_000
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["chrome", "events", "otlp", "prometheus"])
def test_a_dash_is_standard_output(source: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "out"
    done, written = (
        export(source, "--to", name, "-o", "-"),
        export(source, "--to", name, "-o", target),
    )
    assert (done.returncode, done.stderr, written.returncode) == (0, "", 0)
    assert done.stdout == target.read_text(encoding="utf-8")
    assert not Path("-").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "csv", "-o", "-"], "several files"),
        (["--to", "events"], "give either -o PATH or"),
        (["--to", "events", "--serve", ":0"], "--serve is for prometheus"),
        (["--to", "prometheus", "--serve", "here"], "expected an address"),
    ],
)
def test_what_cannot_be_meant_is_one_line(source: Path, arguments: list[str], told: str) -> None:
    done = export(source, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_endpoint_answers_scrapes(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rca_llm", "export", str(source), "--to", "prometheus"]
    serving = subprocess.Popen([*command, "--serve", ":0"], stderr=subprocess.PIPE, text=True)
    assert serving.stderr is not None
    try:
        found = re.search(r"http://\S+/metrics", serving.stderr.readline())
        assert found
        with urllib.request.urlopen(found.group(), timeout=60) as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(found.group().replace("metrics", "etc/passwd"), timeout=60)
    finally:
        serving.terminate()
        serving.wait()
    target = tmp_path / "out.prom"
    assert export(source, "--to", "prometheus", "-o", target).returncode == 0
    assert text == target.read_text(encoding="utf-8")


def test_an_empty_run_is_one_line(tmp_path: Path) -> None:
    run = tmp_path / "empty.rca"
    trace_it = [sys.executable, "-m", "rca_llm", "trace", "-o", str(run), "--", "true"]
    subprocess.run(trace_it, check=True, capture_output=True)
    done = export(run, "--to", "otlp", "-o", tmp_path / "out.json")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "expected records of a process" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_an_output_is_replaced_only_when_asked(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("mine")
    done = export(source, "--to", "otlp", "-o", target)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--force" in done.stderr
    assert target.read_text() == "mine"
    assert export(source, "--to", "otlp", "-o", target, "--force").returncode == 0
    assert "resourceSpans" in json.loads(target.read_text())


def test_bad_input_leaves_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("no trace")
    done = export(bad, "--to", "csv", "-o", tmp_path / "out")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [bad]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from rca_llm.cli import main; main(['export', '--help']);"
        "print({'jinja2', 'pandas', 'numpy', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
