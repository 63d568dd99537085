"""``rca-llm trace``: runs a command and its whole process tree under the probes.

Whatever goes wrong with the tracing costs one line on stderr and never the command or its status.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rca_llm import __version__, child, elf, redact, stacks
from rca_llm import run as runs
from rca_llm.counting import READY, Counting
from rca_llm.errors import RcaError, one_line
from rca_llm.finish import finish
from rca_llm.hold import LOCK, Held
from rca_llm.probes import format as layout
from rca_llm.probes import plugin, recorder
from rca_llm.run import Run
from rca_llm.sampling import Limits, Sampler
from rca_llm.stacks import Stacks

PROBES = Path(__file__).resolve().parent / "probes"
BOOTSTRAP = PROBES / "bootstrap"
T = TypeVar("T")
INT_MAX = 2**31 - 1
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_OUTSIDE = (layout.WRITER_LAUNCHER, layout.WRITER_PRELOAD)
"""Who records of processes that our code in Python never reached."""
_NCCL_PATH = 255
"""NCCL cuts a plugin's path at this length, and would then look for another file."""


@dataclass(frozen=True)
class Options:
    """The options of ``rca-llm trace``."""

    output: Path | None = None
    report: Path | None = None
    force: bool = False
    paused: bool = False
    duration_s: float | None = None
    max_bytes: int | None = None
    nvtx: str = "on"
    gpu: str = "kernels"
    cuda_graph: str = "node"
    io: str = "on"
    counters: bool = False
    stacks: bool = False


def trace(command: Sequence[str], options: Options, *, last: bool = False) -> int:
    """Run ``command`` traced; the exit status that ``rca-llm trace`` ends with.

    The command's own; 128+N where signal N ended it; 127 not found; 126 cannot be run; 4 the
    launcher could not start it. Raises `Held` where it would replace what another one records.
    Signals are as before then, unless it is the `last` thing that this process does: what comes
    after the command's end (an impatient second Ctrl-C) must not cost its status.
    """
    mask = child.hold_signals()
    try:
        return _trace(command, options, mask)
    finally:
        if not last:
            child.release_signals(mask)


def _trace(command: Sequence[str], options: Options, mask: set[int]) -> int:
    env = _original_environment()
    run = None if _is_nested(env) else _create(command, options)
    try:
        if run is None:
            return child.wait(child.start(command, env, mask))
        return _traced(command, options, run, env, mask)
    except child.NotStarted as error:
        say(str(error))
        if run is not None:
            _discard(run)
        return error.status


def say(line: str) -> None:
    """One line to the user on stderr, if there still is one."""
    with contextlib.suppress(OSError, ValueError):
        print(f"rca-llm: {one_line(line)}", file=sys.stderr, flush=True)


def _is_nested(env: Mapping[str, str]) -> bool:
    outer = env.get("RCA_LLM_RUN")
    if not outer or not (Path(outer) / layout.CONTROL_NAME).exists():
        return False
    if Run(Path(outer)).manifest().get("state") == runs.FINISHED:
        return False
    say(f"already inside a trace: this command is recorded in {outer}")
    return True


def _create(command: Sequence[str], options: Options) -> Run | None:
    """The run directory, or None (and a line) where there can be none."""
    path = options.output or runs.default_path(command)
    try:
        path = path.absolute()  # fails where the working directory is gone
        try:
            return runs.create(path, paused=options.paused, force=options.force)
        except RcaError as error:
            if options.force and isinstance(error, Held):
                raise
            run = _create_beside(path, options)
            say(f"{error}; recording into {run.path}")
            return run
    except OSError as error:
        say(f"cannot write {path}: {error.strerror or error}; the command runs untraced")
        return None


def _create_beside(path: Path, options: Options) -> Run:
    """A run directory at the first free path; another launcher may be as quick to find it."""
    while True:
        with contextlib.suppress(RcaError):
            return runs.create(runs.free_path(path), paused=options.paused)


def _discard(run: Run) -> None:
    """Remove the run of a command that never started."""
    try:
        run.control.unlink()
        run.segments.rmdir()
        (run.path / LOCK).unlink()
        run.path.rmdir()
    except OSError:
        pass


def _original_environment() -> dict[str, str]:
    """The environment that the launcher was given.

    Python itself may set LC_CTYPE when it starts (PEP 538); the command must not see that.
    """
    env = dict(os.environ)
    try:
        given = Path("/proc/self/environ").read_bytes()
    except OSError:
        return env
    if not any(entry.startswith(b"LC_CTYPE=") for entry in given.split(b"\0")):
        env.pop("LC_CTYPE", None)
    return env


