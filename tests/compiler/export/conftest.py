"""Entries, and a real Chromium without a network that opens their pages from disk."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from rationale.export.page import export_page
from tests.browsers import chromium
from tests.compiler.export import models
from tests.needs import need
from tests.service.console.conftest import Watched

MOST_MS = 60_000  # until a page has unpacked and compiled 14 MB, where other tests have the cores


@pytest.fixture(scope="package")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="package")
def exported(repository: Path) -> Callable[[str], Path]:
    """Make an entry by its name, once, and its page."""

    def created(name: str) -> Path:
        page = repository / "pages" / f"{name}.html"
        if not page.exists():
            need("npm")  # fetches ONNX Runtime for browsers
            models.write(repository, name)
            export_page(repository, name, page)
        return page

    return created


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    context.set_default_timeout(MOST_MS)
    yield context
    context.close()


@pytest.fixture
def opened(context: BrowserContext, exported: Callable[[str], Path]) -> Iterator[Callable[[str], Page]]:
    """Open an entry's page, on which nothing may go wrong and from which nothing may be asked."""
    watched: list[Watched] = []

    def item(name: str) -> Page:
        url = exported(name).as_uri()
        watched.append(Watched(context.new_page(), url))
        watched[-1].page.goto(url)
        expect(watched[-1].page.locator("table.bars")).to_be_visible(timeout=MOST_MS)
        return watched[-1].page

    yield item
    for each in watched:
        each.demand_whole()
