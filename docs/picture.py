"""Takes the picture of the report that README.md shows, with the Chromium on PATH.

make demo && .venv/bin/python docs/picture.py demo/report.html docs/images/report.png
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

WIDTH, HEIGHT = 1280, 1640


def main(page: Path, target: Path) -> None:
    """Write the top of a report as a PNG."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("docs/picture.py: no chromium on PATH (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        tab.goto(page.absolute().as_uri())
        tab.wait_for_selector("html[data-ready]")
        tab.evaluate("drawAll()")
        tab.evaluate("scrollTo(0, 0)")
        tab.screenshot(path=target)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
