"""Recourse in the console: what it shows of flip points and plans is what `:decide` answers."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Locator, Page, expect
from sklearn.ensemble import HistGradientBoostingClassifier

from rationale import TreeShap, compile_model
from tests.service import patient
from tests.service.child import both_ends
from tests.service.console import models
from tests.service.console.conftest import Watched, demand_accessible, demand_no_sideways
from tests.service.console.node import in_node
from tests.service.console.test_explain import drawn, figure, number, opened
from tests.service.security.test_keys import key_file

MILD = {
    "income": 30300,
    "loan_amount": 15000,
    "term_months": 48,
    "debt_to_income": 0.5,
    "credit_history_years": 6,
    "late_payments_2y": 0,
    "open_accounts": 4,
    "utilisation": 0.8,
    "recent_inquiries": 1,
    "employment_years": 3,
}
TITLES = {"utilisation": "Use of credit lines", "debt_to_income": "Debt service", "income": "Income"}

# --- pure functions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "region", "expected"),
    [
        ({}, None, ""),
        ({}, [None, 0.4], "at most 0.4"),
        ({}, [0.4, None], "at least 0.4"),
        ({}, [0.13, 0.347], "between 0.13 and 0.347"),
        ({}, [None, None], "any number"),
        ({}, [0.4, 0.4], ""),
        ({}, [None, 0.39999998], "at most 0.399999"),  # at 0.4 the decision is another
        ({}, [0.40000001, None], "at least 0.400001"),
        ({}, [None, -0.40000001], "at most −0.400001"),
        ({}, [0.0, None], "at least 0"),
        ({"unit": "EUR"}, [1500.0, 24_500.0], "between 1500 and 24,500 EUR"),
        ({"unit": "EUR", "whole": True}, [None, 2.9999998], "at most 2 EUR"),
        ({"whole": True}, [0.5, 3.5], "between 1 and 3"),
        ({"whole": True}, [0, 1.5], "between 0 and 1"),
        ({"whole": True}, [1.5, 2.5], ""),
        ({"choices": [1, 2, 3], "value_labels": {"1": "own", "2": "rent"}}, [None, 2.5], "one of own, rent"),
        ({"choices": [1, 2, 3]}, [1.5, 2.5], ""),
        ({"choices": [1, 2, 3]}, [1, 2], "one of 1, 2"),  # both ends are within
        ({"choices": [1, 2, 3]}, [2, None], "one of 2, 3"),
    ],
)
def test_a_region_in_words(field: dict[str, Any], region: list[float | None] | None, expected: str) -> None:
    body = "return own.rangeOf({ name: 'x', ...given.field }, given.region);"
    assert in_node(["recourse.js"], body, {"field": field, "region": region}) == expected


FORM = {
    "fields": [
        {"name": "debt", "title": "Debt", "unit": "EUR", "least": 0, "most": 1000},
        {"name": "rate", "least": 0, "most": 1},
        {"name": "own", "title": "Owns a home"},
        {"name": "rent"},
        {"name": "job", "kind": "text", "choices": ["none", "any"]},
    ],
    "groups": [{"name": "home", "title": "Home", "features": ["own", "rent"]}],
}
ROW = {"debt": 900, "rate": 0.5, "own": 0, "rent": 1, "job": "none"}
PLANS = [
    {
        "changes": {"debt": 400.0, "own": 1.0, "rent": 0.0},
        "regions": {"debt": [None, 450.5]},
        "cost": 1.25,
        "score": 0.123456,
        "decision": "approve",
    },
    {
        "changes": {"rate": 0.25, "job": "any"},
        "regions": {"rate": [0.125, 0.25]},
        "cost": 2.5,
        "score": 0.123456,
        "decision": "approve",
    },
]
POINTS = [
    {"feature": "rate", "value": 0.1, "to": "refer", "region": [0.0, 0.1], "exact": False},
    {"feature": "debt", "value": 800.0, "to": "approve", "region": [None, 800.0], "exact": True},
    {"feature": "home", "value": "own", "to": "approve", "region": None, "exact": True},
]


def recourse(**members: Any) -> dict[str, Any]:
    plain = {"flip_points": POINTS, "plans": PLANS, "search": "heuristic", "note": None}
    return {"decision": "decline", "recourse": {**plain, **members}}


def test_changes_of_a_plan_have_titles_units_and_the_member_of_a_group() -> None:
    body = "return given.plans.map((plan) => own.changesOf(plan, given.row, given.form));"
    first, second = in_node(["recourse.js"], body, {"plans": PLANS, "row": ROW, "form": FORM})
    assert first == [
        {"title": "Home", "now": "rent", "then": "Owns a home", "range": ""},
        {"title": "Debt", "now": "900 EUR", "then": "400 EUR", "range": "at most 450.5 EUR"},
    ]
    assert second == [
        {"title": "rate", "now": "0.5", "then": "0.25", "range": "between 0.125 and 0.25"},
        {"title": "job", "now": "none", "then": "any", "range": ""},
    ]


def test_a_member_of_a_group_that_changes_alone_is_a_feature() -> None:
    body = "return own.changesOf(given.plan, null, given.form);"
    plan = {"changes": {"rent": 0.0}, "regions": {}}
    result = in_node(["recourse.js"], body, {"plan": plan, "form": FORM})
    assert result == [{"title": "rent", "now": None, "then": "0", "range": ""}]


def test_flip_points_begin_with_the_smallest_step_of_a_range() -> None:
    body = "return own.flipsOf(given.recourse, given.row, given.form);"
    flips = in_node(["recourse.js"], body, {**recourse(), "row": ROW, "form": FORM})
    assert [(flip["title"], flip["now"], flip["then"], flip["to"], flip["isExact"]) for flip in flips] == [
        ("Debt", "900 EUR", "800 EUR", "approve", True),
        ("rate", "0.5", "0.1", "refer", False),
        ("Home", "rent", "Owns a home", "approve", True),
    ]
    assert [flip["changes"] for flip in flips] == [{"debt": 800}, {"rate": 0.1}, {"own": 1, "rent": 0}]
    assert [flip["step"] for flip in flips] == [-100, -0.4, None]


def copy(answer: dict[str, Any], row: dict[str, Any] | None = ROW) -> str:
    body = "return own.applicantsCopy(given, given.row, given.form);"
    return str(in_node(["recourse.js"], body, {**answer, "row": row, "form": FORM}))


def test_an_applicants_copy_has_plans_in_plain_words_and_nothing_else() -> None:
    assert copy(recourse()).split("\n\n") == [
        "Your application was declined. Any one of these would have led to an approval, with everything else "
        "as it was:",
        "1. Home: Owns a home, instead of rent;\nand Debt: at most 450.5 EUR, instead of 900 EUR",
        "2. rate: between 0.125 and 0.25, instead of 0.5;\nand job: any, instead of none",
        "This says what the model would have decided. It makes no promise, and it is no advice.",
    ]
    assert "instead" not in copy(recourse(), None)


GERMAN = {
    "fields": [
        {"name": "debt", "title": "Schulden", "unit": "Euro", "least": 0, "most": 1000},
        {"name": "rate", "title": "Anteil"},
        {"name": "own", "title": "Eigentum"},
        {"name": "rent", "title": "Miete"},
        {"name": "job", "title": "Arbeit", "value_labels": {"any": "ja"}},
    ],
    "groups": [{"name": "home", "title": "Wohnung", "features": ["own", "rent"]}],
}


@pytest.mark.parametrize("language", ["de", "de-AT"])
def test_an_applicants_copy_in_german_has_no_english_and_a_comma(language: str) -> None:
    body = "return own.applicantsCopy(given, given.row, given.form, given.language);"
    given = {**recourse(), "row": {**ROW, "job": None}, "form": GERMAN, "language": language}
    assert in_node(["recourse.js"], body, given).split("\n\n") == [
        "Ihr Antrag wurde abgelehnt. Jeder dieser Punkte allein hätte zu einer Bewilligung geführt, bei "
        "sonst gleichen Angaben:",
        "1. Wohnung: Eigentum, bisher Miete;\nund Schulden: höchstens 450,5 Euro, bisher 900 Euro",
        "2. Anteil: 0,125 bis 0,25, bisher 0,5;\nund Arbeit: ja, bisher keine Angabe",
        "Dies beschreibt, wie das Modell entschieden hätte. Es ist keine Zusage und keine Beratung.",
    ]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"search": "complete"}, "Nothing that an applicant can change would have led to an approval."),
        ({"search": "heuristic"}, "No changes that would have led to an approval are known."),
    ],
)
def test_an_applicants_copy_without_plans(members: dict[str, Any], expected: str) -> None:
    text = copy(recourse(plans=[], note="A knock-out declines by 'x'.", **members))
    assert text == f"Your application was declined. {expected}"


def test_an_applicants_copy_of_other_decisions() -> None:
    assert copy({**recourse(), "decision": "approve"}) == "Your application was approved."
    assert copy({**recourse(), "decision": "approve", "id": None}) == "Your application would be approved."
    assert copy({**recourse(), "id": None}).startswith("Your application would be declined. Any one")
    assert copy({**recourse(), "decision": "refer"}).startswith("Your application was referred to a person. ")


@pytest.mark.parametrize(
    ("decision", "search", "expected"),
    [
        ("decline", "complete", "No plan within these rules: this is proved. Because."),
        ("decline", "heuristic", "Because."),
        ("approve", "complete", "Because."),
    ],
)
def test_why_there_is_no_plan(decision: str, search: str, expected: str) -> None:
    answer = {**recourse(plans=[], search=search, note="Because."), "decision": decision}
    assert in_node(["recourse.js"], "return own.planless(given);", answer) == expected
    assert not in_node(["recourse.js"], "return own.planless(given);", recourse())


# --- journeys ---------------------------------------------------------------------------------------------


def trees(folder: Path) -> None:
    """Boosted trees of the same features as `credit`, with rules of three kinds."""
    people = pd.read_csv(models.CREDIT / "references.csv").astype(np.float32)
    risk = people["debt_to_income"] + people["utilisation"] + people["late_payments_2y"] / 2
    risk += np.random.default_rng(0).normal(0, 0.3, len(people))  # else scores are near 0 or 1
    fitted = HistGradientBoostingClassifier(max_iter=20, max_depth=3, random_state=0).fit(people, risk > 1)
    titles = {name: {"title": title} for name, title in TITLES.items()}
    profile = {"output": "probabilities[1]", "threshold": 0.3, "adverse": "above", "features": titles}
    for name, actionable in {
        "trees": {"debt_to_income": {"direction": "down"}, "utilisation": {}, "late_payments_2y": {}},
        "strict": {"open_accounts": {"most": 1}},
        "silent": {},
    }.items():
        decision = profile | {"actionable": actionable}
        compile_model(fitted, TreeShap(people[:60]), decision=decision).write(folder, name)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recourse") / "model_repository"
    for make in (models.credit, trees, models.words):
        make(folder)
    return folder


@pytest.fixture(scope="module")
def gateway(repository: Path) -> Iterator[str]:
    with both_ends("--repository", str(repository)) as ends:
        yield f"http://{ends['http']}"


def decided(gateway: str, model: str, row: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"instances": [row], "recourse": True, "dry_run": True, **more}
    answer = patient.post(f"{gateway}/v1/models/{model}:decide", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["decisions"][0]
    return found


def titles_of(gateway: str, model: str) -> dict[str, str]:
    features = patient.get(f"{gateway}/v1/models/{model}/features").json()["features"]
    return {feature["name"]: feature.get("title", feature["name"]) for feature in features}


def demand_region(text: str, region: list[float | None], value: float) -> None:
    """Assert that a text names the ends of a region, rounded into it by less than a unit."""
    ends = [end for end in region if end is not None]
    numbers = re.findall(r"−?[\d,]*\.?\d+", text)
    if not text:
        assert ends == pytest.approx([value] * len(ends), rel=1e-4)
        return
    assert len(numbers) == len(ends)
    for shown, end in zip(numbers, ends, strict=True):
        unit = 10.0 ** -len(shown.partition(".")[2])
        inside = number(shown) - end if end is region[0] else end - number(shown)
        assert -1e-12 <= inside < unit


def demand_shown(panel: Locator, answer: dict[str, Any], titles: dict[str, str]) -> None:
    """Assert that an officer's copy shows this recourse, to the digits that are shown."""
    cards, found = panel.locator(".plans > li"), answer["recourse"]
    expect(cards).to_have_count(len(found["plans"]))
    for card, plan in zip(cards.all(), found["plans"], strict=True):
        lines = card.locator("li")
        expect(lines).to_have_count(len(plan["changes"]))
        for line, (name, value) in zip(lines.all(), plan["changes"].items(), strict=True):
            expect(line.locator("span").first).to_have_text(titles[name])
            assert value == figure(line.locator("strong").inner_text().split(" ")[0])
            small = line.locator("small")
            demand_region(small.inner_text() if small.count() else "", plan["regions"][name], value)
        score, cost = re.findall(r"[\d.]+%?", card.locator("p").inner_text())
        assert (plan["score"], plan["cost"]) == (figure(score), figure(cost))
    rows = panel.locator(".changes tbody tr")
    expect(rows).to_have_count(len(found["flip_points"]))
    points = {titles[point["feature"]]: point for point in found["flip_points"]}
    for row in rows.all():
        point = points.pop(row.locator("th").inner_text())
        assert point["value"] == figure(row.locator("strong").inner_text().split(" ")[0])
        demand_region(row.locator("[data-name='range']").inner_text(), point["region"], point["value"])
        expect(row.locator("[data-name='new decision']")).to_have_text(point["to"])
        assert ("*" in row.locator("[data-name='changes at']").inner_text()) != point["exact"]
    assert not points


