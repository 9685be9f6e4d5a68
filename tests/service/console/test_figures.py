"""Every figure that a page shows is the API's number, to the digits that are shown.

The first test holds the writers to numbers without a browser; the others read pages in the console and
exported: of a perceptron with a profile, trees with a band, euros in millions, five classes and words, and of
digits, tokens, an array and two inputs.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Locator, Page, expect
from scipy.stats import binomtest
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from benchmarks.console.portfolio import drop
from rationale import ExactShap, TreeShap, compile_model
from rationale.decisions.decide import outcome_of
from rationale.export.page import export_page
from rationale.schema.profile import DecisionProfile, as_profile
from tests.compiler.export.test_page import fill
from tests.needs import need
from tests.service import patient
from tests.service.child import both_ends
from tests.service.console import media, models
from tests.service.console.conftest import Watched
from tests.service.console.node import in_node
from tests.service.console.test_explain import drawn, effects, figure, number
from tests.service.console.test_media import explained

KINDS = ("credit", "banded", "euros", "five", "words")
FIGURE = re.compile(r"(?<![\w.,\[])[+−-]?\d[\d,]*(?:\.\d+)?(?:e[+−-]?\d+)?%?(?![\w\]])")
TEXTS = """(root, left) => {
  const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement;
    if (!parent.closest(left) && parent.checkVisibility()) found.push(walk.currentNode.textContent);
  }
  return found;
}"""

Row = Mapping[str, Any]


# --- the writers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-7, 0.02, 1.0, 300.0, 4e4, 3e6, 2e9])
def test_written_figures_are_the_numbers(size: float) -> None:
    """In the waterfall, and in the line above it with no more decimals; up to 1 they are shares too."""
    for is_share in {False, size <= 1}:
        demand_written(np.random.default_rng(1), size, is_share)


def demand_written(random: np.random.Generator, size: float, is_share: bool) -> None:
    cases = []
    for _ in range(100):
        amounts = (random.normal(size=6) * 10.0 ** random.uniform(-5, 0, 6) * (size / 4)).tolist()
        base = float(random.uniform(0.2, 0.5) * size)
        cases.append({"items": amounts, "base": base, "value": base + sum(amounts), "threshold": 0.4 * size})
    script = """return given.cases.map(({items, base, value, threshold}) => {
      const write = own.writers(items, [base, value], given.isShare);
      const named = items.map((amount, i) => ({name: "abcdef"[i], amount}));
      const told = {score: value, value, base, threshold, items: named, write, isShare: given.isShare};
      return {
        texts: [...items.map(write.effect), write.value(base), write.value(value)],
        line: own.summaryOf(told),
        alone: [base, value, threshold].map((one) => (given.isShare ? own.percent(one) : own.number(one))),
      };
    });"""
    written = in_node(["format.js", "pictures/summary.js"], script, {"cases": cases, "isShare": is_share})
    for case, actual in zip(cases, written, strict=True):
        *shown, base, value = actual["texts"]
        for text, amount in zip(shown, case["items"], strict=True):
            assert amount == figure(text, is_share), (text, amount)
        assert [case["base"], case["value"]] == [figure(base), figure(value)]
        assert len({_decimals(text) for text in actual["texts"]}) == 1
        ends = (case["base"], case["value"], case["threshold"])
        assert [figure(text) for text in actual["alone"]] == [*ends]
        head, _, mainly = actual["line"].partition("; mainly: ")
        score, apart = head.split(", ", 1)
        assert score == actual["alone"][1]
        assert abs(case["value"] - case["threshold"]) == figure(apart.split(" ")[0], is_share)
        for name, text in re.findall(r"([a-f]), ([+−]\S+?)(?=;| points|$)", mainly):
            i = "abcdef".index(name)
            assert case["items"][i] == figure(text, is_share)
            assert _decimals(text) <= _decimals(shown[i]) or "e" in text


def _decimals(text: str) -> int:
    return len(text.rstrip("%").partition("e")[0].partition(".")[2])


# --- whole pages ------------------------------------------------------------------------------------------


def banded(folder: Path) -> None:
    """Boosted trees with a band of scores that a person decides; a feature has words and a unit."""
    people = (
        models.table(400, seed=1).drop(columns="purpose").assign(housing=lambda t: t["housing"] == "rent")
    )
    people = people.astype(np.float32)
    risk = people["amount"] / 4000 + people["housing"] - people["age"] / 40
    model = HistGradientBoostingClassifier(max_iter=20, max_depth=3, random_state=0)
    profile = {
        "output": "probabilities[1]",
        "threshold": 0.5,
        "refer": [0.3, 0.6],
        "adverse": "above",
        "features": {
            "age": {"title": "Age", "unit": "years", "reason": "A"},
            "amount": {"title": "Amount of the loan", "unit": "EUR", "reason": "L"},
            "housing": {"title": "Housing", "categories": {"0": "owns", "1": "rents"}, "reason": "H"},
        },
        "reasons": {"A": "Age", "L": "Amount", "H": "Housing"},
    }
    fitted = model.fit(people, risk > risk.median())
    compile_model(fitted, TreeShap(people[:60]), decision=profile).write(folder, "banded")


def euros(folder: Path) -> None:
    """Prices in millions, of effects from some cents to hundreds of thousands."""
    random = np.random.default_rng(2)
    houses = pd.DataFrame(
        {
            "area": random.uniform(40, 400, 200).round(1),
            "rooms": random.integers(1, 9, 200).astype(float),
            "metres_to_tram": random.uniform(10, 2000, 200).round(),
        }
    )
    price = 9_000 * houses["area"] + 30_000.55 * houses["rooms"] - 0.017 * houses["metres_to_tram"]
    model = Ridge(alpha=1e-6).fit(houses, price + 450_000)
    compile_model(model, ExactShap(houses[:30])).write(folder, "euros")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "model_repository"
    tables = (models.credit, banded, euros, models.five, models.words)
    for make in (*tables, media.digits, media.reviews, media.array, media.two_inputs):
        make(folder)
    return folder


@pytest.fixture(scope="module")
def gateway(repository: Path) -> Iterator[str]:
    with both_ends("--repository", str(repository)) as ends:
        yield f"http://{ends['http']}"


class Answers:
    """What the API says of a model, and of some rows."""

    def __init__(self, gateway: str, model: str) -> None:
        self.url, self.model = f"{gateway}/v1/models/{model}", model
        self.told = patient.get(f"{self.url}/features").json()
        self.titles = {
            feature["name"]: feature.get("title", feature["name"]) for feature in self.told["features"]
        }
        self.decides = "decision" in self.told
        self.is_share = self.told["output"] in self.told["probabilities"]

    def rows(self, count: int) -> list[dict[str, Any]]:
        """Return the row that the form begins with, and others of the references' quantiles."""
        random, fields = np.random.default_rng(4), self.told["features"]
        drawn = [
            {
                field["name"]: random.choice(field.get("quantiles") or field["choices"]).item()
                for field in fields
            }
            for _ in range(count - 1)
        ]
        return [{field["name"]: field["begin"] for field in fields}, *drawn]

    def answers_of(self, verb: str, rows: Sequence[Row], **more: Any) -> dict[str, Any]:
        answer = patient.post(f"{self.url}:{verb}", json={"instances": rows, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def explanation(self, row: Row, target: int = 0) -> dict[str, Any]:
        (actual,) = self.answers_of("explain", [row])["explanations"]
        return actual["targets"][target] if "targets" in actual else actual

    def decision(self, row: Row) -> dict[str, Any]:
        (actual,) = self.answers_of("decide", [row], dry_run=True)["decisions"]
        return actual

    def scores(self, rows: Sequence[Row], target: int = 0) -> list[float]:
        """What is held against the threshold; without one, what is explained."""
        if self.decides:
            return [
                decision["score"] for decision in self.answers_of("decide", rows, dry_run=True)["decisions"]
            ]
        actual = self.answers_of("explain", rows)["explanations"]
        return [
            decision["targets"][target]["explained_value"]
            if "targets" in decision
            else decision["explained_value"]
            for decision in actual
        ]


def numbers_in(answer: Any) -> Iterator[float]:
    """Yield all numbers of an answer."""
    if isinstance(answer, Mapping):
        answer = answer.values()
    if isinstance(answer, bool | str | None):
        return
    if isinstance(answer, Iterable):
        for piece in answer:
            yield from numbers_in(piece)
    elif math.isfinite(answer):
        yield answer


def demand_known(
    place: Locator, known_values: Iterable[float], points: bool, left_out: str = "[data-nothing]"
) -> int:
    """Assert that each figure of the place is a known number to the digits shown; return how many there are.

    Args:
        points: figures without % may be of percentage points, too.
        left_out: what is left out.
    """
    numbers = [*known_values]
    result = [(text, each) for text in place.evaluate(TEXTS, left_out) for each in FIGURE.findall(text)]
    for text, each in result:
        expected = [figure(each), figure(each, points)]
        assert any(
            abs(number_item) == value or number_item == value for value in expected for number_item in numbers
        ), (each, text)
    return len(result)


def demand_waterfall(place: Locator, answers: Answers, expected: dict[str, Any], score_name: str) -> None:
    """Assert that the place shows an explanation: its rows, its axis, and the line above."""
    shown = effects(place)
    assert expected["base_value"] == shown.pop("base value")
    assert expected["explained_value"] == shown.pop(score_name)
    titled = {answers.titles[name]: amount for name, amount in expected["attributions"].items()}
    assert titled == shown
    by_size = sorted(titled.values(), key=abs, reverse=True)
    assert by_size == list(shown.values())
    threshold = answers.told["decision"]["threshold"] if answers.decides else None
    ends = {
        "base value": expected["base_value"],
        score_name: expected["explained_value"],
        "threshold": threshold,
    }
    labels = place.locator(".axis .line").all_inner_texts()
    assert len(labels) == 2 + answers.decides
    for label in labels:
        name, _, text = label.rpartition(" ")
        assert ends[name] == figure(text), label


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_explain(page: Page, gateway: str, kind: str) -> None:
    answers = Answers(gateway, kind)
    for row, target in [
        *((row, 0) for row in answers.rows(3)),
        *((row, 3) for row in answers.rows(2)[: kind == "five"]),
    ]:
        page.goto("about:blank")
        page.goto(f"{gateway}/console/#explain?model={kind}&target={target}&row={quote(json.dumps(row))}")
        drawn(page)
        expected, (score,) = answers.explanation(row, target), answers.scores([row], target)
        panel = page.locator(".answers")
        demand_waterfall(panel, answers, expected, "score")
        assert score == figure(page.locator("#score").inner_text())
        rule = answers.told.get("decision", {})
        apart = (
            [score - rule["threshold"]] if rule else [expected["explained_value"] - expected["base_value"]]
        )
        known_values = [
            *numbers_in([expected, score, rule, answers.answers_of("explain", [row]), row]),
            *apart,
        ]
        count = demand_known(panel, known_values, answers.is_share, ".foot, .classes caption")
        assert count >= len(row) * 2 + 4
        assert demand_known(page.locator(".summary"), [*known_values, target], answers.is_share) >= 2
        flips = demand_changes(page, answers, row) if rule else []
        fields = [*numbers_in(answers.told["features"]), *flips]
        assert demand_known(page.locator(".fields"), fields, False, "label, option") >= 2 * sum(
            "choices" not in feature for feature in answers.told["features"]
        )


def demand_changes(page: Page, answers: Answers, row: Row) -> list[float]:
    """Assert that changed rows are decided as the page says; return the flip points' values."""
    fields = {feature.get("title", feature["name"]): feature for feature in answers.told["features"]}
    collected = []
    for line in page.locator("table.changes tbody tr").all():
        field = fields[line.locator("th").inner_text()]
        labels = {label: key for key, label in field.get("value_labels", {}).items()}
        now, turned = (line.locator(css).first.inner_text() for css in ("td", "strong"))
        now, turned = (labels.get(text, text.split(" ")[0]) for text in (now, turned))
        assert row[field["name"]] == figure(now)
        collected.append(number(turned))
        to = answers.decision({**row, field["name"]: collected[-1]})["decision"]
        expect(line.locator("[data-name='new decision']")).to_have_text(to)
    return collected


@pytest.mark.full
@pytest.mark.parametrize("kind", ["credit", "banded"])
def test_decisions(page: Page, gateway: str, kind: str) -> None:
    answers = Answers(gateway, kind)
    outcomes = set()
    for row in answers.rows(6):
        page.goto("about:blank")
        page.goto(f"{gateway}/console/#decisions?model={kind}&row={quote(json.dumps(row))}")
        expected = answers.decision(row)
        outcomes.add(expected["decision"])
        panel = page.get_by_label("The decision", exact=True)
        expect(panel.locator("details")).to_have_count(3)
        panel.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
        score, threshold, *_ = FIGURE.findall(panel.locator(".gauge").get_attribute("aria-label") or "")
        assert (expected["score"], expected["threshold"]) == (figure(score), figure(threshold))
        shares = panel.locator(".reasons .head .number").all_inner_texts()
        assert [reason["share"] for reason in expected["reasons"]] == [figure(text) for text in shares]
        on = panel.locator("details", has=page.get_by_text("Decided inputs"))
        words = on.locator("td").all_text_contents()
        assert len(words) == len(row)
        assert kind != "banded" or words[1] == ("rents" if row["housing"] else "owns")
        assert words[0].endswith(f" {answers.told['features'][0]['unit']}")
        total = sum(expected["attributions"].values())
        known_values = [*numbers_in([expected, row, answers.told["decision"]]), total]
        left_out = ".mono, .code, .text"
        assert demand_known(panel, known_values, answers.is_share, left_out) >= len(shares) + 2 * len(row) + 4
        points = answers.is_share
        for name, amount in expected["attributions"].items():
            line = panel.get_by_role("row").filter(
                has=page.get_by_role("rowheader", name=answers.titles[name], exact=True)
            )
            assert amount == figure(line.first.locator("td").first.inner_text(), points)
    assert len(outcomes) > 1


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_portfolio(page: Page, gateway: str, kind: str, tmp_path: Path) -> None:
    """The picked rows, and the mean sizes of attributions."""
    answers = Answers(gateway, kind)
    rows, file = answers.rows(20), tmp_path / "rows.csv"
    pd.DataFrame(rows).to_csv(file, index=False)
    drop(page, gateway, kind, file)
    page.get_by_role("button", name="Pick", exact=True).click()
    lines = page.get_by_role("group", name="Picked rows").locator("tbody tr")
    expect(lines).to_have_count(len(rows))
    explained = [answers.explanation(row) for row in rows]
    scores = answers.scores(rows)
    fields = {feature.get("title", feature["name"]): feature for feature in answers.told["features"]}
    for line in lines.all():
        place, score, largest = line.locator("th, td").all_inner_texts()
        i = int(place) - 1
        assert scores[i] == figure(score)
        for each in largest.split(" · "):
            title, value, amount, unit = re.fullmatch(r"(.+?) = (.*): (\S+)( points)?", each).groups()
            assert bool(unit) == answers.is_share
            field = fields[title]
            labels = {label: key for key, label in field.get("value_labels", {}).items()}
            is_text = field["kind"] == "text"
            shown = value if is_text else figure(labels.get(value, value.split(" ")[0]))
            assert (rows[i][field["name"]], explained[i]["attributions"][field["name"]]) == (
                shown,
                figure(amount, answers.is_share),
            )
    means = pd.DataFrame([feature["attributions"] for feature in explained]).abs().mean()
    bars = page.locator(".weights li")
    for name, mean in zip(
        bars.locator(".name").all_inner_texts(), bars.locator(".number").all_inner_texts(), strict=True
    ):
        assert means[fields[name]["name"]] == figure(mean, answers.is_share), name


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_portfolio(page: Page, gateway: str, kind: str, tmp_path: Path) -> None:
    """Each section's figures, by the answers to 240 rows with outcomes and regions; no text has others."""
    answers, random = Answers(gateway, kind), np.random.default_rng(8)
    rows = answers.rows(240)
    scores = np.array(answers.scores(rows))
    explained = [answers.explanation(row) for row in rows]
    rank = scores.argsort().argsort() / len(rows)
    table = pd.DataFrame(rows).assign(
        region=random.choice(["north", "south", "east"], len(rows)),
        defaulted=(random.uniform(size=len(rows)) < rank).astype(int),
    )
    table.to_csv(tmp_path / "rows.csv", index=False)
    drop(page, gateway, kind, tmp_path / "rows.csv")
    expect(page.locator("#bad option:checked")).to_have_text("1")
    amounts = pd.DataFrame([each["attributions"] for each in explained])
    values = np.array([each["explained_value"] for each in explained])
    told = [len(rows), *demand_rows_beside(page, amounts, values)]
    status = FIGURE.findall(page.locator("#portfolio-status").inner_text().partition(" Read")[0])
    gap = max(
        abs(each["completeness_gap"] or 0) for each in explained
    )  # what float32 leaves, of other batches
    demand_cells([status[0]], [len(rows)], False, "status")
    assert number(status[1]) == pytest.approx(gap, abs=1e-6 * np.abs(values).max())
    demand_cohorts(page, answers, table, scores, amounts)
    told += demand_outcomes(page, answers, table, scores)
    spread = np.linalg.eigvalsh(np.cov(amounts.to_numpy().T))
    told += [spread[-2:].sum() / spread.sum(), 40, 25, 0.95, 95, 0.5]  # of the map; said of the pictures
    left_out = "table, select, label, svg, canvas, .weights, .tip, #portfolio-status"
    assert demand_known(page.locator(".view"), told, answers.is_share, left_out) >= 12


def demand_rows_beside(page: Page, amounts: pd.DataFrame, values: np.ndarray) -> Iterator[float]:
    """Assert that the ends of the map are the API's; yield from which size on its colours are full."""
    at = np.round(np.arange(200) * (len(values) - 1) / 199 + 1e-9).astype(int)
    ends = page.locator("#rows-map svg > text").all_text_contents()[:2]
    for end, text in zip((values[at].max(), values[at].min()), ends, strict=True):
        digits = text.rstrip("KM")
        assert end / {"K": 1e3, "M": 1e6}.get(text[len(digits) :], 1) == figure(digits), text
    sizes = np.sort(np.abs(amounts.to_numpy()[at]).ravel())
    most = sizes[int(0.98 * (sizes.size - 1))]
    yield from (200, most, -most)


def demand_cohorts(
    page: Page, answers: Answers, table: pd.DataFrame, scores: np.ndarray, amounts: pd.DataFrame
) -> None:
    """Assert means of two regions, and normal intervals of 95%."""
    page.select_option("#cohort-by", label="region")
    a, b = (table["region"] == page.locator(f"#cohort-{one}").input_value() for one in "ab")
    assert a.sum() >= b.sum() >= 2

    def told(own: np.ndarray) -> list[float]:
        means, errors = (
            [f(own[one]) for one in (a, b)] for f in (np.mean, lambda x: x.std(ddof=1) / len(x) ** 0.5)
        )
        halves = 1.959963985 * np.array([*errors, np.hypot(*errors)])
        return [n for pair in zip([*means, means[0] - means[1]], halves, strict=True) for n in pair]

    lines = page.locator("[aria-label=Comparison] tbody tr")
    name, *cells = lines.first.locator("th, td").all_inner_texts()
    mean, half = told(scores)[4:]
    demand_cells(cells, [*told(scores), mean - half, mean + half], answers.decides and answers.is_share, name)
    by_title = {answers.titles[name]: amounts[name].to_numpy() for name in amounts}
    assert lines.count() == min(15, len(by_title)) + 1
    for line in lines.all()[1:]:
        name, *cells = line.locator("th, td").all_inner_texts()
        demand_cells(cells, told(by_title[name]), answers.is_share, name)


def demand_cells(cells: Sequence[str], expected: Sequence[float], points: bool, line: str) -> None:
    """Assert the figures of a line of a table, in their order."""
    shown = [each for cell in cells for each in FIGURE.findall(cell)]
    assert len(shown) == len(expected), (line, cells)
    for text, number_item in zip(shown, expected, strict=True):
        assert any(number_item == figure(text, each) for each in {False, points}), (line, text, number_item)


def wilson(part: float, whole: float) -> list[float]:
    """Return a share and its interval of 95% by Wilson."""
    interval = binomtest(int(part), int(whole)).proportion_ci(0.95, "wilson")
    return [part / whole, interval.low, interval.high]


def demand_outcomes(page: Page, answers: Answers, table: pd.DataFrame, scores: np.ndarray) -> list[float]:
    """Assert rates, costs and quality at the threshold; return what is said of it beside."""
    page.select_option("#group", label="region")
    bad, decision = table["defaulted"].to_numpy() == 1, answers.told.get("decision")
    rule = decision or {"threshold": (scores.min() + scores.max()) / 2, "adverse": "above"}
    profile = as_profile(
        {"output": "y", **{k: rule[k] for k in ("threshold", "adverse", "refer") if rule.get(k)}}
    )
    places = ["approve", *(["refer"] if rule.get("refer") else []), "decline"]

    def counted(members: np.ndarray, own: DecisionProfile) -> dict[str, np.ndarray]:
        outcomes = np.array([outcome_of(own, score) for score in scores.tolist()])
        return {kind: members & (outcomes == kind) for kind in places}

    def cost(members: np.ndarray, own: DecisionProfile) -> float:
        of = counted(members, own)
        return (5 * (of["approve"] & bad).sum() + (of["decline"] & ~bad).sum()) / members.sum()

    lines = page.locator("[aria-label='Rates by group'] tbody tr")
    assert lines.count() == 1 + table["region"].nunique()
    for line in lines.all():
        name, *cells = line.locator("th, td").all_inner_texts()
        members = (table["region"] == name).to_numpy() | (name == "all rows")
        of = counted(members, profile)
        approved, n = of["approve"].sum(), members.sum()
        shares = [*wilson(approved, n), *wilson((of["approve"] & bad).sum(), approved)]
        demand_cells(
            cells, [n, *(of[kind].sum() for kind in places), *shares, cost(members, profile)], False, name
        )
    of = counted(bad | ~bad, profile)
    for line, own in zip(
        page.locator("[aria-label='Outcomes by decision'] tbody tr").all(), (bad, ~bad), strict=True
    ):
        _, *cells = line.locator("th, td").all_inner_texts()
        counts = [(of[kind] & own).sum() for kind in places]
        demand_cells(
            cells, [n for count in counts for n in (count, count / own.sum())] + [own.sum()], False, ""
        )
    squares = page.locator(".squares figure")
    area = roc_auc_score(bad, scores if rule["adverse"] == "above" else -scores)
    if scores.min() >= 0 and scores.max() <= 1:
        label = squares.nth(1).locator("svg").get_attribute("aria-label") or ""
        demand_cells([label], [*calibrated(scores, bad)], False, "calibration")
        demand_errors(page, answers, table, scores)
    steps = scores.min() + np.arange(101) / 100 * np.ptp(scores)
    moved = [profile.model_copy(update=at_step(rule, step)) for step in steps]
    costs = [cost(bad | ~bad, own) for own in moved]
    least = int(np.argmin(costs))
    return [area, rule["threshold"], *(rule.get("refer") or ()), steps[least], costs[least]]


def at_step(rule: Mapping[str, Any], step: float) -> dict[str, Any]:
    """The band in which a person decides keeps its place around the threshold."""
    band = rule.get("refer")
    return {
        "threshold": step,
        "refer": None if band is None else tuple(end + step - rule["threshold"] for end in band),
    }


def calibrated(scores: np.ndarray, bad: np.ndarray) -> Iterator[float]:
    """Yield mean score, share of bad with its interval, and rows of each tenth; equal scores are one."""
    order = np.argsort(scores, kind="stable")
    scores, bad = scores[order], bad[order]
    start = count = 0
    while start < len(scores):
        count += 1
        end = max(int(count * len(scores) / 10 + 0.5), start + 1)
        end = int(np.searchsorted(scores, scores[end - 1], "right"))
        yield from (scores[start:end].mean(), *wilson(bad[start:end].sum(), end - start), end - start)
        start = end


def demand_errors(page: Page, answers: Answers, table: pd.DataFrame, scores: np.ndarray) -> None:
    """Assert the slices in which scores and outcomes differ, of columns of words or few numbers."""
    names = {title: name for name, title in answers.titles.items()} | {"region": "region"}
    labels = {field["name"]: field.get("value_labels", {}) for field in answers.told["features"]}
    lines = page.locator("section:has(#outcomes) h3:has-text('errs') ~ div tbody tr")
    expect(lines).not_to_have_count(0)
    for line in lines.all():
        title, label, *cells = line.locator("th, td").all_inner_texts()
        column = table[names[title]]
        if column.dtype.kind == "f" and column.nunique() > 12:
            bounds = np.sort(column)[np.round(np.arange(1, 4) / 4 * (len(column) - 1)).astype(int)]
            place = np.searchsorted(np.unique(bounds), column)
            part = 0 if label.startswith("up to") else 3 if label.startswith("above") else None
            if part is None:
                part = 1 + [figure(label.split(" to ")[0]) == bound for bound in np.unique(bounds)].index(
                    True
                )
            members = place == min(part, len(np.unique(bounds)))
        else:
            keys = {shown: key for key, shown in labels.get(names[title], {}).items()}
            value = keys.get(label, label)
            members = (column == value) if column.dtype.kind not in "fiu" else column == number(value)
        error = (table["defaulted"] - scores)[members]
        mean, half = error.mean(), 1.959963985 * error.std(ddof=0) / len(error) ** 0.5
        expected = [len(error), scores[members].mean(), table["defaulted"][members].mean()]
        demand_cells(cells, [*expected, mean, mean - half, mean + half], True, f"{title}: {label}")


def demand_array(page: Page, gateway: str, model: str, inputs: Mapping[str, np.ndarray]) -> None:
    """Assert that a view of arrays shows the answer's numbers, their sum, places and largest size."""
    row = {name: array[0].tolist() for name, array in inputs.items()}
    page.goto(f"{gateway}/console/#media?model={model}&input={quote(json.dumps(row))}")
    panel = page.locator(".result")
    expect(panel.locator(".facts")).to_be_visible()
    answer = explained(gateway, model, **{name: array[0] for name, array in inputs.items()})
    target = int(answer["explained_value"][0].argmax()) if answer["explained_value"].size > 1 else 0
    known_values: list[float] = [*answer["explained_value"].ravel()]
    for name, array in answer.items():
        if name.endswith("_attributions"):
            own = array[0, target].astype(float)
            largest = np.abs(own).max()  # the scale goes from its negative on; a quarter of it is not drawn
            known_values += [*own.ravel(), own.sum(), largest, -largest, largest / 4]
        elif array.size == answer["explained_value"].size:
            known_values += array.ravel().tolist()
    known_values += range(max(1, *(size for array in inputs.values() for size in array.shape)) + 1)  # places
    known_values += [value for array in inputs.values() for value in array.ravel().tolist()]
    count = demand_known(panel, known_values, False, "option, label, .quiet")
    assert count >= 6, panel.inner_text()


@pytest.mark.full
@pytest.mark.parametrize("model", ["digits", "reviews", "signals", "two_inputs"])
def test_arrays(page: Page, gateway: str, model: str) -> None:
    random = np.random.default_rng(3)
    ids = np.array([[2, 4, 5, 6, 9, 7, 3]])
    inputs: dict[str, dict[str, np.ndarray]] = {
        "digits": {"pixels": load_digits().images[3][None, :, :, None].astype(np.float32)},
        "reviews": {"ids": ids, "mask": np.ones_like(ids)},
        "signals": {"signals": random.normal(size=(1, 5, 3)).astype(np.float32)},
        "two_inputs": {
            "person": random.normal(size=(1, 2)).astype(np.float32),
            "history": random.normal(size=(1, 5, 4)).astype(np.float32),
        },
    }
    demand_array(page, gateway, model, inputs[model])


@pytest.mark.full
@pytest.mark.parametrize("kind", ["credit", "banded", "five"])
def test_why_this_row_and_not_that_one(page: Page, gateway: str, kind: str) -> None:
    answers = Answers(gateway, kind)
    if not answers.told["request_references"]:
        (row, other) = answers.rows(2)
        page.goto(f"{gateway}/console/#explain?model={kind}&beside=row&row={quote(json.dumps(row))}")
        drawn(page)
        expect(page.get_by_label("as the reference")).to_have_count(0)
        return
    for row, other in zip(answers.rows(4)[:-1], answers.rows(4)[1:], strict=True):
        page.goto("about:blank")
        given = f"row={json.dumps(row)}&other={json.dumps(other)}"
        page.goto(f"{gateway}/console/#explain?model={kind}&beside=row&reference=1&{given}")
        drawn(page)
        (expected,) = answers.answers_of("explain", [row], compare_with=[other])["explanations"]
        expected = expected["targets"][0] if "targets" in expected else expected
        panel = page.locator(".answers")
        shown = effects(panel)
        assert expected["base_value"] == shown.pop("score of the second row")
        assert expected["explained_value"] == shown.pop("score")
        titled = {answers.titles[name]: amount for name, amount in expected["attributions"].items()}
        assert titled == shown
        apart = expected["explained_value"] - answers.told.get("decision", {}).get(
            "threshold", expected["base_value"]
        )
        known_values = [*numbers_in([expected, row, answers.told.get("decision", {})]), apart]
        known_values += [*numbers_in(answers.answers_of("predict", [row]))]
        if answers.decides:
            known_values.append(answers.scores([row])[0] - answers.told["decision"]["threshold"])
        assert demand_known(panel, known_values, answers.is_share, ".foot, .classes caption") >= 2 * len(row)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_exported_page(
    watch: Callable[[str], Watched], gateway: str, repository: Path, tmp_path: Path, kind: str
) -> None:
    need("npm")  # fetches ONNX Runtime for browsers
    answers, file = Answers(gateway, kind), tmp_path / f"{kind}.html"
    export_page(repository, kind, file)
    page = watch(file.as_uri()).page
    page.goto(file.as_uri())
    expect(page.locator("table.bars")).to_be_visible()
    for row in answers.rows(4):
        fill(page, row)
        expected, (score,) = answers.explanation(row), answers.scores([row])
        page.wait_for_timeout(300)
        place = page.locator("#shown")
        assert score == figure(place.locator(".large").inner_text())
        name = place.locator("tr.total th").last.inner_text()
        demand_waterfall(place.locator("table.bars"), answers, expected, name)
        rule = answers.told.get("decision", {})
        apart = (
            [score - rule["threshold"]] if rule else [expected["explained_value"] - expected["base_value"]]
        )
        decided = answers.decision(row) if rule else {}
        shares = [
            float(text.split(", ")[1].rstrip("%"))
            for text in place.locator("#reasons .quiet").all_inner_texts()
        ]
        assert [100 * reason["share"] for reason in decided.get("reasons", [])] == pytest.approx(
            shares, abs=0.06
        )
        gap = place.locator("#digits tr", has_text="completeness gap").locator("td").nth(1)
        float32_gap = float(
            gap.text_content() or ""
        )  # what float32 leaves, in another runtime than the gateway's
        assert float32_gap == pytest.approx(expected["completeness_gap"], abs=1e-6 * max(1, abs(score)))
        known_values = [
            *numbers_in(
                [expected, score, rule, row, decided, float32_gap, answers.answers_of("explain", [row])]
            ),
            *apart,
        ]
        left_out = "#digits, li, .classes caption"
        assert demand_known(place, known_values, answers.is_share, left_out) >= 2 * len(row) + 4
