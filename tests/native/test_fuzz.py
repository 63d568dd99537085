"""Damage at random: what is left of the collector's files is read, or one line says why not."""

from __future__ import annotations

import math
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rca_llm import readers
from rca_llm.errors import RcaError
from tests.native.conftest import Traced
from tests.traced import trace_code

MUTATIONS = 500 if os.environ.get("RCA_LLM_SLOW") else 60
ACTIVITY = ("init", "device", "kernels:60", "nodes:5", "copies", "memset", "sync", "nvtx", "flush")

Damage = Callable[[random.Random, bytearray], None]


def flip(numbers: random.Random, data: bytearray) -> None:
    """Change single bits."""
    for _ in range(numbers.randint(1, 40)):
        data[numbers.randrange(len(data))] ^= 1 << numbers.randrange(8)


def overwrite(numbers: random.Random, data: bytearray) -> None:
    """Put noise, zeros or ones over a stretch."""
    at, count = numbers.randrange(len(data)), numbers.choice((1, 4, 8, 32, 500))
    filler = numbers.choice((b"\0", b"\xff", None))
    data[at : at + count] = filler * count if filler else numbers.randbytes(count)


def cut(numbers: random.Random, data: bytearray) -> None:
    """Lose the end."""
    del data[numbers.randrange(len(data)) :]


def move(numbers: random.Random, data: bytearray) -> None:
    """Copy cells to where others were."""
    source, target = (numbers.randrange(0, len(data) - 64, 32) for _ in range(2))
    data[target : target + 64] = data[source : source + 64]


def number(numbers: random.Random, data: bytearray) -> None:
    """Put an odd number, whole or not, into a field of 8 bytes."""
    at = numbers.randrange(512, len(data) - 32, 32) + numbers.choice((0, 8))
    odd = (struct.pack("<d", value) for value in (math.nan, math.inf, -1e300, 1e300))
    data[at : at + 8] = numbers.choice((*odd, bytes(8), b"\xff" * 8, b"\xff" * 7 + b"\x7f"))


def claim(numbers: random.Random, data: bytearray) -> None:
    """Claim an id or a count that no file of this size can hold."""
    at = numbers.randrange(512, len(data) - 32, 32) + numbers.choice((16, 20, 24))
    data[at : at + 4] = numbers.choice((2**30, 2**31, 2**32 - 1)).to_bytes(4, "little")


def swell(numbers: random.Random, data: bytearray) -> None:
    """Claim another size in a cell's number."""
    at = numbers.randrange(512, len(data) - 32, 32)
    value = numbers.choice((-1, 0, 1, 2**31, 2**62, -(2**63), len(data)))
    data[at + 8 : at + 16] = value.to_bytes(8, "little", signed=True)


DAMAGES = (flip, overwrite, cut, move, number, claim, swell)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_never_break_the_reader(app: Traced, damage: Damage) -> None:
    assert app(*ACTIVITY).returncode == 0
    _damage(app.run, damage)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_of_python_and_the_launcher_never_break_the_reader(
    recorded: Path, damage: Damage
) -> None:
    _damage(recorded, damage)


_PROGRAM = """
import gc
from rca_llm import record, request, span, step
for i in range(20):
    with request(f"r{i}") as r:
        r.arrival()
        with step(i, {f"r{i}": ("prefill", 5)}), span("x", "file", bytes=1, path="/p"):
            open("/proc/self/stat").read()
            record("m", value=2.5, number=i)
        r.first_token()
        r.finish(3)
gc.collect()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The segments of a traced Python program, its tables left out."""
    done = trace_code(tmp_path_factory.mktemp("python"), _PROGRAM)
    assert (done.status, done.stderr) == (0, "")
    shutil.rmtree(done.run.tables)
    return done.run.path


def _damage(run: Path, damage: Damage) -> None:
    """Damage the segments of a run again and again, one at a time, and read them."""
    files = sorted((run / "segments").glob("*.seg"))
    whole = {path: path.read_bytes() for path in files}
    numbers = random.Random(damage.__name__)
    for turn in range(MUTATIONS // len(DAMAGES)):
        path = numbers.choice(files)
        data = bytearray(whole[path].rstrip(b"\0") + bytes(64))
        damage(numbers, data)
        path.write_bytes(data)
        try:
            readers.load(run).attribute()
        except RcaError as error:
            assert "\n" not in str(error)
        except Exception as error:
            kept = Path(shutil.copytree(run, run.with_suffix(".failed")))
            pytest.fail(f"{damage.__name__} {turn}: {error!r}; kept in {kept}")
        path.write_bytes(whole[path])
