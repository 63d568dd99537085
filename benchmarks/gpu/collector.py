"""Measures the GPU collector on real hardware, against rival tracers and against CUPTI's own price.

    python benchmarks/gpu/collector.py --out results --stages build,record,agree,kill,recover,launch

Stages stand alone and write what they found into `results/collector.json` at once, so that a time
limit costs only what has not run. `build` compiles the collector and the floor; `agree` compares
kernel by kernel with Nsight Systems and torch.profiler; `kill` ends a traced process by SIGKILL;
`recover` runs a torch.profiler session inside a trace, with steps across graph launches; `spans`
times our spans. What tracers cost is measured by `overhead.py` and `burst.py`, large recordings by
`scale.py`. `--dry-run` prints the commands.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stages
from packing import pack

ROOT = Path(__file__).resolve().parent.parent.parent
NATIVE = ROOT / "probes" / "native"
WORKLOAD = Path(__file__).with_name("workload.py")
FLOOR_KERNELS = "10,1,22,2"
FLOOR_ALL = "10,1,22,2,38,17,5,4"
LARGEST_RECORDING = 3_000_000


@dataclass
class Session(stages.Session):
    """One run of this script, or of one that measures with the same programs."""

    file: str = "collector.json"

    @property
    def collector(self) -> Path:
        """Our library."""
        return self.work / "librca_llm.so"

    @property
    def floor(self) -> Path:
        """CUPTI with nobody reading."""
        return self.work / "bare_cupti.so"

    def run(self, command: list[str], env: dict[str, str], limit: float = 240) -> dict[str, Any]:
        """Run a command; its status, its wall time and the end of what it said."""
        if self.arguments.dry_run:
            shown = " ".join(f"{key}={value}" for key, value in env.items())
            print(shown, " ".join(command))
            return {"status": 0, "wall_s": 0.0, "said": ""}
        status, said, seconds = stages.command(command, env, limit, self.work)
        ended = time.monotonic_ns()
        wall = round(seconds, 2)
        return {"status": status, "wall_s": wall, "ended_ns": ended, "said": said[-600:]}

    def workload(self, name: str, env: dict[str, str], *options: str, under: list[str] = []) -> Any:  # noqa: B006
        """Run the workload; what `run` says, and the workload's own times."""
        times = self.work / f"{name}.json"
        command = [*under, sys.executable, str(WORKLOAD), "--times", str(times), *options]
        command += ["--size", self.arguments.size, "--device", self.arguments.device]
        done = self.run(command, env)
        if times.exists():
            done |= json.loads(times.read_text())
            done["until_exit_ms"] = round((done["ended_ns"] - done["end"]) / 1e6, 1)
        return done

    def traced(self, name: str, **variables: str) -> tuple[Path, dict[str, str]]:
        """A fresh run directory, and the environment that traces into it."""
        run = self.work / f"{name}.rca"
        shutil.rmtree(run, ignore_errors=True)
        (run / "segments").mkdir(parents=True)
        (run / "control").write_bytes(b"\1".ljust(4096, b"\0"))
        (run / "manifest.json").write_text(
            json.dumps({"version": "benchmark", "state": "finished"})
        )
        env = {
            "RCA_LLM_RUN": str(run),
            "CUDA_INJECTION64_PATH": str(self.collector),
            "NVTX_INJECTION64_PATH": str(self.collector),
        }
        return run, env | variables


def read(path: Path) -> Any:
    """The timeline of a recording, through our own readers."""
    sys.path.insert(0, str(ROOT))
    from rca_llm import readers

    return readers.read(path).timelines[0]


# ------------------------------------------------------------------ stages