@pytest.mark.full
@pytest.mark.parametrize("model", ["credit", "trees"])
def test_explain_shows_the_apis_flip_points_and_plans(page: Page, gateway: str, model: str) -> None:
    titles, plans = titles_of(gateway, model), 0
    for row in (MILD, {**MILD, "late_payments_2y": 1}, {**MILD, "utilisation": 0.2, "debt_to_income": 0.2}):
        opened(page, gateway, model, row)
        answer, panel = decided(gateway, model, row), page.locator(".recourse")
        demand_shown(panel, answer, titles)
        notes = page.locator(".note").filter(has_text="turns to ")
        expect(notes).to_have_count(len(answer["recourse"]["flip_points"]))
        for i, plan in enumerate(answer["recourse"]["plans"]):
            plans += 1
            panel.get_by_role("button", name=f"Try plan {i + 1}").click()
            expect(page.locator(".badge")).to_have_text("approve")
            drawn(page)
            tried = json.loads(page.locator("section.view").get_attribute("data-row") or "")
            assert tried == {**row, **plan["changes"]}
            page.go_back()
            drawn(page)
    assert plans > 1
    demand_accessible(page)


@pytest.mark.full
def test_each_flip_point_can_be_tried(page: Page, gateway: str) -> None:
    opened(page, gateway, "trees", MILD)
    points = decided(gateway, "trees", MILD)["recourse"]["flip_points"]
    assert points
    assert page.locator(".curve .flip").count() == len(points)
    titles = titles_of(gateway, "trees")
    for point in points:
        page.get_by_role("button", name=f"Try {titles[point['feature']]} ").click()
        expect(page.locator(".badge")).to_have_text(point["to"])
        drawn(page)
        tried = json.loads(page.locator("section.view").get_attribute("data-row") or "")
        assert tried == {**MILD, point["feature"]: point["value"]}
        page.go_back()
        drawn(page)


