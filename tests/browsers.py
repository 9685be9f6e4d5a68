"""A real Chromium for tests of pages."""

import contextlib
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

from tests.needs import need

START_MS = 120_000  # where other tests have the cores


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; the test skips if the system has none."""
    path = need("Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=START_MS)
        yield browser
        browser.close()
