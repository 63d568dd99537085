"""Records NCCL on the GPUs of one host, and checks the recordings against what the program did.

    python benchmarks/gpu/nccl.py --out results --ranks 2

One process a GPU through torchrun, under one `rca-llm trace`: a sweep of operations and sizes, a
tensor-parallel decoder, delayed ranks, and peer copies beside all-reduces (`nccl_work.py`); the
decoder again under torch.profiler and under Nsight Systems; each compared by `nccl_check.py`. With
`--ranks 1` what one GPU shows, and whether NCCL lets two ranks share it. Stages stand alone, have
limits of their own, and write what they found into `nccl.json` at once. NVLink multicast stays as
the environment has it: off where NCCL_NVLS_ENABLE=0.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packing
import stages
from collector import nsys_program

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NATIVE = ROOT / "probes" / "native"
LARGEST_RECORDING = 3_000_000
STAGES_OF_MANY = "build,tp,sizes,delays,contention,kineto,nsys,channels"
STAGES_OF_ONE = "build,one,tp-one,shared"

FORCED = {"delays": {"NCCL_PROTO": "LL"}, "contention": {"NCCL_ALGO": "Ring"}}
"""How NCCL is told to do the collectives of a scenario, so that what is recorded can be checked."""


@dataclass
class Session(stages.Session):
    """One run of this script."""

    file: str = "nccl.json"
    shown: int = 1500

    def short(self, found: Any) -> Any:
        """A result without its long texts."""
        return _short(found)

    def run(self, command: list[str], env: dict[str, str], limit: float) -> dict[str, Any]:
        """Run a command and its whole process group within a limit; status, time and last words."""
        print("+", " ".join(command)[-300:], flush=True)
        status, said, seconds = stages.command(command, env, limit, self.work)
        wall = round(seconds, 1)
        return {"status": status, "wall_s": wall, "said": said[-1500:], "all": said}

    def folder(self, name: str) -> Path:
        """A fresh folder."""
        made = self.work / name
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        return made


def _short(found: Any) -> Any:
    """A result without the long texts, for the terminal."""
    if not isinstance(found, dict):
        return found
    shown = {key: value for key, value in found.items() if key not in ("all", "facts")}
    if "run" in shown:
        shown["run"] = {**shown["run"], "said": shown["run"]["said"][-300:]}
    if "check" in shown:
        check = shown["check"]
        shown["check"] = {"failed": check.get("failed"), "made": len(check.get("checks", ()))}
    return shown


def importing() -> dict[str, str]:
    """The environment in which a program imports this tree's package."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def how(done: dict[str, Any]) -> dict[str, Any]:
    """How a command went, without all that it said."""
    return {key: done[key] for key in ("status", "wall_s", "said")}


def worker(
    session: Session, scenario: str, truth: Path, *options: str, ranks: int = 0
) -> list[str]:
    """The command of a scenario."""
    arguments = session.arguments
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(ranks or arguments.ranks), str(HERE / "nccl_work.py"),
        "--scenario", scenario, "--truth", str(truth), "--device", arguments.device, *options,
    ]  # fmt: skip


def record(
    session: Session, name: str, scenario: str, env: dict[str, str], *options: str, ranks: int = 0,
    gpu: str = "full",
) -> tuple[Path, Path, dict[str, Any]]:  # fmt: skip
    """A scenario under `rca-llm trace`: the run, the truth and how it went."""
    truth, run = session.folder(f"{name}.truth"), session.work / f"{name}.rca"
    trace = [sys.executable, "-m", "rca_llm", "trace", "--gpu", gpu, "-o", str(run), "--force"]
    command = [*trace, "--", *worker(session, scenario, truth, *options, ranks=ranks)]
    done = session.run(command, env | importing(), session.arguments.limit)
    return run, truth, done


def check(
    session: Session, what: str, truth: Path, recordings: Iterable[Path], *options: str
) -> dict[str, Any]:
    """What `nccl_check.py` finds; the end of its words where it fails."""
    command = [sys.executable, str(HERE / "nccl_check.py"), what, "--truth", str(truth), *options]
    done = session.run([*command, *map(str, recordings)], {}, session.arguments.limit)
    try:
        return dict(json.loads(done["all"].splitlines()[-1]))
    except (ValueError, IndexError):
        return {"failed": ["the check itself"], "said": done["said"]}


def pack(session: Session, name: str, folders: Sequence[Path]) -> int | None:
    """Keep recordings as one archive; its bytes."""
    for run in (folder for folder in folders if (folder / "manifest.json").exists()):
        describe_plainly(run)
    kept = session.out / f"{name}.tar.gz"
    return packing.pack(kept, {folder.name: folder for folder in folders})


