from __future__ import annotations

import json
import subprocess
import sys
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
