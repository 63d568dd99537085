"""Ranks analysed apart from each other say what they say together, wherever they are analysed."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm import load
from rca_llm.attribute.partition import Segments
from rca_llm.attribute.parts import PARTS
from rca_llm.cli import main
from rca_llm.distributed import job
from rca_llm.distributed.fold import fold
from rca_llm.output import json_text
from rca_llm.scheduler import Progress, Workers, processes, workers
from tests.conftest import SHARED

US = 1_000
BASE = 1_700_000_000_000_000_000
RANKS = 3
MULTI_RANK = SHARED / "data" / "kineto_multirank"


def rank_file(folder: Path, number: int, *, late: int = 0, **header: Any) -> Path:
    """Events of one rank of three on its own host: steps of a kernel and an all-reduce.

    Rank 0 tells of the requests; `late` is by how much the rank comes later to each all-reduce.
    """
    first = {"type": "header", "schema": "rca-llm/events/1", "clock": "utc", "job": "a"}
    rows: list[dict[str, Any]] = [
        first | {"host": f"h{number}", "rank": number, "world_size": RANKS} | header
    ]
    skew = 300 * US * number
    if number == 0:
        for name, arrival, finished in (("A", 0, 12), ("B", 5, 19)):
            rows.append(
                {
                    "type": "request",
                    "id": name,
                    "arrival": BASE + arrival * 1000 * US,
                    "scheduled": BASE + (arrival + 1) * 1000 * US,
                    "first_token": BASE + (arrival + 3) * 1000 * US + 7,
                    "finished": BASE + finished * 1000 * US + 13,
                }
            )
    for step in range(20):
        begin = BASE + step * 1000 * US + skew
        rows.append({"type": "step", "id": step, "pid": 1, "start": begin, "end": begin + 990_000})
        launch = {"type": "api", "pid": 1, "tid": 1, "name": "cudaLaunchKernel"}
        kernel = {"type": "gpu", "kind": "kernel", "device": 0, "stream": 7, "pid": 1}
        for place, (name, start, end) in enumerate(
            [("gemm_x", 50, 300 + late), ("softmax", 310 + late, 350 + late)]
        ):
            link = {"correlation": step * 10 + place}
            at = begin + (start - 20) * US
            rows.append(launch | link | {"start": at, "end": at + 5 * US})
            times = {"start": begin + start * US, "end": begin + end * US}
            rows.append(kernel | link | times | {"name": name})
        meet = {"type": "collective", "comm": "tp", "seq": step, "op": "all_reduce", "rank": number}
        times = {"start": begin + (360 + late) * US, "end": begin + 700 * US + step % 3}
        rows.append(meet | times | {"bytes": 4096, "device": 0})
        span = {"type": "span", "pid": 1, "tid": 1, "name": "sample", "kind": "host"}
        rows.append(span | {"start": begin + 720 * US, "end": begin + (800 + late) * US})
    path = folder / f"rank{number}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ranks")
    return [rank_file(folder, number, late=90 * (number == 2)) for number in range(RANKS)]


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with workers(2) as found:
        yield found


def apart(paths: Sequence[str | Path], pool: Workers) -> dict[str, Any]:
    return job.report(job.inputs([str(path) for path in paths]), pool).summary


def test_apart_and_together_agree(ranks: list[Path], pool: Workers) -> None:
    """All but the hints: a rule about single ranks then sees one rank, not the worst of all."""
    one, other = load(*ranks).attribute().summary, apart(ranks, pool)
    assert len(one["requests"]) == 2
    assert one["collectives"][0]["last_rank"] == 2
    assert list(one) == list(other)
    for name, rows in one.items():
        if name not in ("hints", "class_stats"):
            assert other[name] == rows, name
    about_ranks = ("R05", "R06", "R20", "R24", "R31", "G1", "G4")
    for id in about_ranks:
        found = [[h for h in s["hints"] if h["id"] == id] for s in (one, other)]
        assert found[0] == found[1], id


def test_pauses_agree_apart_and_together(tmp_path: Path, pool: Workers) -> None:
    """What is kept of a rank's pieces says which of them lie in a pause."""
    paused = [[BASE + 2_500 * US, BASE + 6_100 * US], [BASE + 15_200 * US, 2**63 - 1]]
    paths = [rank_file(tmp_path, number, gaps=paused) for number in range(RANKS)]
    one, other = load(*paths).attribute().summary, apart(paths, pool)
    for name in ("parts", "requests", "ranks", "steps"):
        assert other[name] == one[name], name
    assert all(row["parts"]["unknown.not_recorded"] > 0 for row in one["requests"])


@pytest.mark.skipif(not MULTI_RANK.is_dir(), reason="no recorded traces in ../shared/data")
def test_recorded_ranks_agree_apart_and_together(pool: Workers) -> None:
    paths = sorted(MULTI_RANK.glob("*megatron*"))
    one, other = load(*paths).attribute().summary, apart(paths, pool)
    assert json.loads(json.dumps(one)) == json.loads(json.dumps(other))


