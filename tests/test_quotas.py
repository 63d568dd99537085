"""Quotas of cgroups are found once for all processes of the same groups, and read as they grow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rca_llm.probes import quotas


def _group(root: Path, quota: str) -> Path:
    folder = root / "service" / "worker"
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text("max 100000\n")
    (folder.parent / "cpu.max").write_text(f"{quota} 100000\n")
    (folder.parent / "cpu.stat").write_text("nr_throttled 2\nthrottled_usec 30\n")
    return folder.parent


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every look for quotas, in a file system of our own."""
    found: list[bytes] = []
    plain = quotas.throttle_files

    def counted(groups: bytes) -> list[tuple[str, str, int]]:
        found.append(groups)
        return list(plain(groups))

    def listed(pid: int) -> bytes:
        return b"0::/service/worker\n" if pid else b""

    monkeypatch.setattr(quotas, "ROOT", str(tmp_path))
    monkeypatch.setattr(quotas, "_groups", listed)
    monkeypatch.setattr(quotas, "throttle_files", counted)
    return found


def test_a_quota_above_is_found_and_its_growth_told(tmp_path: Path, looks: list[bytes]) -> None:
    group, watched = _group(tmp_path, "50000"), quotas.Quotas()
    watched.watch(os.getpid())
    assert watched
    assert not watched.grown()
    (group / "cpu.stat").write_text("nr_throttled 5\nthrottled_usec 70\n")
    assert watched.grown()
    assert (watched.count, watched.total_ns) == (3, 40_000)


def test_many_processes_of_one_group_are_one_look(tmp_path: Path, looks: list[bytes]) -> None:
    _group(tmp_path, "max")
    watched = quotas.Quotas()
    for pid in range(1, 200):
        watched.watch(pid)
    assert len(looks) == 1
    assert not watched


def test_a_quota_that_is_set_later_is_found(
    tmp_path: Path, looks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, watched = _group(tmp_path, "max"), quotas.Quotas()
    watched.watch(1)
    (group / "cpu.max").write_text("50000 100000\n")
    monkeypatch.setattr(quotas, "monotonic", lambda: 1e12)
    watched.watch(1)
    assert watched
