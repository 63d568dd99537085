"""The entry point of engines starts the probes where Python did not."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import signature
from pathlib import Path

from rca_llm.probes import plugin
from tests.traced import ROOT, texts, trace_code

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHILD = """
import sys
sys.path[:0] = [{root!r}, {site!r}]
from rca_llm.probes.plugin import register
register(); register()
from vllm.v1.core.sched.scheduler import Scheduler
print(Scheduler().schedule())
"""
SCHEDULER = "class Scheduler:\n    def schedule(self):\n        return 3\n"


def test_an_isolated_python_is_probed_through_the_entry_point(tmp_path: Path) -> None:
    package = tmp_path / "site" / "vllm" / "v1" / "core" / "sched"
    package.mkdir(parents=True)
    (package / "scheduler.py").write_text(SCHEDULER)
    child = CHILD.format(root=str(ROOT), site=str(tmp_path / "site"))
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-I', '-c', {child!r}])"
    done = trace_code(tmp_path, code)
    assert (done.status, done.stdout, done.stderr) == (0, "3\n", "")
    timeline = done.timeline()
    target = "vllm.v1.core.sched.scheduler.Scheduler.schedule"
    assert target in timeline.header.extra["probes"]["attached"]
    names = texts(timeline, "processes", "name")
    assert len(names) == 2, names


def test_outside_a_trace_and_beside_the_bootstrap_it_does_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from rca_llm.probes import plugin\n"
        "before = sys.modules['_rca_llm_probes']\n"
        "plugin.register()\n"
        "print(sys.modules['_rca_llm_probes'] is before)\n"
    )
    done = trace_code(tmp_path, code)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_allow_lists_that_are_set_let_us_in() -> None:
    found = {"VLLM_PLUGINS": "mine", "SGLANG_PLUGINS": "mine, theirs", "OTHER": "x"}
    plugin.allow(found)
    plugin.allow(found)
    assert found == {
        "VLLM_PLUGINS": "mine,rca_llm",
        "SGLANG_PLUGINS": "mine, theirs,rca_llm",
        "OTHER": "x",
    }
    untouched: dict[str, str] = {}
    plugin.allow(untouched)
    assert untouched == {}


def _doors() -> list[list[str]]:
    lines = (ROOT / "tests/data/signatures/doors.tsv").read_text().splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def test_the_entry_points_are_those_that_the_wheels_look_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    doors = _doors()
    assert {group for _, _, group, *_ in doors} == set(project["entry-points"])
    for _, _, group, *_, arguments in doors:
        module, _, function = project["entry-points"][group][plugin.NAME].partition(":")
        called = getattr(import_module(module), function)
        assert (len(signature(called).parameters), arguments) == (0, "0")


def test_an_empty_allow_list_means_what_the_wheels_make_of_it() -> None:
    for _, _, _, variable, empty, _ in _doors():
        found = {variable: ""}
        plugin.allow(found)
        # Where it lets in everybody, naming us would keep out all others.
        assert found == {variable: plugin.NAME if empty == "none" else ""}
