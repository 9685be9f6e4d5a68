"""Reports and notebooks' pictures in a real Chromium: silent, readable, light and dark, narrow and wide.

Debian's Chromium does it (apt-get install chromium), driven by Playwright; axe-core says what people with a
screen reader or a keyboard cannot use.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request
from typer.testing import CliRunner

from rationale import DeepShap, Lrp, compile_model
from rationale.artifact.entry import open_entry
from rationale_service.cli.main import app
from tests.browsers import chromium
from tests.compiler.models import FEATURES, cnn, mlp, parsed, rows

CREDIT = Path(__file__).parents[3] / "examples" / "credit"
HOSTILE = ["<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "a" * 200, "</style><b>", "w " * 60]
REPORTS = ("table", "credit", "image", "text")
JUPYTER = """
body { background: #111; color: #ddd }
.jp-Common ul:not(.list-inline) { padding-left: 2em; list-style: disc }
.jp-Common:not(.jp-Markdown) td, .jp-Common:not(.jp-Markdown) th { text-align: right; padding: .5em }
.jp-Common:not(.jp-Markdown) tbody tr:nth-child(odd) { background: #222 }
"""  # what JupyterLab says of lists and tables, dark
WIDE, NARROW = 1000, 360
# Of each bar that the page shows: where it begins and ends, of the width of its picture.
BARS = """() => [...document.querySelectorAll('li rect')].map(rect => {
    const [bar, all] = [rect.getBoundingClientRect(), rect.closest('svg').getBoundingClientRect()];
    return [(bar.left - all.left) / all.width, (bar.right - all.left) / all.width, all.width];
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of hostile names, decisions, images and tokens."""
    folder = tmp_path_factory.mktemp("pages")
    table = compile_model(mlp(), DeepShap(rows(4, FEATURES)), targets="all", feature_names=HOSTILE)
    table.write(folder / "entries", "table")
    near = pd.read_csv(CREDIT / "near_threshold.csv")
    decides = compile_model(CREDIT / "credit.onnx", DeepShap(near), decision=CREDIT / "decision.yaml")
    decides.write(folder / "entries", "credit")
    image = compile_model(cnn(), DeepShap(rows(3, 2, 6, 8)), targets=[1], layers="all")
    image.write(folder / "entries", "image")
    text = parsed(
        """g (int64[N, 90] ids) => (float[N, 2] y) { e = Gather (table, ids) h = Tanh (e)
          p = ReduceMean <keepdims = 0> (h, one) y = MatMul (p, w) }""",
        {"table": rows(5, 3), "w": rows(3, 2, seed=1), "one": np.array([1])},
    )
    compile_model(text, Lrp(), targets=[1]).write(folder / "entries", "text")
    np.save(folder / "table.npy", rows(30, FEATURES, seed=9))
    shutil.copy(CREDIT / "applicants.csv", folder / "credit.csv")
    np.save(folder / "image.npy", rows(2, 2, 6, 8, seed=4))
    np.save(folder / "text.npy", np.random.default_rng(0).integers(0, 5, (2, 90)))
    (folder / "words.txt").write_text("\n".join(HOSTILE))
    for name in REPORTS:
        (file,) = folder.glob(f"{name}.[nc]*")
        more = ["--tokenizer", str(folder / "words.txt")] if name == "text" else []
        arguments = ["explain", name, "--repository", str(folder / "entries"), "--input", str(file)]
        result = CliRunner().invoke(
            app, [*arguments, "--html", str(folder / f"{name}.html"), "--rows", "3", *more]
        )
        assert result.exit_code == 0, result.output
    report = ["decisions", "report", str(folder / "credit.csv"), "credit", "--group", "open_accounts"]
    result = CliRunner().invoke(
        app, [*report, "--repository", str(folder / "entries"), "--out", str(folder / "report")]
    )
    assert result.exit_code == 0, result.output
    shutil.copy(folder / "report" / "report.html", folder / "decided.html")
    shown = decides._repr_html_() + decides.explain(near)._repr_html_() + table._repr_html_()
    front = f"<!doctype html><html lang=en><title>t</title><style>{JUPYTER}</style><main class=jp-Common>"
    (folder / "notebook.html").write_text(front + shown + "</main>", encoding="utf-8")
    return folder


def opened(browser: Browser, file: Path, scheme: str, width: int) -> tuple[Page, list[str]]:
    """A page from disk, and what it did that it may not: errors, warnings, requests, dialogs."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    context.set_default_timeout(120_000)
    page, faults = context.new_page(), list[str]()

    def sentence(message: ConsoleMessage) -> None:
        faults.append(f"the console: {message.text}")

    def arguments(request: Request) -> None:
        if not request.url.startswith("data:") and request.url != file.as_uri():
            faults.append(f"a request: {request.url}")

    page.on("console", sentence)
    page.on("request", arguments)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"a dialog: {dialog.message}"))
    page.goto(file.as_uri())
    return page, faults


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [*REPORTS, "notebook", "decided"])
def test_a_page_is_silent_and_can_be_used_by_everyone(
    browser: Browser, folder: Path, name: str, scheme: str
) -> None:
    page, faults = opened(browser, folder / f"{name}.html", scheme, WIDE)
    assert page.locator("figure").count() >= 2
    for details in page.locator("summary").all():
        details.click()
    actual = Axe().run(page).response["violations"]
    serious = [v for v in actual if v["impact"] in ("serious", "critical")]
    assert not serious, json.dumps(serious, indent=1)[:4000]
    assert faults == []
    page.context.close()


@pytest.mark.full
@pytest.mark.parametrize("name", [*REPORTS, "notebook", "decided"])
def test_a_page_fits_a_telephone(browser: Browser, folder: Path, name: str) -> None:
    page, faults = opened(browser, folder / f"{name}.html", "light", NARROW)
    for details in page.locator("summary").all():
        details.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
    sizes = "[...document.querySelectorAll('li span')].map(s => parseFloat(getComputedStyle(s).fontSize))"
    assert min(page.evaluate(sizes), default=14) >= 14
    assert faults == []
    page.context.close()


@pytest.mark.full
def test_words_of_a_table_are_whole_on_a_telephone(browser: Browser, folder: Path) -> None:
    page, _ = opened(browser, folder / "decided.html", "light", NARROW)
    cells = page.locator("td", has_text="Delinquent credit obligations")
    word = "(cell) => { const r = document.createRange(); r.setStart(cell.firstChild, 0);"
    word += " r.setEnd(cell.firstChild, 10); return r.getClientRects().length; }"
    assert cells.evaluate(word) == 1  # "Delinquent", on one line
    aligned = page.locator("td.number").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).textAlign)"
    )
    assert set(aligned) == {"right"}
    page.context.close()