def test_a_dask_cluster_gives_the_same_bytes(ranks: list[Path], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    quiet = {"processes": True, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, **quiet) as cluster:
        targets = [tmp_path / "dask.json", tmp_path / "here.json"]
        ways = [("--scheduler", cluster.scheduler_address), ("--jobs", "2")]
        for target, way in zip(targets, ways, strict=True):
            status = main(["report", *map(str, ranks), "--json", str(target), "-q", *way])
            assert status == 0
    first, second = (target.read_bytes() for target in targets)
    assert first == second


def test_where_nobody_answers_it_says_so(ranks: list[Path], capsys: Any) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    assert main(["report", str(ranks[0]), "--scheduler", "nowhere"]) == 2
    assert "nowhere: no Dask scheduler" in capsys.readouterr().err


def _copied(paths: list[Path], target: str) -> str:
    """The files in another file system of fsspec."""
    system, root = fsspec.core.url_to_fs(target)
    system.makedirs(root, exist_ok=True)
    for path in paths:
        system.pipe_file(f"{root}/{path.name}", path.read_bytes())
    return target


def test_a_url_is_a_directory_of_ranks(ranks: list[Path], tmp_path: Path, pool: Workers) -> None:
    here = load(str(ranks[0].parent)).attribute().summary
    for url in ("memory://ranks", f"file://{tmp_path}/copies"):
        there = load(_copied(ranks, url)).attribute().summary
        for name in ("parts", "collectives", "ranks", "requests"):
            assert there[name] == here[name], (url, name)
    assert apart([f"file://{tmp_path}/copies"], pool)["collectives"] == here["collectives"]


def test_broken_ranks_are_named_and_cost_no_other(tmp_path: Path, pool: Workers) -> None:
    paths = [rank_file(tmp_path, number) for number in range(2)]
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("nothing to read")
    (tmp_path / "twice.jsonl").write_bytes(paths[0].read_bytes())
    rank_file(tmp_path, 2, job="other").rename(tmp_path / "foreign.jsonl")
    cut = tmp_path / "rank2.jsonl"
    cut.write_bytes(rank_file(tmp_path, 2).read_bytes()[:-30])
    found = apart([tmp_path], pool)
    wheres = {(row["code"], Path(row["where"]).name) for row in found["quality"]}
    assert ("truncated", "empty.jsonl") in wheres
    assert ("duplicate_rank", "twice.jsonl") in wheres
    assert ("foreign_rank", "foreign.jsonl") in wheres
    assert [row["rank"] for row in found["ranks"]] == [0, 1, 2]
    assert {row["status"] for row in found["ranks"]} == {"traced"}


def test_without_a_folder_recordings_are_read_again(
    ranks: list[Path], pool: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on workers of other hosts, which do not see the folder of this one."""
    whole = apart(ranks, pool)

    class Nowhere:
        def __init__(self, **_: Any) -> None: ...

        def __enter__(self) -> str:
            return str(tmp_path / "nowhere")

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("rca_llm.distributed.job.tempfile.TemporaryDirectory", Nowhere)
    assert apart(ranks, pool) == whole


def _doubled(number: int) -> int:
    """A task that kills its worker, one that fails, and others that do neither."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 2:
        raise ValueError("two")
    return 2 * number


def test_a_worker_that_dies_costs_one_task() -> None:
    with processes(2) as pool:
        found = Workers(pool, lambda: processes(1), Progress(io.StringIO()))
        outcomes = found.run(_doubled, range(4), "tried")
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [0, 6]
    assert [type(outcome).__name__ for outcome in outcomes[1:3]] == [
        "BrokenProcessPool",
        "ValueError",
    ]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_on_a_terminal_alone() -> None:
    for stream, shown in ((_Terminal(), True), (io.StringIO(), False)):
        with processes(1) as pool:
            Workers(pool, lambda: processes(1), Progress(stream)).run(abs, [1, 2], "read")
        assert ("rca-llm: read: 2 of 2 ranks" in stream.getvalue()) is shown


def test_the_page_of_ranks_analysed_apart_is_written(ranks: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["report", *map(str, ranks), "--jobs", "1", "-o", str(page), "-q"]) == 0
    assert "all_reduce" in page.read_text("utf-8")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(-1, 2))), st.data())
def test_folding_keeps_every_sum_between_cuts(
    rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    lasting, part, step = (np.array([row[n] for row in rows], np.int64) for n in range(3))
    end = 100 + np.cumsum(lasting)
    segments = Segments(end - lasting, end, part, step, np.full(len(rows), -1))
    total = int(lasting.sum())
    cuts = np.array(sorted(data.draw(st.sets(st.integers(90, 110 + total)))), np.int64)
    folded = fold(segments, cuts)
    assert len(folded) <= max(len(cuts) + 1, 1) * 4 * 4
    for start, stop in zip([100, *cuts.tolist()], [*cuts.tolist(), 100 + total], strict=True):
        for value in range(-1, 3):
            own = [s.take(np.flatnonzero(s.step == value)).pieces for s in (segments, folded)]
            clipped = [pieces.clip(start, max(start, stop)) for pieces in own]
            sums = [pieces.sums(len(PARTS)).tolist() for pieces in clipped]
            assert sums[0] == sums[1]


def test_equal_inputs_give_equal_bytes(ranks: list[Path], pool: Workers) -> None:
    given = job.inputs([str(path) for path in ranks])
    first, second = (json_text(job.report(given, pool).summary) for _ in range(2))
    assert first == second
