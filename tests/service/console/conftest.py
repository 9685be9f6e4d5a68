"""The console in a real Chromium, on a real `rationale serve` of a few small models.

`page` is a page on which nothing may go wrong unseen: an error on its console, a request to another host or a
refusal of its policy fails the test that it was opened in.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
)

from tests.browsers import chromium
from tests.service.child import both_ends
from tests.service.console import media, models

AXE = Axe()
PATIENCE_MS = 60_000  # of a busy machine; what is there is seen at once
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="package")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Entries `credit` (decides), `words` (trees over a table with texts), `image` and `hostile`."""
    folder = tmp_path_factory.mktemp("console") / "model_repository"
    models.write_all(folder)
    media.write_all(folder)
    return folder


@pytest.fixture(scope="package")
def gateway(repository: Path) -> Iterator[str]:
    """The URL of a `rationale serve` without keys."""
    with both_ends("--repository", str(repository)) as ends:
        yield f"http://{ends['http']}"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@dataclass
class Watched:
    """A page, and what went wrong on it.

    Attributes:
        may_be_refused: whether the gateway may answer by an error, of which Chromium writes a line.
    """

    page: Page
    origin: str
    faults: list[str] = field(default_factory=list)
    may_be_refused: bool = False

    def __post_init__(self) -> None:
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.faults.append(f"an error: {error}"))
        self.page.on("request", self._note_request)

    def _note_message(self, message: ConsoleMessage) -> None:
        if self.may_be_refused and "the server responded with a status of" in message.text:
            return
        if message.type in ("error", "warning"):
            self.faults.append(f"the console: {message.text} ({message.location})")

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((self.origin, "blob:", "data:")):
            self.faults.append(f"a request elsewhere: {request.url}")

    def demand_whole(self) -> None:
        assert not self.faults, "\n".join(self.faults)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    yield context
    context.close()


@pytest.fixture
def watch(context: BrowserContext) -> Iterator[Callable[[str], Watched]]:
    """Opens pages that are watched: `watch(origin)`."""
    watched: list[Watched] = []

    def opened(origin: str) -> Watched:
        page_watched = Watched(context.new_page(), origin)
        watched.append(page_watched)
        return page_watched

    yield opened
    for page in watched:
        page.demand_whole()


@pytest.fixture
def page(watch: Callable[[str], Watched], gateway: str) -> Page:
    return watch(gateway).page


def demand_accessible(page: Page) -> None:
    """Assert that axe-core finds nothing serious."""
    actual = AXE.run(page).response["violations"]
    serious = [violation for violation in actual if violation["impact"] in SERIOUS]
    faults = [
        f"{violation['id']}: {violation['help']}: {[node['html'][:200] for node in violation['nodes']]}"
        for violation in serious
    ]
    assert not faults, "\n".join(faults)


def demand_no_sideways(page: Page) -> None:
    """Assert that the page is not wider than its window."""
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{wide} pixels stand out at the side"


def press_until(page: Page, selector: str, key: str = "Tab", most: int = 200) -> None:
    """Go on by the keyboard until the element has the focus."""
    for _ in range(most):
        if page.evaluate("selector => document.activeElement?.matches(selector)", selector):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{selector} is not reached by the key {key}")
