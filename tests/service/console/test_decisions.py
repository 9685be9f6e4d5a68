"""The Decisions view: what it shows is what `:decide`, the notice and the replay of the API answer."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pandas as pd
import pytest
import yaml
from playwright.sync_api import Locator, Page, expect

from rationale import DeepShap, compile_model
from tests.service import patient
from tests.service.child import both_ends
from tests.service.console import models
from tests.service.console.conftest import Watched, demand_accessible, demand_no_sideways, press_until
from tests.service.console.test_explain import WORST, figure, number
from tests.service.security.test_keys import key_file

LENDER = {
    "creditor.name": "A Bank",
    "creditor.address": "1 High Street",
    "applicant.name": models.SCRIPT,
    "applicant.address": "2 Low Street",
    "application": "personal loan",
    "agency.name": "An agency",
    "agency.address": "3 Side Street",
}


def opened(page: Page, gateway: str, model: str, row: dict[str, Any] | None = None, **more: str) -> Locator:
    """Open the view; returns the panel with the answer."""
    fragment = {**more, **({} if row is None else {"row": json.dumps(row)})}
    query = "".join(f"&{name}={quote(value)}" for name, value in fragment.items())
    page.goto(f"{gateway}/console/#decisions?model={model}{query}")
    return page.get_by_label("The decision", exact=True)


def decided(gateway: str, model: str, row: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = patient.post(f"{gateway}/v1/models/{model}:decide", json={"instances": [row], **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["decisions"][0]


def demand_shown(panel: Locator, answer: dict[str, Any], outcome: str) -> None:
    """Assert that the panel shows this answer of `:decide`."""
    expect(panel.locator(".outcome")).to_have_text(outcome)
    label = panel.locator(".gauge").get_attribute("aria-label") or ""
    score, threshold = re.findall(r"[−\d.]*\d%?", label)[:2]
    assert answer["score"] == figure(score)
    assert number(threshold) == answer["threshold"]
    shown = panel.locator(".reasons > li")
    expect(shown).to_have_count(len(answer["reasons"]))
    for item, reason in zip(shown.all(), answer["reasons"], strict=True):
        expect(item.locator(".code")).to_have_text(reason["code"])
        expect(item.locator(".text")).to_have_text(reason["text"])
        if reason["share"] is not None:
            share = item.locator(".head .number").inner_text()
            assert number(share.rstrip("%")) == pytest.approx(100 * reason["share"], abs=0.1)


def recorded(repository: Path) -> int:
    """How many decisions the trail holds."""
    from rationale_service.decisions.audit.ledger import open_ledger
    from rationale_service.settings import Settings

    ledger = open_ledger(Settings(repository=repository))
    try:
        return sum(1 for _ in ledger.in_order())
    finally:
        ledger.close()


@pytest.mark.full
def test_what_would_be_decided_follows_the_form_and_is_recorded_nowhere(
    page: Page, gateway: str, repository: Path
) -> None:
    before = recorded(repository)
    panel = opened(page, gateway, "credit", WORST)
    expect(panel.get_by_role("heading", name="What would be decided")).to_be_visible()
    demand_shown(panel, decided(gateway, "credit", WORST, dry_run=True), "Decline")
    expect(panel).to_contain_text("Nothing was recorded")
    panel.get_by_text("All attributions").click()
    expect(panel.get_by_role("row", name=re.compile("^Gap"))).to_be_visible()
    slider = page.get_by_label("Late payments in two years, slider")
    slider.focus()
    page.keyboard.press("Home")
    moved = {**WORST, "late_payments_2y": 0}
    expect(panel.get_by_role("row", name=re.compile("^Late payments")).locator("td")).to_contain_text("−")
    demand_shown(panel, decided(gateway, "credit", moved, dry_run=True), "Decline")
    expect(panel.get_by_role("row", name=re.compile("^Gap"))).to_be_visible()  # it stays open
    page.wait_for_function("() => location.hash.includes('late_payments_2y%22%3A0')")
    demand_accessible(page)
    assert recorded(repository) == before


@pytest.mark.full
def test_a_reason_writes_its_numbers_as_the_page_does(page: Page, gateway: str) -> None:
    row = {**WORST, "loan_amount": 60000, "income": 12000, "late_payments_2y": 0, "recent_inquiries": 0}
    panel = opened(page, gateway, "credit", row)
    expect(panel.locator(".reasons")).to_contain_text("60,000")
    expect(panel.locator(".reasons")).to_contain_text("12,000")


def test_a_decision_is_recorded_after_a_second_word_and_is_told_and_replayed(
    page: Page, gateway: str, repository: Path
) -> None:
    before = recorded(repository)
    panel = opened(page, gateway, "credit", WORST)
    page.get_by_role("button", name="Decide and record …").click()
    expect(page.get_by_role("button", name="Decide, and record it")).to_be_focused()
    page.get_by_role("button", name="Leave it").click()
    page.get_by_role("button", name="Decide and record …").click()
    page.keyboard.press("Enter")
    expect(panel.get_by_role("heading", name="Decided, and recorded")).to_be_visible()
    assert recorded(repository) == before + 1
    page.wait_for_function("() => location.hash.includes('decision=')")
    decision_id = parse_qs(urlsplit(page.url).fragment)["decision"][0]
    stored = patient.get(f"{gateway}/v1/decisions/{decision_id}").json()
    assert (stored["instance"], stored["answer"]["decision"]) == (WORST, "decline")
    demand_shown(panel, stored["answer"], "Decline")

    replay = page.get_by_label("Replay", exact=True)
    replay.get_by_role("button", name="Compute it again").click()
    expect(replay).to_contain_text("The same decision, on the same runtime: equal bit for bit.")

    notice = page.get_by_label("Notice", exact=True)
    for name, text in LENDER.items():
        notice.locator(f'[name="{name}"]').fill(text)
    notice.get_by_role("button", name="Write the notice").click()
    expect(notice.locator(".problem")).to_have_text("Still missing: Consumer report")
    expect(notice.get_by_label("Consumer report")).to_be_focused()
    notice.get_by_label("Consumer report").select_option("none")
    notice.get_by_role("button", name="Write the notice").click()
    letter = notice.locator(".letter")
    expect(letter).to_contain_text(models.SCRIPT)
    for reason in stored["answer"]["reasons"]:
        expect(letter).to_contain_text(f"- {reason['text']}")
    expect(letter).to_contain_text(f"Reference: {decision_id}")
    with page.expect_download() as download:
        notice.get_by_role("link", name="Save it as a file").click()
    assert Path(download.value.path()).read_text() == letter.inner_text()
    demand_accessible(page)


def test_a_notice_begins_with_nothing_of_another_applicant(page: Page, gateway: str) -> None:
    """What a lender wrote of itself stays; of an applicant, and of a report on one, nothing does."""
    first, second = (decided(gateway, "credit", WORST)["id"] for _ in "12")
    opened(page, gateway, "credit", decision=first)
    notice = page.get_by_label("Notice", exact=True)

    def entries() -> dict[str, Locator]:
        for choice in ("consumer_report", "consumer_report.credit_score"):
            notice.locator(f'select[name="{choice}"]').select_option("some")
        fields = notice.locator("input[name], textarea[name]").all()
        return {str(field.get_attribute("name")): field for field in fields}

    for name, field in entries().items():
        field.fill(f"of {name}")
    page.get_by_label("Its id").fill(second)
    page.get_by_label("Its id").press("Enter")
    expect(page.get_by_label("The decision", exact=True)).to_contain_text(second)
    found = {name: field.input_value() for name, field in entries().items()}
    kept = {name for name, value in found.items() if value}
    assert kept == {name for name in found if name.split(".")[0] in ("creditor", "agency", "application")}
    assert {"applicant.name", "consumer_report.agency.name", "consumer_report.credit_score.factors"} <= {
        *found
    }


@pytest.mark.full
def test_an_old_decision_by_its_id(page: Page, gateway: str) -> None:
    answer = decided(gateway, "credit", WORST)
    opened(page, gateway, "judged")
    field = page.get_by_label("Its id")
    field.fill("nothing")
    field.press("Enter")
    expect(page.get_by_role("alert").first).to_contain_text("An id has 32 digits and letters")
    field.fill(f" {answer['id']} ")
    field.press("Enter")
    panel = page.get_by_label("The decision", exact=True)
    expect(panel.get_by_role("heading", name="The decision, as it was answered")).to_be_visible()
    demand_shown(panel, answer, "Decline")
    expect(panel.locator(".warning")).to_contain_text("It belongs to the model credit, not to judged.")
    panel.get_by_role("link", name="Go there").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Decisions of credit")
    expect(panel).to_contain_text("a caller without a key")
    panel.get_by_text("Decided inputs").click()
    expect(panel.get_by_role("row", name="Income 24,500")).to_be_visible()
    panel.get_by_role("button", name="Put these values into the form").click()
    expect(panel.get_by_role("heading", name="What would be decided")).to_be_visible()
    assert float(page.get_by_label("Income", exact=False).first.input_value()) == WORST["income"]


@pytest.mark.full
def test_how_sure_reasons_are_and_hostile_texts(page: Page, gateway: str) -> None:
    row = {"a": 1.0, "b": 1.5, "c": 0.2, "bankruptcies <i>": None}
    panel = opened(page, gateway, "judged", row)
    answer = decided(gateway, "judged", row, dry_run=True, stability=True)
    demand_shown(panel, answer, "Decline")
    survival = {reason["code"]: reason["survival"] for reason in answer["reasons"]}
    assert {each["all_applicants"] for each in survival.values()} == {True, False}
    for item in panel.locator(".reasons > li").all():
        stays = survival[item.locator(".code").inner_text()]
        expect(item.locator(".sure")).to_contain_text(
            "stays by all applicants" if stays["all_applicants"] else "is no reason by all applicants"
        )
        expect(item.locator(".sure")).to_contain_text("of the draws of references")
    expect(panel).to_contain_text(f"Too much {models.IMAGE}")
    expect(panel).to_contain_text(f"Title {models.SCRIPT}")
    page.get_by_label(
        re.compile("Show which reasons stay with other references: all applicants, 4 draws")
    ).uncheck()
    expect(panel.locator(".sure")).to_have_count(0)
    page.get_by_label("bankruptcies <i>").first.fill("1")
    page.get_by_label("bankruptcies <i>").first.press("Enter")
    expect(panel.locator(".reasons .text")).to_have_text(["Bankruptcy"])
    expect(panel.locator(".reasons .number")).to_have_text("a rule of its own")
    demand_accessible(page)


@pytest.mark.full
def test_a_referred_one_is_told_with_a_persons_reasons(page: Page, gateway: str) -> None:
    referred = decided(gateway, "judged", {"a": 0.1, "b": 0.1, "c": 0.1, "bankruptcies <i>": 0})
    panel = opened(page, gateway, "judged", decision=referred["id"])
    expect(panel.locator(".outcome")).to_have_text("Refer to a person")
    notice = page.get_by_label("Notice", exact=True)
    notice.get_by_label("Template").select_option("eu-consumer-credit")
    for name, text in LENDER.items():
        if not name.startswith("agency"):
            notice.locator(f'[name="{name}"]').fill(text)
    notice.locator('[name="creditor.contact"]').fill("4 Back Street")
    notice.locator('[name="contest"]').fill("by letter")
    notice.locator('[name="database"]').select_option("none")
    notice.locator('[name="debt_advice"]').select_option("some")
    notice.get_by_label("From whom").fill("The advisers")
    notice.get_by_role("button", name="Write the notice").click()
    expect(notice.locator(".problem")).to_have_text("Still missing: Reasons of the person")
    notice.locator('[name="judgment"]').fill("Short employment\n\n")
    notice.get_by_role("button", name="Write the notice").click()
    expect(notice.locator(".letter")).to_contain_text("- Short employment")
    expect(notice.locator(".letter")).to_contain_text("Advice on debt is available from: The advisers")


@pytest.mark.full
def test_without_a_profile_and_without_the_scopes(
    repository: Path, tmp_path: Path, page: Page, gateway: str, watch: Callable[[str], Watched]
) -> None:
    opened(page, gateway, "words")
    expect(page.locator("main")).to_contain_text("The model has no decision profile")
    tokens = key_file(tmp_path, analyst="explain", desk="explain decide", officer="explain decide audit")
    with both_ends("--repository", str(repository), "--keys-file", str(tmp_path / "keys.toml")) as ends:
        url = f"http://{ends['http']}"
        watched = watch(url)
        watched.may_be_refused = True
        other = watched.page

        def as_(name: str) -> None:
            other.goto("about:blank")
            other.goto(f"{url}/console/")
            other.evaluate(f"sessionStorage.setItem('rationale.key', '{tokens[name]}')")
            other.goto("about:blank")
            opened(other, url, "credit", WORST)

        as_("analyst")
        expect(other.get_by_role("alert").first).to_contain_text("key 'analyst' lacks the scope decide")
        as_("desk")
        expect(other.get_by_role("region", name="The decision").locator(".outcome")).to_have_text("Decline")
        other.get_by_role("button", name="Decide and record …").click()
        other.get_by_role("button", name="Decide, and record it").click()
        expect(other.get_by_role("heading", name="Decided, and recorded")).to_be_visible()
        other.get_by_role("button", name="Compute it again").click()
        expect(other.get_by_label("Replay", exact=True)).to_contain_text("a key that has the scope audit")
        decision_id = other.get_by_label("Its id").input_value()
        as_("officer")
        other.get_by_label("Its id").fill(decision_id)
        other.get_by_role("button", name="Show it").click()
        expect(other.get_by_label("The decision", exact=True)).to_contain_text("Asked bydesk")


@pytest.mark.full
def test_by_the_keyboard_alone_and_narrow(page: Page, gateway: str) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(color_scheme="dark")
    panel = opened(page, gateway, "credit", WORST)
    expect(panel.locator(".outcome")).to_have_text("Decline")
    income = page.get_by_label("Income", exact=False).first
    now = page.locator(".decisions .now")  # in sight above the sliders
    expect(now).to_be_in_viewport()
    expect(now).to_have_text(
        f"Decline score {panel.locator('.score-text').text_content().removeprefix('score ')}"
    )
    income.fill("a lot")
    income.press("Enter")
    expect(now).to_be_hidden()
    expect(now).to_have_text("")
    income.fill(str(WORST["income"]))
    income.press("Enter")
    expect(now).to_be_visible()
    page.locator("body").click(position={"x": 1, "y": 1})
    for name, most in (("Decide and record …", 80), ("Decide, and record it", 5), ("Compute it again", 30)):
        for _ in range(most):
            if page.evaluate("document.activeElement.textContent") == name:
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_timeout(100)
    expect(page.get_by_label("Replay", exact=True)).to_contain_text("The same decision")
    press_until(page, '[name="template"]')
    demand_accessible(page)
    demand_no_sideways(page)


def test_the_texts_of_the_example_are_its_profiles(gateway: str) -> None:
    """What the other tests compare with is not empty."""
    answer = decided(gateway, "credit", WORST, dry_run=True)
    assert len(answer["reasons"]) == 4
    assert answer["reasons"][0]["text"] == "Delinquent credit obligations"


def in_two_languages(text: str) -> dict[str, str]:
    """Return a text, and a German one that cannot be taken for it."""
    return {"en": text, "de": f"{text[::-1]} – auf Deutsch"}


def test_a_notice_in_another_language_with_plans(watch: Callable[[str], Watched], tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "examples" / "credit"
    profile = yaml.safe_load((folder / "decision.yaml").read_text())
    texts = ("title", "unit")
    for rule in profile["features"].values():
        rule.update({key: in_two_languages(rule[key]) for key in texts if key in rule})
    reasons = {
        code: {"text": text} if isinstance(text, str) else text for code, text in profile["reasons"].items()
    }
    profile["reasons"] = {
        code: {**rule, "text": in_two_languages(rule["text"])} for code, rule in reasons.items()
    }
    profile |= {"languages": ["en", "de"], "notice": {"recourse": True}}
    references = DeepShap(pd.read_csv(folder / "near_threshold.csv"))
    compile_model(folder / "credit.onnx", references, decision=profile).write(tmp_path / "models", "credit")
    rows = pd.read_csv(folder / "near_threshold.csv").head(40).assign(utilisation=0.9).to_dict("records")
    with both_ends("--repository", str(tmp_path / "models")) as ends:
        gateway = f"http://{ends['http']}"
        answers = ((row, decided(gateway, "credit", row, recourse=True)) for row in rows)
        row, decision = next(
            (row, each)
            for row, each in answers
            if each["decision"] == "decline" and each["recourse"]["plans"]
        )
        page = watch(gateway).page
        opened(page, gateway, "credit", decision=decision["id"])
        notice = page.get_by_label("Notice", exact=True)
        for name, text in LENDER.items():
            notice.locator(f'[name="{name}"]').fill(text)
        notice.get_by_label("Consumer report").select_option("none")
        notice.get_by_label("Language").select_option(label="German")
        notice.get_by_role("button", name="Write the notice").click()
        letter = notice.locator(".letter")
        expect(letter).to_contain_text("MITTEILUNG ÜBER DIE ENTSCHEIDUNG")
        expect(letter).to_contain_text("keine Zusage")
        assert letter.get_attribute("lang") == "de"
        for reason in decision["reasons"]:
            expect(letter).to_contain_text(in_two_languages(reason["text"])["de"])
            expect(letter).not_to_contain_text(reason["text"])
        demand_accessible(page)
        notice.get_by_label("Language").select_option("en")
        expect(letter).to_have_count(0)  # it is of another choice
        notice.get_by_role("button", name="Write the notice").click()
        expect(letter).to_contain_text("no promise")
        expect(letter).to_contain_text(decision["reasons"][0]["text"])

        panel = opened(page, gateway, "credit", row)  # decided now: the page asks for its languages
        expect(panel.get_by_role("heading", name="What would be decided")).to_be_visible()
        page.get_by_role("button", name="Decide and record …").click()
        page.keyboard.press("Enter")
        expect(page.get_by_label("Language")).to_have_value("en")
