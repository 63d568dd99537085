"""Builds the collector, the stand-in libcupti and the program that plays activity through both."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "probes" / "native"
COMPILER = os.environ.get("CC", "cc")
FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-fPIC",
    "-pthread",
    "-g",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
]
AS_CUPTI = ["-shared", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]
"""The stand-in for libcupti is the driver as well, which has the one function that is called."""
COLLECTOR_SOURCES = sorted(path for path in NATIVE.glob("*.c") if not path.name.startswith("_"))


def compile_c(out: Path, sources: list[Path], *flags: str) -> None:
    """Compile, and fail the test with the compiler's words."""
    command = [COMPILER, *FLAGS, "-Wno-format-truncation", *map(str, sources), "-o", str(out)]
    done = subprocess.run([*command, *flags, "-ldl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Build:
    """The three programs, perhaps with a sanitizer."""

    folder: Path

    @property
    def collector(self) -> Path:
        """Our library."""
        return self.folder / "librca_llm.so"

    @property
    def cupti(self) -> Path:
        """The stand-in."""
        return self.folder / "libfake_cupti.so"

    @property
    def app(self) -> Path:
        """The program."""
        return self.folder / "app"


def build(folder: Path, *flags: str) -> Build:
    """Compile everything into a folder."""
    done = Build(folder)
    compile_c(done.collector, COLLECTOR_SOURCES, "-shared", "-fvisibility=hidden", *flags)
    compile_c(done.cupti, [HERE / "fake_cupti.c"], *AS_CUPTI, *flags)
    compile_c(done.app, [HERE / "app.c"], *flags)
    return done


@dataclass
class Traced:
    """A run directory, and the way to run the program in it."""

    built: Build
    run: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def __call__(self, *activity: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the program; its output and status are the caller's to check."""
        return self.under([], *activity, **variables)

    def under(
        self, prefix: list[str], *activity: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the program by another one, whose words come first."""
        environment = os.environ | self.environment | variables
        return subprocess.run(
            [*prefix, str(self.built.app), *activity],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def start(
        self, *activity: str, output: Path | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        """Start the program, its output perhaps in a file, and let it run."""
        environment = os.environ | self.environment | variables
        command = [str(self.built.app), *activity]
        if output is None:
            return subprocess.Popen(command, env=environment, text=True)
        with output.open("w") as file:
            return subprocess.Popen(command, env=environment, text=True, stdout=file)


def traced(built: Build, run: Path) -> Traced:
    """A fresh run directory with an open gate."""
    (run / "segments").mkdir(parents=True)
    (run / "control").write_bytes(b"\1".ljust(4096, b"\0"))
    return Traced(
        built,
        run,
        {
            "RCA_LLM_RUN": str(run),
            "RCA_LLM_CUPTI": str(built.cupti),
            "CUDA_INJECTION64_PATH": str(built.collector),
            "NVTX_INJECTION64_PATH": str(built.collector),
        },
    )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The plain build."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no C compiler ({COMPILER})")
    return build(tmp_path_factory.mktemp("native"))


@pytest.fixture
def app(built: Build, tmp_path: Path) -> Iterator[Traced]:
    """The program in a run of its own."""
    yield traced(built, tmp_path / "run")


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Build]:
    """Builds with a sanitizer; skips where the compiler has none."""
    done: dict[str, Build] = {}

    def make(sanitizer: str) -> Build:
        if sanitizer not in done:
            folder = tmp_path_factory.mktemp(sanitizer)
            probe = folder / "probe.c"
            probe.write_text("int main(void) { return 0; }\n")
            flag = f"-fsanitize={sanitizer}"
            command = [COMPILER, flag, str(probe), "-o", str(folder / "probe")]
            if subprocess.run(command, capture_output=True).returncode:
                pytest.skip(f"the compiler has no {flag}")
            done[sanitizer] = build(folder, flag, "-fno-omit-frame-pointer")
        return done[sanitizer]

    return make
