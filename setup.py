"""Builds what is written in C, where a compiler is found; everything else is in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("probes/native")
PACKAGE = "rca_llm.probes.native"
COLLECTOR = "librca_llm"
PRELOAD = "librca_preload"
COMPILE = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-fvisibility=hidden", "-pthread"]
LINK = ["-pthread", "-ldl", "-Wl,-z,nodelete"]
# The interposer may need nothing that only one C library has: no checks, no stack protector.
NEUTRAL = ["-U_FORTIFY_SOURCE", "-fno-stack-protector"]


class BuildNative(build_ext):
    """Names what is not loaded by Python `lib*.so`, without a Python's ABI tag."""

    def get_ext_filename(self, fullname: str) -> str:
        """The file that an extension is built into."""
        if fullname.rpartition(".")[2] in (COLLECTOR, PRELOAD):
            return str(Path(*fullname.split("."))) + ".so"
        return str(super().get_ext_filename(fullname))


def extensions() -> list[Extension]:
    """The GPU collector, the interposer of IO, and what is for this Python: spans, long calls.

    All are optional: without a compiler the installation goes on, Python does the work of the
    last two, and tracing says in one line what is missing.
    """
    for_python = sorted(NATIVE.glob("_*.c"))
    collector = sorted(map(str, set(NATIVE.glob("*.c")) - set(for_python)))
    preload = sorted(map(str, (NATIVE / "preload").glob("*.c")))
    headers = sorted(map(str, NATIVE.rglob("*.h")))
    found = [extension(COLLECTOR, collector, headers)] if collector else []
    if preload:
        found.append(extension(PRELOAD, preload, headers, NEUTRAL))
    return [*found, *(extension(path.stem, [str(path)], headers) for path in for_python)]


def extension(
    name: str, sources: list[str], headers: list[str], more: list[str] | None = None
) -> Extension:
    """An optional extension of the native folder."""
    return Extension(
        f"{PACKAGE}.{name}",
        sources=sources,
        depends=headers,
        extra_compile_args=[*COMPILE, *(more or [])],
        extra_link_args=LINK,
        optional=True,
    )


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildNative})
