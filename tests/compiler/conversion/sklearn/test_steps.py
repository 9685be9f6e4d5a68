"""Steps of pipelines that are converted here, and those that are refused by name.

Behind scalers the trees' thresholds lie on numbers that rows hold: a rounding would be another leaf.
"""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from skl2onnx import to_onnx
from skl2onnx._parse import sklearn_parsers_map
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    BaggingRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import ExtraTreeRegressor

from rationale import Auto, UnsupportedModelError, compile_model, convert
from rationale.conversion.parity import LIMIT, parity_warnings
from tests.compiler.conversion.data import compared_rows
from tests.grid import grid

_RANDOM = np.random.default_rng(3)
TABLE = pd.DataFrame(_RANDOM.integers(1, 90, (400, 6)).astype(float), columns=list("abcdef"))
TARGET = TABLE["a"] % 7 * TABLE["b"] + np.where(TABLE["c"] > 30, TABLE["d"], -TABLE["e"]) + TABLE["f"] % 3

SCALERS = [
    StandardScaler(),
    StandardScaler(with_mean=False),
    StandardScaler(with_std=False),
    RobustScaler(),
    RobustScaler(with_scaling=False),
    MaxAbsScaler(),
    MinMaxScaler((-1, 2)),
    MinMaxScaler((0.1, 0.7), clip=True),
    ColumnTransformer([("a", StandardScaler(), list("abc")), ("b", MinMaxScaler(), list("def"))]),
]
TREES = [
    GradientBoostingRegressor(n_estimators=30, max_depth=4, random_state=0),
    RandomForestRegressor(8, max_depth=7, random_state=0),
    BaggingRegressor(n_estimators=4, random_state=0),
    xgb.XGBRegressor(n_estimators=20, max_depth=4),
]


NAMED_SCALERS = {str(scaler): scaler for scaler in SCALERS}
NAMED_TREES = {type(trees).__name__: trees for trees in TREES}


@grid("scaler, trees", NAMED_SCALERS, NAMED_TREES)
def test_a_row_falls_into_the_leaf_of_the_fitted_model(scaler: str, trees: str) -> None:
    pipeline = make_pipeline(NAMED_SCALERS[scaler], NAMED_TREES[trees])
    parity = convert(pipeline.fit(TABLE, TARGET), TABLE).parity
    assert parity is not None
    assert compared_rows(parity, "mixtures")
    assert parity.relative < LIMIT


HOLES = TABLE.mask(_RANDOM.random(TABLE.shape) < 0.1)
TWO = (TARGET.median() < TARGET).astype(int)
FOREST = RandomForestClassifier(5, max_depth=4, random_state=0)
STEPS = {
    "what is missing, told": make_pipeline(SimpleImputer(add_indicator=True), LogisticRegression()),
    "the same of some columns": make_pipeline(
        ColumnTransformer([("n", SimpleImputer(add_indicator=True), ["c", "a"])]), StandardScaler(), Ridge()
    ),
    "told by itself": make_pipeline(
        make_union(SimpleImputer(), MissingIndicator(features="all")), LogisticRegression()
    ),
    "a forest": FOREST,
    "trees in bags": BaggingRegressor(n_estimators=4, random_state=0),
    "numbers of a tree": ExtraTreeRegressor(max_depth=5, random_state=0),
}
FUNCTIONS = [
    np.abs,
    np.ceil,
    np.cos,
    np.exp,
    np.expm1,
    np.floor,
    np.log,
    np.log10,
    np.log1p,
    np.log2,
    np.negative,
]
FUNCTIONS += [np.reciprocal, np.sign, np.sin, np.sqrt, np.square, np.tanh]


@pytest.mark.parametrize("name", STEPS)
def test_rows_with_gaps_are_answered_as_by_the_fitted_model(name: str) -> None:
    parity = convert(clone(STEPS[name]).fit(HOLES, TWO), HOLES).parity
    assert parity is not None
    assert compared_rows(parity, "incomplete")
    assert compared_rows(parity, "masked")
    assert parity.relative < LIMIT
    assert not parity.refuses_missing


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_of_numpy(function: Any) -> None:
    small = TABLE / 32
    pipeline = make_pipeline(FunctionTransformer(function), GradientBoostingRegressor(n_estimators=5))
    parity = convert(pipeline.fit(small, TARGET), small).parity
    assert parity is not None
    assert parity.relative < LIMIT


