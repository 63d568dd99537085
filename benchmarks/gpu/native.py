"""Compiles the native parts where they are looked for in a tree that is not installed."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent.parent / "probes" / "native"


def build() -> dict[str, str]:
    """Compile the libraries, and the extension modules for this Python; what each step said.

    Raises where there is no collector afterwards: a trace would go on without a kernel in it.
    """
    found = {"make": said(["make", "-C", str(NATIVE), "LIBRARY_DIR=."])}
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    flags = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-fPIC", "-shared", "-fvisibility=hidden"]
    flags += [f"-I{sysconfig.get_paths()['include']}", "-pthread"]
    for source in sorted(NATIVE.glob("_*.c")):
        made = str(source.with_name(source.stem + suffix))
        found[source.stem] = said(["cc", *flags, str(source), "-o", made])
    if not (NATIVE / "librca_llm.so").exists():
        raise RuntimeError(f"the collector was not built, so there would be no kernels: {found}")
    return found


def said(command: list[str]) -> str:
    """How a command ended, and the end of what it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return f"status {done.returncode}: {(done.stdout + done.stderr)[-300:]}"
