"""A tensor-parallel model on gloo, traced by one `rca-llm trace`: who is late, and by how much.

Needs a Python with PyTorch for the CPU: this one, or the one that RCA_LLM_TORCH_PYTHON names.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from rca_llm.trace import Timeline, Trace
from tests.traced import Traced, environment, trace

PYTHON = os.environ.get("RCA_LLM_TORCH_PYTHON", sys.executable if find_spec("torch") else "")
if not PYTHON:
    pytest.skip(
        "no PyTorch: install its CPU build here, or set RCA_LLM_TORCH_PYTHON",
        allow_module_level=True,
    )

TOY = Path(__file__).parent / "engines" / "tensor_parallel.py"
LATE = 1
TRIES = 3
"""Runs without a delay: on a busy machine one of them may have a rank that really is late."""


def launch(folder: Path, ranks: int, delay: str, *more: str) -> Traced:
    """The toy model with one rank delayed, traced as a whole."""
    options = ["--delay", delay, "--rank", str(LATE), "--truth", str(folder / "truth"), *more]
    run = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    env = environment(OMP_NUM_THREADS="1")
    done = trace(folder, *run, str(TOY), *options, env=env)
    assert done.status == 0, done.stderr
    return done


def costs(folder: Path, ranks: int) -> list[int]:
    """By how much the delayed rank was delayed more than the others in each step, ns."""
    took = [json.loads((folder / f"truth.{rank}").read_text()) for rank in range(ranks)]
    others = [own for rank, own in enumerate(took) if rank != LATE]
    return [mine - max(step) for mine, *step in zip(took[LATE], *others, strict=True)]


def summarise(done: Traced) -> tuple[Timeline, dict[str, Any]]:
    timeline = done.timeline()
    return timeline, Trace([timeline]).attribute().summary


def lateness(summary: dict[str, Any], ranks: int) -> list[int]:
    """How long the others waited for the last rank in each all-reduce of a step, ns."""
    found: list[int] = []
    for row in summary["collectives"]:
        if row["op"] == "all_reduce":
            assert row["ranks"] == list(range(ranks))
            waits = sorted(row["wait_ns"].values())
            found.append(waits[1])
    return found


@pytest.mark.parametrize(
    ("ranks", "delay"), [(2, "sleep"), (4, "sleep"), (2, "gc"), (4, "gc"), (2, "hog")]
)
def test_a_delayed_rank_is_named_with_the_time_it_was_delayed(
    ranks: int, delay: str, tmp_path: Path
) -> None:
    # A share of a core comes in slices of a few ms: the more of them, the better it is met.
    more = ("--ms", "160", "--steps", "12") if delay == "hog" else ()
    _, summary = summarise(launch(tmp_path, ranks, delay, *more))
    truth, late = costs(tmp_path, ranks), lateness(summary, ranks)
    ratios = [mine / cost for mine, cost in zip(late[: len(truth)], truth, strict=True)]
    assert 0.95 <= median(ratios) <= 1.05, ratios
    [hint] = [hint for hint in summary["hints"] if hint["id"] == "R05"]
    assert hint["evidence"]["rank"] == LATE
    # A collection that others keep from the processor is waiting for it, too.
    causes = {
        "sleep": ("scheduling.host", "scheduling.other"),
        "gc": ("scheduling.gc", "scheduling.cpu_wait"),
        "hog": ("scheduling.cpu_wait", "compute.cpu"),
    }
    assert hint["evidence"]["late_rank_does"] in causes[delay]
    if hint["evidence"]["late_rank_does"] == "scheduling.gc":
        pauses = [hint for hint in summary["hints"] if hint["id"] == "R08"]
        assert [hint["evidence"]["rank"] for hint in pauses] == [LATE]


@pytest.mark.parametrize("ranks", [2, 4])
def test_without_a_delay_nobody_is_named(ranks: int, tmp_path: Path) -> None:
    named: list[object] = []
    for attempt in range(TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        timeline, summary = summarise(launch(folder, ranks, "none", "--steps", "60"))
        named += [hint["title"] for hint in summary["hints"] if hint["id"] == "R05"]
        if len(named) <= attempt:
            break
    assert len(named) < TRIES, named
    rows = summary["collectives"]
    assert [row["op"] for row in rows] == ["barrier"] + 61 * ["all_reduce"] + ["barrier"]
    assert [row["seq"] for row in rows] == list(range(63))
    assert {row["comm"] for row in rows} == {
        "0 default_pg [0,1]" if ranks == 2 else "0 default_pg [0-3]"
    }
    steps = rows[1:-2]
    assert {row["bytes"] for row in steps} == {16 * 256 * 4}
    assert {row["dtype"] for row in steps} == {"fp32"}
    assert [row["status"] for row in summary["ranks"]] == ranks * ["traced"]
    # Only the waiting for an asynchronous all-reduce keeps its thread.
    table = timeline["collectives"]
    overlapped = table["waited_from"] - table["start"] > 4_000_000
    assert int(overlapped.sum()) == ranks


HANGS = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
part = torch.ones(8)
dist.all_reduce(part)
if dist.get_rank() == 0:
    dist.send(part, 1)
    dist.all_reduce(part)
dist.recv(part, 0)
time.sleep(2)
os._exit(1)
"""