def build(session: Session) -> None:
    """Compile the collector and the floor, and say on what machine this is."""
    cc = os.environ.get("CC", "cc")
    common = [
        cc,
        "-std=c11",
        "-O2",
        "-Wno-format-truncation",
        "-D_GNU_SOURCE",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
    ]
    sources = [str(path) for path in sorted(NATIVE.glob("*.c")) if not path.name.startswith("_")]
    tail = ["-pthread", "-ldl"]
    floor = [str(WORKLOAD.with_name("bare_cupti.c")), str(NATIVE / "cupti.c"), "-I", str(NATIVE)]
    done = session.run(
        [*common, *sources, "-o", str(session.collector), "-Wl,-z,nodelete", *tail], {}
    )
    bare = session.run([*common, *floor, "-o", str(session.floor), *tail], {})
    facts = (
        "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name())"
    )
    machine = session.run([sys.executable, "-c", facts], {})
    smi = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm", "--format=csv,noheader"]
    card = session.run(smi, {}) if shutil.which("nvidia-smi") else {"said": ""}
    session.keep(
        "build",
        {"collector": done, "floor": bare, "machine": machine["said"], "card": card["said"]},
    )


@dataclass
class Kernels:
    """The kernels of the traced body, in the order in which they began."""

    count: int
    total_ns: int
    shapes: list[tuple[int, ...]]
    names: list[str]
    nodes: int


def kernels_of(timeline: Any, begin: int, end: int) -> Kernels:
    """Kernels that began in a window of the timeline's clock."""
    import numpy as np

    gpu = timeline["gpu"]
    inside = (gpu["kind"] == 0) & (gpu["start"] >= begin) & (gpu["start"] <= end)
    rows = gpu.take(np.flatnonzero(inside)).sorted_by("start")
    columns = [rows[f"{what}_{axis}"] for what in ("grid", "block") for axis in "xyz"]
    return Kernels(
        len(rows),
        int((rows["end"] - rows["start"]).sum()),
        list(zip(*(column.tolist() for column in columns), strict=True)),
        [timeline.text(code) or "" for code in rows["name"].tolist()],
        int((rows["graph_node"] > 0).sum()),
    )


def body_window(timeline: Any) -> tuple[int, int]:
    """The NVTX range that the workload puts around its phases."""
    ranges = timeline["ranges"]
    code = timeline.strings.find("body")
    rows = (ranges["name"] == code).nonzero()[0]
    return int(ranges["start"][rows[0]]), int(ranges["end"][rows[0]])


def compared(ours: Kernels, other: Kernels) -> dict[str, Any]:
    """How far two recordings of the same work agree."""
    pairs = list(zip(ours.shapes, other.shapes, strict=False))
    return {
        "kernels": [ours.count, other.count],
        "total_ns": [ours.total_ns, other.total_ns],
        "total_ratio": round(ours.total_ns / other.total_ns, 5) if other.total_ns else None,
        "same_shape": sum(a == b for a, b in pairs),
        "compared": len(pairs),
        "first_difference": next(
            ([i, a, b, ours.names[i], other.names[i]] for i, (a, b) in enumerate(pairs) if a != b),
            None,
        ),
        "same_multiset": sorted(ours.shapes) == sorted(other.shapes),
    }


def summary(done: dict[str, Any]) -> dict[str, Any]:
    """Status, times and medians of a workload run."""
    kept = {key: done.get(key) for key in ("status", "wall_s", "until_exit_ms", "said")}
    for phase in done.get("phases", ()):
        times = sorted(phase["times"])
        quarters = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
        kept[phase["phase"]] = [round(value / 1000, 1) for value in quarters]
    return kept


def agree(session: Session) -> None:
    """The same program under every tracer: counts, times and shapes, kernel by kernel."""
    steps = ("--repeat", str(session.arguments.repeat))
    found: dict[str, Any] = {"untraced": summary(session.workload("untraced", {}, *steps))}
    ours: dict[str, Kernels] = {}
    for mode in ("full", "kernels"):
        run, env = session.traced(f"agree-{mode}", RCA_LLM_GPU=mode)
        done = session.workload(f"agree-{mode}", env, *steps)
        found[mode] = summary(done)
        if session.arguments.dry_run:
            continue
        timeline = read(run)
        ours[mode] = kernels_of(timeline, *done["body"])
        found[mode] |= described(run, timeline) | {
            "kernels": ours[mode].count,
            "nodes": ours[mode].nodes,
        }
        session.keep("agree", found)
    for name, rival in (("nsys", under_nsys), ("torch.profiler", under_kineto)):
        try:
            kept, kernels = rival(session, steps)
        except stages.OutOfTime:
            raise
        except Exception as error:  # the other rival may still tell something
            kept, kernels = {"failed": f"{type(error).__name__}: {error}"}, None
        found[name] = kept
        if kernels is not None:
            found[name] |= {mode: compared(mine, kernels) for mode, mine in ours.items()}
        session.keep("agree", found)


