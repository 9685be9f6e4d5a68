"""An entry takes numbers of the type that its model was fitted on, and tells apart what the model does."""

from dataclasses import replace
from typing import Any

import lightgbm as lgb
import numpy as np
import onnxruntime as ort
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    StandardScaler,
    TargetEncoder,
)

from rationale import ExactShap, InvalidReferencesError, TreeShap, compile_model, convert
from rationale.conversion.boosters.trees import BoostedTrees, Split, with_margins
from tests.grid import grid

_RANDOM = np.random.default_rng(0)
N = 400
OF_RANGE = 1e-5
LOANS = pd.DataFrame(
    {
        "income": _RANDOM.normal(3000, 900, N).round(2),  # in cents
        "rate": _RANDOM.uniform(0, 1, N).round(4),  # in hundredths of a percent
        "age": _RANDOM.integers(18, 80, N),
        "debt": _RANDOM.lognormal(5, 1, N).round(2),
    }
)
GOOD = (LOANS["income"] / 3000 + LOANS["rate"] * 2 + np.sin(LOANS["debt"]) > 2).astype(int)
STEPS: dict[str, Any] = {
    "scaler": StandardScaler(),
    "range": MinMaxScaler(),
    "logarithm": FunctionTransformer(np.log1p),
    "products": PolynomialFeatures(2),
    "quantiles": QuantileTransformer(n_quantiles=50),
}
TREES: dict[str, Any] = {
    "forest": RandomForestClassifier(8, random_state=0),
    "xgboost": xgb.XGBClassifier(n_estimators=8),
    "lightgbm": lgb.LGBMClassifier(n_estimators=8, verbose=-1),
    "histograms": HistGradientBoostingClassifier(max_iter=8),
}
TYPES = {"float64": np.float64, "float32": np.float32}


@grid("step, trees", STEPS, TREES)
def test_what_is_fitted_on_cents_is_answered_to_the_last_digit(step: str, trees: str) -> None:
    table = LOANS.assign(income=LOANS["income"].abs())
    model = make_pipeline(clone(STEPS[step]), clone(TREES[trees])).fit(table, GOOD)
    answer = compile_model(model, ExactShap(table[:20])).explain(table)
    _assert_same(answer["probabilities"], model.predict_proba(table))
    assert np.abs(answer["completeness_gap"]).max() < OF_RANGE


@grid("kind, trees", TYPES, TREES)
def test_an_array_is_answered_in_its_own_type(kind: str, trees: str) -> None:
    rows = LOANS.to_numpy(TYPES[kind])
    model = make_pipeline(StandardScaler(), clone(TREES[trees])).fit(rows, GOOD)
    compiled = compile_model(model, TreeShap(rows[:20]))
    assert compiled.manifest.explained[0].tensor.datatype == {"float64": "FP64", "float32": "FP32"}[kind]
    _assert_same(compiled.explain(rows)["probabilities"], model.predict_proba(rows))


def test_ids_keep_their_digits() -> None:
    ids = (1 << 40) + np.arange(N)
    table = LOANS.assign(id=ids)
    model = lgb.LGBMClassifier(n_estimators=8, verbose=-1, min_child_samples=2).fit(table, ids % 2)
    _assert_same(
        compile_model(model, TreeShap(table[:20])).explain(table)["probabilities"], model.predict_proba(table)
    )
    for encoder in (OneHotEncoder(handle_unknown="ignore"), TargetEncoder(cv=2)):
        pipeline = make_pipeline(encoder, LogisticRegression()).fit(table[["id"]], GOOD)
        conversion = convert(pipeline, table[["id"]]).parity
        assert conversion is not None
        assert conversion.relative < OF_RANGE


@pytest.mark.parametrize(
    "options", [{"strategy": "median"}, {"strategy": "constant", "fill_value": (1 << 24) + 101.0}]
)
def test_what_fills_a_gap_keeps_its_digits(options: dict[str, Any]) -> None:
    """2^24 + 101 is no number of float32."""
    ids = (1 << 24) + np.arange(203.0)
    ids[[3, 199]] = np.nan
    model = make_pipeline(SimpleImputer(**options), StandardScaler(), LinearRegression())
    rows = ids[:, None]
    model.fit(rows, np.arange(203))
    assert model[0].statistics_[0] == (1 << 24) + 101
    conversion = convert(model, rows)
    session = ort.InferenceSession(conversion.model.SerializeToString())
    (answer, *_) = session.run(None, {session.get_inputs()[0].name: rows})
    _assert_same(answer[:, 0], model.predict(rows))


def test_whole_numbers_beyond_2_to_53_are_refused_by_name() -> None:
    table = LOANS.assign(id=(1 << 53) + np.arange(N) * 3)
    model = xgb.XGBClassifier(n_estimators=2).fit(table, GOOD)
    with pytest.raises(InvalidReferencesError, match=r"'id' .* 2\^53"):
        convert(model, table)


def _assert_same(answer: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(answer - expected).max() <= OF_RANGE * np.ptp(expected)


def test_treeshap_explains_trees_behind_quantiles() -> None:
    """Their nodes stand in the graph as files hold them, which is an operator that ONNX has deprecated."""
    model = make_pipeline(STEPS["quantiles"], TREES["forest"]).fit(LOANS, GOOD)
    answer = compile_model(model, TreeShap(LOANS[:20])).explain(LOANS[20:40])
    _assert_same(answer["probabilities"], model.predict_proba(LOANS[20:40]))
    assert np.abs(answer["completeness_gap"]).max() < OF_RANGE


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_a_bound_is_moved_away_from_its_own_side(size: float) -> None:
    """A number of the training stays there: at most the bound goes left, or, if that is strict, below it."""
    left, right = {0: -1.0}, {0: 1.0}
    splits = {
        "at most": Split(0, 1, 2, missing=False, bound=0.5 * size),
        "below": Split(0, 1, 2, missing=False, bound=0.5 * size, strict=True),
        "at most, negative": Split(0, 1, 2, missing=False, bound=-size),
        "below, negative": Split(0, 1, 2, missing=False, bound=-size, strict=True),
        "another feature": Split(1, 1, 2, missing=False, bound=0.5),
    }
    same = {
        "nothing": Split(0, 1, 2, missing=False, bound=0.0),
        "everything": Split(0, 1, 2, missing=False, bound=np.inf),
        "codes": Split(0, 1, 2, missing=False, among=(1,)),
    }
    boosted = BoostedTrees([{0: one, 1: left, 2: right} for one in (splits | same).values()], np.zeros(1))
    moved = dict(zip(splits | same, (tree[0] for tree in with_margins(boosted).trees), strict=True))
    for name, one in splits.items():
        found, margin = moved[name], 2.0**-45 * (0.5 if one.feature else size)
        assert found == replace(one, bound=found.bound)
        assert found.bound - one.bound == pytest.approx(-margin if one.strict else margin, rel=0.01, abs=0), (
            name
        )
    assert {name: moved[name] for name in same} == same