def describe_plainly(run: Path) -> None:
    """Shorten paths in the manifest to their last part: they are this machine's affair."""
    path = run / "manifest.json"
    told = json.loads(path.read_text())
    told["command"] = [Path(word).name if "/" in word else word for word in told["command"]]
    told["kernel"] = told["kernel"].partition("-")[0]
    path.write_text(json.dumps(told, indent=1))


# ------------------------------------------------------------------ stages


def build(session: Session) -> None:
    """Compile the library where `rca-llm trace` looks for it, and say on what machine this is."""
    sources = [str(path) for path in sorted(NATIVE.glob("*.c")) if not path.name.startswith("_")]
    command = [os.environ.get("CC", "cc"), "-std=c11", "-O2", "-D_GNU_SOURCE", "-fPIC", "-shared"]
    command += ["-fvisibility=hidden", "-Wno-format-truncation", *sources]
    command += ["-o", str(NATIVE / "librca_llm.so"), "-Wl,-z,nodelete", "-pthread", "-ldl"]
    done = session.run(command, {}, 60)
    facts = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.device_count(), "
    facts += "torch.cuda.nccl.version())" if session.arguments.device == "cuda" else "0)"
    machine = session.run([sys.executable, "-c", facts], {}, 60)["said"]
    topology = ""
    if shutil.which("nvidia-smi"):
        topology = session.run(["nvidia-smi", "topo", "-m"], {}, 30)["said"]
    chosen = {key: value for key, value in os.environ.items() if key.startswith("NCCL_")}
    found = {"status": done["status"], "said": done["said"], "machine": machine}
    session.keep("build", found | {"topology": topology, "environment": chosen})


def scenario(name: str, gpu: str = "full") -> Callable[[Session], None]:
    """The stage that records and checks a scenario."""

    def stage(session: Session) -> None:
        env = FORCED.get(name, {}) if session.arguments.device == "cuda" else {}
        largest = ["--largest", str(session.arguments.largest)] if name == "sizes" else []
        run, truth, done = record(session, name, name, env, *largest, gpu=gpu)
        bytes_ = pack(session, name, [run, truth]) if run.exists() else 0
        found = {"run": how(done), "bytes": bytes_}
        session.keep(name, found)
        expected = [f"--expect={k.removeprefix('NCCL_')}={v.upper()}" for k, v in env.items()]
        session.keep(name, found | {"check": check(session, name, truth, [run], *expected)})

    return stage


def kineto(session: Session) -> None:
    """The decoder under torch.profiler, a file a rank."""
    truth = session.folder("kineto.truth")
    command = worker(session, "tp", truth, "--profiler")
    done = session.run(command, importing(), session.arguments.limit)
    bytes_ = pack(session, "kineto", [truth])
    found = {"run": how(done), "bytes": bytes_}
    session.keep("kineto", found)
    files = sorted(truth.glob("kineto-*.json"))
    session.keep("kineto", found | {"check": check(session, "tp-names", truth, files)})


def nsys(session: Session) -> None:
    """The decoder under Nsight Systems, all ranks in one file."""
    program = nsys_program()
    if program is None:
        session.keep("nsys", {"said": "no nsys on this machine"})
        return
    truth = session.folder("nsys.truth")
    report = session.folder("nsys") / "ranks"
    command = [str(program), "profile", "-t", "cuda,nvtx", "--cuda-graph-trace=node", "-s", "none"]
    command += ["--cpuctxsw=none", "-o", str(report), "-f", "true"]
    command += worker(session, "tp", truth)
    done = session.run(command, importing(), session.arguments.limit)
    found = {"run": how(done)}
    session.keep("nsys", found)
    database = export(session, program, report)
    if not database.exists():
        return
    slim(database)
    with database.open("rb") as source, gzip.open(session.out / "nsys.sqlite.gz", "wb", 9) as into:
        shutil.copyfileobj(source, into)
    shutil.copytree(truth, session.work / "nsys-truth", dirs_exist_ok=True)
    for told in truth.glob("truth-*.json"):
        found[told.name] = json.loads(told.read_text())
    session.keep("nsys", found | {"check": check(session, "tp-names", truth, [database])})


def export(session: Session, program: Path, report: Path) -> Path:
    """The SQLite export of a report, through the importer where nsys could not call it itself."""
    libraries = os.pathsep.join([str(ROOT / ".gpu-libs"), os.environ.get("LD_LIBRARY_PATH", "")])
    env = {"LD_LIBRARY_PATH": libraries}
    stream = report.with_suffix(".qdstrm")
    if stream.exists():
        importers = sorted(program.parent.parent.glob("host-linux-x64/QdstrmImporter"))
        importers += sorted(program.parent.parent.glob("linux-desktop-*/QdstrmImporter"))
        command = [str(importers[0]), "-i", str(stream), "-o", f"{report}.nsys-rep"]
        session.run(command, env, session.arguments.limit)
    command = [str(program), "export", "--type", "sqlite", "--force-overwrite", "true"]
    command += ["--include-blobs", "true", "-o", f"{report}.sqlite", f"{report}.nsys-rep"]
    session.run(command, env, session.arguments.limit)
    return report.with_suffix(".sqlite")


