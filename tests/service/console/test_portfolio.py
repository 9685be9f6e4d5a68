"""The portfolio: a file drawn as `rationale explain` answers it, whatever its names and values are."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page, Route, expect
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from benchmarks.console.portfolio import (
    UNREAD_COLUMNS,
    credit_rows,
    drop,
    scroll,
    wide_rows,
    write_rows,
    write_wide,
)
from rationale import ExactShap, compile_model, load
from rationale.decisions.decide import outcome_of
from rationale.schema.profile import as_profile
from rationale_service.cli.main import app
from tests.compiler.models import parsed
from tests.service import patient
from tests.service.child import both_ends
from tests.service.console import models
from tests.service.console.conftest import (
    Watched,
    demand_accessible,
    demand_no_sideways,
    press_until,
)
from tests.service.console.media import JUDGED
from tests.service.console.test_explain import number

ROWS = 2000
SCALARS = ("row", "target", "explained_value", "base_value", "completeness_gap")

PATIENT_MS = 30_000  # of a busy machine

expect.set_options(timeout=PATIENT_MS)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return credit_rows(ROWS)


@pytest.fixture(scope="module")
def file(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(table, tmp_path_factory.mktemp("portfolio"), "csv")


@pytest.fixture(scope="module")
def explained(repository: Path, file: Path) -> pd.DataFrame:
    """What `rationale explain` answers of the file."""
    to = file.parent / "answers.csv"
    arguments = [
        "explain",
        "credit",
        "--repository",
        str(repository),
        "--input",
        str(file),
        "--save",
        str(to),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return pd.read_csv(to)


def status(page: Page) -> str:
    return page.locator("#portfolio-status").inner_text()


def alert(page: Page) -> str:
    return page.locator(".view > [role=alert]").inner_text()


def refused(page: Page, url: str, file: Path, model: str = "credit") -> str:
    drop(page, url, model, file)
    assert page.locator(".view[data-state=failed]").count() == 1, status(page)
    return alert(page)


def saved(page: Page, folder: Path) -> pd.DataFrame:
    """Save what was explained and read it."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the attributions").click()
    to = folder / download.value.suggested_filename
    download.value.save_as(to)
    return pd.read_csv(to)


def weights(page: Page) -> dict[str, float]:
    """Return the bars: names, and the numbers beside them."""
    bars = page.locator(".weights li")
    names = bars.locator(".name").all_inner_texts()
    return dict(zip(names, map(float, bars.locator(".number").all_inner_texts()), strict=True))


def cells(page: Page, table: str) -> list[list[str]]:
    return [row.locator("th, td").all_inner_texts() for row in page.locator(f"{table} tbody tr").all()]


def painted(page: Page, canvas: str) -> int:
    """Return how many colours a canvas shows."""
    result: int = page.evaluate(
        """selector => {
          const canvas = document.querySelector(selector);
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          return new Set(new Uint32Array(data.buffer)).size;
        }""",
        canvas,
    )
    return result


# --- values ---------------------------------------------------------------------------------------------


def test_what_is_drawn_is_what_rationale_explain_answers(
    page: Page, gateway: str, file: Path, explained: pd.DataFrame, tmp_path: Path
) -> None:
    drop(page, gateway, "credit", file)
    assert "2,000 rows explained by deepshap" in status(page), alert(page)
    features = [name for name in explained if name not in SCALARS]
    saved_table = saved(page, tmp_path)
    assert list(saved_table) == ["row", "explained_value", "base_value", *features, "completeness_gap"]
    np.testing.assert_array_equal(saved_table["row"], np.arange(ROWS))
    for name in ("explained_value", "base_value", *features):
        np.testing.assert_allclose(saved_table[name], explained[name], rtol=1e-5, atol=1e-6, err_msg=name)
    means = explained[features].abs().mean().sort_values(ascending=False)
    fields = patient.get(f"{gateway}/v1/models/credit/features").json()["features"]
    titles = {field["name"]: field.get("title", field["name"]) for field in fields}
    shown = weights(page)
    assert list(shown) == [titles[name] for name in means.index]
    np.testing.assert_allclose(list(shown.values()), 100 * means, rtol=6e-3)  # percentage points
    assert painted(page, "canvas.beeswarm") > 50
    assert painted(page, "canvas.map") > 50
    demand_accessible(page)
    page.set_viewport_size({"width": 360, "height": 800})
    rates = page.get_by_role("img", name="Rate of approval")
    expect(rates).to_have_attribute("width", re.compile(r"^[23]\d\d$"))  # drawn again, not made small
    demand_no_sideways(page)
    demand_accessible(page)