@pytest.mark.full
def test_no_plan_and_no_profile(page: Page, gateway: str) -> None:
    opened(page, gateway, "strict", MILD)
    answer = decided(gateway, "strict", MILD)["recourse"]
    assert (answer["search"], answer["plans"]) == ("complete", [])
    panel = page.locator(".recourse")
    expect(panel).to_contain_text(f"No plan within these rules: this is proved. {answer['note']}")
    opened(page, gateway, "silent", MILD)
    expect(panel).to_contain_text("The decision profile does not say what an applicant can change.")
    opened(page, gateway, "words", threshold="0")
    expect(panel).to_be_hidden()


@pytest.mark.full
def test_without_the_scopes_the_gateways_sentence_is_shown(
    repository: Path, tmp_path: Path, watch: Callable[[str], Watched]
) -> None:
    tokens = key_file(
        tmp_path, analyst="explain", desk="explain decide", staff="explain decide recourse infer"
    )
    with both_ends("--repository", str(repository), "--keys-file", str(tmp_path / "keys.toml")) as ends:
        url = f"http://{ends['http']}"
        watched = watch(url)
        watched.may_be_refused = True
        page = watched.page
        for name, expected in (
            ("analyst", "key 'analyst' lacks the scope decide"),
            (
                "desk",
                "does not say what an applicant can change (actionable), and key 'desk' lacks the scope",
            ),
            ("staff", "One feature at a time"),
        ):
            page.goto(f"{url}/console/")
            page.evaluate(f"sessionStorage.setItem('rationale.key', '{tokens[name]}')")
            opened(page, url, "silent", MILD)
            expect(page.locator(".recourse")).to_contain_text(expected)
            expect(page.locator(".bars").first).to_be_visible()


