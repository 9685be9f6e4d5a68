"""The Explain view: what it shows is what the API answers, whatever is moved, and by whatever means."""

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from benchmarks.console.sliders import move
from tests.service import patient
from tests.service.console import models
from tests.service.console.conftest import Watched, demand_accessible, demand_no_sideways, press_until

WORST = {
    "income": 24500,
    "loan_amount": 15000,
    "term_months": 60,
    "debt_to_income": 0.52,
    "credit_history_years": 3.5,
    "late_payments_2y": 3,
    "open_accounts": 4,
    "utilisation": 0.91,
    "recent_inquiries": 4,
    "employment_years": 0.8,
}


def opened(page: Page, gateway: str, model: str, row: dict[str, Any] | None = None, **more: str) -> None:
    """Open the view and wait until its curves are drawn."""
    fragment = {**more, **({} if row is None else {"row": json.dumps(row)})}
    query = "".join(f"&{name}={quote(value)}" for name, value in fragment.items())
    page.goto("about:blank")  # else the page that is there is seen until the new one is drawn
    page.goto(f"{gateway}/console/#explain?model={model}{query}")
    drawn(page)


def drawn(page: Page) -> None:
    page.wait_for_function(
        "() => { const seen = document.querySelector('section.view')?.dataset;"
        " return seen?.drawn && seen.drawn === seen.row && seen.row === seen.asking }"
    )


def typical(gateway: str, model: str) -> dict[str, Any]:
    """Return the medians of the references."""
    features = patient.get(f"{gateway}/v1/models/{model}/features").json()["features"]
    return {feature["name"]: feature["quantiles"][10] for feature in features}