def described(run: Path, timeline: Any) -> dict[str, Any]:
    """What our recording says about itself."""
    return {
        "bytes": sum(path.stat().st_size for path in run.rglob("*.seg")),
        "segments": len(list(run.rglob("*.seg"))),
        "api_calls": len(timeline["api"]),
        "ranges": len(timeline["ranges"]),
        "devices": [[device.name, device.limits] for device in timeline.devices],
        "findings": [[f.code, f.count, f.where, f.detail] for f in timeline.findings],
        "facts": facts_of(run),
    }


def facts_of(run: Path) -> list[Any]:
    """The collector's INFO cells."""
    sys.path.insert(0, str(ROOT))
    from tests.native.segments import collector_segments

    return [info for segment in collector_segments(run) for info in segment.infos()]


def under_kineto(session: Session, steps: tuple[str, ...]) -> tuple[dict[str, Any], Kernels | None]:
    """torch.profiler with CUDA activity only."""
    done = session.workload("kineto", {}, *steps, "--profiler", "cuda")
    path = session.work / "kineto.kineto.json"
    if not path.exists():
        return summary(done), None
    return summary(done) | {"bytes": path.stat().st_size}, kernels_of(read(path), -(2**62), 2**62)


def nsys_program() -> Path | None:
    """Nsight Systems, which may lie inside Nsight Compute."""
    found = shutil.which("nsys")
    if found:
        return Path(found)
    return next(iter(sorted(Path("/opt/nvidia").glob("**/target-linux-x64/nsys"))), None)


def under_nsys(session: Session, steps: tuple[str, ...]) -> tuple[dict[str, Any], Kernels | None]:
    """Nsight Systems at node level, exported to SQLite."""
    program = nsys_program()
    if program is None:
        return {"said": "no nsys on this machine"}, None
    report = session.work / "rival"
    for old in session.work.glob("rival.*"):
        old.unlink()
    under = [str(program), "profile", "-t", "cuda,nvtx", "--cuda-graph-trace=node", "-s", "none"]
    under += ["--cpuctxsw=none", "-o", str(report), "-f", "true"]
    done = session.workload("nsys", {}, *steps, under=under)
    kept = summary(done) | {"export": export_nsys(session, program, report)}
    path = report.with_suffix(".sqlite")
    if not path.exists():
        return kept, None
    timeline = read(path)
    return kept, kernels_of(timeline, *body_window(timeline))


def export_nsys(session: Session, program: Path, report: Path) -> str:
    """Turn nsys's stream into SQLite, by the importer where nsys could not do it itself."""
    libraries = os.pathsep.join([str(ROOT / ".gpu-libs"), os.environ.get("LD_LIBRARY_PATH", "")])
    env = {"LD_LIBRARY_PATH": libraries}
    said = ""
    stream = report.with_suffix(".qdstrm")
    if stream.exists():
        importers = sorted(program.parent.parent.glob("host-linux-x64/QdstrmImporter"))
        importers += sorted(program.parent.parent.glob("linux-desktop-*/QdstrmImporter"))
        command = [str(importers[0]), "-i", str(stream), "-o", f"{report}.nsys-rep"]
        said += session.run(command, env)["said"]
    command = [str(program), "export", "--type", "sqlite", "--force-overwrite", "true"]
    command += ["-o", f"{report}.sqlite", f"{report}.nsys-rep"]
    return said + session.run(command, env)["said"]


