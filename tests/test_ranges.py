"""Spans are NVTX ranges too, for a tool that is not ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.traced import ROOT, environment, trace

_CODE = """
import asyncio
from rca_llm import probe, record, span
@probe
async def later(): pass
for i in range(10):
    with span("outer"):
        with span("inner", "file", bytes=3, path="/x"): record("mark")
asyncio.run(later())
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An NVTX tool that counts what it is handed and prints that at the end."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the NVTX tool with")
    pytest.importorskip("nvtx", reason="the nvtx package is not installed")
    library = tmp_path_factory.mktemp("tool") / "libnvtxtool.so"
    source = ROOT / "benchmarks" / "nvtx_tool.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def _stderr(tmp_path: Path, tool: Path, *options: str) -> str:
    script = tmp_path / "script.py"
    script.write_text(_CODE)
    env = environment(NVTX_INJECTION64_PATH=str(tool), NVTX_TOOL_PRINT="1")
    done = trace(tmp_path, sys.executable, str(script), options=options, env=env)
    assert done.status == 0
    assert len(done.timeline()["marks"]) == 10
    return done.stderr


def test_every_span_is_a_range_and_every_record_a_mark(tmp_path: Path, tool: Path) -> None:
    expected = "pushed 20 popped 20 marked 10 started 1 ended 1\n"
    assert _stderr(tmp_path, tool) == expected


def test_ranges_can_be_switched_off(tmp_path: Path, tool: Path) -> None:
    # NVTX loads a tool when it is first used: one that is never used prints nothing.
    assert _stderr(tmp_path, tool, "--nvtx", "off") == ""


def test_without_a_tool_the_package_is_not_even_loaded(tmp_path: Path) -> None:
    code = "import sys\nfrom rca_llm import span\nwith span('x'): print('nvtx' in sys.modules)\n"
    done = trace(tmp_path, sys.executable, "-c", code)
    assert (done.status, done.stdout) == (0, "False\n")