@pytest.mark.full
@pytest.mark.parametrize("compression", ["snappy", pytest.param("zstd", marks=pytest.mark.full)])
def test_parquet_is_read_as_csv_is(
    page: Page, gateway: str, table: pd.DataFrame, explained: pd.DataFrame, tmp_path: Path, compression: str
) -> None:
    file = tmp_path / "rows.parquet"
    table.to_parquet(file, index=False, compression=compression, row_group_size=700)
    drop(page, gateway, "credit", file)
    saved_table = saved(page, tmp_path)
    for name in ("explained_value", "income", "recent_inquiries"):
        np.testing.assert_allclose(saved_table[name], explained[name], rtol=1e-5, atol=1e-6)
    assert page.locator("#group option", has_text="region").count() == 1


@pytest.mark.full
def test_words_stay_words(page: Page, gateway: str, repository: Path, tmp_path: Path) -> None:
    rows = models.table(300, seed=5)
    file = write_rows(rows, tmp_path, "csv")
    drop(page, gateway, "words", file)
    to = tmp_path / "answers.csv"
    arguments = ["explain", "words", "--repository", str(repository), "--input", str(file), "--save", str(to)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    explained, saved_table = pd.read_csv(to), saved(page, tmp_path)
    assert set(weights(page)) == {"age", "housing", "purpose", "amount"}
    for name in rows:
        np.testing.assert_allclose(saved_table[name], explained[name], rtol=1e-5, atol=1e-6)
    page.select_option("#filter-column", label="housing")
    page.select_option("#filter-word", "with parents")
    page.get_by_role("button", name="Pick", exact=True).click()
    count = (rows["housing"] == "with parents").sum()
    expect(page.locator("#picked-count")).to_have_text(f"{count} rows picked where housing is with parents.")
    demand_curves_along(page, gateway, rows.iloc[np.flatnonzero(rows["housing"] == "with parents")])
    demand_accessible(page)


def demand_curves_along(page: Page, gateway: str, picked: pd.DataFrame) -> None:
    """Assert that curves along a word are means of what the API answers on picked rows with each word."""
    page.select_option("#curves-along", label="purpose")
    page.get_by_role("button", name="Draw the curves").click()
    expect(page.locator("#curves-drawn circle.mean")).to_have_count(3)
    page.get_by_text("The mean in numbers").click()
    shown = dict(cells(page, "#curves-drawn"))
    assert set(shown) == {"car", "holiday", "education & training"}
    for word, mean in shown.items():
        instances = picked.assign(purpose=word).to_dict("records")
        body = patient.post(f"{gateway}/v1/models/words:explain", json={"instances": instances}).json()
        expected = np.mean([explanation["explained_value"] for explanation in body["explanations"]])
        assert number(mean) == pytest.approx(expected, abs=1e-3)


@pytest.mark.full
def test_two_cohorts_are_compared_with_intervals(
    page: Page, gateway: str, file: Path, table: pd.DataFrame, explained: pd.DataFrame
) -> None:
    drop(page, gateway, "credit", file)
    page.select_option("#cohort-by", label="region")
    page.select_option("#cohort-a", label=f"north ({(table['region'] == 'north').sum()})")
    page.select_option("#cohort-b", "all others")
    shown = {row[0]: row[1:4] for row in cells(page, "[aria-label=Comparison]")}
    north = (table["region"] == "north").to_numpy()
    fields = patient.get(f"{gateway}/v1/models/credit/features").json()["features"]
    titles = {field["name"]: field.get("title", field["name"]) for field in fields}
    for name in ("income", "late_payments_2y"):
        a, b = explained[name][north], explained[name][~north]
        half = 1.96 * np.sqrt(a.var() / len(a) + b.var() / len(b))
        mean, half_width = (number(piece) / 100 for piece in shown[titles[name]][2].split(" ± "))
        np.testing.assert_allclose(mean, a.mean() - b.mean(), rtol=0.01, atol=1e-5)
        np.testing.assert_allclose(half_width, half, rtol=0.06)


@pytest.mark.full
def test_the_threshold_tells_rates_and_costs_by_group(
    page: Page, gateway: str, file: Path, table: pd.DataFrame, explained: pd.DataFrame
) -> None:
    drop(page, gateway, "credit", file)
    expect(page.locator("#threshold-value")).to_have_text("20%")  # of the decision profile
    page.select_option("#group", label="region")
    page.locator("#threshold").focus()
    page.keyboard.press("PageUp")
    threshold = number(page.locator("#threshold-value").inner_text())
    assert threshold > 0.2
    shown = {row[0]: row for row in cells(page, "[aria-label='Rates by group']")}
    rule = patient.get(f"{gateway}/v1/models/credit/features").json()["decision"]
    low, high = (threshold + end - rule["threshold"] for end in rule["refer"])  # the band moves along
    approved, declined = explained["explained_value"] < low, explained["explained_value"] > high
    for label, members in {"all rows": table["region"] != "", "north": table["region"] == "north"}.items():
        n, count = members.sum(), (approved & members).sum()
        bad = (table["defaulted"] == 1) & members
        assert shown[label][1] == f"{n:,}"
        assert abs(int(shown[label][2].replace(",", "")) - count) <= 3  # the threshold is told by four digits
        rate, defaulted = (float(shown[label][i].split("%")[0]) / 100 for i in (5, 6))
        np.testing.assert_allclose(rate, count / n, atol=4e-3)
        np.testing.assert_allclose(defaulted, (bad & approved).sum() / count, atol=4e-3)
        cost = (5 * (bad & approved).sum() + (members & ~bad & declined).sum()) / n
        np.testing.assert_allclose(float(shown[label][7]), cost, rtol=0.02)


@pytest.mark.full
def test_curves_of_rows_are_what_the_api_answers(
    page: Page, gateway: str, table: pd.DataFrame, file: Path
) -> None:
    drop(page, gateway, "credit", file)
    page.select_option("#curves-along", label="Income")
    page.get_by_role("button", name="Draw the curves").click()
    expect(page.locator("#curves-drawn polyline.one")).to_have_count(40)
    page.get_by_text("The mean in numbers").click()
    shown = cells(page, "#curves-drawn")
    positions = np.round(np.arange(40) * (ROWS - 1) / 39 + 1e-9).astype(int)
    rows = table.iloc[positions].drop(columns=list(UNREAD_COLUMNS))
    for text, mean in (shown[0], shown[12], shown[-1]):
        instances = rows.assign(income=float(text.replace(",", ""))).to_dict("records")
        body = patient.post(f"{gateway}/v1/models/credit:predict", json={"instances": instances}).json()
        expected = np.mean([prediction["default_probability"] for prediction in body["predictions"]])
        assert number(mean) == pytest.approx(expected, abs=1e-3)
    page.set_viewport_size({"width": 360, "height": 800})
    demand_no_sideways(page)
    demand_accessible(page)


@pytest.mark.full
def test_rows_beside_each_other_are_in_order_and_a_click_picks_one(
    page: Page, gateway: str, file: Path, tmp_path: Path
) -> None:
    drop(page, gateway, "credit", file)
    paths = page.locator("#rows-paths polyline")
    expect(paths).to_have_count(200)
    ends = page.locator("#rows-map polyline.ends").get_attribute("points") or ""
    heights = [float(point.partition(",")[2]) for point in ends.split()]
    assert heights == sorted(heights, reverse=True)  # the least value first, and lowest
    box = page.locator("#rows-map svg").bounding_box()
    assert box is not None
    page.locator("#rows-map svg").click(position={"x": box["width"] - 2, "y": box["height"] - 5})
    expect(page.locator("#picked-count")).to_have_text("1 row picked in a picture.")
    row = int(page.locator("[aria-label='Picked rows'] tbody th").inner_text())
    explained = saved(page, tmp_path)["explained_value"]
    shown = np.floor(np.arange(200) * (ROWS - 1) / 199 + 0.5).astype(int)
    assert explained[row - 1] == explained[shown].max()
    page.select_option("#rows-by", "alike")
    expect(paths).to_have_count(200)
    page.set_viewport_size({"width": 360, "height": 800})
    demand_no_sideways(page)
    demand_accessible(page)


@pytest.mark.full
def test_three_bands_are_the_profiles(page: Page, gateway: str, tmp_path: Path) -> None:
    """Scores at the threshold, and at both ends of the band in which a person decides."""
    scores = np.concatenate(
        [[0, 0, 0.5, 0.5, -0.25, 0.75], np.random.default_rng(0).normal(size=94).round(1)]
    )
    rows = pd.DataFrame({"a": scores, "b": 0.0, "c": 0.0, "paid": np.arange(100) % 2})
    drop(page, gateway, "judged", write_rows(rows, tmp_path, "csv"))
    table = page.locator("[aria-label='Rates by group']")
    profile = as_profile({key: JUDGED[key] for key in ("output", "threshold", "adverse", "refer")})
    decided = [outcome_of(profile, score) for score in scores.astype(np.float32).astype(float).tolist()]
    expected = [f"{decided.count(kind)}" for kind in ("approve", "refer", "decline")]
    assert int(expected[1]) >= 4
    names = table.locator("thead th").all_inner_texts()
    assert names[1:5] == ["Rows", "Approved", "Referred", "Declined"]
    assert cells(page, "[aria-label='Rates by group']")[0][1:5] == ["100", *expected]
    expect(page.locator("#adverse option:checked")).to_have_text("above")
    page.locator("#threshold").focus()
    page.keyboard.press("PageUp")
    assert cells(page, "[aria-label='Rates by group']")[0][2:5] != expected
    page.get_by_role("button", name="As the profile").click()
    assert cells(page, "[aria-label='Rates by group']")[0][2:5] == expected
    matrix = {row[0]: row[1:] for row in cells(page, "[aria-label='Outcomes by decision']")}
    bad = rows["paid"] == 1
    for name, members in (("1 (bad)", bad), ("good", ~bad)):
        band_members = [kind for kind, member in zip(decided, members, strict=True) if member]
        shown = [text.split()[0] for text in matrix[name]]
        assert shown == [f"{band_members.count(kind)}" for kind in ("approve", "refer", "decline")] + ["50"]
    area = roc_auc_score(rows["paid"], scores)
    expect(page.locator(".squares figcaption").first).to_have_text(f"ROC: area {area:.3g}")
    demand_accessible(page)


@pytest.mark.full
@pytest.mark.parametrize("target", [0, 4])
def test_classes_whose_labels_are_words_are_drawn(
    page: Page, gateway: str, repository: Path, tmp_path: Path, target: int
) -> None:
    rows = models.table(120, seed=9)[["age", "amount"]]
    rows["outcome"] = np.arange(120) % 2
    file = write_rows(rows, tmp_path, "csv")
    bodies: list[bytes] = []
    page.on(
        "request",
        lambda message: bodies.append(message.post_data_buffer or b"") if "/explain" in message.url else None,
    )
    page.goto(f"{gateway}/console/#portfolio?model=five")
    page.locator("#target").select_option(str(target))
    page.set_input_files("#portfolio-file", file)
    page.locator(".view[data-state=drawn], .view[data-state=failed]").wait_for()
    assert "120 rows explained" in status(page), alert(page)
    assert not any(b"label" in message[:1000] for message in bodies)
    expected = load(repository, "five").explain(rows[["age", "amount"]])
    saved_table = saved(page, tmp_path)
    np.testing.assert_allclose(
        saved_table["explained_value"], expected["explained_value"][:, target], rtol=1e-5, atol=1e-6
    )
    for i, name in enumerate(("age", "amount")):
        np.testing.assert_allclose(
            saved_table[name], expected["x_attributions"][:, target, i], rtol=1e-4, atol=1e-6
        )
    page.set_viewport_size({"width": 360, "height": 800})
    demand_no_sideways(page)
    demand_accessible(page)


@pytest.mark.full
def test_where_the_model_errs_is_found(
    page: Page, gateway: str, tmp_path: Path, explained: pd.DataFrame
) -> None:
    """A region in which half as many default as the scores say."""
    table = credit_rows(ROWS)
    random = np.random.default_rng(0)
    half = np.where(table["region"] == "north", 0.4, 1)
    table["defaulted"] = (random.uniform(size=ROWS) < explained["explained_value"] * half).astype(int)
    drop(page, gateway, "credit", write_rows(table, tmp_path, "csv"))
    worst = page.locator("[aria-label='Where the model errs'] tbody tr").first
    expect(worst.locator("th")).to_have_text("region")
    expect(worst.locator("td").first).to_have_text("north")


@pytest.mark.full
def test_statistics(page: Page, gateway: str) -> None:
    """Principal components as numpy's, and the feature that an attribution goes with."""
    page.goto(f"{gateway}/console/#portfolio?model=credit")
    random = np.random.default_rng(0)
    columns = random.normal(size=(5, 400)) * [[3], [2], [1], [0.5], [0.1]]
    values = random.normal(size=(3, 400))
    arguments = {"columns": columns.tolist(), "values": values.tolist()}
    result: dict[str, Any] = page.evaluate(
        """async ({columns, values}) => {
          const {principal, interactions, ranks} = await import("./portfolio/statistics.js");
          const {x, y, shares} = principal(columns.map((each) => Float32Array.from(each)), columns[0].length);
          const rows = Uint32Array.from(columns[0].keys());
          const [a, b, c] = values.map((each) => Float64Array.from(each));
          const attributions = a.map((each, i) => each * b[i] + 0.1 * c[i]);
          return {x: [...x], y: [...y], shares, strengths: interactions(a, attributions, [a, b, c], rows),
                  ranks: [...ranks(Float64Array.of(5, NaN, 1, 3, 3), Uint32Array.of(0, 1, 2, 3, 4))]};
        }""",
        arguments,
    )
    centred = columns - columns.mean(1, keepdims=True)
    sizes, vectors = np.linalg.eigh(centred @ centred.T / 400)
    for along, k in (("x", -1), ("y", -2)):
        expected = vectors[:, k] @ centred
        np.testing.assert_allclose(np.abs(result[along]), np.abs(expected), atol=1e-3)
    np.testing.assert_allclose(result["shares"], sizes[[-1, -2]] / sizes.sum(), rtol=1e-3)
    strengths = result["strengths"]
    assert strengths[0] == 0
    assert strengths[1] > 3 * strengths[2]
    first, missing, least, *middle = result["ranks"]
    assert (first, missing, least, middle) == (254, 255, 0, [127, 127])


# --- people ---------------------------------------------------------------------------------------------


@pytest.mark.full
def test_by_the_keyboard_alone(page: Page, gateway: str, file: Path) -> None:
    drop(page, gateway, "credit", file)
    press_until(page, ".weights li:nth-child(2) button")
    name = page.locator(".weights li:nth-child(2) .name").inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("#along option:checked")).to_have_text(name)
    press_until(page, "#filter-from")
    page.keyboard.type("50%")
    page.keyboard.press("Enter")
    expect(page.locator("#picked-count")).to_contain_text("rows picked where score is from 50%")
    press_until(page, "[aria-label='Picked rows'] a")
    row = page.evaluate("document.activeElement.getAttribute('aria-label')")
    score = page.locator("[aria-label='Picked rows'] tbody tr").first.locator("td.number").first.inner_text()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Explain")
    assert row.startswith("Explain row ")
    expect(page.locator("main")).to_contain_text(score.rstrip("%")[:4])
    page.go_back()  # the portfolio is still there
    expect(page.locator(".view[data-state=drawn]")).to_be_visible()
    assert len(weights(page)) == 10


