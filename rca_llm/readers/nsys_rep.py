"""Reports of Nsight Systems (`.nsys-rep`), read through an installed `nsys export`."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

from rca_llm.errors import UnreadableInput
from rca_llm.readers.files import Source

_MAGIC = b"NVIDIA Tegra Profiler Report"


def matches(source: Source) -> bool:
    """Whether the content is a report."""
    return source.head.startswith(_MAGIC)


@contextlib.contextmanager
def exported(name: str, path: Path) -> Generator[Path]:
    """A temporary SQLite export of a report; `UnreadableInput` where none can be made.

    `name` is what the user calls the report.
    """
    tool = shutil.which("nsys")
    if tool is None:
        raise UnreadableInput(
            f"{name}: byte 0: a report can only be read through Nsight Systems, which is not on"
            f" PATH; where it is installed, run: {_command('nsys', name, _beside(name))}"
        )
    with tempfile.TemporaryDirectory(prefix="rca-llm-") as folder:
        export = Path(folder, "export.sqlite")
        command = _arguments(tool, str(path), str(export))
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode or not export.exists():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise UnreadableInput(
                f"{name}: byte 0: nsys export failed with status {done.returncode}:"
                f" {said[-1][:200] if said else 'it said nothing'}"
            )
        yield export


def _arguments(tool: str, report: str, export: str) -> list[str]:
    return [tool, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", export, report]


def _command(tool: str, report: str, export: str) -> str:
    return shlex.join([tool, "export", "--type", "sqlite", "-o", export, report])


def _beside(name: str) -> str:
    """The path of an export beside a report."""
    return name.removesuffix(".nsys-rep") + ".sqlite"
