"""What a page fault costs is measured on real pages, or not told."""

from __future__ import annotations

from pathlib import Path

import pytest

from rca_llm import faults


def test_a_fault_takes_time_on_the_processor(tmp_path: Path) -> None:
    told = faults.work_ns(tmp_path)
    if told is None:
        pytest.skip("files of this folder are in memory: touching them is no major fault")
    assert 0 < told < 1_000_000_000
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert faults.work_ns(tmp_path / "none") is None
