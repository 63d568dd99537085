"""Recordings of two H200s, held against what the traced program itself says it did.

`tests/data/h200x2` holds what `benchmarks/gpu/nccl.py` brought home: runs of `rca-llm trace`, and
the same decoder under torch.profiler and under Nsight Systems; beside each the program's truth.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rca_llm import readers
from rca_llm.report import build
from tests.nccl_truth import calls, checks
from tests.nccl_truth.truth import Findings, recording, truths

DATA = Path(__file__).parent / "data/h200x2"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All recordings in one folder."""
    folder = tmp_path_factory.mktemp("h200x2")
    for path in sorted(DATA.glob("*.tar.gz")):
        with tarfile.open(path) as archive:
            archive.extractall(folder)
    with gzip.open(DATA / "nsys.sqlite.gz") as source:
        (folder / "nsys.sqlite").write_bytes(source.read())
    return folder


def inputs(folder: Path, name: str) -> tuple[Path, list[Path]]:
    """The truth and the recordings of one session."""
    truth = folder / f"{name}.truth"
    if name == "kineto":
        return truth, sorted(truth.glob("kineto-*.json"))
    return truth, [folder / ("nsys.sqlite" if name == "nsys" else f"{name}.rca")]


def failed(folder: Path, what: str, name: str) -> list[str]:
    """The checks that do not hold."""
    truth, paths = inputs(folder, name)
    found = checks.CHECKS[what](recording(paths), truths(truth))
    return [f"{c['name']}: {c['found']} for {c['wanted']}" for c in found.checks if not c["ok"]]


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("tp", "tp"),
        ("sizes", "sizes"),
        ("delays", "delays"),
        ("contention", "contention"),
        ("tp-names", "kineto"),
        ("tp-names", "nsys"),
    ],
)
def test_a_recording_says_what_the_program_did(unpacked: Path, what: str, name: str) -> None:
    assert failed(unpacked, what, name) == []


@pytest.mark.parametrize("name", ["delays", "contention"])
def test_the_way_that_nccl_was_told_to_take(unpacked: Path, name: str) -> None:
    truth, paths = inputs(unpacked, name)
    recorded, told = recording(paths), truths(truth)
    found = Findings()
    calls.expect(
        found, recorded, told, *{"delays": ("PROTO", "LL"), "contention": ("ALGO", "RING")}[name]
    )
    assert found.told()["failed"] == []


def test_the_release_of_nccl_is_known(unpacked: Path) -> None:
    assert readers.load(unpacked / "tp.rca").timelines[0].header.nccl == "2.28.9"


def test_sizes_come_from_payloads_in_an_nsys_export(unpacked: Path) -> None:
    """Of every eager call; a replayed graph makes none."""
    truth, paths = inputs(unpacked, "nsys")
    found = Findings()
    calls.compare_calls(found, recording(paths), truths(truth), False)
    told = sum(
        len(phase["calls"]) if phase["mode"] == "eager" else len(phase["calls"]) // 10
        for rank in truths(truth)
        for phase in rank.phases
    )
    assert found.facts["calls"]["bytes"] == told


def test_nothing_of_the_machine_is_in_the_recordings(unpacked: Path) -> None:
    for path in sorted(unpacked.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            for word in (b"PYTHONPATH", b"/work/", b"SSL_CERT", b"AWS_"):
                assert word not in content, (path.name, word)


def without_plugin(run: Path, folder: Path) -> Path:
    """A run as one where another tool holds NCCL's profiler interface: rows 32 made unknown."""
    import numpy as np

    from rca_llm.probes import format as layout
    from rca_llm.readers.segments import CELL

    copy = folder / "without.rca"
    shutil.copytree(run, copy)
    for path in copy.rglob("*.seg"):
        data = bytearray(path.read_bytes())
        cells = np.frombuffer(data, CELL, -1, layout.HEADER_BYTES)
        mine = (cells["tag"] == layout.tag(layout.BUFFER)) & (cells["c"] == 32)
        cells["c"][mine] = 999
        path.write_bytes(data)
    return copy


def test_without_the_plugin_payloads_give_sizes_of_eager_calls(
    unpacked: Path, tmp_path: Path
) -> None:
    run = without_plugin(unpacked / "tp.rca", tmp_path)
    counts = readers.load(run).timelines[0].header.extra["nccl"]
    assert counts["by_plugin"] == 0 < counts["by_nvtx"]
    found = checks.check_model(recording([run]), truths(unpacked / "tp.truth"), sizes_known=False)
    assert found.told()["failed"] == []


def test_it_is_known_when_a_collective_was_issued(unpacked: Path) -> None:
    """By the plugin, or by the launch; of a graph only where launches are recorded."""
    for name, in_graphs in (("tp", True), ("delays", False)):
        recorded = recording([unpacked / f"{name}.rca"])
        gpu = recorded.trace.timelines[0]["gpu"]
        parts = [part for one in recorded.job.collectives for part in one.parts]
        parts = [part for part in parts if part.gpu_row >= 0]
        for part in parts:
            eager = gpu["graph_node"][part.gpu_row] < 0
            assert (part.issued is not None) == bool(eager or in_graphs)
            assert part.issued is None or part.issued <= part.start
        assert len(parts) > 300


def test_the_summary_of_the_decoder(unpacked: Path) -> None:
    summary = build(readers.load(unpacked / "tp.rca")).summary
    rows: Sequence[dict[str, Any]] = summary["collectives"]
    assert {row["op"] for row in rows} >= {"all_reduce", "all_gather"}
    assert {len(row["ranks"]) for row in rows} == {2}
    assert [request["id"] for request in summary["requests"]] == ["eager", "graph"]
    assert json.loads(json.dumps(summary["ranks"]))[1]["offset_ns"] == 0
