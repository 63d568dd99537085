"""Damage at random: what is left of the collector's files is read, or one line says why not."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rca_llm import readers
from rca_llm.errors import RcaError
from tests.native.conftest import Traced

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


def swell(numbers: random.Random, data: bytearray) -> None:
    """Claim another size in a cell's number."""
    at = numbers.randrange(512, len(data) - 32, 32)
    value = numbers.choice((-1, 0, 1, 2**31, 2**62, -(2**63), len(data)))
    data[at + 8 : at + 16] = value.to_bytes(8, "little", signed=True)


@pytest.mark.parametrize("damage", [flip, overwrite, cut, move, swell])
def test_damaged_files_never_break_the_reader(app: Traced, damage: Damage) -> None:
    assert app(*ACTIVITY).returncode == 0
    files = sorted((app.run / "segments").glob("*.seg"))
    whole = {path: path.read_bytes().rstrip(b"\0") + bytes(64) for path in files}
    numbers = random.Random(damage.__name__)
    for number in range(MUTATIONS // 5):
        path = numbers.choice(files)
        data = bytearray(whole[path])
        damage(numbers, data)
        path.write_bytes(data)
        try:
            readers.load(app.run)
        except RcaError as error:
            assert "\n" not in str(error)
        except Exception as error:
            kept = Path(shutil.copytree(app.run, app.run.with_suffix(".failed")))
            pytest.fail(f"{damage.__name__} {number}: {error!r}; kept in {kept}")
        path.write_bytes(whole[path])
