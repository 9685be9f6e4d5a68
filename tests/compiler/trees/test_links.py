"""Trees whose output is a link of their scores: treeshap finds the scores behind it by itself."""

import re
from typing import Any

import catboost as cb
import lightgbm as lgb
import numpy as np
import onnx
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.ensemble import HistGradientBoostingRegressor, IsolationForest

from rationale import (
    Auto,
    Compiled,
    ExactShap,
    InvalidProfileError,
    PermutationShap,
    TreeShap,
    UnsupportedModelError,
    compile_model,
)
from tests.references import trees as reference

RANDOM = np.random.default_rng(0)
X = pd.DataFrame(RANDOM.normal(size=(200, 4)).astype(np.float32), columns=list("abcd"))
COUNTS = RANDOM.poisson(np.exp(X["a"] + X["b"] * X["c"] / 2)).astype(float)
ROWS = X[-9:]
SMALL: dict[str, Any] = {"n_estimators": 6, "max_depth": 3}
CAT: dict[str, Any] = {"iterations": 6, "verbose": False, "allow_writing_files": False}
TREES = reference.random_trees(1, ("LEQ", "LT"), columns=3)

MODELS = {
    **{f"XGBoost {n}": xgb.XGBRegressor(objective=n, **SMALL) for n in ("count:poisson", "reg:gamma")},
    "XGBoost reg:tweedie": xgb.XGBRegressor(objective="reg:tweedie", **SMALL),
    "XGBoost survival:cox": xgb.XGBRegressor(objective="survival:cox", **SMALL),
    **{
        f"LightGBM {n}": lgb.LGBMRegressor(objective=n, verbose=-1, **SMALL)
        for n in ("poisson", "gamma", "tweedie")
    },
    "CatBoost": cb.CatBoostRegressor(loss_function="Poisson", **CAT),
    "scikit-learn": HistGradientBoostingRegressor(loss="poisson", max_iter=6),
    "scikit-learn gamma": HistGradientBoostingRegressor(loss="gamma", max_iter=6),
}


def linked(op_type: str, *behind: str) -> onnx.ModelProto:
    """Return trees with three outputs, a link of them, and what moves that."""
    model = reference.regressor(TREES)
    ends = ["z", *(f"z{i}" for i in range(len(behind))), "y"]
    model.graph.node[0].output[0] = "z"
    for kind, x, y in zip((op_type, *behind), ends[:-1], ends[1:], strict=True):
        more = {"axis": 1} if kind in ("Softmax", "Flatten") else {}
        model.graph.node.append(onnx.helper.make_node(kind, [x], [y], **more))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_log_link_is_explained_by_the_scores_behind_it(name: str) -> None:
    model = MODELS[name].fit(X, COUNTS + 1)
    references = X[:20]
    compiled = compile_model(model, TreeShap(references))
    answer = compiled.explain(ROWS)
    assert compiled.manifest.explained_output == "/scores"
    (output,) = (spec.name for spec in compiled.manifest.outputs if spec.name in answer)
    assert f"explains '/scores', of which '{output}' is the Exp" in compiled.manifest.warnings[0]
    np.testing.assert_allclose(np.exp(answer["explained_value"]), answer[output], rtol=1e-5)
    exact = compile_model(model, ExactShap(references), output="/scores").explain(ROWS)
    np.testing.assert_allclose(answer["x_attributions"], exact["x_attributions"], atol=1e-5)
    by_name = compile_model(model, TreeShap(references), output="/scores")
    assert not by_name.manifest.warnings
    np.testing.assert_array_equal(by_name.explain(ROWS)["x_attributions"], answer["x_attributions"])


def test_auto_explains_what_the_model_answers() -> None:
    model = MODELS["XGBoost reg:gamma"].fit(X, COUNTS + 1)
    assert compile_model(model, Auto(X[:20])).manifest.method.name == "exactshap"
    of_scores = compile_model(model, Auto(X[:20]), logits=True).manifest
    assert (of_scores.method.name, of_scores.explained_output) == ("treeshap", "/scores")


def test_auto_passes_the_weights_on() -> None:
    model, weights = MODELS["XGBoost reg:gamma"].fit(X, COUNTS + 1), np.arange(1.0, 21.0)
    answers = [
        compile_model(model, method, output="/scores").explain(X[:3])["base_value"]
        for method in (Auto(X[:20], weights=weights), TreeShap(X[:20], weights=weights), Auto(X[:20]))
    ]
    np.testing.assert_array_equal(answers[0], answers[1])
    assert not np.allclose(answers[0], answers[2])


@pytest.mark.parametrize("behind", [(), ("Flatten",), ("Identity", "Flatten")])
@pytest.mark.parametrize("op_type", ["Exp", "Sigmoid", "Softmax"])
@pytest.mark.parametrize("logits", [True, False])
def test_any_link_of_each_score(op_type: str, behind: tuple[str, ...], logits: bool) -> None:
    references, x = reference.rows(1, 7), reference.rows(2, 4)
    model = linked(op_type, *behind)
    answer = compile_model(model, TreeShap(references), logits=logits, targets=[0, 2]).explain(x)
    expected = reference.shapley(lambda z: reference.scores(TREES, z), x, references)
    np.testing.assert_allclose(answer["x_attributions"], expected[:, [0, 2]], atol=1e-5)


def refused(model: onnx.ModelProto) -> str:
    with pytest.raises(UnsupportedModelError) as error:
        compile_model(model, TreeShap(reference.rows(1, 7)))
    return str(error.value)


def test_the_advice_can_be_followed() -> None:
    shifted = linked("Abs")
    assert "--output z)" in refused(shifted)
    assert isinstance(compile_model(shifted, TreeShap(reference.rows(1, 7)), output="z"), Compiled)
    network = linked("Exp")
    network.graph.node[0].CopyFrom(onnx.helper.make_node("Relu", ["x"], ["z"]))
    assert re.search(r"Exp node 'y'\. .*exactshap .*permutationshap", refused(network))


def test_an_isolation_forest_is_refused_with_methods_that_explain_it() -> None:
    """Its score is made of the depths of several ensembles, of which TreeSHAP takes one."""
    forest = IsolationForest(n_estimators=6, random_state=0).fit(X)
    with pytest.raises(UnsupportedModelError, match=r"\b6 ensembles\b.*exactshap.*permutationshap"):
        compile_model(forest, TreeShap(X[:20]))
    for method in (ExactShap(X[:20]), PermutationShap(X[:20])):
        answer = compile_model(forest, method, output="scores").explain(X[:5])
        np.testing.assert_allclose(answer["scores"][:, 0], forest.decision_function(X[:5]), atol=1e-5)


def test_a_profile_of_the_exponential_is_told_what_to_name() -> None:
    model = MODELS["XGBoost reg:gamma"].fit(X, COUNTS + 1)
    profile = {"output": "variable", "threshold": 2.0, "adverse": "above", "output_range": [0, 50]}
    with pytest.raises(InvalidProfileError, match="output: /scores"):
        compile_model(model, TreeShap(X[:20]), decision=profile)
    named = {**profile, "output": "/scores", "threshold": np.log(2.0), "output_range": [-4, 4]}
    assert compile_model(model, TreeShap(X[:20]), decision=named).decide(ROWS)
