"""Trees behind preprocessing, explained at the raw inputs: against pipelines at every coalition of these."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import lightgbm
import numpy as np
import onnx
import pandas as pd
import pytest
import xgboost
from onnx import helper
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)

from rationale import InvalidReferencesError, TreeShap, UnsupportedModelError, compile_model
from tests.compiler.models import parsed
from tests.references import trees as forest
from tests.references.trees import shapley

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside what they import
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx import to_onnx, update_registered_converter
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes

K, N = 7, 5
NEAR = 2e-6  # float32 scores of a few trees


def _table(seed: int, rows: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": random.normal(40, 10, rows).astype(np.float32),
            "amount": np.exp(random.normal(7, 1, rows)).astype(np.float32),
            "housing": random.choice(["own", "rent", "free"], rows),
            "job": random.choice(["a", "b", "c", "d"], rows),
        }
    )
    table.loc[random.random(rows) < 0.2, "age"] = np.nan
    return table


TABLE, REFERENCES = _table(0, 200), _table(1, K)
X = _table(2, N).assign(housing=["own", "castle", "rent", "free", "own"])  # nobody has seen a castle
LABEL = ((TABLE["amount"] > 1000) ^ (TABLE["housing"] == "own") | (TABLE["age"].fillna(50) > 40)).astype(int)
WORDS = ["housing", "job"]
CODES = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
ONES = OneHotEncoder(handle_unknown="ignore", sparse_output=False)


BINS = KBinsDiscretizer(3, encode="ordinal", quantile_method="averaged_inverted_cdf")


def pipeline(end: Any, words: Any = ONES, numbers: Any = None) -> BaseEstimator:
    numbers = numbers or make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    columns = ColumnTransformer([("n", numbers, ["age", "amount"]), ("c", words, WORDS)])
    return make_pipeline(columns, end).fit(TABLE, LABEL)


def exported(fitted: BaseEstimator, words: bool = True) -> onnx.ModelProto:
    types = [
        (name, StringTensorType([None, 1]) if name in WORDS else FloatTensorType([None, 1]))
        for name in (TABLE.columns if words else TABLE.columns[:2])
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return to_onnx(fitted, initial_types=types, target_opset={"": 18, "ai.onnx.ml": 3})


def coalitions(
    score: Callable[[pd.DataFrame], np.ndarray], x: pd.DataFrame = X, player_of: Sequence[int] | None = None
) -> np.ndarray:
    """[N, T, players] of the game in which a coalition's columns come from the row; each one is a player."""
    columns = list(x.columns)
    joined = pd.concat([x, REFERENCES[columns]], ignore_index=True)

    def of_rows(z: np.ndarray) -> np.ndarray:
        rows = {c: joined[c].to_numpy()[z[:, j].astype(int)] for j, c in enumerate(columns)}
        return np.asarray(score(pd.DataFrame(rows)), np.float64).reshape(len(z), -1)

    def places(first: int, count: int) -> np.ndarray:
        return np.repeat(np.arange(first, first + count)[:, None], len(columns), axis=1).astype(float)

    return shapley(of_rows, places(0, len(x)), places(len(x), K), player_of=player_of)


for kind, convert in ((xgboost.XGBClassifier, convert_xgboost), (lightgbm.LGBMClassifier, convert_lightgbm)):
    update_registered_converter(
        kind,
        kind.__name__,
        calculate_linear_classifier_output_shapes,
        convert,
        options={"nocl": [True, False], "zipmap": [True, False, "columns"]},
    )