@pytest.mark.parametrize(
    "model",
    [
        VotingClassifier([("a", LogisticRegression()), ("b", FOREST)], voting="soft"),
        StackingClassifier([("a", LogisticRegression()), ("b", FOREST)], cv=3),
        CalibratedClassifierCV(FOREST, cv=3),
    ],
    ids=lambda m: type(m).__name__,
)
def test_estimators_of_estimators(model: Any) -> None:
    compiled = compile_model(clone(model).fit(TABLE / 90, TWO), Auto(TABLE[:20] / 90))
    assert compiled.manifest.method.name == "exactshap"
    assert compiled.manifest.parity is not None
    assert compiled.manifest.parity.relative < LIMIT


@pytest.mark.parametrize("three", [False, True])
@pytest.mark.parametrize(
    "model",
    [
        LinearDiscriminantAnalysis(),
        QuadraticDiscriminantAnalysis(),
        CalibratedClassifierCV(LinearDiscriminantAnalysis(), cv=3),
        StackingClassifier([("a", LinearSVC()), ("b", FOREST)], cv=3, passthrough=True),
        StackingClassifier([("a", make_pipeline(StandardScaler(), LinearSVC())), ("b", FOREST)], cv=3),
        StackingClassifier([("a", RidgeClassifier()), ("b", SVC()), ("c", LogisticRegression())], cv=3),
        VotingClassifier(
            [
                ("a", LinearDiscriminantAnalysis()),
                ("b", StackingClassifier([("c", LinearSVC()), ("d", FOREST)], cv=3)),
            ],
            voting="soft",
        ),
    ],
    ids=lambda model: re.sub(r"\s+", " ", str(model)),
)
def test_classifiers(model: Any, *, three: bool) -> None:
    labels = TWO + (TABLE["f"] > 60) if three else np.where(TWO, "late", "paid")
    parity = convert(clone(model).fit(TABLE / 90, labels), TABLE[:50] / 90).parity
    assert parity is not None
    assert compared_rows(parity, "mixtures")
    assert parity.relative < LIMIT
    assert parity.labels == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"func": np.log1p, "inverse_func": np.expm1},
        {},
        *({"transformer": scaler} for scaler in (*SCALERS[:7], MinMaxScaler((0.1, 0.7), clip=True))),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "regressor", [Ridge(), make_pipeline(StandardScaler(), TREES[0])], ids=["linear", "trees"]
)
def test_transformed_targets(settings: dict[str, Any], regressor: Any) -> None:
    model = TransformedTargetRegressor(clone(regressor), **settings).fit(TABLE, TARGET.abs() + 1)
    compiled = compile_model(model, Auto(TABLE[:20]))
    assert compiled.manifest.parity is not None
    assert compiled.manifest.parity.relative < LIMIT
    assert np.abs(compiled.explain(TABLE[:5])["variable"][:, 0] / model.predict(TABLE[:5]) - 1).max() < LIMIT


SCORED = [
    FOREST,
    LogisticRegression(),
    make_pipeline(StandardScaler(), LogisticRegression()),
    make_pipeline(StandardScaler(), LinearSVC()),
    xgb.XGBClassifier(n_estimators=4, max_depth=3),
    HistGradientBoostingClassifier(max_iter=5),
]


@pytest.mark.parametrize("method", ["isotonic", "sigmoid"])
@pytest.mark.parametrize("model", SCORED, ids=lambda model: re.sub(r"\s+", " ", str(model))[:50])
def test_calibration_of_scores(model: Any, method: str) -> None:
    calibrated = CalibratedClassifierCV(clone(model), method=method, cv=3).fit(TABLE / 90, TWO)
    parity = convert(calibrated, TABLE[:50] / 90).parity
    assert parity is not None
    assert parity.relative < LIMIT
    assert (parity.labels or 0) < 5  # a probability of a half


def test_isotonic_calibration_of_three_classes_is_refused() -> None:
    model = CalibratedClassifierCV(FOREST, method="isotonic", cv=3).fit(TABLE, TWO + (TABLE["f"] > 60))
    with pytest.raises(UnsupportedModelError, match=r"method='isotonic'.*method='sigmoid'"):
        convert(model, TABLE)