@pytest.mark.full
def test_a_click_and_a_drag_pick_rows(page: Page, gateway: str, file: Path) -> None:
    drop(page, gateway, "credit", file)
    rows = page.locator("[aria-label='Picked rows'] tbody tr")
    box = page.locator("canvas.map").bounding_box()
    assert box is not None
    page.locator("canvas.map").scroll_into_view_if_needed()
    box = page.locator("canvas.map").bounding_box()
    assert box is not None
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(middle[0] - 80, middle[1] - 60)
    page.mouse.down()
    page.mouse.move(middle[0] + 80, middle[1] + 60, steps=4)
    page.mouse.up()
    expect(page.locator("#picked-count")).to_contain_text("rows picked on the map")
    assert rows.count() > 1
    page.mouse.click(*middle)
    expect(page.locator("#picked-count")).to_contain_text("1 row picked in a picture")
    page.select_option("#cohort-by", "picked")
    page.get_by_role("button", name="None").click()
    expect(page.locator("#picked-count")).to_contain_text("No row is picked")


@pytest.mark.full
def test_hostile_names_and_values_are_text(page: Page, gateway: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = pd.DataFrame(random.normal(size=(120, len(models.HOSTILE))).round(3), columns=list(models.HOSTILE))
    kinds = ["<b>bold</b>", "<script>alert(4)</script>", "\"'><img src=x onerror=alert(5)>"]
    rows["kind"] = random.choice(kinds, 120)
    rows["<iframe src=//a.b>"] = random.choice(["<svg onload=alert(6)>", "=1+1"], 120)
    rows["outcome"] = random.integers(0, 2, 120)
    file = tmp_path / "<img src=x onerror=alert(7)>.csv"
    rows.to_csv(file, index=False, quoting=csv.QUOTE_ALL)
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    drop(page, gateway, "hostile.model", file)
    assert "120 rows explained" in status(page), alert(page)
    assert "<img src=x onerror=alert(7)>.csv" in status(page)
    shown = [name.replace("\\u202e", "\u202e") for name in weights(page)]
    assert sorted(shown) == sorted([*models.HOSTILE, "kind"])
    for feature in range(len(models.HOSTILE) + 1):
        page.locator(".weights button").nth(feature).click()
    page.select_option("#filter-column", label="kind")
    page.select_option("#filter-word", kinds[1])
    page.get_by_role("button", name="Pick", exact=True).click()
    expect(page.locator("#picked-count")).to_contain_text(f"where kind is {kinds[1]}")
    page.select_option("#cohort-by", label="<iframe src=//a.b>")
    page.select_option("#group", label="<iframe src=//a.b>")
    assert page.locator("main :is(script, iframe, b, svg[onload], img)").count() == 0
    link = page.locator("[aria-label='Picked rows'] a").first
    link.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Explain")
    assert page.locator("main :is(script, iframe, b, img)").count() == 0


@pytest.mark.full
def test_a_file_is_dropped(page: Page, gateway: str, file: Path) -> None:
    page.goto(f"{gateway}/console/#portfolio?model=credit")
    dropped = page.evaluate_handle(
        """text => {
          const carried = new DataTransfer();
          carried.items.add(new File([text], "dropped.csv"));
          return carried;
        }""",
        file.read_text(),
    )
    page.locator(".drop").dispatch_event("drop", {"dataTransfer": dropped})
    page.locator(".view[data-state=drawn]").wait_for()
    assert "dropped.csv: 2,000 rows explained" in status(page)


@pytest.mark.full
def test_groups_are_one_bar_and_targets_are_chosen(watch: Callable[[str], Watched], tmp_path: Path) -> None:
    """One-hot columns that are explained as one, of a model with two targets."""
    text = "g (float[N, 4] x) => (float[N, 2] y) { y = MatMul (x, w) }"
    w = np.array([[1, -1], [2, 0.5], [-1, 3], [0.1, 0.2]], np.float32)
    random = np.random.default_rng(0)
    owns = random.integers(0, 2, 80)
    age = random.uniform(20, 60, 80).round(1)
    columns = {
        "housing_own": owns,
        "housing_rent": 1 - owns,
        "age": age,
        "debt": random.normal(size=80).round(2),
    }
    rows = pd.DataFrame(columns)
    compiled = compile_model(
        parsed(text, {"w": w}),
        ExactShap(rows.head(10).to_numpy(np.float32)),
        feature_names=list(columns),
        groups={"housing": ["housing_own", "housing_rent"]},
        targets="all",
    )
    compiled.write(tmp_path / "models", "grouped")
    with both_ends("--repository", str(tmp_path / "models")) as ends:
        url = f"http://{ends['http']}"
        page = watch(url).page
        page.goto(f"{url}/console/#portfolio?model=grouped")
        page.locator("#target").select_option("1")
        file = write_rows(rows, tmp_path, "csv")
        page.set_input_files("#portfolio-file", file)
        page.locator(".view[data-state=drawn]").wait_for()
        centred = rows - rows.head(10).mean()
        means = {
            "housing": np.abs(centred["housing_own"] * -1 + centred["housing_rent"] * 0.5).mean(),
            "age": np.abs(centred["age"] * 3).mean(),
            "debt": np.abs(centred["debt"] * 0.2).mean(),
        }
        assert weights(page) == {name: round(mean, 1) for name, mean in means.items()}  # a digit of the least
        page.locator("#along").select_option(label="housing")
        page.locator("#by").select_option(label="housing")
        expect(page.get_by_text("Colour: housing")).to_contain_text("own, rent")


# --- what goes wrong ------------------------------------------------------------------------------------


BROKEN = {
    "": "The file is empty",
    "income,loan_amount\n": "holds a header and no rows",
    "income,loan_amount\n1,2\n": 'lacks: "term_months", "debt_to_income"',
    "income,income\n1,2\n": 'Two columns are called "income"',
    "income,loan_amount\n1,2,3\n": "Line 2 has 3 fields, and the first line 2",
    'income,loan_amount\n1,"2\n': "Line 2: a quote that does not end",
    "PAR1 and no more": "The parquet file cannot be read here",
    "\xff\xfe": "not UTF-8 text",
}


@pytest.mark.full
def test_broken_files_are_refused_in_words(page: Page, gateway: str, tmp_path: Path, file: Path) -> None:
    page.goto(f"{gateway}/console/#portfolio?model=credit")
    for i, (text, message) in enumerate(BROKEN.items()):
        broken = tmp_path / f"{i}.csv"
        broken.write_bytes(text.encode("latin-1"))
        page.set_input_files("#portfolio-file", broken)
        expect(page.locator(".view > [role=alert]")).to_contain_text(message)
    page.set_input_files("#portfolio-file", file)
    expect(page.locator("#portfolio-status")).to_contain_text("2,000 rows explained by")
    expect(page.locator(".view > [role=alert]")).to_be_empty()


@pytest.mark.full
def test_words_where_numbers_belong_are_named(
    page: Page, gateway: str, tmp_path: Path, table: pd.DataFrame
) -> None:
    rows = table.astype({"income": object})
    rows.loc[7, "income"] = "a lot"
    assert 'Column "income" has to hold numbers, and holds "a lot" in row 8' in refused(
        page, gateway, write_rows(rows, tmp_path, "csv")
    )


@pytest.mark.full
def test_rows_without_a_value_are_left_out_and_counted(
    page: Page, gateway: str, tmp_path: Path, table: pd.DataFrame
) -> None:
    rows = table.head(50).copy()
    rows.loc[3:5, "income"] = np.nan
    drop(page, gateway, "credit", write_rows(rows, tmp_path, "csv"))
    assert "47 rows explained" in status(page)
    assert "3 rows are left out (3 lack income)" in status(page)
    assert saved(page, tmp_path)["row"].tolist() == [*range(3), *range(6, 50)]


@pytest.mark.full
def test_semicolons_and_quotes_are_read(
    page: Page, gateway: str, tmp_path: Path, table: pd.DataFrame
) -> None:
    rows = table.head(30).copy()
    rows["region"] = 'a "b";\nc'
    file = tmp_path / "rows.csv"
    rows.to_csv(file, index=False, sep=";", lineterminator="\r\n")
    drop(page, gateway, "credit", file)
    assert "30 rows explained" in status(page), alert(page)


@pytest.mark.full
@pytest.mark.parametrize("delimiter", [";", ","])
def test_decimal_commas_are_read(
    page: Page,
    gateway: str,
    tmp_path: Path,
    table: pd.DataFrame,
    explained: pd.DataFrame,
    delimiter: str,
) -> None:
    """Behind quotes where commas are between fields too; so are the bounds of a filter and the costs."""
    file = tmp_path / "rows.csv"
    table.head(50).to_csv(file, index=False, sep=delimiter, decimal=",", quoting=csv.QUOTE_MINIMAL)
    assert "0," in file.read_text()
    drop(page, gateway, "credit", file)
    assert "50 rows explained" in status(page), alert(page)
    expected = explained.head(50)
    saved_table = saved(page, tmp_path)
    np.testing.assert_allclose(saved_table["explained_value"], expected["explained_value"], rtol=1e-5)
    page.locator("#filter-to").fill("0,05")
    page.get_by_role("button", name="Pick", exact=True).click()
    count = int((expected["explained_value"] <= 0.05).sum())
    expect(page.locator("#picked-count")).to_have_text(f"{count} rows picked where score is up to 5%.")
    page.locator("#filter-to").fill("a lot")
    page.get_by_role("button", name="Pick", exact=True).click()
    expect(page.get_by_text("'a lot' is no number")).to_be_visible()
    expect(page.locator("#picked-count")).to_have_text(f"{count} rows picked where score is up to 5%.")
    costs = [row[-1] for row in cells(page, "[aria-label='Rates by group']")]
    page.locator("#cost-bad").fill("2,5")
    page.locator("#cost-good").fill("0,5")
    halved = [row[-1] for row in cells(page, "[aria-label='Rates by group']")]
    assert [float(cost) / 2 for cost in costs] == pytest.approx([float(cost) for cost in halved], rel=1e-2)
    page.locator("#cost-good").fill("")
    assert [row[-1] for row in cells(page, "[aria-label='Rates by group']")] == ["–"]


@pytest.mark.full
def test_the_gateway_may_ask_to_wait_or_for_less(
    watch: Callable[[str], Watched], gateway: str, file: Path, explained: pd.DataFrame, tmp_path: Path
) -> None:
    """429 with Retry-After, 413 of a batch, and a connection that breaks: in the end every row is there."""
    watched = watch(gateway)
    watched.may_be_refused = True
    page, faults, requests = watched.page, [429, 413, 429], []

    def faulty(route: Route) -> None:
        requests.append(route.request)
        if len(requests) > 1 and faults:  # the first is of one row
            status = faults.pop(0)
            body = {"title": "later", "status": status, "detail": "later"}
            route.fulfill(status=status, json=body, headers={"Retry-After": "1"})
        else:
            route.continue_()

    page.route("**/v2/models/credit/explain", faulty)
    drop(page, gateway, "credit", file)
    assert not faults
    assert "2,000 rows explained" in status(page), alert(page)
    np.testing.assert_allclose(saved(page, tmp_path)["income"], explained["income"], rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_it_can_be_cancelled(page: Page, gateway: str, file: Path) -> None:
    page.route("**/v2/models/credit/explain", lambda _: None)  # never answered
    page.goto(f"{gateway}/console/#portfolio?model=credit")
    page.locator("#portfolio-file").wait_for()
    page.set_input_files("#portfolio-file", file)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#portfolio-status")).to_contain_text("Cancelled")
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()


@pytest.mark.full
def test_images_have_no_portfolio(page: Page, gateway: str) -> None:
    page.goto(f"{gateway}/console/#portfolio?model=image")
    expect(page.locator("main")).to_contain_text("no table")


@pytest.mark.slow
def test_a_portfolio_of_100000_rows_is_drawn_in_30_seconds(
    watch: Callable[[str], Watched], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    write_wide(tmp_path / "models")
    rows = wide_rows(100_000, 2)
    assert rows.shape[1] - len(UNREAD_COLUMNS) == 24
    with both_ends("--repository", str(tmp_path / "models")) as ends:
        url = f"http://{ends['http']}"
        page = watch(url).page
        for kind in ("csv", "parquet"):
            seconds = drop(page, url, "wide", write_rows(rows, tmp_path, kind))
            assert "100,000 rows explained" in status(page), alert(page)
            gap = scroll(page)
            record_property(
                "summary", f"100,000 rows × 24 by {kind}: {seconds:.1f} s, frames {gap * 1000:.0f} ms"
            )
            assert seconds < 30
            assert gap < 0.5
            page.goto("about:blank")
