"""Builds the documentation as a site, every warning an error: `python docs/build.py [FOLDER]`.

Pages are Markdown that reads well in the repository too. Here they are staged with the pages of
the repository's root beside them, a page for every rule out of `hints.md`, and a table of contents,
and Sphinx makes the site, with the reference of the library from its docstrings (`docs/api/`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
OUTSIDE = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository's root, and their names on the site."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "First steps": ("readme.md", "guide.md", "changelog.md"),
    "Tracing": ("tracing.md", "host.md", "gpu.md", "engines*.md", "engines/*.md"),
    "Reading": ("report.md", "hints.md", "quality.md", "classification.md", "communication.md"),
    "Asking more": ("compare.md", "whatif.md", "export.md", "monitor.md"),
    "Reference": ("api/index.md", "format.md", "contributing.md"),
}
"""The table of contents; every page that it does not name stands under the last heading."""

REST = "Background"

_RULE = re.compile(r"^## (?=[GR]\d+ )", re.MULTILINE)
_ANCHOR = re.compile(r"\]\((?:(?:\.\./)*hints\.md)?#([gr]\d+)-[a-z0-9-]*\)")


def stage(folder: Path) -> None:
    """Put everything that Sphinx reads into a folder."""
    shutil.copytree(
        DOCS, folder, ignore=shutil.ignore_patterns("build.py", "_build", "__pycache__")
    )
    for page in folder.rglob("*.md"):
        up = "../" * (len(page.relative_to(folder).parts) - 1)
        page.write_text(_inside(page.read_text("utf-8"), up), "utf-8")
    for name, new in OUTSIDE.items():
        (folder / new).write_text(_from_root((ROOT / name).read_text("utf-8")), "utf-8")
    _split_rules(folder)
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        index.write("\n".join(_contents(folder)))


def _inside(text: str, up: str) -> str:
    """A page of `docs/` with its links to the root's pages, and to rules, made to fit.

    `up` leads from the page's folder to `docs/`.
    """
    for name, new in OUTSIDE.items():
        text = text.replace(f"]({up}../{name}", f"]({up}{new}")
    return _ANCHOR.sub(lambda match: f"]({up}hints/{match[1].upper()}.md)", text)


def _from_root(text: str) -> str:
    """A page of the root with its links made to fit."""
    text = text.replace("](docs/", "](")
    for name, new in OUTSIDE.items():
        text = text.replace(f"]({name}", f"]({new}")
    return text


def _split_rules(folder: Path) -> None:
    """Make a page of every rule in `hints.md`, and leave a list of them."""
    page = folder / "hints.md"
    head, *rules = _RULE.split(page.read_text("utf-8"))
    (folder / "hints").mkdir()
    names = [rule.partition(" ")[0] for rule in rules]
    for name, rule in zip(names, rules, strict=True):
        text = rule.replace("](", "](../") if "](" in rule else rule
        (folder / "hints" / f"{name}.md").write_text(f"# {text}", "utf-8")
    titles = [rule.partition("\n")[0] for rule in rules]
    listed = [f"- [{title}](hints/{name}.md)" for name, title in zip(names, titles, strict=True)]
    tree = _tree(None, [f"hints/{name}" for name in names])
    page.write_text("\n".join([head, "## All rules", "", *listed, "", *tree]), "utf-8")


def _contents(folder: Path) -> list[str]:
    """The tables of contents for the end of the first page."""
    pages = {str(page.relative_to(folder)) for page in folder.rglob("*.md")}
    pages -= {"index.md", *(page for page in pages if page.startswith(("api/", "hints/")))}
    lines: list[str] = []
    for head, patterns in SECTIONS.items():
        found = [
            str(page.relative_to(folder)) for name in patterns for page in sorted(folder.glob(name))
        ]
        pages -= set(found)
        lines += _tree(head, found)
    return lines + _tree(REST, sorted(pages))


def _tree(head: str | None, pages: list[str]) -> list[str]:
    caption = [f":caption: {head}"] if head else []
    return ["", "```{toctree}", ":hidden:", *caption, "", *pages, "```", ""]


def build(target: Path) -> int:
    """Make the site; Sphinx's exit status, which a warning makes an error."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        stage(source)
        sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
        return subprocess.run([*sphinx, str(source), str(target)], check=False).returncode


if __name__ == "__main__":
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    status = build(site)
    print(f"{site / 'index.html'}" if status == 0 else "not built", file=sys.stderr)
    sys.exit(status)
