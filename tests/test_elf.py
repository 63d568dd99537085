"""What programs say of themselves, and that nothing is preloaded where it would do harm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rca_llm import elf
from rca_llm.launch import preload_library
from tests.native.conftest import COMPILER
from tests.traced import environment, trace

_LIBRARY = Path(sys.executable).resolve()
"""A file for the machine that the tests run on stands for the library."""


def _header(bits: int = 64, processor: int | None = None) -> bytes:
    """The header of a program for another machine."""
    data = bytearray(_LIBRARY.read_bytes()[:64])
    data[4] = bits // 32
    if processor is not None:
        data[18:20] = processor.to_bytes(2, "little" if data[5] == 1 else "big")
    return bytes(data)


def _made(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    path.chmod(0o755)
    return str(path)


def _why_not(command: str, **env: str) -> str | None:
    return elf.why_not(command, _LIBRARY, {"PATH": os.environ["PATH"], **env})


def test_a_program_for_this_machine_is_fine() -> None:
    assert _why_not(sys.executable) is None
    assert _why_not("sh") is None
    assert _why_not("no-such-program") is None


def test_a_program_for_another_machine_is_not(tmp_path: Path) -> None:
    old = _made(tmp_path / "old", _header(32))
    assert _why_not(old) == "old is a 32-bit program"
    assert _why_not("old", PATH=str(tmp_path)) == "old is a 32-bit program"
    other = _made(tmp_path / "other", _header(processor=0xABCD))
    assert _why_not(other) == "other is for another processor"


def test_a_script_is_judged_by_its_interpreter(tmp_path: Path) -> None:
    old = _made(tmp_path / "old", _header(32))
    direct = _made(tmp_path / "direct", f"#!{old} -x\n".encode())
    assert _why_not(direct) == "old is a 32-bit program"
    through = _made(tmp_path / "through", b"#!/usr/bin/env -S A=1 old -x\n")
    assert _why_not(through, PATH=str(tmp_path)) == "old is a 32-bit program"
    assert _why_not(_made(tmp_path / "none", b"#!")) is None


@pytest.mark.parametrize("length", [0, 3, 20, 63, 64, 300])
def test_a_damaged_file_says_nothing(tmp_path: Path, length: int) -> None:
    cut = _made(tmp_path / "cut", _LIBRARY.read_bytes()[:length])
    assert _why_not(cut) is None
    assert elf.needed(b"\x7fELF\2\1" + b"\xff" * 500) == []


def test_the_libraries_of_a_program_are_those_that_the_loader_names() -> None:
    tool = shutil.which("readelf")
    if tool is None:
        pytest.skip("no readelf")
    told = subprocess.run([tool, "-d", _LIBRARY], capture_output=True, text=True, check=True)
    lines = [line for line in told.stdout.splitlines() if "(NEEDED)" in line]
    names = [line.partition("[")[2].rstrip("]") for line in lines]
    assert elf.needed(_LIBRARY.read_bytes()) == names


def test_a_sanitised_program_runs_under_a_trace(tmp_path: Path) -> None:
    if shutil.which(COMPILER) is None or preload_library() is None:
        pytest.skip("no C compiler, or the interposer is not built")
    source, program = tmp_path / "a.c", tmp_path / "a"
    source.write_text('#include <stdio.h>\nint main(void) { puts("fine"); return 3; }\n')
    command = [COMPILER, "-fsanitize=address", str(source), "-o", str(program)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the compiler has no address sanitizer")
    if not any("asan" in name for name in elf.needed(program.read_bytes())):
        pytest.skip("the compiler links its sanitizer statically, which needs no place")
    env = environment(ASAN_OPTIONS="detect_leaks=0")
    bare = subprocess.run([program], env=env, capture_output=True, text=True, check=False)
    done = trace(tmp_path, str(program), env=env)
    assert (done.status, done.stdout) == (bare.returncode, bare.stdout) == (3, "fine\n")
    (line,) = [line for line in done.stderr.splitlines() if "libasan" in line]
    assert line.startswith("rca-llm: a needs libasan")
    assert done.run.manifest()["options"]["io"] == "off"
