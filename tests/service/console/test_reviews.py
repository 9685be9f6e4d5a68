"""The console's panel of contests and reviews: it shows what the API has, and its forms do what they say."""

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from tests.service import patient
from tests.service.console.conftest import Watched, demand_accessible, demand_no_sideways
from tests.service.console.test_decisions import decided, opened
from tests.service.console.test_explain import WORST


def history(gateway: str, decision: str) -> dict[str, Any]:
    answer = patient.get(f"{gateway}/v1/decisions/{decision}:history")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_decision_is_contested_corrected_and_judged(watch: Callable[[str], Watched], gateway: str) -> None:
    watched = watch(gateway)
    watched.may_be_refused, page = True, watched.page  # a decline without a reason
    first = decided(gateway, "credit", WORST, application_ids=["A-<b>1"])
    opened(page, gateway, "credit", decision=first["id"])
    panel = page.get_by_label("Contests and reviews")
    expect(panel).to_contain_text("Decided")
    page.get_by_label("Or the application’s own id").fill("A-<b>1")
    page.get_by_role("button", name="List them").click()
    expect(page.locator(".found > li")).to_have_count(1)

    panel.get_by_text("The applicant contests it").click()
    panel.get_by_label("What the applicant says").fill("<b>Not</b> mine")
    panel.get_by_role("button", name="Record the contest").click()
    expect(panel.locator("blockquote")).to_have_text("<b>Not</b> mine")
    expect(panel).to_contain_text("a person has to review it by")
    assert history(gateway, first["id"])["state"] == "contested"

    panel.get_by_text("Correct its inputs").click()
    correct = panel.locator("details", has_text="Correct its inputs")
    correct.get_by_label("Who reviews it").fill("M. Officer")
    correct.get_by_label("Late payments in two years").fill("0")
    correct.get_by_role("button", name="Decide again, and record it").click()
    expect(page.get_by_text("What differs from the first decision")).to_be_visible()
    told = history(gateway, first["id"])
    assert (told["events"][-1]["reviewer"], told["events"][-1]["kind"]) == ("M. Officer", "decision")
    corrected = patient.get(f"{gateway}/v1/decisions/{told['standing']}").json()
    assert corrected["instance"] == {**WORST, "late_payments_2y": 0}

    panel.get_by_text("Judge the case").click()
    judge = panel.locator("details", has_text="Judge the case")
    judge.get_by_label("Who reviews it").fill("M. Officer")
    judge.get_by_label(re.compile("^Decision")).select_option("decline")
    judge.get_by_role("button", name="Record the judgment").click()
    expect(panel.get_by_role("alert")).to_contain_text("at least one")
    judge.get_by_label(re.compile("Reasons")).fill("R05: Confirmed\nIt stays")
    judge.get_by_role("button", name="Record the judgment").click()
    expect(panel.locator(".events > li")).to_have_count(4)
    expect(panel.locator(".events > li").last).to_contain_text("Decline, judged by M. Officer · holds")
    reasons = [{"code": "R05", "text": "Confirmed"}, {"code": None, "text": "It stays"}]
    assert history(gateway, first["id"])["events"][-1]["reasons"] == reasons
    expect(page.get_by_role("heading", name="Notice")).to_be_visible()
    demand_accessible(page)
    demand_no_sideways(page)