@pytest.mark.full
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_a_decision_is_recorded_with_its_recourse_and_has_two_copies(
    page: Page, gateway: str, width: int, scheme: Any
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{gateway}/console/#decisions?model=credit&row={quote(json.dumps(MILD))}")
    panel = page.get_by_role("region", name="What would have changed the decision")
    expect(page.get_by_label("The decision", exact=True)).to_be_visible()
    expect(panel).to_have_count(0)
    page.get_by_label("With recourse").check()
    demand_shown(panel, decided(gateway, "credit", MILD), titles_of(gateway, "credit"))
    page.get_by_role("button", name="Decide and record …").click()
    page.get_by_role("button", name="Decide, and record it").click()
    expect(page.get_by_role("heading", name="Decided, and recorded")).to_be_visible()
    decision_id = page.get_by_label("Its id").input_value()
    stored = patient.get(f"{gateway}/v1/decisions/{decision_id}").json()["answer"]
    assert stored["recourse"]["plans"]
    page.goto("about:blank")
    page.goto(f"{gateway}/console/#decisions?model=credit&decision={decision_id}")
    demand_shown(panel, stored, titles_of(gateway, "credit"))
    demand_accessible(page)
    demand_no_sideways(page)
    panel.get_by_label("Copy for").select_option("the applicant")
    letter = panel.locator(".letter")
    expect(letter).to_contain_text("Your application was declined.")
    plans = [each for each in letter.inner_text().split("\n\n") if re.match(r"\d\. ", each)]
    for text, plan in zip(plans, stored["recourse"]["plans"], strict=True):
        assert text.count(", instead of ") == len(plan["changes"])
    for hidden in ("score", "cost", "%", "Try", "One feature at a time"):
        expect(panel).not_to_contain_text(hidden)
    with page.expect_download() as download:
        panel.get_by_role("link", name="Save it as a file").click()
    assert Path(download.value.path()).read_text() == letter.inner_text()
    demand_accessible(page)
    demand_no_sideways(page)
    panel.get_by_label("Copy for").select_option("the officer")
    panel.get_by_role("button", name="Try plan 1").click()
    expect(page.get_by_role("heading", name="What would be decided")).to_be_visible()
    expect(page.locator(".outcome").first).to_have_text("Approve")


@pytest.mark.full
def test_recourse_is_hidden_where_the_trail_keeps_only_a_digest_of_inputs(
    repository: Path, watch: Callable[[str], Watched], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 44)
    settings = {
        "RATIONALE_AUDIT_INPUTS": "hashed",
        "RATIONALE_AUDIT_KEY_FILE": str(key),
        "RATIONALE_STATE": str(tmp_path / "state"),
    }
    with both_ends("--repository", str(repository), **settings) as ends:
        url = f"http://{ends['http']}"
        page = watch(url).page
        decision_id = decided(url, "credit", MILD, dry_run=False)["id"]
        page.goto(f"{url}/console/#decisions?model=credit&decision={decision_id}")
        panel = page.get_by_role("region", name="What would have changed the decision")
        expect(panel).to_contain_text("the trail did not keep the inputs")
        expect(panel.get_by_label("Copy for")).to_have_count(0)