def environment(base: Mapping[str, str], run: Run, options: Options) -> dict[str, str]:
    """The environment of the traced command."""
    env = dict(base)
    path = env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{BOOTSTRAP}{os.pathsep}{path}" if path else str(BOOTSTRAP)
    env["RCA_LLM_RUN"] = str(run.path)
    env["RCA_LLM_GPU"] = options.gpu
    env["RCA_LLM_GRAPH"] = options.cuda_graph
    env["RCA_LLM_NVTX"] = options.nvtx
    if options.max_bytes is not None:
        env["RCA_LLM_MAX_BYTES"] = str(options.max_bytes)
    library = native_library()
    if library is not None:
        if options.gpu != "off":
            env.setdefault("CUDA_INJECTION64_PATH", str(library))
            if len(str(library)) < _NCCL_PATH:
                env.setdefault("NCCL_PROFILER_PLUGIN", str(library))
        if options.nvtx == "on":
            env.setdefault("NVTX_INJECTION64_PATH", str(library))
    if options.io == "on":
        _preload(env)
    plugin.allow(env)
    return env


def native_library() -> Path | None:
    """The collector library, None where it was not built."""
    return _built("librca_llm.so")


def preload_library() -> Path | None:
    """The interposer of IO; None where it was not built or LD_PRELOAD cannot hold its path."""
    library = _built("librca_preload.so")
    return None if library is None or set(str(library)) & {" ", ":"} else library


def _built(name: str) -> Path | None:
    path = PROBES / "native" / name
    return path if path.exists() else None


def _preload(env: dict[str, str]) -> None:
    """Put the interposer behind what is preloaded already: some libraries must come first."""
    library, others = preload_library(), env.get("LD_PRELOAD")
    if library is not None:
        env["LD_PRELOAD"] = f"{others}:{library}" if others else str(library)


def _without_preload(command: Sequence[str], options: Options, env: Mapping[str, str]) -> Options:
    """The options, with `io` off and a line where the interposer would harm the command."""
    library = preload_library() if options.io == "on" else None
    reason = None if library is None else elf.why_not(command[0], library, env)
    if reason is None:
        return options
    say(f"{reason}: nothing is preloaded (as --io off)")
    return replace(options, io="off")


def _traced(
    command: Sequence[str],
    options: Options,
    run: Run,
    base: Mapping[str, str],
    mask: set[int],
) -> int:
    options = _without_preload(command, options, base)
    began = recorder.anchor()
    pid = child.start(command, environment(base, run, options), mask)
    manifest = _manifest(command, options, pid, began)
    sampler = _begin(run, pid, manifest, options)
    counting = _count(run, base) if options.counters else None
    sampled = _sample_stacks(run) if options.stacks else None
    _warn_about_gpu(base, options)
    status = child.wait(pid)
    manifest |= _end(manifest, status)
    if sampled is not None:
        _guarded("the stacks could not be ended", lambda: _end_stacks(sampled))
    if counting is not None:
        _guarded("the counters could not be ended", lambda: _end_counting(counting))
    _guarded(
        "the run could not be finished",
        lambda: _finish(run, sampler, manifest, options),
    )
    return status


def _manifest(
    command: Sequence[str], options: Options, pid: int, began: tuple[int, int, int]
) -> dict[str, Any]:
    settings = asdict(options)
    for name in ("output", "report", "force"):
        del settings[name]
    return {
        "version": __version__,
        "state": runs.RUNNING,
        "command": redact.command(command),
        "pid": pid,
        "launcher_pid": os.getpid(),
        "launcher_start": recorder.process_start(),
        "host": os.uname().nodename,
        "kernel": os.uname().release,
        "began_ns": began[0],
        "began_utc_ns": began[1],
        "anchors": [began[:2]],
        "options": settings,
    }


def _end(manifest: dict[str, Any], status: int) -> dict[str, Any]:
    """What the manifest says once the command has ended, which is now."""
    ended = recorder.anchor()
    return {
        "state": runs.FINISHED,
        "ended_ns": ended[0],
        "ended_utc_ns": ended[1],
        "status": status,
        "anchors": [*manifest["anchors"], ended[:2]],
    }