def test_a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    """Rank 0 waits in an all-reduce until rank 1 is gone: its call never returned."""
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    run = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = trace(tmp_path, *run, str(script), env=environment(OMP_NUM_THREADS="1"))
    assert done.status != 0
    _, summary = summarise(done)
    rows = [(row["op"], row["comm"], row["ranks"]) for row in summary["collectives"]]
    world = "0 default_pg [0,1]"
    assert rows == [
        ("all_reduce", world, [0, 1]),
        ("send", f"{world} 0>1", [0, 1]),
        ("all_reduce", world, [0]),
    ]
    [finding] = [row for row in summary["quality"] if row["code"] == "not_arrived"]
    assert finding["detail"].startswith("rank 1 did not come to all_reduce 1, in which rank 0 wait")
    assert summary["collectives"][-1]["missing"] == [1]


OPERATIONS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
part, rank = torch.ones(4, 8), dist.get_rank()
dist.all_gather_into_tensor(torch.empty(8, 8), part)
dist.all_gather([torch.empty(4, 8) for _ in range(2)], part)
dist.reduce_scatter_tensor(torch.empty(2, 8), part.clone())
dist.broadcast(part, 0)
dist.all_to_all_single(torch.empty(4, 8), part)
pair = [dist.P2POp(dist.isend, part, 1 - rank), dist.P2POp(dist.irecv, part.clone(), 1 - rank)]
for work in dist.batch_isend_irecv(pair):
    work.wait()
dist.barrier()
dist.destroy_process_group()
"""


def test_every_operation_is_matched_with_the_bytes_of_one_rank(tmp_path: Path) -> None:
    script = tmp_path / "operations.py"
    script.write_text(OPERATIONS)
    run = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = trace(tmp_path, *run, str(script), env=environment(OMP_NUM_THREADS="1"))
    assert done.status == 0, done.stderr
    _, summary = summarise(done)
    rows = summary["collectives"]
    assert [row["ranks"] for row in rows] == len(rows) * [[0, 1]]
    together = [(row["op"], row["bytes"]) for row in rows if ">" not in row["comm"]]
    assert together == [
        ("all_gather", 128),
        ("all_gather", 128),
        ("reduce_scatter", 64),
        ("broadcast", 128),
        ("all_to_all", 64),
        ("barrier", None),
    ]
    pairs = {(row["comm"].rpartition(" ")[2], row["bytes"]) for row in rows if ">" in row["comm"]}
    assert pairs == {("0>1", 128), ("1>0", 128)}
