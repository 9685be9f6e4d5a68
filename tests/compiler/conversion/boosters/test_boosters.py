"""Boosters with the options that change a prediction: right on rows, mixtures and gaps, or refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder, StandardScaler

from rationale import InvalidOptionError, TreeShap, UnsupportedModelError, compile_model, convert
from rationale.conversion.boosters.trees import BoostedTrees, Split, _bound, with_margins
from rationale.conversion.files import read_fitted
from rationale.from_files import compile_files
from rationale.graph.runtime.session import Runner
from rationale.schema.request import CompileRequest
from tests.compiler.conversion.data import AMOUNT, LOANS, REFERENCES, THREE, TWO, compared_rows
from tests.tolerances import PARITY_32

SMALL: dict[str, Any] = {"n_estimators": 8, "max_depth": 3}
QUIET: dict[str, Any] = {**SMALL, "verbose": -1, "min_data_per_group": 2, "cat_smooth": 1}
HISTOGRAMS: dict[str, Any] = {"max_iter": 8, "min_samples_leaf": 5}
BAGS = {"boosting_type": "rf", "subsample": 0.5, "subsample_freq": 1}
POSITIVE = AMOUNT.abs() / 10
TWO_TARGETS = np.stack([1000 * AMOUNT, TWO], axis=1)
CODES = np.random.default_rng(0).integers(0, 40, len(LOANS)).astype(float)
ODD_CODES = CODES % 3 == 1


def categories() -> pd.DataFrame:
    """Words, numbers and gaps among both, that pandas has types of categories for."""
    words = np.array(["own", "rent", "free", "parents", None])[CODES.astype(int) % 5]
    names = ["own", "rent", "free", "parents"]
    years = pd.Series(np.where(CODES % 7 == 0, np.nan, 10 * (CODES % 4)))
    return LOANS.assign(home=pd.Categorical(words, names), since=pd.Categorical(years, [30, 0, 20, 10]))


def coded() -> np.ndarray:
    """Numbers with codes behind them, of which some are between two, under 0, unknown or missing."""
    table = np.column_stack([LOANS, CODES])
    table[:24, -1] = np.tile([1.5, -0.5, 99.0, -7.0, np.nan, 6.999], 4)
    return table


def boosted(objective: str, y: Any, model: type = xgb.XGBRegressor, **options: Any) -> Callable[[], Any]:
    return lambda: model(objective=objective, **SMALL, **options).fit(LOANS, y)


def linear(objective: str, y: Any) -> Callable[[], Any]:
    model = xgb.XGBRegressor if objective.startswith("reg") else xgb.XGBClassifier
    return lambda: model(booster="gblinear", objective=objective, n_estimators=8).fit(LOANS, y)


def light(y: Any, model: type = lgb.LGBMRegressor, **options: Any) -> Callable[[], Any]:
    return lambda: model(**QUIET, **options).fit(LOANS, y)


def aft() -> xgb.Booster:
    rows = xgb.DMatrix(LOANS)
    for bound in ("lower", "upper"):
        rows.set_float_info(f"label_{bound}_bound", POSITIVE.to_numpy())
    return xgb.train({"objective": "survival:aft", "max_depth": 3}, rows, 8)


def on_categories(model: Any) -> Callable[[], Any]:
    return lambda: model.fit(categories(), TWO ^ ODD_CODES)


def of_codes() -> xgb.Booster:
    rows = xgb.DMatrix(
        np.column_stack([LOANS, CODES]),
        TWO ^ ODD_CODES,
        feature_types=[*["float"] * 5, "c"],
        enable_categorical=True,
    )
    return xgb.train({"objective": "binary:logistic", "max_depth": 3}, rows, 8)


def of_zeros() -> lgb.LGBMClassifier:
    return lgb.LGBMClassifier(**QUIET, zero_as_missing=True).fit(zeros(), TWO ^ (zeros()["age"] == 0))


def zeros() -> pd.DataFrame:
    table = LOANS.copy()
    table.iloc[::3, 0], table.iloc[1::4, 2], table.iloc[2::4, 2] = 0, 0, 1e-35
    return table


ROWS = REFERENCES
MODELS: dict[str, tuple[Callable[[], Any], Any]] = {
    "two targets": (lambda: xgb.XGBRegressor(**SMALL).fit(LOANS, TWO_TARGETS), ROWS),
    "vector leaves": (
        lambda: xgb.XGBRegressor(multi_strategy="multi_output_tree", **SMALL).fit(LOANS, TWO_TARGETS),
        ROWS,
    ),
    "two labels": (lambda: xgb.XGBClassifier(**SMALL).fit(LOANS, TWO_TARGETS > 0), ROWS),
    "missing=-999": (
        lambda: xgb.XGBClassifier(missing=-999, **SMALL).fit(LOANS.fillna(-999), TWO),
        ROWS.fillna(-999),
    ),
    "xgboost ranker": (
        lambda: xgb.XGBRanker(**SMALL).fit(LOANS, TWO, group=[len(LOANS)]),
        ROWS,
    ),
    "accelerated failure times": (aft, ROWS),
    "quantiles": (boosted("reg:quantileerror", AMOUNT, quantile_alpha=[0.1, 0.5, 0.9]), ROWS),
    "dart": (boosted("reg:squarederror", AMOUNT, booster="dart", rate_drop=0.5), ROWS),
    "bagged": (lambda: xgb.XGBRFClassifier(**SMALL).fit(LOANS, THREE), ROWS),
    "softmax": (boosted("multi:softmax", TWO, xgb.XGBClassifier, num_class=2), ROWS),
    "no negative leaf": (
        lambda: xgb.XGBClassifier(n_estimators=2, max_depth=1, base_score=0.01).fit(LOANS, LOANS["age"] > -2),
        ROWS,
    ),
    **{
        o: (boosted(o, POSITIVE), ROWS) for o in ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox")
    },
    "xgboost's sets": (
        on_categories(xgb.XGBClassifier(**SMALL, enable_categorical=True, max_cat_to_onehot=1)),
        categories()[:60],
    ),
    "xgboost's ones": (
        on_categories(xgb.XGBClassifier(**SMALL, enable_categorical=True, max_cat_to_onehot=9)),
        categories()[:60],
    ),
    "xgboost's codes": (of_codes, coded()[:60]),
    "one against all": (light(THREE, lgb.LGBMClassifier, objective="multiclassova"), ROWS),
    "lightgbm ranker": (lambda: lgb.LGBMRanker(**QUIET).fit(LOANS, TWO, group=[len(LOANS)]), ROWS),
    "random forest": (light(THREE, lgb.LGBMClassifier, **BAGS), ROWS),
    "a steep sigmoid": (light(TWO, lgb.LGBMClassifier, sigmoid=2.0), ROWS),
    "square roots": (light(AMOUNT, reg_sqrt=True), ROWS),
    "zero as missing": (of_zeros, zeros()[:60]),
    **{
        o: (light(POSITIVE, objective=o), ROWS)
        for o in ("poisson", "tweedie", "quantile", "cross_entropy", "cross_entropy_lambda")
    },
    "lightgbm's sets": (on_categories(lgb.LGBMClassifier(**QUIET, max_cat_to_onehot=1)), categories()[:60]),
    "lightgbm's ones": (on_categories(lgb.LGBMClassifier(**QUIET, max_cat_to_onehot=9)), categories()[:60]),
    "lightgbm's codes": (
        lambda: lgb.LGBMClassifier(**QUIET).fit(
            np.column_stack([LOANS, CODES]), TWO ^ ODD_CODES, categorical_feature=[5]
        ),
        coded()[:60],
    ),
    **{
        f"xgboost's {o}": (boosted(f"binary:{o}", TWO, xgb.XGBClassifier), ROWS)
        for o in ("logitraw", "hinge")
    },
    **{
        f"linear, {o}": (linear(o, y), ROWS)
        for o, y in {
            "reg:squarederror": AMOUNT,
            "reg:gamma": POSITIVE,
            "binary:logistic": TWO,
            "binary:logitraw": TWO,
            "multi:softprob": THREE,
        }.items()
    },
    "cross entropy of a classifier": (light(TWO, lgb.LGBMClassifier, objective="cross_entropy"), ROWS),
    **{
        f"histograms, {loss}": (
            lambda loss=loss: HistGradientBoostingRegressor(loss=loss, **HISTOGRAMS).fit(LOANS, POSITIVE),
            ROWS,
        )
        for loss in ("squared_error", "absolute_error", "gamma", "poisson")
    },
    "histograms of three, by codes": (
        lambda: HistGradientBoostingClassifier(categorical_features=[5], **HISTOGRAMS).fit(
            np.column_stack([LOANS, np.where(CODES % 5 == 4, np.nan, CODES)]), THREE + ODD_CODES
        ),
        coded()[:60],
    ),
    "histograms of words": (
        on_categories(HistGradientBoostingClassifier(categorical_features=["home", "since"], **HISTOGRAMS)),
        categories()[:60],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_booster(name: str) -> None:
    make, rows = MODELS[name]
    parity = convert(make(), rows).parity
    assert parity is not None
    assert parity.relative < PARITY_32
    assert compared_rows(parity, "masked") > 0
    assert (parity.labels or 0, parity.refuses_missing) == (0, ())


@pytest.mark.parametrize(
    "model",
    [
        lgb.LGBMRegressor(n_estimators=1, min_child_samples=1, min_data_in_bin=1, verbose=-1),
        HistGradientBoostingRegressor(max_iter=1, min_samples_leaf=1),
    ],
    ids=["lightgbm", "histograms"],
)
def test_a_threshold_between_two_numbers_of_a_request_is_between_them(model: Any) -> None:
    steps = np.float32(0.1) + np.arange(20, dtype=np.float32) * np.spacing(np.float32(0.1))
    rows = np.repeat(steps, 20)[:, None].astype(float)
    parity = convert(model.fit(rows, np.arange(400) // 20 % 2), rows).parity
    assert parity is not None
    assert parity.relative < PARITY_32


def test_early_stopping_counts_in_every_form(tmp_path: Path) -> None:
    model = xgb.XGBClassifier(n_estimators=80, max_depth=3, early_stopping_rounds=2, learning_rate=1.0)
    model.fit(LOANS[:200], TWO[:200], eval_set=[(LOANS[200:], TWO[200:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    model.save_model(tmp_path / "m.json")
    expected = model.predict_proba(LOANS)
    for source in (model, model.get_booster(), read_fitted(tmp_path / "m.json")):
        answers = Runner(convert(source, ROWS).model)({"x": LOANS.to_numpy(np.float64)})
        assert np.abs(answers["probabilities"] - expected).max() < PARITY_32


def test_the_number_for_a_missing_value_is_asked_for_where_a_file_does_not_hold_it(tmp_path: Path) -> None:
    model, rows = MODELS["missing=-999"][0](), LOANS.fillna(-999)
    model.save_model(tmp_path / "m.json")
    run = Runner(convert(read_fitted(tmp_path / "m.json", missing=-999), ROWS.fillna(-999)).model)
    answer = run({"x": rows.to_numpy(np.float64)})["probabilities"]
    assert np.abs(answer - model.predict_proba(rows)).max() < PARITY_32
    with pytest.raises(InvalidOptionError, match=r"--missing .*m\.(txt|onnx)"):
        read_fitted(tmp_path / "m.txt", missing=-999)
    with pytest.raises(InvalidOptionError, match=r"--missing .*m\.(txt|onnx)"):
        compile_files(CompileRequest(missing=-999), tmp_path / "m.onnx")


@pytest.mark.parametrize("name", ["xgboost's sets", "lightgbm's sets"])
def test_words_are_inputs_and_unknown_ones_are_missing_or_refused(name: str) -> None:
    make, rows = MODELS[name]
    model, text = make(), rows.assign(home=rows["home"].astype(object).fillna(""))
    compiled = compile_model(model, TreeShap(text[:30]))
    assert [item.tensor.name for item in compiled.manifest.explained] == list(rows.columns)
    applicants = text[30:35].assign(home=["own", "castle", "", "rent", "free"])
    if name.startswith("xgboost"):  # as it refuses it itself
        with pytest.raises(InvalidOptionError, match=r"row 1: .*'home'.*'castle'"):
            compiled.explain(applicants)
        applicants["home"] = applicants["home"].replace("castle", "")
    answer = compiled.explain(applicants)
    accepted_rows = rows[30:35].assign(
        home=pd.Categorical(["own", None, None, "rent", "free"], rows["home"].cat.categories)
    )
    assert np.abs(answer["probabilities"] - model.predict_proba(accepted_rows)).max() < PARITY_32
    assert np.abs(answer["completeness_gap"]).max() < PARITY_32


def test_inside_a_pipeline() -> None:
    for last, options in (
        (xgb.XGBClassifier(**SMALL, enable_categorical=True, feature_types=[*["float"] * 5, "c"]), {}),
        (lgb.LGBMClassifier(**QUIET), {"lgbmclassifier__categorical_feature": [5]}),
    ):
        pipeline = make_pipeline(FunctionTransformer(), last)
        pipeline.fit(np.column_stack([LOANS, CODES]), TWO ^ ODD_CODES, **options)
        parity = convert(pipeline, coded()[:60]).parity
        assert parity is not None
        assert parity.relative < PARITY_32


def test_histograms_of_encoded_words_inside_a_pipeline() -> None:
    table = categories().astype({"home": object}).fillna({"home": "none"})
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    columns = make_column_transformer((encoder, ["home"]), ("passthrough", list(LOANS)))
    last = HistGradientBoostingClassifier(categorical_features=[0], **HISTOGRAMS)
    parity = convert(make_pipeline(columns, last).fit(table, TWO ^ ODD_CODES), table[:60]).parity
    assert parity is not None
    assert parity.relative < PARITY_32


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "logits for probabilities in a pipeline": (
        lambda: make_pipeline(StandardScaler(), xgb.XGBClassifier(objective="binary:logitraw", **SMALL)).fit(
            LOANS, TWO
        ),
        "objective 'binary:logitraw'.*binary:logistic, multi:softprob",
    ),
    "letters that are cut": (
        lambda: xgb.XGBClassifier(**SMALL, enable_categorical=True).fit(
            LOANS.assign(home=pd.Categorical(np.resize(["Müll", "own"], len(LOANS)))), TWO
        ),
        "XGBoost .*ASCII",
    ),
    "linear leaves": (light(AMOUNT, linear_tree=True), "linear_tree=False"),
    "own objective": (
        light(TWO, lgb.LGBMClassifier, objective=lambda y, p: (p - y, np.ones_like(p))),
        "objective 'custom'",
    ),
    "ordered categories": (
        lambda: lgb.LGBMClassifier(**QUIET).fit(
            categories().assign(rate=pd.Categorical(CODES % 3, ordered=True)), TWO
        ),
        "LightGBM .*\\b3\\b.*categorical_feature='auto'",
    ),
    "a type of categories in a pipeline": (
        lambda: make_pipeline(FunctionTransformer(), lgb.LGBMClassifier(**QUIET)).fit(categories(), TWO),
        "lightgbm.LGBMClassifier .*categorical",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    make, words = REFUSED[name]
    text = categories().astype({"home": object}).fillna({"home": ""})
    with pytest.raises(UnsupportedModelError, match=words):
        convert(make(), text if "categories in a pipeline" in name else None)


NEAR_BOUNDS = [0.1, 0.2, 0.3, -0.1, 1 / 3, 1e-3, 16777217.0, 1e39, 5e-324, 0.5, -np.pi, 2**-150]


@pytest.mark.parametrize("bound", NEAR_BOUNDS, ids=str)
@pytest.mark.parametrize("strict", [True, False])
def test_a_bound_in_another_type_leaves_its_numbers_on_their_sides(bound: float, strict: bool) -> None:
    """Rounded to the nearest, it could pass a number of its type that lies between."""
    split = Split(0, 1, 2, missing=False, bound=bound, strict=strict)
    rounded = _bound(split, np.dtype(np.float32))
    with np.errstate(over="ignore"):
        nearest = np.float32(bound)
    for number in (
        np.nextafter(nearest, np.float32(-np.inf)),
        nearest,
        np.nextafter(nearest, np.float32(np.inf)),
    ):
        wide = float(number)
        sides = [wide < each if strict else wide <= each for each in (bound, rounded)]
        assert sides[0] == sides[1], wide
    assert _bound(split, np.dtype(np.float64)) == bound


def test_bounds_move_by_a_margin_of_their_feature_and_zeros_stay() -> None:
    """LightGBM takes numbers nearer to 0 than 1e-35 for 0, and no step makes a number between."""
    near_zero = float(np.float32(1e-35))
    bounds = [0.5, -4.0, near_zero, -near_zero, 0.0, np.inf]
    tree: dict[int, Any] = {}
    for i, bound in enumerate(bounds):
        tree[i] = Split(0, 6, 6, missing=False, bound=bound, strict=i == 1)
    tree[6] = {0: 1.0}
    tree[7] = Split(1, 6, 6, missing=False, among=(1, 2), bound=0.5)
    moved = with_margins(BoostedTrees([tree], np.zeros(1))).trees[0]
    margin = 4.0 * 2.0**-45  # of the feature's largest bound
    assert [moved[i].bound for i in range(6)] == [0.5 + margin, -4.0 - margin, *bounds[2:]]
    assert (moved[6], moved[7]) == (tree[6], tree[7])
