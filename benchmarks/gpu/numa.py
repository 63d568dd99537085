"""Shows what R36 says of a process near its GPU and of the same on the far socket.

    python benchmarks/gpu/numa.py --out results

A small program copies from pinned and from pageable memory to the GPU, waits for each copy, and
says how fast that was by its own clock. It is traced three times: wherever the kernel lets it run,
bound to the CPUs of the GPU's node before it allocates anything, and bound to those of the farthest
node. Then the last two are read as ranks of one job, which is what a saving needs. Of each:
nodes, shares, pages, rates, and R36's hint or that there is none. Where the host has one node, does
not tell the GPU's, or lets nobody onto another one, only the first runs, and the reason is printed
and kept. Needs one GPU, the first by PCI address, and about 50 s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import native
import packing
from stages import command, folders, left, write

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
MIB = 1 << 20
SIZE = 64 * MIB
BATCH = 4
"""Copies of a kind in a step."""
LARGEST_KEPT = 8_000_000
"""Bytes of the recordings, packed, that are kept."""
EVIDENCE = (
    "gpu_node", "cpu_share", "on_cpu_by_node", "on_cpu_ns", "on_unknown_cpu_ns", "threads",
    "page_share", "pages_by_node", "pages_looked_at", "looks_at_pages", "copy_bytes_s",
    "near_copy_bytes_s", "saving_assumes",
)  # fmt: skip


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seconds", type=float, default=4.0, help="of copying, each run")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a run")
    parser.add_argument("--cpus", default="", help="for tests: the nodes' CPUs, as 0-3/4-7")
    parser.add_argument("--work", type=Path, help="be the program, and write its figures there")
    parser.add_argument("--bind", default="", help="the CPUs that the program binds itself to")
    return parser.parse_args()


def work(arguments: argparse.Namespace) -> None:
    """Copy for some seconds, a step at a time; the median rate of each kind of memory."""
    from rca_llm.probes.nodes import numbers

    if arguments.bind:
        os.sched_setaffinity(0, numbers(arguments.bind))
    import torch

    from rca_llm import step

    kinds = {
        "pinned": torch.ones(SIZE, dtype=torch.uint8).pin_memory(),
        "pageable": torch.ones(SIZE, dtype=torch.uint8),
    }
    target = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    took: dict[str, list[int]] = {name: [] for name in kinds}
    number, until = 0, time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        with step(number, {}):
            for name, host in kinds.items():
                begun = time.perf_counter_ns()
                for _ in range(BATCH):
                    target.copy_(host, non_blocking=True)
                torch.cuda.synchronize()
                took[name].append(time.perf_counter_ns() - begun)
            target.add_(1)
        number += 1
    middle = {name: sorted(ns)[len(ns) // 2] for name, ns in took.items()}
    found = {f"{name}_bytes_s": SIZE * BATCH * 1e9 / ns for name, ns in middle.items()}
    allowed = sorted(os.sched_getaffinity(0))
    arguments.work.write_text(json.dumps({"steps": number, "cpus": len(allowed), **found}))


def host(cpus: str) -> dict[str, Any]:
    """What this machine tells of its nodes and of its first GPU's."""
    from rca_llm.probes import nodes, nvml

    found = nodes.nodes_with_cpus()
    gpus = nvml.open_nvml()
    told: dict[str, Any] = {
        "nodes": {str(node): text for node, text in found.items()},
        "distances": {str(node): nodes.distances(node) for node in found},
        "allowed_cpus": len(os.sched_getaffinity(0)),
        "gpus": [gpus.node(handle) for handle in gpus.handles] if gpus else None,
    }
    told["gpu_node"] = told["gpus"][0] if told["gpus"] else None
    if cpus:
        told["nodes"] = dict(enumerate(cpus.split("/")))
        told |= {"nodes": {str(k): v for k, v in told["nodes"].items()}, "gpu_node": 0}
    return told