def test_a_number_marks_what_is_missing() -> None:
    table = TABLE.mask(TABLE % 7 == 0, -1.0)
    steps = make_union(
        SimpleImputer(missing_values=-1, add_indicator=True), MissingIndicator(missing_values=-1.0)
    )
    parity = convert(make_pipeline(steps, LogisticRegression(max_iter=9000)).fit(table, TWO), table).parity
    assert parity is not None
    assert parity.relative < LIMIT


def test_shares_of_votes_are_told_to_be_compared_with_nothing() -> None:
    model = VotingClassifier([("a", LogisticRegression(max_iter=2000)), ("b", FOREST)])
    parity = convert(model.fit(TABLE / 90, TWO), TABLE / 90).parity
    assert parity is not None
    assert parity.uncompared
    assert parity.uncompared[0] in parity_warnings(parity)[0]


REFUSED = {
    r"FunctionTransformer .*<lambda>.* np\.log": make_pipeline(FunctionTransformer(lambda x: x * 2), Ridge()),
    r"SplineTransformer\b.*KBinsDiscretizer": make_pipeline(SplineTransformer(), Ridge()),
    r"TransformedTargetRegressor .*PowerTransformer.* np\.absolute": TransformedTargetRegressor(
        Ridge(), transformer=PowerTransformer()
    ),
    r"TransformedTargetRegressor .*<lambda>.* np\.absolute": TransformedTargetRegressor(
        Ridge(), func=np.sqrt, inverse_func=lambda x: x * x
    ),
    r"KNNImputer\b.*SimpleImputer\(add_indicator=True\)": make_pipeline(KNNImputer(), Ridge()),
    r"StackingClassifier\b.*stack_method='auto'": StackingClassifier(
        [("a", FOREST)], cv=3, stack_method="predict"
    ),
    r"StackingClassifier\b.*final_estimator.*predict_proba": StackingClassifier(
        [("a", FOREST)], LinearSVC(), cv=3
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_says_what_to_do(text: str) -> None:
    table = TABLE % 9
    with pytest.raises(UnsupportedModelError, match=text):
        convert(clone(REFUSED[text]).fit(table, TWO), table)


@pytest.mark.filterwarnings("ignore:Skipping features without any observed values")
def test_an_imputer_drops_a_column_that_is_always_missing() -> None:
    table = TABLE.assign(f=np.nan, a=HOLES["a"])
    imputer = SimpleImputer(add_indicator=True, keep_empty_features=False)
    parity = convert(make_pipeline(imputer, Ridge()).fit(table, TWO), table).parity
    assert parity is not None
    assert parity.relative < LIMIT


def test_words_and_numbers_are_encoded_by_two() -> None:
    table = TABLE.assign(home=np.resize(["own", "with parents", "rent"], len(TABLE)), a=TABLE["a"] % 3)
    good = (table["home"] == "own") | (TABLE["a"] % 6 > table["a"])

    def fitted(*columns: list[str]) -> Any:
        encoders = ColumnTransformer([(each[0], TargetEncoder(cv=2), each) for each in columns])
        return make_pipeline(encoders, LogisticRegression()).fit(table, good)

    parity = convert(fitted(["home"], ["a"]), table).parity
    assert parity is not None
    assert parity.relative < LIMIT
    with pytest.raises(UnsupportedModelError, match=r"sklearn\.TargetEncoder .*words.* numbers"):
        convert(fitted(["home", "a"]), table)


def test_no_word_marks_what_is_missing() -> None:
    table = TABLE.assign(home=np.resize(["own", "?", "rent"], len(TABLE)))
    columns = ColumnTransformer([("told", MissingIndicator(missing_values="?"), ["home"])], remainder="drop")
    with pytest.raises(UnsupportedModelError, match=r"missing_values='\?'.*NaN"):
        convert(make_pipeline(columns, LogisticRegression()).fit(table, TWO), table)


def test_skl2onnx_stays_as_its_other_users_know_it() -> None:
    rows = TABLE.to_numpy(np.float32)
    model = make_pipeline(StandardScaler(), RandomForestClassifier(3)).fit(rows, TWO)
    before, parsers = to_onnx(model, rows[:1]), dict(sklearn_parsers_map)
    convert(model)
    convert(HistGradientBoostingClassifier(max_iter=3).fit(rows, TWO))
    with pytest.raises(UnsupportedModelError):
        convert(make_pipeline(SplineTransformer(), Ridge()).fit(rows, TARGET))
    assert to_onnx(model, rows[:1]).graph.node == before.graph.node
    assert sklearn_parsers_map == parsers
