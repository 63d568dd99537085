"""What all tests share: slow tests run where asked for, those that compare clocks have three tries,
and the recorded traces lie beside the tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

# Examples take as long as the machine is loaded: no test here is about time.
settings.register_profile("repository", deadline=None)
settings.load_profile("repository")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that compare clocks their tries; skip the slow ones unless RCA_LLM_SLOW is set."""
    for item in items:
        if item.get_closest_marker("clocks"):
            item.add_marker(pytest.mark.flaky(reruns=2))
    if os.environ.get("RCA_LLM_SLOW"):
        return
    reason = pytest.mark.skip(reason="slow; set RCA_LLM_SLOW=1 to run it")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(reason)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded traces and acceptance cases beside the tree, or a skip."""
    if not SHARED.is_dir():
        pytest.skip("no folder ../shared with recorded traces and acceptance cases")
    return SHARED