SMALL = {"n_estimators": 6, "max_depth": 3, "random_state": 0}
BOOSTED = {**SMALL, "n_jobs": 1}
PIPELINES: dict[str, tuple[Callable[[], BaseEstimator], str]] = {
    "one-hot": (lambda: pipeline(GradientBoostingClassifier(**SMALL)), "decision_function"),
    "codes and missing values": (
        lambda: pipeline(
            HistGradientBoostingClassifier(max_iter=20, max_depth=3, random_state=0), CODES, "passthrough"
        ),
        "decision_function",
    ),
    "bins": (
        lambda: pipeline(
            RandomForestRegressor(**SMALL),
            numbers=make_pipeline(
                SimpleImputer(),
                KBinsDiscretizer(3, encode="ordinal", quantile_method="averaged_inverted_cdf"),
            ),
        ),
        "predict",
    ),
    "XGBoost": (lambda: pipeline(xgboost.XGBClassifier(**BOOSTED)), "margin"),
    "LightGBM": (lambda: pipeline(lightgbm.LGBMClassifier(**BOOSTED, verbose=-1)), "margin"),
}


def score_of(fitted: BaseEstimator, kind: str) -> Callable[[pd.DataFrame], np.ndarray]:
    if kind != "margin":
        return getattr(fitted, kind)
    option = "output_margin" if "xgboost" in type(fitted[-1]).__module__ else "raw_score"
    return lambda rows: fitted[-1].predict(fitted[0].transform(rows), **{option: True})


@pytest.mark.parametrize("name", PIPELINES)
def test_exact_at_the_raw_inputs(name: str) -> None:
    make, kind = PIPELINES[name]
    fitted = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LightGBM has no feature names; an unknown category
        answer = compile_model(exported(fitted), TreeShap(REFERENCES)).explain(X)
        expected = coalitions(score_of(fitted, kind))
    for j, column in enumerate(TABLE.columns):
        assert answer[f"{column}_attributions"].shape == (N, 1, 1)
        np.testing.assert_allclose(answer[f"{column}_attributions"][:, :, 0], expected[:, :, j], atol=NEAR)
    assert np.abs(expected[:, 0]).max(axis=0)[:3].min() > 1e-3  # whatever the job does
    assert np.abs(answer["completeness_gap"]).max() < NEAR


def test_weights_classes_and_batches() -> None:
    fitted = pipeline(RandomForestClassifier(5, max_depth=4, random_state=0))
    weights = np.arange(1, K + 1)
    compiled = compile_model(exported(fitted), TreeShap(REFERENCES, weights=weights), targets="all")
    twice = compile_model(
        exported(fitted), TreeShap(REFERENCES.loc[REFERENCES.index.repeat(weights)]), targets="all"
    )
    answer = compiled.explain(X)
    assert answer["amount_attributions"].shape == (N, 2, 1)
    for name, values in twice.explain(X).items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(answer[name], values, atol=1e-6)
    for i in range(N):
        row = compiled.explain(X.iloc[i : i + 1])
        for column in TABLE.columns:
            name = f"{column}_attributions"
            np.testing.assert_array_equal(row[name][0], answer[name][i])


def test_what_the_manifest_says() -> None:
    compiled = compile_model(exported(pipeline(GradientBoostingClassifier(**SMALL))), TreeShap(REFERENCES))
    explained = compiled.manifest.explained
    assert [(e.tensor.name, e.tensor.datatype, e.takes_missing) for e in explained] == [
        ("age", "FP32", True),
        ("amount", "FP32", True),
        ("housing", "BYTES", True),
        ("job", "BYTES", True),
    ]
    recompiled = compile_model(exported(pipeline(GradientBoostingClassifier(**SMALL))), TreeShap(REFERENCES))
    assert recompiled.manifest.digests == compiled.manifest.digests


SPLIT = forest.random_trees(5, ("LEQ", "LT"), features=5)