def _begin(run: Run, pid: int, manifest: dict[str, Any], options: Options) -> Sampler | None:
    """Write the manifest and start to sample; without either the command runs on."""

    def begin() -> Sampler:
        run.write_manifest(manifest)
        sampler = Sampler(run, pid, Limits(options.duration_s, options.max_bytes))
        sampler.start()
        return sampler

    return _guarded("nothing is sampled", begin)


def _sample_stacks(run: Run) -> Stacks | None:
    """Begin to sample stacks, or say why not."""
    program = stacks.find()
    if program is None:
        say("no stacks: py-spy is missing (pip install 'rca-llm[stacks]')")
        return None
    sampled = Stacks(run, program)
    _guarded("no stacks", sampled.start)
    return sampled


def _end_stacks(sampled: Stacks) -> None:
    sampled.stop()
    if sampled.failed is not None:
        say(f"no stacks of some processes: {sampled.failed}")


def _count(run: Run, base: Mapping[str, str]) -> Counting | None:
    return _guarded("no hardware counters", lambda: Counting(run.path, base))


def _end_counting(counting: Counting) -> None:
    said = counting.end()
    if said != READY:
        say(f"no hardware counters: {said}")


def _guarded(what: str, action: Callable[[], T]) -> T | None:
    """The action's result, or one line and None where it fails."""
    try:
        return action()
    except Exception as error:  # tracing must not cost the command its status
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        say(f"{what}: {reason}")
        return None


def _warn_about_gpu(env: Mapping[str, str], options: Options) -> None:
    if options.gpu == "off" or not os.path.exists("/proc/driver/nvidia/version"):
        return
    if native_library() is None:
        say(
            "the collector library is not built (a C compiler was missing): GPU work is recorded"
            " only where the program has PyTorch and cupti-python, which made an eager decode"
            " step 26 times as long on an H200"
        )
    elif "CUDA_INJECTION64_PATH" in env:
        say("no GPU records: CUDA_INJECTION64_PATH belongs to another tool")
    elif "NCCL_PROFILER_PLUGIN" in env:
        say("NCCL_PROFILER_PLUGIN belongs to another tool: no algorithm, protocol of collectives")


def _finish(run: Run, sampler: Sampler | None, manifest: dict[str, Any], options: Options) -> None:
    if sampler is not None:
        sampler.stop()
    run.write_manifest(manifest)
    if _report_troubles(run, sampler):
        seen = sampler.seen if sampler is not None else {}
        _guarded("no tables, the segments stay", lambda: finish(run, seen))
    if options.report is not None:
        path = options.report
        _guarded(f"no report {path}", lambda: _write_report(run, path, options.force))


def _report_troubles(run: Run, sampler: Sampler | None) -> bool:
    """Say in one line what keeps this run from being whole; whether there is room to finish it."""
    if sampler is not None and sampler.error is not None:
        say(f"{run.path}: sampling ended early: {sampler.error}")
    if sampler is not None and sampler.full:
        say(f"{run.path}: recording ended at --max-size")
    headers = [header for header in map(_header, run.segment_files()) if header]
    stopped = [header for header in headers if header["stop_errno"]]
    if stopped:
        dropped = sum(header["dropped"] for header in stopped)
        reason = os.strerror(stopped[0]["stop_errno"] & INT_MAX)
        say(f"{run.path}: recording ended early: {reason} ({dropped} records or threads lost)")
    elif all(header["writer"] in _OUTSIDE for header in headers):
        say(
            "no process left a trace: not Python 3.7 or later, python -I, -E or -S, or a wiped"
            " environment; only the launcher's samples were recorded"
        )
    return not any(header["stop_errno"] in _DISK_FULL for header in stopped)


def _header(path: Path) -> dict[str, Any]:
    """The header of a segment by field name; empty where it is not whole."""
    with path.open("rb") as file:
        data = file.read(layout.HEADER_BYTES)
    if not data.startswith(layout.MAGIC):
        return {}
    return dict(zip(layout.HEADER_FIELDS, layout.HEADER.unpack_from(data, 8), strict=True))


def _write_report(run: Run, path: Path, force: bool) -> None:
    from rca_llm import output
    from rca_llm.exporters import html
    from rca_llm.readers import load

    force = force and not path.resolve().is_relative_to(run.path.resolve())
    output.check_target(path, force=force)
    report = load(run.path).attribute()
    output.write(path, lambda draft: html.write(report, draft), force=force)
