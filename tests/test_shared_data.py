"""Recorded traces of many tools and versions: each is read right, or refused in one line."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rca_llm.cli import main
from tests.conftest import SHARED

Summary = dict[str, Any]
INDEX = SHARED / "data" / "INDEX.tsv"
ABSENT = "no recorded traces in ../shared/data"
COUNTED = ("kernels", "copies", "memsets")
COUNTED_HERE = {
    "kineto/pytorch__kineto__resnet50_nw_no_devprops.pt.trace.json.gz": (9456, 12, 351),
    "kineto/pytorch__kineto__worker0.1623143089861.pt.trace.json.gz": (8772, 12, 312),
}
"""Where the index misses records: it does not know the categories `Memcpy` and `Memset` of 2021."""


def recorded() -> Iterator[dict[str, str]]:
    """The rows of the index: what is in each file by another reader's count."""
    if INDEX.is_file():
        with INDEX.open(encoding="utf-8", newline="") as lines:
            yield from csv.DictReader(lines, delimiter="\t")


ROWS = {row["file"]: row for row in recorded()}
FILES = sorted(ROWS) or [pytest.param("", marks=pytest.mark.skip(reason=ABSENT))]


@pytest.fixture(scope="module")
def invariants() -> Callable[[Summary], list[str]]:
    """The rules that hold for every summary, as the acceptance cases check them."""
    sys.path.insert(0, str(SHARED / "cases"))
    try:
        from invariants import broken_invariants  # pyright: ignore
    finally:
        sys.path.pop(0)
    return broken_invariants  # type: ignore[no-any-return]


def summary_of(file: str, folder: Path) -> Summary | None:
    """The summary that the command line writes for a recorded file; None where it refuses it."""
    target = folder / "summary.json"
    page = folder / "report.html"
    arguments = ["report", str(SHARED / "data" / file), "--json", str(target), "-o", str(page)]
    status = main([*arguments, "--quiet"])
    assert status in (0, 3)
    assert target.exists() == page.exists() == (status == 0), "nothing half-written"
    return json.loads(target.read_text()) if status == 0 else None


def busy_by_device(summary: Summary) -> dict[str, int]:
    """Busy ns of each device that ran kernels."""
    busy: Counter[str] = Counter()
    for device in summary["devices"]:
        busy[str(device["device"])] += device["busy_ns"] or 0
    return {device: ns for device, ns in busy.items() if ns}


@pytest.mark.parametrize("file", FILES)
def test_is_read_or_refused_in_one_line(
    file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    invariants: Callable[[Summary], list[str]],
) -> None:
    row = ROWS[file]
    summary = summary_of(file, tmp_path)
    error = capsys.readouterr().err
    if summary is None:
        assert not row["kernels"].strip("0"), f"{row['kernels']} kernels refused: {error}"
        assert len(error.splitlines()) == 1, error
        assert error.startswith(f"rca-llm: {SHARED / 'data' / file}: ")
        return
    assert invariants(summary) == []
    if row["kernels"]:
        totals = tuple(summary["totals"][name] for name in COUNTED)
        assert totals == COUNTED_HERE.get(file, tuple(int(row[name] or 0) for name in COUNTED))
        assert busy_by_device(summary) == json.loads(row["busy_ns by device"])


@pytest.fixture(scope="module")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Summary]:
    """The summary of one of the recordings of the same workload by several tools."""
    if not (SHARED / "data" / "h200").is_dir():
        pytest.skip(ABSENT)

    def summarise(name: str) -> Summary:
        summary = summary_of(f"h200/{name}", tmp_path_factory.mktemp("h200"))
        assert summary is not None
        return summary

    return summarise


def device_parts(windows: list[dict[str, Any]]) -> dict[str, int]:
    """Compute on the device and copy time over some windows, ns."""
    sums: Counter[str] = Counter()
    for window in windows:
        for part, ns in window["parts"].items():
            if part.startswith("compute.") and part != "compute.cpu":
                sums["compute"] += ns
            elif part in ("io.h2d", "io.d2h"):
                sums["copy"] += ns
    return dict(sums)


def test_nsight_and_kineto_agree_on_the_same_requests(h200: Callable[[str], Summary]) -> None:
    nsight = h200("generate.nsys.sqlite.gz")["requests"]
    assert [request["id"] for request in nsight] == ["warm", "0", "1"]
    last_two = device_parts(nsight[1:])
    whole = device_parts([h200("generate.kineto.json.gz")])
    assert set(whole) == {"compute", "copy"}
    for name, ns in whole.items():
        assert ns == pytest.approx(last_two[name], rel=0.04), name


def test_nsight_and_kineto_agree_on_the_shares_of_all_steps(
    h200: Callable[[str], Summary],
) -> None:
    shares = []
    for name in ("vllm-node.nsys.sqlite.gz", "vllm.kineto.json.gz"):
        steps = h200(name)["steps"]
        total = sum(step["end_ns"] - step["start_ns"] for step in steps)
        sums: Counter[str] = Counter()
        for step in steps:
            sums.update(step["shares"])
        shares.append({kind: ns / total for kind, ns in sums.items()})
    for kind, share in shares[0].items():
        assert share == pytest.approx(shares[1][kind], abs=0.02), kind