def behind(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """Trees of five features `z`, which the text makes of float x [N, 4] and int64 u [N, 2]."""
    opsets = '"" : 21, "ai.onnx.ml" : 3'
    inputs = "float[N, 4] x, int64[N, 2] u"
    model = parsed(f"g ({inputs}) => (float[N, 5] z) {{ {text} }}", weights, opsets=opsets)
    trees = forest.regressor(SPLIT, 5)
    (node,) = trees.graph.node
    node.input[0] = "z"
    model.graph.node.append(node)
    model.graph.output[0].CopyFrom(trees.graph.output[0])
    return model


MIXED = "v = Cast <to = 1> (u) zero = Mul (v, nothing) w = Concat <axis = 1> (x, v) "
CONSTANTS = {"nothing": np.zeros(2, np.float32), "order": np.array([5, 0, 4, 0, 2])}


def test_elements_that_move_and_are_used_twice() -> None:
    """Two features of one element are one player; two elements meet no tree."""
    model = behind(MIXED + "z = Gather <axis = 1> (w, order)", **CONSTANTS)
    random = np.random.default_rng(3)
    rows = {n: {"x": random.normal(size=(n, 4)).astype(np.float32)} for n in (N, K)}
    for n, held in rows.items():
        held["u"] = random.integers(-1, 2, (n, 2))
    answer = compile_model(model, TreeShap(rows[K])).explain(rows[N])
    x, references = (np.concatenate([rows[n]["x"], rows[n]["u"]], axis=1) for n in (N, K))
    expected = shapley(lambda z: forest.scores(SPLIT, z[:, CONSTANTS["order"]]), x, references)
    np.testing.assert_allclose(answer["x_attributions"], expected[:, :, :4], atol=1e-6)
    np.testing.assert_allclose(answer["u_attributions"], expected[:, :, 4:], atol=1e-6)
    assert not answer["x_attributions"][:, :, [1, 3]].any()


def test_interactions_of_elements() -> None:
    """Of the raw elements of one input, two of which meet no tree."""
    order = np.array([3, 0, 0, 2, 3])
    model = behind("z = Gather <axis = 1> (x, order)", order=order)
    del model.graph.input[1]
    rows = np.random.default_rng(6).normal(size=(N + K, 4)).astype(np.float32)
    x, references = rows[:N], rows[N:]
    answer = compile_model(model, TreeShap(references, interactions=True)).explain(x)
    worth = forest.interventional(lambda z: forest.scores(SPLIT, z[:, order]), x, references)
    np.testing.assert_allclose(answer["x_interactions"], forest.interactions_of(worth, 4), atol=1e-6)
    np.testing.assert_allclose(answer["x_interactions"].sum(axis=3), answer["x_attributions"], atol=1e-6)


def test_interactions_of_several_inputs() -> None:
    model = exported(pipeline(GradientBoostingClassifier(**SMALL)))
    with pytest.raises(UnsupportedModelError, match=r"interactions.*--input"):
        compile_model(model, TreeShap(REFERENCES, interactions=True))


def test_covers_of_raw_rows() -> None:
    """Path-dependent: the base value is the mean score over the rows that covers were counted from."""
    fitted = pipeline(GradientBoostingClassifier(**SMALL))
    answer = compile_model(exported(fitted), TreeShap(covers=TABLE)).explain(X)
    mean = fitted.decision_function(TABLE).mean()
    np.testing.assert_allclose(answer["base_value"], np.full((N, 1), mean), rtol=1e-5)  # of 200 in float32
    assert np.abs(answer["completeness_gap"]).max() < 1e-5
    assert np.abs(answer["amount_attributions"]).min() > 0


REFUSED = {
    "z = Gather <axis = 1> (s, order) ": r"0 of 'z'.*: 'x\[0\]', 'x\[1\]', 'x\[2\]', 'x\[3\]' \(Softmax",
    "p = Mul (t, x) z = Concat <axis = 1> (p, f)": r"feature 1 of 'z'.*: 'x\[1\]', 'x\[2\]' \(Mul node",
    # 0·x is nothing where no x is missing, as behind an Imputer of x itself: NaN times 0 is NaN
    "n = Mul (x, nothing) p = Add (t, n) z = Concat <axis = 1> (p, f)": r"'z'.*: 'x\[1\]', 'x\[2\]' \(Add",
    "m = IsNaN (t) w = Where (m, nothing, x) n = Mul (w, nothing) p = Add (t, n) "
    "z = Concat <axis = 1> (p, f)": r"feature 1 of 'z'.*: 'x\[1\]', 'x\[2\]' \(Where node",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_feature_of_several_elements(text: str) -> None:
    orders = {"order": np.array([0, 1, 2, 3, 0]), "turned": np.array([0, 2, 1, 3])}
    orders["nothing"] = np.zeros(4, np.float32)
    nodes = "s = Softmax (x) t = Gather <axis = 1> (x, turned) f = Gather <axis = 1> (x, first) "
    model = behind(nodes + text, **orders, first=np.array([0]))
    references = {"x": np.zeros((3, 4), np.float32), "u": np.zeros((3, 2), np.int64)}
    with pytest.raises(UnsupportedModelError, match=REFUSED[text] + ".*--input z"):
        compile_model(model, TreeShap(references))


def test_components_of_all_columns() -> None:
    """From what the trees read on, where the columns mix."""
    numbers = make_pipeline(SimpleImputer(), RobustScaler(), PCA(2))
    table = TABLE[["age", "amount"]]
    columns = ColumnTransformer([("n", numbers, ["age", "amount"])])
    fitted = make_pipeline(columns, GradientBoostingClassifier(**SMALL)).fit(table, LABEL)
    model = exported(fitted, words=False)
    with pytest.raises(UnsupportedModelError, match=r"'age\[0\]', 'amount\[0\]' \(.*--input") as caught:
        compile_model(model, TreeShap(REFERENCES[["age", "amount"]]))
    inner = str(caught.value).partition("--input ")[2].partition(")")[0]
    inner_references = {name: REFERENCES[[name]].to_numpy() for name in ("age", "amount")}
    x = X[["age", "amount"]].fillna(20)  # NaN is a missing value of what is explained alone
    answer = compile_model(model, TreeShap(inner_references), inputs=[inner]).explain(x)
    trees = fitted[-1].decision_function
    rows, references = (fitted[0].transform(z[["age", "amount"]]) for z in (x, REFERENCES))
    expected = shapley(lambda z: trees(z.astype(np.float32)).reshape(-1, 1), rows, references)
    np.testing.assert_allclose(answer[f"{inner}_attributions"], expected, atol=NEAR)


def test_some_inputs_alone_are_too_few() -> None:
    model = exported(pipeline(GradientBoostingClassifier(**SMALL)))
    with pytest.raises(UnsupportedModelError, match=r"amount\[0\].*: age\)"):
        compile_model(model, TreeShap(REFERENCES[["age"]]), inputs=["age"])


MIXED_MODELS = {
    "a number": (REFERENCES.assign(job=3), r"'job' hold '3' at \[0, 0\]"),
    "a word": (REFERENCES.assign(age="old"), "'age' holds .*, not numbers"),
}


@pytest.mark.parametrize("name", MIXED_MODELS)
def test_references_that_do_not_fit(name: str) -> None:
    table, words = MIXED_MODELS[name]
    with pytest.raises(InvalidReferencesError, match=words):
        compile_model(exported(pipeline(GradientBoostingClassifier(**SMALL))), TreeShap(table))


def test_an_unused_input_has_zeros() -> None:
    trees = forest.regressor(SPLIT, 5)
    trees.graph.input.append(helper.make_tensor_value_info("unused", onnx.TensorProto.STRING, ["N", 3]))
    words = np.full((K, 3), "w", object)
    answer = compile_model(trees, TreeShap({"x": forest.rows(1, K), "unused": words})).explain(
        {"x": forest.rows(2, N), "unused": words[:N]}
    )
    assert answer["unused_attributions"].shape == (N, 1, 3)
    assert not answer["unused_attributions"].any()
