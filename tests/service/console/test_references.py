"""The references: sets, how their values are spread, and how attributions move between two of them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page, expect

from tests.service import patient
from tests.service.child import both_ends
from tests.service.console import models
from tests.service.console.conftest import (
    Watched,
    demand_accessible,
    demand_no_sideways,
    press_until,
)
from tests.service.security.test_keys import key_file

NAME = "all-approved"
APPROVED = models.CREDIT / "references.csv"
MOVES = "[aria-label='Attributions with both sets']"

PATIENT_MS = 30_000  # of a busy machine

expect.set_options(timeout=PATIENT_MS)


@pytest.fixture(scope="module")
def set_name(gateway: str) -> Iterator[str]:
    """The name of a set that is kept for `credit`."""
    url = f"{gateway}/v2/reference-sets/{NAME}"
    headers = {"Content-Type": "text/csv"}
    answer = patient.put(f"{url}?model=credit", content=APPROVED.read_bytes(), headers=headers)
    assert answer.status_code == 201, answer.text
    yield NAME
    patient.delete(f"{url}?force=true")


def applicant() -> dict[str, Any]:
    actual: dict[str, Any] = json.loads((models.CREDIT / "applicants.json").read_text())["instances"][1]
    return actual


def opened(page: Page, gateway: str, **more: str) -> None:
    query = "&".join(f"{key}={value}" for key, value in {"model": "credit", **more}.items())
    page.goto(f"{gateway}/console/#references?{query}")
    expect(page.locator(f"{MOVES} tbody tr").first).to_be_visible(timeout=60_000)


@pytest.mark.full
def test_two_sets_beside_each_other(page: Page, gateway: str, set_name: str) -> None:
    row = applicant()
    opened(page, gateway, row=json.dumps(row), second=set_name)
    sets = page.locator("[aria-label='Reference sets'] tbody tr")
    assert sets.locator("th").all_inner_texts() == ["of the explanation", set_name]
    digest = patient.get(f"{gateway}/v2/reference-sets/{set_name}").json()["digest"]
    expect(sets.nth(1)).to_contain_text(digest[:12])
    expect(sets.nth(1)).to_contain_text("100")
    assert page.locator(".spreads figure").count() == 10
    values = pd.read_csv(APPROVED)["income"]
    label = page.locator(".spreads svg").first.get_attribute("aria-label")
    assert f"the second set: median {values.quantile(0.5, interpolation='lower'):,.0f}" in label
    assert f"to {values.max():,.0f}" in label
    assert "the row has 24,500" in label

    def explained(**more: str) -> dict[str, float]:
        body = {"instances": [row], **more}
        answer = patient.post(f"{gateway}/v1/models/credit:explain", json=body)
        attributions: dict[str, float] = answer.json()["explanations"][0]["attributions"]
        return attributions

    by_default, other = explained(), explained(reference_set=set_name)
    titles = {
        each["name"]: each.get("title", each["name"])
        for each in patient.get(f"{gateway}/v1/models/credit/features").json()["features"]
    }
    shown = {
        cells[0]: cells[1:4]
        for cells in (
            tr.locator("th, td").all_inner_texts() for tr in page.locator(f"{MOVES} tbody tr").all()
        )
    }
    for name in by_default:
        shares = [float(cell.replace("−", "-")) / 100 for cell in shown[titles[name]]]
        np.testing.assert_allclose(
            shares, [by_default[name], other[name], other[name] - by_default[name]], atol=6e-4
        )
    demand_accessible(page)
    page.set_viewport_size({"width": 360, "height": 800})
    demand_no_sideways(page)
    demand_accessible(page)


@pytest.mark.full
def test_sets_are_chosen_by_the_keyboard_and_stay_in_the_address(
    page: Page, gateway: str, set_name: str
) -> None:
    opened(page, gateway)
    press_until(page, "#second-set")
    page.keyboard.type(set_name[:3])
    expect(page.locator(f"{MOVES} thead")).to_contain_text(set_name)
    assert f"second={set_name}" in page.url
    page.reload()
    expect(page.locator(f"{MOVES} thead")).to_contain_text(set_name)


@pytest.mark.full
def test_300_features_are_searched_and_the_largest_are_listed(page: Page, gateway: str) -> None:
    page.goto(f"{gateway}/console/#references?model=many")
    expect(page.locator(f"{MOVES} tbody tr").first).to_be_visible(timeout=60_000)
    assert page.locator(f"{MOVES} tbody tr").count() == 2 + 40  # with the base value and the score
    expect(page.locator(".spreads figure:visible")).to_have_count(300)
    page.get_by_label("Search features").fill("feature_29")
    expect(page.locator(".spreads figure:visible")).to_have_count(10)
    assert page.evaluate("document.documentElement.scrollHeight") < 4000


def test_beside_an_array_features_are_shown_and_no_row_is_asked_for(page: Page, gateway: str) -> None:
    page.goto(f"{gateway}/console/#references?model=two_inputs")
    expect(page.locator(".spreads figcaption")).to_have_text(["age", "debts"])
    expect(page.locator(MOVES)).to_have_text(
        "No form can fill in history: this view cannot explain rows of this model."
    )
    expect(page.get_by_role("link", name="Choose a row")).to_have_count(0)  # Explain shows no such model


def test_words_are_told_by_their_shares(page: Page, gateway: str) -> None:
    opened(page, gateway, model="words")
    shares = models.table(400)["housing"][:60].value_counts(normalize=True)
    shown = page.locator(".spreads figure", has_text="housing").locator("li")
    texts = dict(
        zip(shown.locator(".name").all_inner_texts(), shown.locator(".number").all_inner_texts(), strict=True)
    )
    assert {name.split("\n")[0]: float(share[:-1]) / 100 for name, share in texts.items()} == pytest.approx(
        shares.to_dict(), abs=1e-3
    )


@pytest.mark.full
def test_hostile_names_are_text(page: Page, gateway: str) -> None:
    opened(page, gateway, model="hostile.model")
    names = [
        name.replace("\\u202e", "\u202e") for name in page.locator(".spreads figcaption").all_inner_texts()
    ]
    assert names == [*models.HOSTILE, "kind"]
    assert page.locator("main :is(script, iframe, b, img)").count() == 0


@pytest.mark.full
def test_sets_are_shown_to_administrators(
    repository: Path, tmp_path: Path, watch: Callable[[str], Watched]
) -> None:
    tokens = key_file(tmp_path, analyst="explain")
    with both_ends("--repository", str(repository), "--keys-file", str(tmp_path / "keys.toml")) as ends:
        url = f"http://{ends['http']}"
        watched = watch(url)
        watched.may_be_refused = True
        page = watched.page
        page.goto(f"{url}/console/")
        page.get_by_label("Key", exact=True).fill(tokens["analyst"])
        page.get_by_role("button", name="Go on").click()
        opened(page, url)
        expect(page.locator("[aria-label='Reference sets']")).to_contain_text("keys with the scope admin")
        assert page.locator(".spreads figure").count() == 10


@pytest.mark.full
def test_a_histogram_follows_its_quantiles(page: Page, gateway: str) -> None:
    page.goto(f"{gateway}/console/#references?model=credit")
    values = np.random.default_rng(0).lognormal(size=4000)
    quantiles = np.quantile(values, np.linspace(0, 1, 21), method="inverted_cdf").tolist()
    result = page.evaluate(
        """async ({quantiles, from, to}) => {
          const {histogram} = await import("./pictures/spread.js");
          return [histogram(quantiles, from, to, 12), histogram([0, 0, 0, 1, 1], -0.5, 1.5, 2)];
        }""",
        {"quantiles": quantiles, "from": quantiles[0], "to": quantiles[-1]},
    )
    expected, _ = np.histogram(values, bins=12)
    np.testing.assert_allclose(result[0], expected / len(values), atol=0.05)
    assert sum(result[0]) == pytest.approx(1)
    assert result[1] == pytest.approx([0.625, 0.375])
