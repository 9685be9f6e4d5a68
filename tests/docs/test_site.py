"""The site of the manual: built strictly, complete, and without anything from elsewhere."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

import rationale
from rationale.distribution import version
from rationale_service.configuration import OTHER_VARIABLES
from rationale_service.settings import PREFIX, Settings
from tests.browsers import chromium
from tests.docs.commands import unknown_settings
from tests.docs.pages import ROOT

HOOKS = import_module("scripts.manual")
# What a browser would fetch when it shows a page; links that a reader follows are not among them.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*href=\"(?:https?:)?//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does; strict, so that a link or an anchor that leads nowhere fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, str]:
    return {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


def test_every_public_name_is_in_the_reference(pages: dict[str, str]) -> None:
    text = "".join(text for name, text in pages.items() if name.startswith("reference/api/"))
    names = [f"rationale.{name}" for name in rationale.__all__]
    names += [f"{module}.{name}" for module in HOOKS.MODULES for name in HOOKS.module_names(module)]
    assert [name for name in names if f'id="{name}"' not in text] == []
    assert HOOKS.public_names().keys() == set(rationale.__all__)


def test_every_public_name_has_a_docstring() -> None:
    """A heading with nothing below it tells a reader nothing; a dataclass has its signature by default."""
    public = {name: getattr(rationale, name) for name in rationale.__all__}
    bare = [
        name
        for name, value in public.items()
        if not isinstance(value, float) and (value.__doc__ or f"{name}(").startswith(f"{name}(")
    ]
    assert bare == []


def test_refusals_quote_messages_of_the_code() -> None:
    code = "".join(
        path.read_text() for folder in ("compiler", "service") for path in (ROOT / folder).rglob("*.py")
    )
    quoted = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/refusals.md").read_text(), re.MULTILINE)
    assert len(quoted) > 20
    assert [text for text in quoted if text not in code] == []


def test_each_command_setting_route_and_key_is_in_the_reference(pages: dict[str, str]) -> None:
    from typer.main import get_command

    from rationale.schema.manifest import Manifest
    from rationale.schema.profile import DecisionProfile
    from rationale_service.cli.main import app

    command: Any = get_command(app)
    commands = pages["reference/command-line.html"]
    assert [name for name in command.commands if f"<code>rationale {name}</code>" not in commands] == []
    assert unknown_settings(pages["reference/settings.html"]) == set()
    variables = [*OTHER_VARIABLES, *(f"{PREFIX}{name.upper()}" for name in Settings.model_fields)]
    listed = re.findall(r"<tr>\s*<td><code>(\w+)</code>", pages["reference/settings.html"])
    assert sorted(listed) == sorted(variables)
    routes = pages["reference/rest.html"]
    assert [path for path in HOOKS.openapi()["paths"] if f" {path}</code>" not in routes] == []
    for page, model in (("manifest", Manifest), ("profile", DecisionProfile)):
        text = pages[f"reference/{page}.html"]
        keys = model.model_json_schema()["properties"]  # `translations` of a profile is no key of its file
        assert [name for name in keys if f"<code>{name}</code>" not in text] == []


def test_each_setting_has_a_default_a_unit_and_a_meaning() -> None:
    rows = {row[0]: row[1:] for line in HOOKS.settings().splitlines() if len(row := line.split(" | ")) == 4}
    assert rows["| `RATIONALE_WATCH_S`<br>`--watch`"][:2] == ["none", "seconds, above 0"]
    assert rows["| `RATIONALE_MAX_BODY_BYTES`"][:2] == ["`67108864` (64 MiB)", "bytes, above 0"]
    assert rows["| `RATIONALE_COMPILE_MEMORY_BYTES`"][1] == "bytes, at least 64 MiB"
    assert rows["| `RATIONALE_TRACE_RATIO`"][:2] == ["`1`", "a share, 0 to 1"]
    assert rows["| `RATIONALE_JWT_ALGORITHMS`"][:2] == ["`RS256,ES256`", ""]
    assert rows["| `RATIONALE_LOG_FORMAT`"][:2] == ["`auto`", "`auto`, `json`, `plain`"]
    assert [name for name, row in rows.items() if len(row[2]) < 20 and "RATIO" in name] == []
    assert Settings.model_fields.keys() >= HOOKS.SETTINGS.keys()


def test_each_release_has_its_figures(pages: dict[str, str]) -> None:
    """A release without a line in `benchmarks/history.jsonl` fails; figures have bars in the picture."""
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    lines = (ROOT / "benchmarks/history.jsonl").read_text("utf-8").splitlines()
    releases = re.findall(r"^## (\d\S*) \(", changelog, re.MULTILINE)
    assert [json.loads(line)["version"] for line in lines] == releases[::-1]
    assert "pictures/history.svg" in pages["history.html"]
    two = HOOKS.history_pages("\n".join([lines[0], lines[0].replace("0.1.0", "0.2.0")]))
    picture = two["pictures/history.svg"]
    assert picture.count("0.2.0, ") == picture.count("0.1.0, ") == len(json.loads(lines[0])["figures"])


def test_the_version_is_in_the_header(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        header = re.search(r"<header.*?</header>", text, re.DOTALL)
        assert header is not None, name
        assert f"Rationale {version()}" in header[0], name


def test_it_needs_nothing_from_elsewhere(pages: dict[str, str]) -> None:
    assert {name: found[0] for name, text in pages.items() if (found := FETCHED.search(text))} == {}


@pytest.mark.full
def test_everyone_can_read_it(site: Path) -> None:
    """axe-core finds nothing serious, light and dark, and no page is wider than a telephone."""
    names = ["index", "tutorials/xgboost", "reference/api/compile", "differences", "reference/rest"]
    names += ["reference/settings", "methods/deepshap"]
    faults = []
    with chromium() as browser:
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, viewport={"width": 390, "height": 844})
            for name in names:
                page.goto((site / f"{name}.html").as_uri())
                assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), name
                found = Axe().run(page).response["violations"]
                faults += [
                    f"{name}, {scheme}: {each['id']}: {each['nodes'][0]['html'][:200]}"
                    for each in found
                    if each["impact"] in ("serious", "critical")
                ]
    assert not faults, "\n".join(faults)


def test_a_name_without_a_page_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HOOKS, "public_names", lambda: {"New": "rationale.unheard.new"})
    with pytest.raises(KeyError, match="unheard"):
        HOOKS.api_pages()
