"""The package as users get it: what a wheel holds, and that every way to import it works."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED = {"probes": ROOT / "probes", "exporters": ROOT / "exporters"}
HEAVY = {"numpy", "pandas", "jinja2", "msgspec", "click", "rich", "fsspec", "nvtx", "arro3"}
TORCH = "torch==2.13.0"


def python(code: str, *flags: str, cwd: Path = ROOT, path: Path | None = None) -> str:
    """What a program prints; `path` goes before everything else that is installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, *flags, "-c", code]
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def folders() -> dict[str, Path]:
    """Every package of the tree, by the name that it is imported by."""
    found = {"rca_llm": ROOT / "rca_llm"}
    found |= {f"rca_llm.{name}": folder for name, folder in LINKED.items()}
    for name, top in list(found.items()):
        for marker in top.rglob("__init__.py"):
            inner = marker.parent.relative_to(top).parts
            if not inner or (name == "rca_llm" and inner[0] in LINKED):
                continue
            found[".".join([name, *inner])] = marker.parent
    return found


def imports(file: Path) -> Iterator[str]:
    """The modules that a file imports; relative ones begin with a dot."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


# --- The tree ------------------------------------------------------------------------------------


def test_every_folder_is_listed_as_a_package() -> None:
    tomllib = pytest.importorskip("tomllib", reason="tomllib comes with Python 3.11")
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sorted(configuration["tool"]["setuptools"]["packages"]) == sorted(folders())


@pytest.mark.parametrize("name", LINKED)
def test_the_symlinks_lead_to_the_folders(name: str) -> None:
    assert (ROOT / "rca_llm" / name).readlink() == Path("..") / name


def test_a_bare_checkout_can_be_imported() -> None:
    code = "import rca_llm, rca_llm.probes.format as f; print(rca_llm.span, f.__name__)"
    assert "rca_llm.probes.format" in python(code, "-S", "-E")


def test_importing_loads_nothing_else() -> None:
    code = "import sys, rca_llm; print(*{name.partition('.')[0] for name in sys.modules})"
    assert HEAVY.isdisjoint(python(code).split())


def test_help_loads_no_analysis() -> None:
    code = "import sys; from rca_llm.cli import main; main(['--help']); print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in python(code).split()}
    assert loaded.isdisjoint({"numpy", "pandas", "jinja2", "msgspec", "arro3"})


def test_probes_import_the_standard_library_and_themselves_alone() -> None:
    # They run inside foreign interpreters, where nothing of ours is installed; an engine's file
    # may import the engine that it wraps, and the GPU's and NVTX's libraries are optional.
    allowed = {"", "nvtx", "pynvml", "cupti", *sys.stdlib_module_names}
    foreign = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in LINKED["probes"].rglob("*.py")
        if file.parent.name != "engines"
        for name in imports(file)
        if name.partition(".")[0] not in allowed
    }
    assert not foreign


def test_imports_point_one_way() -> None:
    # Commands, launcher and monitor drive the whole way; a Report draws itself in a notebook.
    drivers = {"commands", "launch.py", "monitor.py", "report.py"}
    core = [f for f in (ROOT / "rca_llm").rglob("*.py") if not drivers & set(f.parts)]
    wrong = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in core
        if not LINKED.keys() & set(file.relative_to(ROOT).parts)
        for name in imports(file)
        if name.startswith("rca_llm.exporters")
    }
    assert not wrong


# --- The wheel -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel made from it, of the tree's own files."""
    pytest.importorskip("build", reason="needs the package build")
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout to take the files from")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    tracked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(tracked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(tree)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel alone installed."""
    target = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, str(target), str(wheel)], check=True)
    return target


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_every_data_file(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    found = set(zipfile.ZipFile(wheel).namelist())
    for name, folder in folders().items():
        place = name.replace(".", "/")
        expected = [*folder.glob("*.py"), *folder.glob("*.tsv"), *folder.glob("*.toml")]
        expected += (folder / "templates").glob("*")
        expected += (folder / "bootstrap").glob("*.py")
        missing = {f"{place}/{file.relative_to(folder)}" for file in expected} - found
        assert not missing
    assert "rca_llm/py.typed" in found


@pytest.mark.slow
def test_the_wheel_holds_nothing_beside_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rca_llm"}


@pytest.mark.slow
def test_the_wheel_holds_what_is_written_in_c(built: Path) -> None:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    (wheel,) = built.glob("*.whl")
    found = zipfile.ZipFile(wheel).namelist()
    native = {Path(name).name for name in found if name.endswith(".so")}
    for_python = {f"{name}{EXTENSION_SUFFIXES[0]}" for name in ("_recorder", "_timed", "_watch")}
    assert native == {"librca_llm.so", "librca_preload.so", *for_python}


@pytest.mark.slow
def test_the_source_distribution_holds_what_building_and_testing_need(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"Makefile", "LICENSE", "tests/test_packaging.py", "examples/demo.py", "docs/index.md"}
    assert needed <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@pytest.mark.slow
def test_the_installed_wheel_imports_and_leaks_no_names(installed: Path, tmp_path: Path) -> None:
    code = (
        "import rca_llm.probes.format, rca_llm.exporters.html, rca_llm.readers, sys\n"
        "from importlib.util import find_spec\n"
        "print(rca_llm.__file__, find_spec('probes'), find_spec('exporters'))"
    )
    assert python(code, cwd=tmp_path, path=installed).split() == [
        str(installed / "rca_llm" / "__init__.py"),
        "None",
        "None",
    ]


@pytest.mark.slow
def test_the_installed_wheel_traces_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    code = "from rca_llm.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    run = tmp_path / "run.rca"
    program = "import rca_llm\nwith rca_llm.span('work'): pass"
    command = [sys.executable, "-c", code, "trace", "-o", str(run), "--"]
    command += [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert list((run / "segments").glob("*.seg"))


# --- Beside torch --------------------------------------------------------------------------------


def pip(environment: Path, *arguments: str) -> str:
    """What pip prints in an environment."""
    command = [environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def torch_to_be_had(environment: Path) -> str | None:
    """Why the CPU build of torch cannot be installed here; None where it can."""
    command = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--dry-run"]
    command += ["--no-deps", "--report", "-", TORCH]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        return f"{TORCH} cannot be had here"
    version = json.loads(ended.stdout)["install"][0]["metadata"]["version"]
    return None if version.endswith("+cpu") else f"torch {version} here is gigabytes of CUDA"


def recorded_files(environment: Path) -> dict[str, str]:
    """A digest of every file of every installed distribution."""
    (site,) = environment.glob("lib/python*/site-packages")
    found: dict[str, str] = {}
    for record in site.glob("*.dist-info/RECORD"):
        for line in record.read_text(encoding="utf-8").splitlines():
            file = site / line.rpartition(",")[0].rpartition(",")[0].strip('"')
            if file.is_file() and file.suffix != ".pyc":
                found[str(file)] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


@pytest.mark.slow
def test_installing_beside_torch_changes_no_file_of_its_stack(built: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    if reason := torch_to_be_had(environment):
        pytest.skip(reason)
    pip(environment, "install", "--quiet", TORCH)
    before = recorded_files(environment)
    assert any("/torch/" in name for name in before)
    (wheel,) = built.glob("*.whl")
    pip(environment, "install", "--quiet", str(wheel))
    after = recorded_files(environment)
    changed = {name for name, digest in before.items() if after.get(name) != digest}
    assert not changed
    listed = {entry["name"] for entry in json.loads(pip(environment, "list", "--format", "json"))}
    cuda = {name for name in listed if re.match(r"(nvidia[-_](?!ml)|cupti|cuda)", name)}
    assert not cuda, "the core brings CUDA libraries of its own"