def bindings(told: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """The CPUs of the GPU's node and of the farthest, or why there are no such."""
    from rca_llm.probes.nodes import numbers

    nodes: Mapping[str, str] = told["nodes"]
    own = told["gpu_node"]
    if len(nodes) < 2:
        return {}, f"the host tells of {len(nodes)} NUMA node(s) with CPUs"
    if own is None:
        return {}, "the host does not tell the GPU's node"
    allowed = os.sched_getaffinity(0)
    usable = {node: [c for c in numbers(text) if c in allowed] for node, text in nodes.items()}
    away: Mapping[Any, int] = told["distances"].get(str(own)) or {}
    others = [node for node, found in usable.items() if node != str(own) and found]
    if not usable.get(str(own)) or not others:
        return {}, "this process may not use CPUs of the GPU's node and of another"
    far = max(others, key=lambda node: away.get(int(node), 0))
    return {
        name: ",".join(map(str, usable[node])) for name, node in (("near", str(own)), ("far", far))
    }, None


def record(arguments: argparse.Namespace, folder: Path, name: str, cpus: str, rank: int) -> Path:
    """Trace the program, bound to some CPUs; the run. RuntimeError where that failed."""
    run = folder / f"{name}.rca"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    program = [sys.executable, __file__, "--work", str(folder / f"{name}.json")]
    program += ["--seconds", str(arguments.seconds), "--bind", cpus]
    trace = [sys.executable, "-m", "rca_llm", "trace", "--force", "-o", str(run), "--gpu", "full"]
    env = {"PYTHONPATH": path, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    env |= {"RANK": str(rank), "WORLD_SIZE": "2"} if cpus else {}
    status, said, _ = command([*trace, "--", *program], env, left(arguments.limit), ROOT)
    if status:
        raise RuntimeError(f"{name}: status {status}: {said[-1500:]}")
    return run


def judged(*runs: Path) -> dict[str, Any]:
    """What a report of some runs says of nodes, copies and R36."""
    import rca_llm
    from rca_llm.trace import NODES

    trace = rca_llm.load(*runs)
    summary = trace.attribute().summary
    hints = [row for row in summary["hints"] if row["id"] == "R36"]
    told = [timeline.header.extra.get(NODES) for timeline in trace.timelines]
    return {
        "nodes": [len(nodes or ()) for nodes in told],
        "gpu_nodes": [[one.node for one in own.devices] for own in trace.timelines],
        "copies": {
            f"{row['kind']} {row['memory']}": row["bytes"] * 1e9 / row["total_ns"]
            for row in summary["copies"]
            if row["total_ns"] and row["bytes"]
        },
        "pages": [_pages(timeline) for timeline in trace.timelines],
        "running_ns_by_cpu": [_cpus(timeline) for timeline in trace.timelines],
        "R36": _said(hints[0]) if hints else None,
        "first": [row["id"] for row in summary["hints"]][:5],
    }


def _said(hint: Mapping[str, Any]) -> dict[str, Any]:
    rows = {name: hint["evidence"].get(name) for name in EVIDENCE}
    return {key: hint[key] for key in ("title", "confidence", "saving_ns", "share")} | rows


def _pages(timeline: Any) -> dict[str, float]:
    """The last number of pages looked at on each node, of all processes."""
    from rca_llm.probes.pages import METRIC

    samples, found = timeline["samples"], dict[tuple[str, int], float]()
    for row in range(len(samples)):
        name = timeline.text(int(samples["metric"][row])) or ""
        if name.startswith(METRIC):
            found[name, int(samples["process"][row])] = float(samples["value"][row])
    nodes = sorted({name for name, _ in found})
    return {node: sum(v for (name, _), v in found.items() if name == node) for node in nodes}


def _cpus(timeline: Any) -> dict[str, int]:
    """How long threads were seen running where the CPU is known and where it is not, ns."""
    states = timeline["states"]
    ran = states["state"] == timeline.strings.find("running")
    lasting = (states["end"] - states["start"]) * ran
    known = states["cpu"] >= 0
    return {"known": int(lasting[known].sum()), "unknown": int(lasting[~known].sum())}


def main() -> int:
    """Record and judge; 3 where something failed."""
    arguments = options()
    if arguments.work:
        work(arguments)
        return 0
    out, folder = folders(arguments.out, "rca-gpu-numa")
    found: dict[str, Any] = {"build": native.build(), "host": host(arguments.cpus)}
    status, file, runs = 0, out / "numa.json", dict[str, Path]()
    bound, found["left out"] = bindings(found["host"])
    try:
        for rank, (name, cpus) in enumerate({"free": "", **bound}.items()):
            runs[name] = record(arguments, folder, name, cpus, max(rank - 1, 0))
            found[name] = judged(runs[name])
            found[name]["by its own clock"] = json.loads((folder / f"{name}.json").read_text())
            write(file, found)
        if bound:
            found["near and far"] = judged(runs["near"], runs["far"])
        found["kept_bytes"] = packing.pack(out / "numa.tar.gz", runs, LARGEST_KEPT)
    except Exception as error:  # whatever it is, what was found so far is kept
        found["error"] = f"{type(error).__name__}: {error}"
        status = 3
    write(file, found)
    print(json.dumps({key: found[key] for key in found if key != "build"}, indent=1))
    if found["left out"]:
        print(f"near and far were left out: {found['left out']}")
    return status


if __name__ == "__main__":
    sys.exit(main())
