"""Scorecards of optbinning, held against what the card itself says, and other weights of evidence."""

from typing import Any

import numpy as np
import optbinning
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline

from rationale import Auto, InvalidModelError, TreeShap, UnsupportedModelError, compile_model, convert
from rationale.conversion.boosters import scorecards
from tests.compiler.conversion.data import compared_rows
from tests.references import trees as of
from tests.tolerances import PARITY_32

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword|Setting an item")  # optbinning's own
ROWS, K, N = 900, 40, 6
_RANDOM = np.random.default_rng(0)


def next_to(number: float) -> float:
    return float(np.nextafter(number, np.inf))


def _applicants() -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "age": _RANDOM.integers(18, 80, ROWS).astype(float),
            "income": _RANDOM.lognormal(10, 0.5, ROWS).round(-1),
            "home": _RANDOM.choice(["own", "rent", "free", "with parents"], ROWS),
            "late": _RANDOM.poisson(0.6, ROWS).astype(float),
            "branch": _RANDOM.choice([3.0, 5.0, 9.0, 11.0], ROWS),
        }
    )
    table.loc[_RANDOM.random(ROWS) < 0.1, "income"] = np.nan
    table.loc[_RANDOM.random(ROWS) < 0.1, "late"] = -9
    table.loc[_RANDOM.random(ROWS) < 0.1, "home"] = None
    return table


TABLE = _applicants()
NUMBERS = TABLE.drop(columns="home")
RISK = (TABLE["late"] > 0) + 0.7 * (TABLE["home"] == "rent") - 0.8 * (TABLE["age"] > 40)
LATE = (RISK + 0.6 * (TABLE["branch"] == 5) + _RANDOM.normal(size=ROWS) > 0.5).astype(int)
SCALED: dict[str, Any] = {
    "scaling_method": "pdo_odds",
    "scaling_method_params": {"pdo": 30, "odds": 20, "scorecard_points": 600},
}


def card(table: pd.DataFrame, y: Any = LATE, special: Any = None, **options: Any) -> Any:
    codes = [name for name in ("home", "branch") if name in table]
    criteria = options.pop("criteria", None)
    process = optbinning.BinningProcess(
        list(table), categorical_variables=codes, special_codes=special, selection_criteria=criteria
    )
    estimator = options.pop("estimator", LogisticRegression())
    return optbinning.Scorecard(process, estimator, **options).fit(table, y)


CARDS: dict[str, tuple[pd.DataFrame, dict[str, Any]]] = {
    "points": (TABLE, SCALED),
    "log odds": (TABLE, {}),
    "special codes": (TABLE, {"special": [-9], "intercept_based": True, **SCALED}),
    "special codes by name": (NUMBERS, {"special": {"none": -9, "few": [1, 2]}, **SCALED}),
    "whole points of numbers": (NUMBERS, {"rounding": True, **SCALED}),
    "some of the variables": (TABLE, {"criteria": {"iv": {"min": 0.05}}, **SCALED}),
    "an amount": (TABLE, {"y": RISK * 1000, "estimator": LinearRegression()}),
}


@pytest.mark.parametrize("name", CARDS)
def test_points_are_those_of_the_card(name: str) -> None:
    table, options = CARDS[name]
    parity = convert(card(table, **options), table).parity
    assert parity is not None
    assert compared_rows(parity, "incomplete")
    assert compared_rows(parity, "masked")
    assert (parity.relative < PARITY_32, parity.refuses_missing) == (True, ())


def test_a_category_that_no_bin_holds_and_a_missing_one() -> None:
    model = card(TABLE, **SCALED)
    compiled = compile_model(model, Auto(TABLE[:K].fillna({"home": ""})))
    rows = TABLE[-N:].assign(home=["castle", "", "own", "", "castle", "rent"])
    expected = model.score(rows.assign(home=rows["home"].replace("", None)))
    assert np.abs(compiled.explain(rows)["score"][:, 0] / expected - 1).max() < PARITY_32


def test_reasons_are_exact() -> None:
    model = card(NUMBERS, special=[-9], **SCALED)
    references, applicants = NUMBERS[:K], NUMBERS[-N:]
    answer = compile_model(model, TreeShap(references)).explain(applicants)

    def score(rows: np.ndarray) -> np.ndarray:
        return np.asarray(model.score(pd.DataFrame(rows, columns=list(NUMBERS))))[:, None]

    expected = of.shapley(score, applicants.to_numpy(), references.to_numpy())
    assert np.abs(answer["x_attributions"] - expected).max() < PARITY_32 * np.ptp(model.score(NUMBERS))


@pytest.mark.parametrize(
    ("bounds", "values", "probes"),
    [
        ([], [], [-1.0]),
        ([2.0], [], [1.0, 2.0]),
        ([2.0], [7.0], [1.0, 2.0]),
        ([2.0, 3.0], [2.0], [1.0, next_to(2.0), 3.0]),
        ([2.0], [2.0, 1.0], [next_to(1.0), next_to(2.0)]),
        ([2.0], [2.0, next_to(2.0)], [1.0, next_to(next_to(2.0))]),
    ],
)
def test_a_bin_is_asked_by_a_number_without_points_of_its_own(
    bounds: list[float], values: list[float], probes: list[float]
) -> None:
    """A special code may be where a bin begins."""
    variable = scorecards._CardVariable("age", bounds, values)
    *codes, missing = variable.probes[: len(values) + 1]
    assert np.isnan(missing)
    assert [*codes, *variable.probes[len(values) + 1 :]] == [*values, *probes]


def test_a_bound_between_two_numbers_of_a_request_is_kept() -> None:
    model = card(NUMBERS.assign(age=NUMBERS["age"] / 10 + 1e-9))
    bounds = model.binning_process_.get_binned_variable("age").splits
    assert any(np.float32(bound) < bound for bound in bounds)
    rows = NUMBERS[: len(bounds)].assign(age=np.float32(bounds).astype(float))
    parity = convert(model, rows).parity
    assert parity is not None
    assert parity.relative < PARITY_32


class WOEEncoder(TransformerMixin, BaseEstimator):
    """Stands for those of category_encoders and of feature_engine."""

    def fit(self, x: Any, _: Any) -> "WOEEncoder":
        self.feature_names_in_ = np.asarray(x.columns)
        return self

    def transform(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize("package", ["category_encoders.woe", "feature_engine.encoding.woe"])
def test_other_weights_of_evidence_are_refused(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WOEEncoder, "__module__", package)
    model = make_pipeline(WOEEncoder(), LogisticRegression()).fit(NUMBERS.fillna(0), LATE)
    text = rf"{package.partition('.')[0]}\.WOEEncoder\b.*sklearn's TargetEncoder"
    with pytest.raises(UnsupportedModelError, match=text):
        convert(model, NUMBERS[:K])


def test_bins_without_a_card_are_refused() -> None:
    process = optbinning.BinningProcess(list(NUMBERS)).fit(NUMBERS, LATE)
    text = r"optbinning\.BinningProcess\b.*optbinning\.Scorecard"
    with pytest.raises(UnsupportedModelError, match=text):
        convert(process, NUMBERS)
    pipeline = make_pipeline(optbinning.BinningProcess(list(NUMBERS)), LogisticRegression()).fit(
        NUMBERS, LATE
    )
    text = r"optbinning\.BinningProcess\b.*optbinning's Scorecard\("
    with pytest.raises(UnsupportedModelError, match=text):
        convert(pipeline, NUMBERS)
    with pytest.raises(InvalidModelError, match=r"optbinning\.Scorecard\b.* fitted"):
        convert(optbinning.Scorecard(process, LogisticRegression()), NUMBERS)
