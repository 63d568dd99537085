"""Replays of real traces: unchanged they give the measured times back; removals are plausible."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import rca_llm
from rca_llm.cli import main
from rca_llm.whatif import whatif
from tests.conftest import SHARED
from tests.traced import environment

DATA = SHARED / "data"
REAL = [
    ["h200/generate.nsys.sqlite.gz"],
    ["h200/generate.kineto.json.gz"],
    ["h200/vllm-node.nsys.sqlite.gz", "h200/vllm-node.requests.jsonl"],
    ["h200/vllm-graph.nsys.sqlite.gz", "h200/vllm-graph.requests.jsonl"],
    ["h200/vllm.kineto.json.gz", "h200/vllm.requests.jsonl"],
    ["nsys_sqlite/GindaChen__nsys-ai__mfu_2gpu_before.sqlite"],
]
present = pytest.mark.skipif(not DATA.is_dir(), reason="no recorded traces in ../shared/data")


def unchanged(*paths: Path) -> int:
    """Replay inputs with nothing changed, and hold it against what was measured; how many times."""
    found = whatif(rca_llm.load(*paths).attribute(), {})
    told = [(row["latency_ns"], row["new_latency_ns"]) for row in found["requests"]]
    told += [(row["ttft_ns"], row["new_ttft_ns"]) for row in found["requests"]]
    told += [(row["measured_ns"], row["replayed_ns"]) for row in (found["steps"], found["window"])]
    told = [(old, new) for old, new in told if old]
    for old, new in told:
        assert new == pytest.approx(old, rel=0.02)
    return len(told)


@present
@pytest.mark.parametrize("files", REAL, ids=lambda files: files[0])
def test_an_unchanged_replay_gives_the_measured_times_back(files: list[str]) -> None:
    assert unchanged(*(DATA / file for file in files))


def recorded() -> list[list[Path]]:
    """Every trace under ../shared/data that can be read, ranks of one job together."""
    folders = ("kineto", "nsys_sqlite", "h200")
    endings = (".json", ".json.gz", ".sqlite", ".sqlite.gz", ".raw.gz")
    files = [f for name in folders for f in sorted((DATA / name).glob("*"))]
    ranks = sorted((DATA / "kineto_multirank").glob("*"))
    jobs = [[f for f in ranks if text in f.name] for text in ("tp8", "sampled")]
    kept = [f for f in files if f.name.endswith(endings) and f.name not in UNREADABLE]
    return [[file] for file in kept] + [job for job in jobs if job]


UNREADABLE = ("amir-ghz__DynamicViT__nsys_profile.sqlite",)
"""Refused with one line, which test_shared_data.py looks at."""


@present
@pytest.mark.slow
@pytest.mark.parametrize("files", recorded(), ids=lambda files: files[0].name)
def test_an_unchanged_replay_of_every_recorded_trace(files: list[Path]) -> None:
    unchanged(*files)


FIXTURES = sorted((Path(__file__).with_name("data") / "h200").glob("*.rca.tar.gz"))


@pytest.mark.parametrize("archive", FIXTURES, ids=lambda path: path.name)
def test_an_unchanged_replay_of_runs_on_an_h200(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path)
    assert unchanged(*tmp_path.glob("*.rca"))


def test_an_unchanged_replay_of_a_run_of_our_own(tmp_path: Path) -> None:
    target = tmp_path / "run.rca"
    # In a process of its own: a launcher keeps signals from whoever it runs in.
    call = [sys.executable, "-m", "rca_llm", "inject", "serialisation", "-o", str(target)]
    subprocess.run(call, env=environment(), capture_output=True, check=True)
    assert unchanged(target) > 2 * 20  # latencies and times to first token, steps and the window


@present
def test_twice_as_quick_kernels_save_no_more_than_half() -> None:
    files = [DATA / "h200/vllm-node.nsys.sqlite.gz", DATA / "h200/vllm-node.requests.jsonl"]
    report = rca_llm.load(*files).attribute()
    parts = {part for row in report.summary["requests"] for part in row["parts"]}
    half = {part: 0.5 for part in parts if part.startswith("compute.")}
    found = whatif(report, half)
    for row, said in zip(found["requests"], report.summary["requests"], strict=True):
        saved = row["latency_ns"] - row["new_latency_ns"]
        assert 0 <= saved <= said["latency_ns"]


def test_thresholds_of_a_file_are_used(tmp_path: Path) -> None:
    trace, limits = tmp_path / "t.jsonl", tmp_path / "limits.toml"
    lines = [{"type": "header", "schema": "rca-llm/events/1", "clock": "utc"}]
    base, ms = 10**18, 10**6
    for i in range(12):
        start = base + i * 100 * ms
        lines.append({"type": "step", "id": i, "pid": 1, "start": start, "end": start + 90 * ms})
        own = {"pid": 1, "tid": 1, "start": start + 10 * ms}
        lines.append(
            {"type": "span", "name": "gc gen 2", "kind": "gc", **own, "end": start + 20 * ms}
        )
        work = {"kind": "compute", "name": "forward", "end": start + 80 * ms}
        lines.append({"type": "span", "pid": 1, "tid": 1, "start": start + 20 * ms, **work})
    trace.write_text("\n".join(map(json.dumps, lines)))
    limits.write_text("[R08]\npause_ns = 5_000_000\n")

    def ids(name: str, *options: str) -> set[str]:
        target = tmp_path / name
        assert main(["report", str(trace), "--json", str(target), "-q", *options]) == 0
        return {hint["id"] for hint in json.loads(target.read_text())["hints"]}

    assert "R08" not in ids("a.json")
    assert "R08" in ids("b.json", "--thresholds", str(limits))
    limits.write_text("[R08]\nnothing = 1\n")
    assert main(["report", str(trace), "--thresholds", str(limits)]) == 2