KEPT_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
    "NVTX_PAYLOAD_SCHEMAS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
    "ENUM_CUDA_MEMCPY_OPER",
    "ENUM_CUDA_MEM_KIND",
    "ENUM_NSYS_EVENT_TYPE",
    "StringIds",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_SESSION_START_TIME",
    "META_DATA_EXPORT",
)
TEXT_IDS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "shortName", "mangledName"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",),
    "NVTX_EVENTS": ("textId",),
}
"""The columns that name texts: no other text is kept."""


def slim(path: Path) -> None:
    """Leave out of an export what may hold secrets.

    Those are environments (in tables of their own, among the texts and among the metadata),
    arguments, output, and the names of other processes.
    """
    full = path.with_suffix(".full")
    path.rename(full)
    with sqlite3.connect(full) as database:
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in found:
            if name not in KEPT_TABLES:
                database.execute(f'DROP TABLE "{name}"')
        told = "name LIKE 'EXPORT_PRODUCT%' OR name LIKE 'EXPORT_SCHEMA%'"
        database.execute(f"DELETE FROM META_DATA_EXPORT WHERE NOT ({told})")
        database.execute("UPDATE TARGET_INFO_GPU SET uuid = ''")
        _forget_texts(database)
        database.commit()
        database.execute("VACUUM INTO ?", (str(path),))
    full.unlink()


def _forget_texts(database: sqlite3.Connection) -> None:
    """Remove the texts that no event names."""
    used: set[int] = set()
    for table, columns in TEXT_IDS.items():
        there = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
        for column in there.intersection(columns):
            rows = database.execute(f'SELECT DISTINCT "{column}" FROM "{table}"')
            used.update(id for (id,) in rows if id is not None)
    held = {id for (id,) in database.execute("SELECT id FROM StringIds")}
    gone = [(id,) for id in held - used]
    database.executemany("DELETE FROM StringIds WHERE id = ?", gone)


def channels(session: Session) -> None:
    """The decoder with the work of single channels, which costs a host call in every plan."""
    run, truth, done = record(session, "channels", "tp", {"RCA_LLM_NCCL": "channels"})
    found: dict[str, Any] = {"run": how(done)}
    found["bytes"] = pack(session, "channels", [run, truth])
    session.keep("channels", found)
    session.keep("channels", found | {"check": check(session, "tp", truth, [run])})


def one(name: str, work: str, *options: str) -> Callable[[Session], None]:
    """A scenario on one rank, where NCCL has nobody to talk to."""

    def stage(session: Session) -> None:
        run, truth, done = record(session, name, work, {}, *options, ranks=1)
        bytes_ = pack(session, name, [run, truth]) if run.exists() else 0
        found = {"run": how(done), "bytes": bytes_}
        session.keep(name, found | {"check": check(session, "one", truth, [run])})

    return stage


def shared(session: Session) -> None:
    """Two ranks on one device: what NCCL says, and whether any of its variables lets it."""
    found: dict[str, Any] = {}
    for name, env in {
        "plain": {},
        "NCCL_MULTI_RANK_GPU_ENABLE": {"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
    }.items():
        truth = session.folder("shared.truth")
        command = worker(session, "sizes", truth, "--share-device", "--largest", "1024", ranks=2)
        done = session.run(command, importing() | env | {"NCCL_DEBUG": "WARN"}, 40)
        lines = [line for line in done["all"].splitlines() if "uplicate GPU" in line]
        found[name] = {"status": done["status"], "wall_s": done["wall_s"], "said": lines[:2]}
        session.keep("shared", found)


STAGES: dict[str, Callable[[Session], None]] = {
    "build": build,
    "tp": scenario("tp"),
    "sizes": scenario("sizes"),
    "delays": scenario("delays", gpu="kernels"),
    "contention": scenario("contention"),
    "kineto": kineto,
    "nsys": nsys,
    "channels": channels,
    "one": one("one", "sizes", "--largest", str(16 << 20)),
    "tp-one": one("tp-one", "tp"),
    "shared": shared,
}


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stages", default="")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--largest", type=int, default=256 << 20, help="bytes of a message")
    parser.add_argument("--limit", type=float, default=90, help="seconds of one command")
    parser.add_argument("--budget", type=float, default=480, help="seconds; no stage begins later")
    return parser.parse_args()


def main() -> None:
    """Run the stages that were asked for."""
    arguments = options()
    session = Session(*stages.folders(arguments.out, "rca-nccl-benchmark"), arguments)
    chosen = arguments.stages or (STAGES_OF_MANY if arguments.ranks > 1 else STAGES_OF_ONE)
    stages.run_stages(session, STAGES, chosen, budget=arguments.budget)


if __name__ == "__main__":
    main()
