"""Builds what is written in C, where a compiler is found; everything else is in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("probes/native")
PACKAGE = "rca_llm.probes.native"
COLLECTOR = "librca_llm"
RECORDER = "_recorder"
COMPILE = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-fvisibility=hidden", "-pthread"]
LINK = ["-pthread", "-ldl", "-Wl,-z,nodelete"]


class BuildNative(build_ext):
    """Names the collector `librca_llm.so`: CUDA and NVTX load it, so no Python's ABI tag on it."""

    def get_ext_filename(self, fullname: str) -> str:
        """The file that an extension is built into."""
        if fullname.rpartition(".")[2] == COLLECTOR:
            return str(Path(*fullname.split("."))) + ".so"
        return str(super().get_ext_filename(fullname))


def extensions() -> list[Extension]:
    """The GPU collector, and the recorder of spans for this Python.

    Both are optional: without a compiler the installation goes on, spans are recorded by the
    Python recorder, and GPU tracing says in one line what is missing.
    """
    sources = {path.stem: str(path) for path in NATIVE.glob("*.c")}
    recorder = sources.pop(RECORDER, None)
    headers = sorted(map(str, NATIVE.glob("*.h")))
    found = [extension(COLLECTOR, sorted(sources.values()), headers)] if sources else []
    return [*found, extension(RECORDER, [recorder], headers)] if recorder else found


def extension(name: str, sources: list[str], headers: list[str]) -> Extension:
    """An optional extension of the native folder."""
    return Extension(
        f"{PACKAGE}.{name}",
        sources=sources,
        depends=headers,
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
        optional=True,
    )


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildNative})
