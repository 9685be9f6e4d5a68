"""The page around the views: what it is served with, how it finds a model, and what it says without a key."""

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from rationale.pictures.browser import FILES as SHARED
from rationale_service.console.page import FILES
from tests.service import patient
from tests.service.child import both_ends
from tests.service.console.conftest import Watched, demand_accessible, demand_no_sideways, press_until
from tests.service.security.test_keys import key_file


def test_it_opens_with_the_first_model_that_can_be_explained(page: Page, gateway: str) -> None:
    page.goto(f"{gateway}/console")
    expect(page.get_by_role("heading", level=1)).to_contain_text("credit")
    assert re.search(r"/console/#explain\?check=[0-9a-f]{8}&model=credit&digest=", page.url)
    demand_accessible(page)


def test_its_headers(gateway: str) -> None:
    for path in ("", "index.html", "main.js", "console.css", "views/explain.js"):
        answer = patient.get(f"{gateway}/console/{path}")
        assert answer.status_code == 200, path
        policy = dict(piece.split(" ", 1) for piece in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        second = patient.get(f"{gateway}/console/{path}", headers={"If-None-Match": answer.headers["etag"]})
        assert second.status_code == 304, path


@pytest.mark.parametrize("path", ["absent.js", "..%2fpage.py", "%2e%2e/page.py", "views/", "views"])
def test_what_is_no_file_of_it(gateway: str, path: str) -> None:
    answer = patient.get(f"{gateway}/console/{path}", follow_redirects=True)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_no_file_of_it_makes_markup_of_text_or_leads_elsewhere() -> None:
    folders = (FILES, SHARED)
    files = [p for each in folders for p in each.rglob("*") if p.suffix in (".js", ".html", ".css")]
    assert len(files) > 10
    for path in files:
        if "vendor" in path.parts:
            continue
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert word not in text, f"{path.name} has {word}"
        assert not text.replace("http://www.w3.org/2000/svg", "").count("://"), path.name


@pytest.mark.full
def test_off_by_a_setting(repository: Path) -> None:
    with both_ends("--repository", str(repository), RATIONALE_CONSOLE="off") as ends:
        assert patient.get(f"http://{ends['http']}/console/").status_code == 404


@pytest.mark.full
def test_a_caller_without_a_key_or_scope_reads_what_is_needed(
    repository: Path, tmp_path: Path, watch: Callable[[str], Watched]
) -> None:
    tokens = key_file(tmp_path, analyst="explain", scoring="infer")
    with both_ends("--repository", str(repository), "--keys-file", str(tmp_path / "keys.toml")) as ends:
        url = f"http://{ends['http']}"
        watched = watch(url)
        watched.may_be_refused = True
        page = watched.page
        page.goto(f"{url}/console/")
        expect(page.get_by_role("heading", level=1)).to_have_text("A key is needed")
        expect(page.get_by_label("Key", exact=True)).to_be_focused()
        demand_accessible(page)
        page.keyboard.type("rk_unknown")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("the gateway does not know this key")
        page.get_by_label("Key", exact=True).fill(tokens["scoring"])
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text("needs a key with the scope explain")
        demand_accessible(page)
        page.get_by_label("Key", exact=True).fill(tokens["analyst"])
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_contain_text("credit")
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"


@pytest.mark.full
def test_under_a_prefix_of_a_proxy(gateway: str, watch: Callable[[str], Watched]) -> None:
    watched = watch("http://proxy.test")
    page = watched.page

    def forward(route: Route) -> None:
        request = route.request
        path = request.url.removeprefix("http://proxy.test/rationale")
        assert path != request.url, f"{request.url} has left the prefix"
        answer = httpx.request(
            request.method,
            gateway + path,
            content=request.post_data_buffer,
            timeout=60,
            follow_redirects=False,
        )
        route.fulfill(status=answer.status_code, headers=dict(answer.headers), body=answer.content)

    page.route("http://proxy.test/**", forward)
    page.goto("http://proxy.test/rationale/console/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("credit")


def test_redirect_is_relative(gateway: str) -> None:
    answer = patient.get(f"{gateway}/console")
    assert answer.status_code == 307
    assert answer.headers["location"] == "console/"


@pytest.mark.full
def test_another_model_by_the_keyboard(page: Page, gateway: str) -> None:
    page.goto(f"{gateway}/console/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("credit")
    press_until(page, ".choice select")
    page.keyboard.press("h")  # high.margin
    expect(page.get_by_role("heading", level=1)).to_contain_text("high.margin")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_contain_text("credit")


@pytest.mark.full
def test_a_model_that_is_not_there(watch: Callable[[str], Watched], gateway: str) -> None:
    watched = watch(gateway)
    watched.may_be_refused = True
    watched.page.goto(f"{gateway}/console/#explain?model=%3Cimg src=x onerror=alert(1)%3E")
    expect(watched.page.locator("main")).to_contain_text("no model '<img src=x onerror=alert(1)>' here")


@pytest.mark.full
def test_an_address_of_another_explainer_says_so(page: Page, gateway: str) -> None:
    page.goto(f"{gateway}/console/#explain?model=credit&digest=0123")
    expect(page.get_by_role("note")).to_contain_text("when another explanation answered")
    page.get_by_role("link", name="Go on with the present one").click()
    expect(page.get_by_role("note")).to_have_count(0)


@pytest.mark.full
def test_a_wide_screen_is_used(page: Page, gateway: str) -> None:
    page.set_viewport_size({"width": 2560, "height": 1440})
    page.goto(f"{gateway}/console/#explain?model=credit")
    columns = page.locator(".fields")
    expect(columns).to_be_visible()
    count = columns.evaluate("(one) => getComputedStyle(one).gridTemplateColumns.split(' ').length")
    assert count == 3  # fields beside each other, not two in a narrow strip
    assert page.evaluate("document.querySelector('main').clientWidth") > 0.8 * 2560


@pytest.mark.full
@pytest.mark.parametrize("width", [360, 1280])
def test_light_dark_and_narrow(page: Page, gateway: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme="dark")
    page.goto(f"{gateway}/console/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("credit")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    demand_accessible(page)
    demand_no_sideways(page)
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_contain_text("credit")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    demand_accessible(page)