def kill(session: Session) -> None:
    """SIGKILL in the middle of a decode loop: what is lost, and whether every name is there."""
    progress = session.work / "progress"
    progress.unlink(missing_ok=True)
    run, env = session.traced("kill", RCA_LLM_GPU="full")
    command = [sys.executable, str(WORKLOAD), "--phases", "eager", "--repeat", "1000000"]
    command += ["--times", str(session.work / "never.json"), "--progress", str(progress)]
    if session.arguments.dry_run:
        print(" ".join(command))
        return
    command += ["--size", session.arguments.size, "--device", session.arguments.device]
    with subprocess.Popen(command, env=os.environ | env, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 90
            while time.monotonic() < deadline and not progress.exists() and process.poll() is None:
                time.sleep(0.1)
            time.sleep(4)
        finally:
            stages.end_group(process)
        killed = time.monotonic_ns()
    timeline = read(run)
    gpu = timeline["gpu"]
    session.keep(
        "kill",
        {
            "kernels": int((gpu["kind"] == 0).sum()),
            "last_record_before_kill_ms": round((killed - int(gpu["end"].max())) / 1e6, 1),
            "kernels_without_name": int(((gpu["kind"] == 0) & (gpu["name"] < 0)).sum()),
            "repetitions": len(progress.read_text().splitlines()),
            "ranges": len(timeline["ranges"]),
        },
    )


RECOVER = """
import json, os, sys, time
import torch
sys.path.insert(0, os.environ["ROOT"])
from rca_llm.probes import gpu
import torch.autograd.profiler as profiler
if os.environ.get("WRAP") == "1":
    gpu.wrap_profiler(profiler)
x = torch.ones(1024, device="cuda")
def work(count):
    for _ in range(count):
        x.add_(1)
    torch.cuda.synchronize()
def marked(step, action):
    gpu.push_step(step); action(); gpu.pop_step(); torch.cuda.synchronize()
work(100)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(7):
        x.mul_(1)
times = {"collecting": [gpu.collecting()], "before": time.monotonic_ns()}
marked(11, lambda: work(5)); marked(12, graph.replay); marked(13, graph.replay)
def session(count):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        work(count)
    events = [e for e in p.key_averages() if "elementwise" in e.key]
    times.setdefault("profiler", []).append(
        [sum(e.count for e in events), sum(e.device_time_total for e in events)])
    times["collecting"].append(gpu.collecting())
session(200)
times["after"] = time.monotonic_ns()
work(300); marked(14, graph.replay)
time.sleep(1.2)
work(40)
times["between"] = time.monotonic_ns()
session(210)
times["again"] = time.monotonic_ns()
work(60)
times["end"] = time.monotonic_ns()
time.sleep(0.7)
print(json.dumps(times))
"""


def recover(session: Session) -> None:
    """A torch.profiler session inside a trace, and step marks across graph launches."""
    found: dict[str, Any] = {}
    for wrap in ("1", "0"):
        run, env = session.traced(f"recover-{wrap}", RCA_LLM_GPU="full", RCA_LLM_EXTERNAL="on")
        env |= {"ROOT": str(ROOT), "WRAP": wrap}
        done = session.run([sys.executable, "-c", RECOVER], env)
        if session.arguments.dry_run:
            continue
        found[f"wrap={wrap}"] = {"run": done}
        if done["status"] == 0:
            found[f"wrap={wrap}"] |= recovered(run, json.loads(done["said"].splitlines()[-1]))
    session.keep("recover", found)


def recovered(run: Path, times: dict[str, Any]) -> dict[str, Any]:
    """Kernels before and after the session, and those of each marked step."""
    timeline = read(run)
    gpu = timeline["gpu"]
    kernels = gpu.take((gpu["kind"] == 0).nonzero()[0])
    steps = {step: int((kernels["step"] == step).sum()) for step in (11, 12, 13, 14)}
    return {
        "times": times,
        "kernels_before": int((kernels["start"] < times["before"]).sum()),
        "kernels_between": _within(kernels, times["after"], times["between"]),
        "kernels_again": _within(kernels, times["again"], times["end"]),
        "expected": {"between": 347, "again": 60},
        "last": int(kernels["start"].max()),
        "median_ns": int(statistics.median((kernels["end"] - kernels["start"]).tolist())),
        "findings": [[f.code, f.count, f.detail] for f in timeline.findings],
        "steps": steps,
        "expected_steps": {11: 5, 12: 7, 13: 7, 14: 7},
        "facts": facts_of(run),
    }


def _within(kernels: Any, begin: int, end: int) -> int:
    """How many kernels began in a window."""
    return int(((kernels["start"] >= begin) & (kernels["start"] < end)).sum())


def queued(session: Session) -> None:
    """When CUPTI says that a kernel was queued, against the call that launched it."""
    run, env = session.traced("queued", RCA_LLM_GPU="full", RCA_LLM_QUEUED="on")
    done = session.workload("queued", env, "--phases", "eager,graph,tiny", "--repeat", "3")
    if session.arguments.dry_run:
        return
    session.keep("queued", summary(done) | queued_within(read(run)))


def queued_within(timeline: Any) -> dict[str, Any]:
    """How many kernels were queued inside their launch, and how long after its begin, ns."""
    import numpy as np

    from rca_llm.attribute.links import link
    from rca_llm.table import known

    gpu, api = timeline["gpu"], timeline["api"]
    call, found = link(gpu, api).api_row, dict[str, Any]()
    for name, nodes in (("launched alone", False), ("nodes of graphs", True)):
        rows = np.flatnonzero((gpu["kind"] == 0) & (known(gpu["graph_node"]) == nodes))
        told = rows[known(gpu["queued"][rows])]
        both = told[call[told] >= 0]
        at, begin, end = gpu["queued"][both], api["start"][call[both]], api["end"][call[both]]
        found[name] = {
            "kernels": len(rows),
            "queued known": len(told),
            "with a call": len(both),
            "queued inside it": int(((at >= begin) & (at <= end)).sum()),
            "before": int((at < begin).sum()),
            "after its begin": _quartiles(at - begin),
            "until the kernel": _quartiles(gpu["start"][both] - at),
            "call": _quartiles(end - begin),
        }
    return found


def _quartiles(values: Any) -> list[int]:
    """Least, quartiles and most."""
    import numpy as np

    marks = np.percentile(values, [0, 25, 50, 75, 100]) if len(values) else []
    return [round(float(value)) for value in marks]


def spans(session: Session) -> None:
    """What `span` and `record` cost on this host, beside the least possible: no GPU needed."""
    figures = session.out / "probes.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "probes.py"), "--json", str(figures)]
    session.keep("spans", session.run(command, {}))


def record(session: Session) -> None:
    """Keep a small recording: three requests of one prefill and eight decode steps."""
    run, env = session.traced("generate", RCA_LLM_GPU="full")
    done = session.workload("generate", env, "--phases", "generate", "--repeat", "3")
    if session.arguments.dry_run:
        return
    kept = session.out / "generate.rca.tar.gz"
    size = pack(kept, {"generate.rca": run}, LARGEST_RECORDING)
    timeline = read(run)
    with gzip.open(session.out / "generate.times.json.gz", "wt") as file:
        json.dump(done, file)
    session.keep("record", summary(done) | described(run, timeline) | {"kept_bytes": size})


def launch(session: Session) -> None:
    """The whole way as a user goes it: `rca-llm trace --report` around the same requests."""
    run, report = session.work / "launch.rca", session.out / "report.html"
    shutil.rmtree(run, ignore_errors=True)
    native = NATIVE / session.collector.name
    if not native.exists() and not session.arguments.dry_run:
        shutil.copy(session.collector, native)
    under = [sys.executable, "-m", "rca_llm", "trace", "--gpu", "full", "-o", str(run)]
    under += ["--report", str(report), "--force", "--"]
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = session.workload("launch", env, "--phases", "generate", "--repeat", "3", under=under)
    found = summary(done)
    if not session.arguments.dry_run:
        found |= described(run, read(run))
        found["report_bytes"] = report.stat().st_size if report.exists() else None
    session.keep("launch", found)


LIMITS = {"build": 120, "kill": 150}
"""Seconds; the others may take `stages.LIMIT_S`."""
STAGES: dict[str, Callable[[Session], None]] = {
    "build": build,
    "agree": agree,
    "kill": kill,
    "recover": recover,
    "queued": queued,
    "record": record,
    "launch": launch,
    "spans": spans,
}


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--stages", default="build,agree,kill,recover,record,launch")
    parser.add_argument("--size", default="1b", choices=("tiny", "1b", "7b"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Run the stages that were asked for."""
    arguments = options()
    session = Session(*stages.folders(arguments.out, "rca-gpu-benchmark"), arguments)
    stages.run_stages(session, STAGES, arguments.stages, limits=LIMITS)


if __name__ == "__main__":
    main()
