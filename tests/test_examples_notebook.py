"""The example notebook runs from its first cell to its last, and shows what it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "report.ipynb"

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (pip install .[dev])")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (pip install .[dev])")
pytest.importorskip("ipykernel", reason="ipykernel is not installed (pip install .[dev])")


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RCA_LLM_INPUT", raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=folder).execute()
    shown = [
        output.get("data", {}).get("text/html", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]
    assert any("<h3>" in text and "of the latency of 2 requests" in text for text in shown)
    assert any("<table" in text and "shares.compute" in text for text in shown)


def test_it_is_committed_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert all(not cell.get("outputs") for cell in cells)
