"""Fitted models of tables, compiled as they are: held against what they answer themselves."""

import copy
from collections.abc import Callable
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from rationale import (
    InvalidModelError,
    InvalidOptionError,
    InvalidReferencesError,
    RationaleError,
    TreeShap,
    UnsupportedModelError,
    compile_model,
    convert,
)
from rationale.conversion.convert import features_of
from rationale.graph.runtime.session import Runner
from tests.compiler.conversion.data import (
    AMOUNT,
    APPLICANTS,
    FEATURES,
    LOANS,
    REFERENCES,
    THREE,
    TWO,
    K,
    N,
    compared_rows,
)
from tests.references import trees as of
from tests.tolerances import PARITY_32

SMALL = {"n_estimators": 6, "max_depth": 3}
QUIET = {**SMALL, "verbose": -1}
WORDS = pd.Series(["no", "yes"])[TWO].set_axis(LOANS.index)


def stopped_early() -> xgb.XGBClassifier:
    model = xgb.XGBClassifier(n_estimators=80, max_depth=3, early_stopping_rounds=2, learning_rate=1.0)
    model.fit(LOANS[:200], TWO[:200], eval_set=[(LOANS[200:], TWO[200:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    return model


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "xgboost": lambda: xgb.XGBClassifier(**SMALL).fit(LOANS, TWO),
    "xgboost of three": lambda: xgb.XGBClassifier(**SMALL).fit(LOANS, THREE),
    "xgboost stopped early": stopped_early,
    "lightgbm of words": lambda: lgb.LGBMClassifier(**QUIET).fit(LOANS, WORDS),
    "lightgbm of booleans": lambda: lgb.LGBMClassifier(**QUIET).fit(LOANS, TWO > 0),
    "lightgbm of three": lambda: lgb.LGBMClassifier(**QUIET).fit(LOANS, THREE),
    "histogram boosting": lambda: HistGradientBoostingClassifier(max_iter=6, max_depth=3).fit(LOANS, TWO),
}
WHOLE: dict[str, Callable[[], Any]] = {  # of rows without gaps
    "gradient boosting": lambda: GradientBoostingClassifier(**SMALL).fit(LOANS.fillna(0), TWO),
    "random forest": lambda: RandomForestClassifier(**SMALL).fit(LOANS.fillna(0), THREE),
    "tree of words": lambda: DecisionTreeClassifier(max_depth=3).fit(LOANS.fillna(0), WORDS),
}
NUMBERS: dict[str, Callable[[], Any]] = {
    "xgboost": lambda: xgb.XGBRegressor(**SMALL).fit(LOANS, AMOUNT),
    "xgboost of logits": lambda: xgb.XGBRegressor(objective="reg:logistic", **SMALL).fit(LOANS, TWO),
    "lightgbm": lambda: lgb.LGBMRegressor(**QUIET).fit(LOANS, AMOUNT),
    "lightgbm's booster": lambda: lgb.LGBMClassifier(**QUIET).fit(LOANS, TWO).booster_,
    "extra trees of an array": lambda: ExtraTreesRegressor(**SMALL).fit(LOANS.fillna(0).to_numpy(), AMOUNT),
}


def assert_same(answers: np.ndarray, expected: np.ndarray) -> None:
    expected = np.asarray(expected).reshape(N, -1)
    assert np.abs(answers.reshape(N, -1)[:, -expected.shape[1] :] - expected).max() <= PARITY_32 * np.ptp(
        expected
    )


def answer_of(
    model: Any, references: Any = REFERENCES, applicants: Any = APPLICANTS
) -> dict[str, np.ndarray]:
    """What the compiled model answers; what it says of its conversion, and what its manifest keeps."""
    compiled = compile_model(model, TreeShap(references))
    parity = compiled.manifest.parity
    assert parity is not None
    assert compiled.conversion is not None
    assert compiled.conversion.startswith(f"parity: {parity.model} as ONNX ({parity.converter}) differs")
    assert compared_rows(parity, "references") == K
    assert (parity.labels or 0) == 0
    assert parity.relative < PARITY_32
    assert compiled.manifest.explained[0].feature_names == tuple(FEATURES)
    return compiled.explain(applicants)


@pytest.mark.parametrize("name", [*CLASSIFIERS, *WHOLE])
def test_classifiers(name: str) -> None:
    model = {**CLASSIFIERS, **WHOLE}[name]()
    applicants, references = (rows.fillna(0) if name in WHOLE else rows for rows in (APPLICANTS, REFERENCES))
    shuffled = references[FEATURES[::-1]].assign(default="n/a")
    answer = answer_of(model, shuffled, applicants)
    assert_same(answer["probabilities"], model.predict_proba(applicants))
    np.testing.assert_array_equal(answer["label"], model.predict(applicants))


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    model = NUMBERS[name]()
    applicants, references = (
        rows.fillna(0) if "trees" in name else rows for rows in (APPLICANTS, REFERENCES)
    )
    answer = answer_of(model, references, applicants)
    answers = answer["probabilities"] if "probabilities" in answer else answer["variable"]
    assert_same(answers, model.predict(applicants.to_numpy() if "trees" in name else applicants))


def test_the_shapley_values_are_those_of_the_booster_itself() -> None:
    booster = xgb.train({"max_depth": 3, "objective": "binary:logistic"}, xgb.DMatrix(LOANS, TWO), 6)
    answer = answer_of(booster)
    assert_same(answer["probabilities"], booster.predict(xgb.DMatrix(APPLICANTS)))

    def margin(x: np.ndarray) -> np.ndarray:
        answers = booster.predict(xgb.DMatrix(x, feature_names=FEATURES), output_margin=True)
        return np.asarray(answers, np.float64)[:, None]

    expected = of.shapley(margin, APPLICANTS.to_numpy(), REFERENCES.to_numpy())
    assert np.abs(answer["x_attributions"] - expected).max() <= PARITY_32 * np.abs(expected).max()


def test_the_fitted_model_is_left_as_it_was() -> None:
    model = CLASSIFIERS["xgboost"]()
    before = copy.deepcopy(model.get_booster().save_raw())
    convert(model, REFERENCES)
    assert model.get_booster().save_raw() == before
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), xgb.XGBRegressor(**SMALL))
    pipeline.fit(LOANS, AMOUNT)
    convert(pipeline, REFERENCES)
    assert pipeline[-1].get_booster().feature_names == FEATURES


def test_the_same_bytes_each_time() -> None:
    for make in (CLASSIFIERS["xgboost"], CLASSIFIERS["lightgbm of three"], WHOLE["tree of words"]):
        model = make()
        first, second = (convert(model).model.SerializeToString(deterministic=True) for _ in range(2))
        assert first == second


@pytest.mark.parametrize(
    "last",
    [LogisticRegression(), xgb.XGBClassifier(**SMALL), lgb.LGBMClassifier(**QUIET)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_pipelines_of_named_columns(last: Any) -> None:
    home = np.resize(["own", "rent", "with parents"], len(LOANS))
    table = LOANS.assign(home=home, branch=home, late=np.resize([0, 1, 3, 0], len(LOANS)))
    numbers = ("numbers", SimpleImputer(), ["income now", "age"])
    classes = ("classes", OneHotEncoder(handle_unknown="ignore"), ["home", "late"])
    pipeline = make_pipeline(ColumnTransformer([numbers, classes]), last).fit(table, TWO)
    assert features_of(pipeline).texts == {"home", "branch", "debt", "years", "rate"}  # some are dropped
    converted = convert(pipeline, table[:K])
    assert converted.columns == ("age", "income now", "home", "late")
    assert converted.parity is not None
    assert converted.parity.relative < PARITY_32
    assert (compared_rows(converted.parity, "incomplete"), converted.parity.labels) == (4, 0)
    applicants = table[-N:].assign(home="unknown")
    fed = {name: applicants[name].to_numpy()[:, None] for name in converted.columns}
    fed = {name: a.astype(object if a.dtype.kind == "O" else np.float64) for name, a in fed.items()}
    assert_same(Runner(converted.model)(fed)["probabilities"], pipeline.predict_proba(applicants))


def test_a_stack_of_boosters() -> None:
    parts = [("trees", xgb.XGBClassifier(**SMALL)), ("others", lgb.LGBMClassifier(**QUIET))]
    stack = StackingClassifier(parts, LogisticRegression(), cv=2).fit(LOANS.fillna(0), TWO)
    parity = convert(stack, REFERENCES.fillna(0)).parity
    assert parity is not None
    assert (parity.labels, parity.relative < PARITY_32) == (0, True)


REFUSED: dict[str, tuple[Callable[[], Any], Any, type[RationaleError], str]] = {
    "not fitted": (lambda: RandomForestClassifier(), None, InvalidModelError, "is not fitted: This Random"),
    "no predictions": (
        lambda: StandardScaler().fit(LOANS),
        None,
        UnsupportedModelError,
        "StandardScaler predicts nothing",
    ),
    "missing columns": (
        CLASSIFIERS["xgboost"],
        REFERENCES[["age", "rate"]],
        InvalidReferencesError,
        r"'income now', 'debt', 'years' .*'age'",
    ),
    "too few columns": (
        CLASSIFIERS["xgboost"],
        np.zeros((3, 4)),
        InvalidReferencesError,
        r"\b4 columns.* 5\b",
    ),
    "one row without its axis": (
        CLASSIFIERS["xgboost"],
        np.zeros(5),
        InvalidReferencesError,
        r"\[5\].*\[K, F\]",
    ),
    "words for numbers": (
        CLASSIFIERS["lightgbm of three"],
        REFERENCES.assign(debt="much"),
        InvalidReferencesError,
        "'debt' .*numbers",
    ),
    "names without rows": (
        lambda: make_pipeline(
            ColumnTransformer([("scaled", StandardScaler(), ["age"])]), LogisticRegression()
        ).fit(LOANS, TWO),
        None,
        InvalidOptionError,
        r"sklearn\.Pipeline\b.*convert\(model, example\)",
    ),
    "no model": (lambda: {"a": 1}, None, InvalidModelError, "dict\\b.* model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted(name: str) -> None:
    make, example, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        convert(make(), example)
