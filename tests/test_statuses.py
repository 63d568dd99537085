"""The page of exit statuses and messages against the commands themselves."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rca_llm.cli import COMMANDS, main
from tests.sample_trace import trace
from tests.test_compare import events
from tests.traced import environment

PAGE = Path(__file__).resolve().parent.parent / "docs" / "statuses.md"
ROW = re.compile(r"\| `rca-llm ([^`]+)` \| (\d+) \| (?:`([^`]+)`)? *\|")
ROWS = [(line, int(status), told) for line, status, told in ROW.findall(PAGE.read_text("utf-8"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page says that the folder holds."""
    events(tmp_path / "good.jsonl", 1_000_000)
    (tmp_path / "empty").touch()
    (tmp_path / "noise.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (tmp_path / "old.html").write_text("old")
    (tmp_path / "notes.txt").write_text("mine\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine\n")
    trace().save(tmp_path)
    (tmp_path / "0000").rename(tmp_path / "run.rca")
    (tmp_path / "run.rca" / "manifest.json").write_text(
        '{"schema": "rca-llm/run/1", "state": "finished"}'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("line", "status", "told"), ROWS, ids=[line for line, _, _ in ROWS])
def test_a_command_ends_as_the_page_says(
    folder: Path, capfd: pytest.CaptureFixture[str], line: str, status: int, told: str
) -> None:
    before = {path.name for path in folder.iterdir()}
    assert _run(shlex.split(line)) == status
    said = capfd.readouterr().err
    if told:
        pattern = ".*".join(map(re.escape, f"rca-llm: {told}".split("…")))
        assert re.fullmatch(pattern, said.rstrip("\n")), said
    else:
        assert said == ""
    if status in (2, 3):
        assert {path.name for path in folder.iterdir()} == before
    assert (folder / "notes.txt").read_text() == "mine\n"
    assert (folder / "old.html").read_text() == "old"


def _run(words: list[str]) -> int:
    """A command's status; a launcher has a process of its own, whose signals it takes."""
    if words[0] != "trace":
        return main(words)
    command = [sys.executable, "-m", "rca_llm", *words]
    return subprocess.run(command, env=environment(), check=False).returncode


def test_every_command_is_on_the_page() -> None:
    assert {line.split()[0] for line, _, _ in ROWS} >= set(COMMANDS)


PRINTING = (
    "--help",
    "report good.jsonl",
    "report good.jsonl --json -",
    "compare good.jsonl --with good.jsonl",
    "check",
    "ctl run.rca status",
    "export good.jsonl --to events -o -",
)


def _into(folder: Path, line: str, stdout: int | None) -> tuple[int, str]:
    """The status and the message of a command with another standard output, None for none."""
    command = [sys.executable, "-m", "rca_llm", *shlex.split(line)]
    if stdout is None:
        command = ["sh", "-c", 'exec "$0" "$@" >&-', *command]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("line", PRINTING)
def test_a_full_disk_and_a_reader_that_went_away_are_told_apart(folder: Path, line: str) -> None:
    with Path("/dev/full").open("w") as full:
        said = "rca-llm: the output: cannot be written: No space left on device\n"
        assert _into(folder, line, full.fileno()) == (2, said)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert _into(folder, line, writer) == (141, "")
    finally:
        os.close(writer)


def test_without_a_standard_output_tables_go_nowhere_and_documents_are_refused(
    folder: Path,
) -> None:
    assert _into(folder, "report good.jsonl", None) == (0, "")
    told = "rca-llm: standard output: cannot be written: it is closed\n"
    assert _into(folder, "report good.jsonl --json -", None) == (2, told)


def test_documents_on_standard_output_stand_alone(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compared = "compare good.jsonl --with good.jsonl"
    for line in ("report good.jsonl", compared, "whatif good.jsonl --set io=0", "check"):
        assert main([*line.split(), "--json", "-"]) == 0
        assert json.loads(capfd.readouterr().out)["schema"].startswith("rca-llm/")


@pytest.mark.parametrize("command", ["report", "export --to chrome -o out", "whatif --set io=0"])
@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"traceEvents":[{"ph":"X","cat":"kernel","ts":1,"dur":1,"args":' + '{"a":' * 50_000,
        '{"traceEvents":' + "[" * 50_000,
    ],
    ids=["lists", "arguments", "events"],
)
def test_what_nests_without_end_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str], content: str, command: str
) -> None:
    (folder / "deep.json").write_text(content)
    name, *options = command.split()
    assert main([name, "deep.json", *options]) == 3
    assert re.fullmatch(r"rca-llm: deep\.json: byte \d+: expected .*\n", capfd.readouterr().err)
    assert not (folder / "out").exists()
