"""Outputs never cost anything that is not theirs to replace."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rca_llm import output
from rca_llm.errors import RcaError


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
        output.write(precious.parent, text, force=force)
    assert precious.read_text() == "mine"


def test_an_exported_folder_is_replaced_with_force(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "gpu.csv").write_text("old")
    output.write(folder, lambda draft: draft.mkdir(), force=True)
    assert list(folder.iterdir()) == []


def test_an_input_is_never_overwritten(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    with pytest.raises(RcaError, match="is an input"):
        output.check_target(trace, force=True, inputs=[str(trace)])


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
