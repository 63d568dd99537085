"""The documentation: its links lead somewhere, and what users meet is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rca_llm import load
from rca_llm.cli import COMMANDS
from rca_llm.readers.events_tables import TYPES

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FINDING = re.compile(r"(?:note|Finding|_problem)\(\s*\"([a-z]+(?:_[a-z]+)*)\"")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def prose() -> str:
    """Everything that is written for users."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_is_in_the_index(page: Path) -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert page.name == "index.md" or f"]({page.name})" in index


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented(command: str) -> None:
    assert f"rca-llm {command}" in prose()


def test_every_quality_code_is_documented() -> None:
    sources = (ROOT / "rca_llm").rglob("*.py")
    codes = {code for file in sources for code in FINDING.findall(file.read_text("utf-8"))}
    assert len(codes) > 15
    page = (ROOT / "docs" / "quality.md").read_text(encoding="utf-8")
    assert codes <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_every_module_of_the_core_is_on_the_map() -> None:
    words = set(re.findall(r"[\w.]+", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    places = [*(ROOT / "rca_llm").iterdir(), *(ROOT / "probes").iterdir()]
    names = {
        place.name
        for place in places
        if (place.is_dir() or place.suffix == ".py") and not place.name.startswith("_")
    }
    assert names <= words


def test_the_example_of_the_event_format_is_read_as_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    path = tmp_path / "events.jsonl"
    path.write_text(page.partition("```json\n")[2].partition("```")[0], encoding="utf-8")
    found = load(path).attribute().summary
    assert found["quality"] == []
    (request,) = found["requests"]
    assert (request["latency_ns"], request["ttft_ns"]) == (9_000_000, 5_000_000)
    assert {name: ns for name, ns in request["parts"].items() if ns} == {
        "compute.gemm": 2_980_000,
        "compute.attention": 3_980_000,
        "scheduling.queue": 1_000_000,
        "scheduling.host": 1_000_000,
        "scheduling.launch": 20_000,
        "scheduling.other": 20_000,
    }


@pytest.mark.parametrize("type", TYPES)
def test_every_type_of_event_is_documented(type: str) -> None:
    page = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    assert f'"type":"{type}"' in page or f"| `{type}` |" in page