def explanation(gateway: str, model: str, row: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = patient.post(f"{gateway}/v1/models/{model}:explain", json={"instances": [row], **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["explanations"][0]


def number(text: str) -> float:
    """Return what a text says; of percent the share."""
    value = float(text.rstrip("%").replace("−", "-").replace(",", ""))
    return value / 100 if text.endswith("%") else value


def figure(text: str, points: bool = False) -> Any:
    """Return what equals every number that is written so: half a unit of the last digit away at most.

    Args:
        points: it is of percentage points.
    """
    digits, _, power = text.rstrip("%").replace("−", "-").partition("e")
    decimals = len(digits.partition(".")[2]) - int(power or 0)
    unit = 10.0**-decimals / (100 if points or text.endswith("%") else 1)
    return pytest.approx(number(text) / (100 if points else 1), abs=0.501 * unit)


def effects(panel: Locator) -> dict[str, Any]:
    """By the first line of each row's head; to the digits that are shown."""
    points = "percentage points" in panel.locator("thead").first.inner_text()
    result = panel.locator("tbody tr:not(.classes tr)").evaluate_all(
        "rows => rows.map((row) => [[...row.querySelector('th').childNodes]"
        ".filter((node) => node.nodeName !== 'SMALL').map((node) => node.textContent).join(''),"
        " row.querySelector('td.number').textContent])"
    )
    return {name: figure(amount, points and not amount.endswith("%")) for name, amount in result}


def test_score_base_value_and_sorted_bars_are_the_apis(page: Page, gateway: str) -> None:
    opened(page, gateway, "credit", WORST)
    expected = explanation(gateway, "credit", WORST)
    assert expected["explained_value"] == figure(page.locator("#score").inner_text())
    expect(page.locator(".badge")).to_have_text("decline")
    expect(page.locator(".figures")).to_contain_text("completeness gap")
    expect(page.locator(".sentence")).to_contain_text("points above the threshold; mainly: Late")
    expect(page.locator(".axis .threshold")).to_have_text("threshold 20.0%")
    shown = effects(page.locator(".answers"))
    assert expected["base_value"] == shown.pop("base value")
    assert expected["explained_value"] == shown.pop("score")
    sizes = sorted(expected["attributions"].values(), key=abs, reverse=True)
    assert sizes == list(shown.values())
    assert next(iter(shown)) == "Late payments in two years"  # the profile's title; its name beside it
    expect(page.locator(".fields")).to_contain_text("late_payments_2y")


@pytest.mark.full
def test_a_further_kind_of_output_is_shown_without_code_of_its_own(page: Page, gateway: str) -> None:
    further = {"a_size": "how large", "changes": "how much"}

    def answer_route(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "other_outputs": further})

    def answered(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        for each in body["explanations"]:
            each |= {"a_size": 0.5, "changes": dict.fromkeys(each["attributions"], 0.25)}
        route.fulfill(response=answer, json=body)

    page.route("**/v1/models/credit/features*", answer_route)
    page.route("**/v1/models/credit:explain", answered)
    opened(page, gateway, "credit")
    drawn(page)
    expect(page.locator("dl.figures")).to_contain_text("a size0.5")
    table = page.locator("details", has_text="changes").locator("td.number")
    assert set(table.all_text_contents()) == {"0.25"}


def test_fields_begin_with_the_references_medians(page: Page, gateway: str) -> None:
    opened(page, gateway, "credit")
    features = patient.get(f"{gateway}/v1/models/credit/features").json()["features"]
    for feature in features:
        field = page.get_by_label(feature.get("title", feature["name"]), exact=False).first
        assert float(field.input_value()) == feature["quantiles"][10], feature["name"]
        slider = page.get_by_label(f"{feature['title']}, slider", exact=True)
        ends = [float(slider.get_attribute(end)) for end in ("min", "max")]
        assert ends == [feature["least"], feature["most"]], feature["name"]


@pytest.mark.full
def test_a_hundred_moves_the_last_is_shown(page: Page, gateway: str) -> None:
    opened(page, gateway, "credit")
    actual = move(page, moves=100, pause_ms=4)
    assert actual.asked == 100
    assert actual.answered + actual.superseded == 100
    assert actual.answered > 1
    assert actual.row == actual.last
    assert actual.row["income"] == float(actual.entry)
    expected = explanation(gateway, "credit", actual.row)
    assert expected["explained_value"] == figure(page.locator("#score").inner_text())
    drawn(page)
    assert json.loads(page.locator("section.view").get_attribute("data-drawn")) == actual.last


@pytest.mark.full
@pytest.mark.parametrize("end", ["low", "high"])
@pytest.mark.parametrize("space", ["output", "margin"])
def test_a_score_near_0_or_1_is_judged_as_it_is_decided(
    page: Page, gateway: str, end: str, space: str
) -> None:
    """By the margin, of which probabilities of float32 tell little there."""
    model, sign, seen = f"{end}.{space}", -1 if end == "low" else 1, set()
    for b in (0.36, 0.4, 0.44, 0.48):  # the threshold's margin is 18.42 from 0
        row = {"a": 18 * sign, "b": b * sign}
        answer = patient.post(f"{gateway}/v1/models/{model}:decide", json={"instances": [row]})
        expected = answer.json()["decisions"][0]["decision"]
        opened(page, gateway, model, row)
        expect(page.locator(".badge")).to_have_text(expected)
        seen.add(expected)
    assert seen == {"approve", "decline"}


@pytest.mark.full
def test_words_are_selects_and_a_threshold_of_ones_own(page: Page, gateway: str) -> None:
    opened(page, gateway, "words")
    expect(page.get_by_label("housing")).to_have_value("own")
    page.get_by_label("housing").select_option("with parents")
    drawn(page)
    row = json.loads(page.locator("section.view").get_attribute("data-row"))
    assert row["housing"] == "with parents"
    expected = explanation(gateway, "words", row)
    for away, word in ((0.01, "below"), (-0.01, "above")):
        page.get_by_label("Threshold").fill(f"{expected['explained_value'] + away:.4f}")
        page.get_by_label("Threshold").press("Enter")
        expect(page.locator(".badge")).to_have_text(word)
    drawn(page)
    assert expected["explained_value"] == figure(page.locator("#score").inner_text())
    shown = effects(page.locator(".answers"))
    assert expected["attributions"]["housing"] == shown["housing"]
    demand_accessible(page)


@pytest.mark.full
def test_a_missing_value_where_the_model_takes_one(page: Page, gateway: str) -> None:
    opened(page, gateway, "credit.trees", WORST)
    field = page.locator(".field").filter(has_text="utilisation")
    field.get_by_label("missing").check()
    drawn(page)
    row = json.loads(page.locator("section.view").get_attribute("data-row"))
    assert row == {**WORST, "utilisation": None}
    expected = explanation(gateway, "credit.trees", row)
    assert expected["attributions"]["utilisation"] == effects(page.locator(".answers"))["utilisation"]
    expect(page.locator(".answers")).to_contain_text("missing")
    field.get_by_label("missing").uncheck()
    expect(field.get_by_role("textbox")).to_have_value("0.91")
    drawn(page)
    assert json.loads(page.locator("section.view").get_attribute("data-row")) == WORST


@pytest.mark.full
def test_each_of_several_targets(page: Page, gateway: str) -> None:
    opened(page, gateway, "several")
    expected = explanation(
        gateway, "several", json.loads(page.locator("section.view").get_attribute("data-row"))
    )
    for i, target in enumerate(expected["targets"]):
        page.get_by_label("Explained").select_option(str(i))
        texts = page.get_by_label("Explained").locator("option").all_inner_texts()
        assert expected["targets"][i]["explained_value"] == figure(texts[i].partition(": ")[2])
        share = str(Decimal(f"{100 * target['explained_value']:.2f}").normalize())
        expect(page.locator("#score")).to_have_text(re.compile(f"^{re.escape(share[:4])}"))
    page.wait_for_url(re.compile("target=2"))
    page.reload()
    drawn(page)
    assert expected["targets"][2]["explained_value"] == figure(page.locator("#score").inner_text())


@pytest.mark.full
def test_classes_are_named_with_the_probability_of_each(page: Page, gateway: str) -> None:
    """Trees of five classes, of which the margins are explained."""
    opened(page, gateway, "five")
    row = json.loads(page.locator("section.view").get_attribute("data-row"))
    answer = patient.post(f"{gateway}/v1/models/five:explain", json={"instances": [row]}).json()
    expected = dict(zip(sorted(models.CLASSES), answer["predictions"][0]["probabilities"], strict=True))
    lines = page.locator(".classes tbody tr")
    names, shares = (lines.locator(selector).all_inner_texts() for selector in ("th", ".number"))
    assert names == sorted(expected, key=lambda name: -expected[name])
    assert shares == [f"{100 * expected[name]:.2f}%" for name in names]
    page.get_by_label("Explained").select_option("2")
    expect(page.locator(".classes .explained th")).to_have_text(sorted(models.CLASSES)[2])
    expect(page.locator(".figures .main dt")).to_have_text(
        f"probabilities_margin of class {sorted(models.CLASSES)[2]}"
    )


@pytest.mark.full
def test_300_features_are_searched_and_their_curves_are_drawn(page: Page, gateway: str) -> None:
    opened(page, gateway, "many")
    fields, status = page.locator(".field:visible"), page.locator("p.row").get_by_role("status")
    expect(status).to_have_text("300 features")
    expect(fields).to_have_count(300)
    page.get_by_label("Search features").fill(" Feature_29")
    expect(status).to_have_text("10 of 300 features")
    expect(fields).to_have_count(10)
    page.get_by_label("feature_299", exact=True).fill("2")
    page.get_by_label("feature_299", exact=True).press("Enter")
    drawn(page)
    expect(fields).to_have_count(10)
    page.get_by_label("Search features").fill("none of them")
    expect(status).to_have_text("0 of 300 features")
    page.get_by_label("Search features").fill("")
    expect(fields).to_have_count(300)
    assert page.locator(".slide .score[points]").count() == 48


@pytest.mark.full
def test_a_group_opens(page: Page, gateway: str) -> None:
    opened(page, gateway, "many")
    row = json.loads(page.locator("section.view").get_attribute("data-row"))
    group = page.locator(".bars tr", has_text="The first ten")
    lines = group.locator("li")
    expect(lines.first).to_be_hidden()
    group.get_by_text("10 features").click()
    expect(lines).to_have_count(10)
    for i, line in enumerate(lines.all_inner_texts()):
        name, _, value = line.partition(": ")
        assert name == f"feature_{i:03d}"
        assert float(value.replace("−", "-")) == pytest.approx(row[name], abs=5e-7)


@pytest.mark.full
def test_a_method_without_references_or_base_value(page: Page, gateway: str) -> None:
    opened(page, gateway, "gradient")
    expected = explanation(
        gateway, "gradient", json.loads(page.locator("section.view").get_attribute("data-row"))
    )
    assert "base_value" not in expected
    shown = effects(page.locator(".answers"))
    assert expected["attributions"] == shown  # bars from zero, no totals
    page.locator("[aria-label='age, slider']").press("ArrowRight")
    drawn(page)
    assert json.loads(page.locator("section.view").get_attribute("data-row"))["age"] > 0
    demand_accessible(page)


@pytest.mark.full
def test_an_address_can_be_sent(page: Page, gateway: str, watch: Callable[[str], Watched]) -> None:
    opened(page, gateway, "credit", WORST)
    page.get_by_label("Income", exact=False).first.fill("40000")
    page.get_by_label("Income", exact=False).first.press("Enter")
    page.get_by_label("Picture").select_option("bars")
    drawn(page)
    sent = page.url
    parameters = parse_qs(urlsplit(sent).fragment.partition("?")[2])
    assert parameters["model"] == ["credit"]
    assert len(parameters["digest"][0]) == 64
    other = watch(gateway).page
    other.goto(sent)
    drawn(other)
    assert other.locator(".answers").inner_text() == page.locator(".answers").inner_text()
    assert other.get_by_label("Picture").input_value() == "bars"


DAMAGED = (
    json.dumps(WORST)[:40],
    json.dumps({**WORST, "income": "many"}),
    json.dumps({**WORST, "income": None}),
    '{"gone": 1}',
    "[1]",
    "null",
    json.dumps(WORST).replace("24500", "1e999"),
)


@pytest.mark.full
@pytest.mark.parametrize("row", DAMAGED)
@pytest.mark.parametrize("view", ["explain", "decisions"])
def test_a_row_that_is_not_whole_has_no_score_and_no_decision(
    page: Page, gateway: str, view: str, row: str
) -> None:
    page.goto(f"{gateway}/console/#{view}?model=credit&row={quote(row)}&target=x&picture=constructor")
    expect(page.get_by_role("alert").filter(has_text="The row is incomplete")).to_contain_text("Income")
    income = page.get_by_label("Income", exact=False).first
    expect(income).to_have_value("")
    expect(income).to_have_attribute("aria-invalid", "true")
    page.wait_for_timeout(500)  # in which an answer would be shown
    for shown in ("#score", ".bars", ".badge", ".outcome", ".changes tr"):
        expect(page.locator(shown)).to_have_count(0)
    if view == "decisions":
        expect(page.get_by_role("button", name="Decide and record …")).to_be_disabled()
    demand_accessible(page)


@pytest.mark.full
def test_a_row_that_is_made_whole_has_its_score(page: Page, gateway: str) -> None:
    lacking = {name: value for name, value in WORST.items() if name != "income"}
    page.goto(f"{gateway}/console/#explain?model=credit&row={quote(json.dumps(lacking))}")
    expect(page.get_by_role("alert").filter(has_text="no value is given for Income.")).to_be_visible()
    page.get_by_label("Income", exact=False).first.fill("24,500")
    page.get_by_label("Income", exact=False).first.press("Enter")
    drawn(page)
    assert json.loads(page.locator("section.view").get_attribute("data-row")) == WORST
    expect(page.locator(".badge")).to_have_text("decline")


@pytest.mark.parametrize("view", ["explain", pytest.param("decisions", marks=pytest.mark.full)])
def test_an_address_that_was_cut_shows_nothing(page: Page, gateway: str, view: str) -> None:
    opened(page, gateway, "credit", WORST)
    page.get_by_role("link", name={"explain": "References", "decisions": "Decisions"}[view]).click()
    page.wait_for_url(re.compile("check="))
    whole = page.evaluate("location.hash")
    for cut in (whole[: len(whole) // 2], whole[:-1], whole.replace("24500", "2450")):
        page.goto("about:blank")
        page.goto(f"{gateway}/console/{cut}")
        expect(page.get_by_role("heading", name="This address is damaged")).to_be_visible()
        expect(page.locator("section.view")).to_have_count(0)
    demand_accessible(page)
    page.get_by_role("link", name="Start again").click()
    expect(page.locator("section.view")).to_be_visible()


@pytest.mark.full
def test_after_an_entry_that_cannot_be_read_no_former_score_stays(page: Page, gateway: str) -> None:
    for view, score in (("explain", "#score"), ("decisions", ".gauge")):
        page.goto("about:blank")
        page.goto(f"{gateway}/console/#{view}?model=credit")
        expect(page.locator(score)).to_be_visible()
        field = page.get_by_label("Debt service", exact=False).first
        field.fill("0,5,2")
        field.press("Enter")
        expect(page.get_by_role("alert").filter(has_text="'0,5,2' is no number")).to_be_visible()
        expect(page.locator(score)).to_have_count(0)
        field.fill("0,52")
        field.press("Enter")
        expect(page.locator(score)).to_be_visible()
        expect(field).to_have_value("0.52")


@pytest.mark.full
def test_a_threshold_as_people_write_it(page: Page, gateway: str) -> None:
    opened(page, gateway, "words")
    threshold = page.get_by_label("Threshold")
    for text, expected in {"2,700,000": "2,700,000", "0,25": "0.25", "-1.5": "−1.5"}.items():
        threshold.fill(text)
        threshold.press("Enter")
        expect(page.locator(".figures")).to_contain_text(re.compile(f"threshold\\s*{expected}"))
    threshold.fill("2,70,00")
    threshold.press("Enter")
    expect(page.get_by_role("alert").filter(has_text="No threshold: '2,70,00' is no number")).to_be_visible()
    expect(page.locator(".badge")).to_have_count(0)


@pytest.mark.full
def test_a_value_beyond_the_range_leaves_the_slider_as_it_was(page: Page, gateway: str) -> None:
    opened(page, gateway, "credit")
    slider = page.get_by_label("Income, slider", exact=True)
    ends = [slider.get_attribute(end) for end in ("min", "max")]
    field = page.get_by_label("Income", exact=False).first
    field.fill("303,000,000")
    field.press("Enter")
    beyond = page.locator(".beyond:not(:empty)")
    expect(beyond).to_have_text("beyond this range")
    drawn(page)
    assert [slider.get_attribute(end) for end in ("min", "max")] == ends
    slider.press("Home")
    expect(field).to_have_value(ends[0])
    expect(beyond).to_have_count(0)


@pytest.mark.full
def test_back_takes_a_try_back(page: Page, gateway: str) -> None:
    milder = {**typical(gateway, "credit"), "debt_to_income": 0.6, "income": 20000}
    opened(page, gateway, "credit", milder)
    expect(page.locator(".badge")).to_have_text("decline")
    page.get_by_role("button", name="Try plan 1").click()
    expect(page.locator(".badge")).to_have_text("approve")
    drawn(page)
    page.go_back()
    expect(page.locator(".badge")).to_have_text("decline")
    drawn(page)
    assert json.loads(page.locator("section.view").get_attribute("data-row")) == milder
    page.go_forward()
    expect(page.locator(".badge")).to_have_text("approve")


@pytest.mark.full
def test_a_second_row_and_why_this_one_and_not_that_one(page: Page, gateway: str) -> None:
    opened(page, gateway, "credit", WORST)
    page.get_by_label("Compare with").select_option("row")
    expect(page.get_by_role("heading", name="The second row")).to_be_visible()
    drawn(page)
    assert page.locator(".answers .panel").count() == 2
    page.get_by_label("as the reference").check()
    expect(page.locator(".figures")).to_contain_text("score of the second row", timeout=60_000)
    page.wait_for_url(re.compile("reference=1"))
    row = json.loads(page.locator("section.view").get_attribute("data-row"))
    other = json.loads(parse_qs(urlsplit(page.url).fragment.partition("?")[2])["other"][0])
    expected = explanation(gateway, "credit", row, references=[other])
    shown = effects(page.locator(".answers"))
    assert expected["base_value"] == shown["score of the second row"]
    assert expected["attributions"]["late_payments_2y"] == shown["Late payments in two years"]
    demand_accessible(page)


@pytest.mark.full
def test_why_this_row_and_not_that_of_a_recorded_decision(
    watch: Callable[[str], Watched], gateway: str
) -> None:
    other = {**typical(gateway, "credit"), "income": 71_000, "late_payments_2y": 0}
    answer = patient.post(f"{gateway}/v1/models/credit:decide", json={"instances": [other]}).json()
    (decision,) = answer["decisions"]
    watched = watch(gateway)
    watched.may_be_refused = True
    page = watched.page
    opened(page, gateway, "credit", WORST)
    page.get_by_label("Compare with").select_option("row")
    field = page.get_by_label("The row of a recorded decision")
    for wrong, message in (("7", "An id has 32 digits"), ("0" * 32, "decision")):
        field.fill(wrong)
        field.press("Enter")
        expect(page.locator(".tools-row .problem")).to_contain_text(message)
    field.fill(decision["id"])
    field.press("Enter")
    page.wait_for_url(re.compile("71000"))
    page.get_by_label("as the reference").check()
    expect(page.locator(".figures")).to_contain_text("score of the second row", timeout=60_000)
    expected = explanation(gateway, "credit", WORST, compare_with=[decision["id"]])
    shown = effects(page.locator(".answers"))
    assert expected["base_value"] == shown.pop("score of the second row")
    assert decision["score"] == pytest.approx(expected["base_value"])
    assert expected["explained_value"] == shown.pop("score")
    assert sorted(expected["attributions"].values(), key=abs, reverse=True) == list(shown.values())
    demand_accessible(page)
    page.set_viewport_size({"width": 360, "height": 800})
    demand_no_sideways(page)


@pytest.mark.full
def test_a_second_model_on_the_same_row(page: Page, gateway: str) -> None:
    opened(page, gateway, "credit", WORST)
    page.get_by_label("Compare with").select_option("model:credit.trees")
    expect(page.get_by_role("heading", name="By the model credit.trees")).to_be_visible()
    expected = explanation(gateway, "credit.trees", WORST)
    shown = effects(page.locator(".answers .panel").nth(1))
    assert expected["attributions"]["utilisation"] == shown["utilisation"]
    page.get_by_label("Compare with").select_option("model:words")
    expect(page.locator(".problem.beside")).to_contain_text("takes other features, which this row")


@pytest.mark.full
def test_a_row_of_a_file(page: Page, gateway: str, tmp_path: Path) -> None:
    opened(page, gateway, "credit")
    page.get_by_label("A CSV file").set_input_files(models.CREDIT / "applicants.csv")
    expect(page.get_by_label("Income", exact=False).first).to_have_value("58000")
    page.get_by_label("The next row").click()
    expect(page.get_by_label("Income", exact=False).first).to_have_value("24500")
    drawn(page)
    expect(page.locator(".badge")).to_have_text("decline")
    broken = tmp_path / "broken.csv"
    broken.write_text("income,loan_amount\n1,<script>alert(1)</script>\n")
    page.get_by_label("A CSV file").set_input_files(broken)
    expect(page.get_by_role("alert").filter(has_text="the file has no column")).to_be_visible()
    broken.write_bytes(b"\xff\xfe\x00")
    page.get_by_label("A CSV file").set_input_files(broken)
    expect(page.get_by_role("alert").filter(has_text="not UTF-8 text")).to_be_visible()
    header = ",".join(WORST)
    broken.write_text(f"{header}\n{','.join(['x'] * len(WORST))}\n")
    page.get_by_label("A CSV file").set_input_files(broken)
    expect(page.get_by_role("alert").filter(has_text="'x' is no number")).to_be_visible()


@pytest.mark.full
def test_rows_saved_under_a_name(page: Page, gateway: str) -> None:
    opened(page, gateway, "credit", WORST)
    page.get_by_label("Save the row as").fill("<b>worst</b>")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Typical", exact=True).click()
    expect(page.get_by_label("Income", exact=False).first).to_have_value("30300")
    page.get_by_label("Saved rows").select_option(label="<b>worst</b>")
    expect(page.get_by_label("Income", exact=False).first).to_have_value("24500")


@pytest.mark.full
def test_hostile_names_and_values_are_text(page: Page, gateway: str) -> None:
    opened(page, gateway, "hostile.model", threshold="1")
    text = page.locator("main").inner_text()
    for name in (models.SCRIPT, models.IMAGE, models.BREAKOUT, "__proto__", "constructor"):
        assert text.count(name) >= 2, name  # in the form and in the bars
    assert "income\\u202egnp.exe" in text  # what turns text round is shown by its number
    assert "\u202e" not in text
    page.get_by_label("kind", exact=True).select_option("<script>alert(4)</script>")
    drawn(page)
    expected = explanation(
        gateway, "hostile.model", json.loads(page.locator("section.view").get_attribute("data-row"))
    )
    shown = effects(page.locator(".answers"))
    for name in (models.SCRIPT, "__proto__", "kind"):
        assert expected["attributions"][name] == shown[name], name
    assert page.locator("main script, main img, main b").count() == 0
    demand_accessible(page)


@pytest.mark.full
def test_by_the_keyboard_alone(page: Page, gateway: str) -> None:
    opened(page, gateway, "credit")
    press_until(page, "[aria-label='Late payments in two years, slider']")
    before = number(page.locator("#score").inner_text())
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    drawn(page)
    assert number(page.locator("#score").inner_text()) > before
    expect(page.locator("#said")).to_have_text(re.compile("score .*, decline"))
    press_until(page, ".plans button")
    page.keyboard.press("Enter")
    expect(page.locator(".badge")).to_have_text("approve")


@pytest.mark.full
def test_a_wrong_entry_is_named_beside_its_field(page: Page, gateway: str) -> None:
    opened(page, gateway, "credit")
    field = page.get_by_label("Income", exact=False).first
    field.fill("a lot")
    field.press("Enter")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".note").first).to_have_text(re.compile("Income: 'a lot' is no number"))
    field.fill("")
    field.press("Enter")
    expect(page.locator(".note").first).to_contain_text("which the model does not take")


@pytest.mark.full
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (360, "dark"),
        (1280, "light"),
        pytest.param(360, "light", marks=pytest.mark.full),
        pytest.param(1280, "dark", marks=pytest.mark.full),
    ],
)
def test_every_model_light_dark_wide_and_narrow(page: Page, gateway: str, width: int, scheme: Any) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    for query in ("credit&beside=row", "words&threshold=0", "hostile.model"):
        opened(page, gateway, query)
        demand_accessible(page)
        demand_no_sideways(page)


@pytest.mark.full
def test_the_gateway_is_gone_and_back(gateway: str, watch: Callable[[str], Watched]) -> None:
    watched = watch(gateway)
    lost = watched.page
    opened(lost, gateway, "credit")
    lost.route("**/v1/models/credit:explain", lambda route: route.abort())
    lost.get_by_label("Loan amount, slider").press("PageUp")
    expect(lost.locator(".problem.panel")).to_contain_text("The gateway does not answer")
    watched.faults[:] = [fault for fault in watched.faults if "ERR_FAILED" not in fault]
    lost.unroute("**/v1/models/credit:explain")
    lost.get_by_label("Loan amount, slider").press("PageUp")
    drawn(lost)
    expect(lost.locator(".problem.panel")).to_be_hidden()