@pytest.mark.full
def test_a_wide_screen_has_figures_beside_each_other(browser: Browser, folder: Path) -> None:
    page, _ = opened(browser, folder / "image.html", "light", 2560)
    lefts = page.locator("figure").evaluate_all("all => all.map((one) => one.getBoundingClientRect().left)")
    assert len(set(lefts)) == 2
    page.context.close()


@pytest.mark.full
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_each_bar_begins_where_the_one_before_ended(browser: Browser, folder: Path, width: int) -> None:
    page, _ = opened(browser, folder / "credit.html", "light", width)
    bars = page.evaluate(BARS)
    assert len(bars) == 10 * (1 + 3)
    answer = open_entry(folder / "entries", "credit").explain(pd.read_csv(CREDIT / "applicants.csv"))
    for i in range(3):
        values = answer["applicant_attributions"][i, 0]
        values = values[np.argsort(-np.abs(values), kind="stable")]
        path = np.cumsum([0, *values])
        path = 0.02 + 0.96 * (path - path.min()) / np.ptp(path)
        drawn = np.asarray(bars[10 * (i + 1) : 10 * (i + 2)])
        assert len(set(drawn[:, 2])) == 1, "pictures of one column, one below the other"
        np.testing.assert_allclose(drawn[:, 0], np.minimum(path[:-1], path[1:]), atol=0.004)
        np.testing.assert_allclose(drawn[:, 1], np.maximum(path[:-1], path[1:]), atol=0.004)
    page.context.close()


def test_a_page_runs_nothing_even_where_it_is_told_to(browser: Browser, folder: Path) -> None:
    """Its policy stops a script, a style and a picture from elsewhere that someone writes into the file."""
    added = (
        "<script>document.title = 'ran'</script><img src='https://example.invalid/x.png'>"
        "<p id=p style='color: rgb(1, 2, 3)'>p</p>"
    )
    text = (folder / "credit.html").read_text(encoding="utf-8").replace("</main>", f"{added}</main>")
    (folder / "changed.html").write_text(text, encoding="utf-8")
    context = browser.new_context(viewport={"width": WIDE, "height": 800})
    page, stopped = context.new_page(), dict[str, str | None]()
    page.on("requestfailed", lambda request: stopped.update({request.url: request.failure}))
    page.goto((folder / "changed.html").as_uri())
    assert page.title() == "Explanations by credit"
    assert page.evaluate("getComputedStyle(document.getElementById('p')).color") != "rgb(1, 2, 3)"
    assert page.evaluate("getComputedStyle(document.querySelector('.rationale li')).display") == "grid"
    assert stopped == {"https://example.invalid/x.png": "csp"}
    context.close()


@pytest.mark.full
def test_a_front_ends_rules_do_not_reach_the_pictures(browser: Browser, folder: Path) -> None:
    page, _ = opened(browser, folder / "notebook.html", "light", WIDE)
    places = "[...document.querySelectorAll('figure')].flatMap(f => [...f.querySelectorAll('li')].map("
    places += "li => li.getBoundingClientRect().left - f.getBoundingClientRect().left))"
    assert set(page.evaluate(places)) == {0}
    for of, value in (("td", "left"), ("th", "left")):
        assert page.evaluate(f"getComputedStyle(document.querySelector('{of}')).textAlign") == value
    assert (
        page.evaluate("getComputedStyle(document.querySelector('tr')).backgroundColor") == "rgba(0, 0, 0, 0)"
    )
    page.context.close()


@pytest.mark.full
def test_it_is_printed_light_and_whole(browser: Browser, folder: Path) -> None:
    page, _ = opened(browser, folder / "credit.html", "dark", WIDE)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.context.close()
