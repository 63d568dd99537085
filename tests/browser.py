"""A real headless Chromium for tests of pages; tests are skipped with a reason without one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Seen:
    """What a page did while it was open."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a fresh profile that is gone afterwards."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, page_file: Path, *, width: int = 1400, dark: bool = False
) -> Iterator[tuple[Page, Seen]]:
    """The page, loaded and drawn."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    try:
        page, seen = context.new_page(), Seen()
        _watch(page, seen)
        page.goto(page_file.as_uri(), timeout=120_000)
        page.wait_for_selector("html[data-ready]", timeout=120_000)
        yield page, seen
    finally:
        context.close()


def opening(browser: Browser, page_file: Path) -> dict[str, float]:
    """When things happened while a page opened, ms since navigation began, by the page's clock."""
    with opened(browser, page_file) as (page, _):
        page.evaluate("drawAll()")
        found: dict[str, float] = page.evaluate(TIMES)
        return found


TIMES = """() => ({
  paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
  load: performance.getEntriesByType("navigation")[0].loadEventEnd,
  ready: performance.getEntriesByName("ready")[0].startTime,
  plots: performance.getEntriesByName("plots")[0].startTime,
})"""


def _watch(page: Page, seen: Seen) -> None:
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("console", lambda m: seen.errors.append(m.text) if m.type == "error" else None)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
