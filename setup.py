"""Builds the native collector where a C compiler is found; everything else is in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("probes/native")
COLLECTOR = "rca_llm.probes.native.librca_llm"


class BuildNative(build_ext):
    """Names the collector `librca_llm.so`: CUDA and NVTX load it, so no Python's ABI tag on it."""

    def get_ext_filename(self, fullname: str) -> str:
        """The file that an extension is built into."""
        if fullname == COLLECTOR or fullname == COLLECTOR.rpartition(".")[2]:
            return str(Path(*fullname.split("."))) + ".so"
        return super().get_ext_filename(fullname)


def collector() -> Extension:
    """The collector; without a compiler the install goes on and GPU tracing says what is missing."""
    return Extension(
        COLLECTOR,
        sources=sorted(map(str, NATIVE.glob("*.c"))),
        depends=sorted(map(str, NATIVE.glob("*.h"))),
        extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden", "-D_GNU_SOURCE"],
        extra_link_args=["-pthread", "-ldl"],
        optional=True,
    )


setup(ext_modules=[collector()], cmdclass={"build_ext": BuildNative})
