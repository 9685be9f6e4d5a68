"""Models that answer several numbers of a row: none is a class, and all are explained if none is named."""

from pathlib import Path
from typing import Any

import catboost as cb
import numpy as np
import onnx
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import ClassifierChain, MultiOutputRegressor
from sklearn.neural_network import MLPRegressor

from rationale import Auto, Compiled, InvalidProfileError, compile_model, convert
from rationale.terminal import manifest_lines

pytestmark = pytest.mark.filterwarnings("ignore")

_RANDOM = np.random.default_rng(0)
X = pd.DataFrame(_RANDOM.integers(0, 40, (300, 4)) / 40, columns=list("abcd"))
Y = ((X["a"] > 0.5) ^ (X["b"] > 0.2)).astype(int)
TWO = np.stack([X["a"] * X["b"], X["c"] - X["d"]], axis=1)
SMALL: dict[str, Any] = {"n_estimators": 4, "max_depth": 3}
QUANTILES: dict[str, Any] = {"objective": "reg:quantileerror", **SMALL}

REGRESSORS: dict[str, tuple[Any, Any, int]] = {
    "two quantiles": (xgb.XGBRegressor(quantile_alpha=[0.1, 0.9], **QUANTILES), X["a"], 2),
    "three quantiles": (xgb.XGBRegressor(quantile_alpha=[0.1, 0.5, 0.9], **QUANTILES), X["a"], 3),
    "two targets": (xgb.XGBRegressor(**SMALL), TWO, 2),
    "two targets a leaf": (xgb.XGBRegressor(multi_strategy="multi_output_tree", **SMALL), TWO, 2),
    "two targets of CatBoost": (
        cb.CatBoostRegressor(
            loss_function="MultiRMSE", iterations=4, verbose=False, allow_writing_files=False
        ),
        TWO,
        2,
    ),
    "forest": (RandomForestRegressor(**SMALL), TWO, 2),
    "one regressor each": (MultiOutputRegressor(Ridge()), TWO, 2),
    "linear": (Ridge(), TWO, 2),
    "networks": (
        MultiOutputRegressor(MLPRegressor(hidden_layer_sizes=(4,), max_iter=50, random_state=0)),
        TWO,
        2,
    ),
    "chain of classifiers": (ClassifierChain(LogisticRegression()), (TWO > 0.2).astype(int), 2),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_all_outputs_are_explained(name: str) -> None:
    model, y, columns = REGRESSORS[name]
    compiled = compile_model(model.fit(X, y), Auto(X[:20]))
    assert compiled.manifest.targets == tuple(range(columns))
    answer = compiled.explain(X[20:25])
    expected = model.predict_proba(X[20:25]) if hasattr(model, "predict_proba") else model.predict(X[20:25])
    assert answer["explained_value"] == pytest.approx(expected, abs=1e-5)
    assert "class" not in _targets(compiled)


def _targets(compiled: Compiled) -> str:
    return dict(manifest_lines(compiled.manifest))["explains"]


def test_a_named_output_is_no_class() -> None:
    model = Ridge().fit(X, TWO)
    compiled = compile_model(model, Auto(X[:20]), targets=[1])
    assert "(targets: 1, element 1 of two)" in _targets(compiled)


def test_a_classifier_has_classes() -> None:
    two = compile_model(RandomForestClassifier(**SMALL).fit(X, Y), Auto(X[:20]))
    assert "(targets: 1, class 1 of two)" in _targets(two)
    three = compile_model(RandomForestClassifier(**SMALL).fit(X, Y + (X["c"] > 0.5)), Auto(X[:20]))
    assert three.manifest.targets == "predicted"


def test_a_file_of_trees_without_a_label_answers_numbers(tmp_path: Path) -> None:
    model = convert(xgb.XGBRegressor(**SMALL).fit(X, TWO)).model
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "m.onnx")
    table = X[:20].to_numpy(np.float32)
    assert compile_model(tmp_path / "m.onnx", Auto(table)).manifest.targets == (0, 1)


def test_a_decision_by_one_of_several_numbers_says_which() -> None:
    model = Ridge().fit(X, TWO)
    profile = {
        "output": "variable",
        "threshold": 0.2,
        "adverse": "below",
        "references": {"policy": "all_applicants"},
        "features": {name: {"reason": "R"} for name in X},
        "reasons": {"R": "A reason"},
    }
    with pytest.raises(InvalidProfileError, match=r"'variable\[1\]'"):
        compile_model(model, Auto(X[:20]), decision=profile)
