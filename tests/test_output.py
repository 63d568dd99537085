"""Outputs never cost anything that is not theirs to replace."""

from __future__ import annotations

import importlib
import os
import threading
from pathlib import Path

import pytest

from rca_llm import output
from rca_llm.cli import COMMANDS
from rca_llm.errors import RcaError
from rca_llm.run import create
from tests.test_compare import events


def text(draft: Path) -> None:
    draft.write_text("new")


def failing(draft: Path) -> None:
    draft.write_text("half")
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("force", [True, False])
def test_a_folder_of_somebody_elses_is_never_replaced(tmp_path: Path, force: bool) -> None:
    precious = tmp_path / "folder" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("mine")
    with pytest.raises(RcaError, match="no export wrote"):
        output.write(precious.parent, lambda draft: draft.mkdir(), force=force, folder=True)
    assert precious.read_text() == "mine"


def test_an_exported_folder_is_replaced_with_force(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "gpu.csv").write_text("old")
    (folder / "timeline.json").write_text("old")
    output.write(folder, lambda draft: draft.mkdir(), force=True, folder=True)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("folder", [False, None])
def test_an_empty_folder_is_not_replaced_by_a_file(tmp_path: Path, folder: bool | None) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RcaError, match="is a folder; this output is one file"):
        output.write(tmp_path / "empty", text, force=True, folder=folder)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert (tmp_path / "empty").is_dir()


@pytest.mark.parametrize("folder", [True, None])
def test_a_file_is_not_replaced_by_a_folder(tmp_path: Path, folder: bool | None) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(RcaError, match="is a file; this output is a folder"):
        output.write(tmp_path / "notes", lambda d: d.mkdir(), force=True, folder=folder)
    assert (tmp_path / "notes").read_text() == "mine"


def test_an_input_is_never_overwritten(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    with pytest.raises(RcaError, match="is an input"):
        output.check_target(trace, force=True, inputs=[str(trace)])


def test_nothing_is_written_into_a_run_that_is_read(tmp_path: Path) -> None:
    run = create(tmp_path / "ranks" / "one.rca").path
    (tmp_path / "link").symlink_to(run)
    for given in (run, tmp_path / "ranks", tmp_path / "link"):
        for name in ("control", "new.html", "segments/new"):
            with pytest.raises(RcaError, match="is an input"):
                output.check_target(run / name, force=True, inputs=[str(given)])
    with pytest.raises(RcaError, match="is an input"):
        output.check_target(tmp_path / "link" / "control", force=True, inputs=[str(run)])
    output.check_target(tmp_path / "ranks" / "page.html", force=True, inputs=[str(tmp_path)])


def test_of_a_folder_that_is_read_only_the_traces_are_inputs(tmp_path: Path) -> None:
    trace = Path(events(tmp_path / "a.jsonl", 1_000_000))
    (tmp_path / "page.html").write_text("old")
    output.check_target(tmp_path / "page.html", force=True, inputs=[str(tmp_path)])
    with pytest.raises(RcaError, match="is an input"):
        output.check_target(trace, force=True, inputs=[str(tmp_path)])


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    page = tmp_path / "same"
    with pytest.raises(RcaError, match="cannot hold both"):
        output.check_targets(page, tmp_path / "." / ".." / tmp_path.name / "same", force=False)
    output.check_targets(page, output.STANDARD_OUTPUT, force=False)
    output.check_targets(Path(os.devnull), Path(os.devnull), force=False)


def test_a_link_keeps_leading_where_it_led(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    output.write(tmp_path / "link", text, force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    output.write(pipe, text, force=False)
    reader.join(10)
    assert read == ["new"]
    assert pipe.is_fifo()


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("old")
    with pytest.raises(RcaError, match="No space left"):
        output.write(tmp_path / "page.html", failing, force=True)
    assert (tmp_path / "page.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def _options(command: str) -> dict[str, tuple[list[str], str]]:
    """The options of a command by parameter: how they are written, and their help."""
    found = importlib.import_module(f"rca_llm.commands.{command}").command
    return {one.name: (one.opts, getattr(one, "help", None) or "") for one in found.params}


def test_commands_that_write_json_take_the_same_options() -> None:
    told = {command: _options(command) for command in COMMANDS}
    writing = {command for command, options in told.items() if "document" in options}
    assert writing == {"check", "compare", "report", "whatif"}
    for command in writing:
        opts, help = told[command]["document"]
        assert opts == ["--json"]
        assert help.endswith(" as JSON; - is standard output, without the table.")
        assert told[command]["force"] == (["--force"], "Overwrite outputs that exist.")
    pages = {command for command in writing if "page" in told[command]}
    assert pages == {"compare", "report"}
    assert all(told[command]["page"][0] == ["-o", "--output"] for command in pages)
