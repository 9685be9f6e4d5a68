"""CatBoost models, compiled as they are and from their files."""

import json
from pathlib import Path
from typing import Any

import catboost
import numpy as np
import pandas as pd
import pytest

from rationale import (
    ExactShap,
    InvalidOptionError,
    InvalidReferencesError,
    TreeShap,
    UnsupportedModelError,
    compile_model,
    convert,
)
from rationale.conversion.files import read_fitted
from rationale.errors import InvalidProfileError
from rationale.from_files import compile_files
from rationale.schema.request import CompileRequest
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
from tests.tolerances import PARITY_32

SMALL: dict[str, Any] = {"iterations": 6, "depth": 3, "verbose": 0, "allow_writing_files": False}


@pytest.mark.parametrize("classes", [TWO, THREE], ids=["two", "three"])
def test_classifiers(classes: pd.Series, tmp_path: Path) -> None:
    model = catboost.CatBoostClassifier(**SMALL).fit(LOANS, classes)
    model.save_model(str(tmp_path / "m.cbm"))
    expected = model.predict_proba(APPLICANTS)
    for source in (model, read_fitted(tmp_path / "m.cbm")):
        compiled = compile_model(source, TreeShap(REFERENCES))
        answer, parity = compiled.explain(APPLICANTS), compiled.manifest.parity
        assert parity is not None
        assert compared_rows(parity, "references") == K
        assert parity.labels == 0
        assert parity.relative < PARITY_32
        assert compiled.manifest.explained[0].feature_names == tuple(FEATURES)
        assert np.abs(answer["probabilities"] - expected).max() <= PARITY_32
        np.testing.assert_array_equal(answer["label"], model.predict(APPLICANTS).reshape(N))


def test_numbers() -> None:
    model = catboost.CatBoostRegressor(**SMALL).fit(LOANS.to_numpy(), AMOUNT)
    answer = compile_model(model, TreeShap(REFERENCES.to_numpy())).explain(APPLICANTS.to_numpy())
    expected = model.predict(APPLICANTS.to_numpy())
    assert np.abs(answer["predictions"].reshape(N) - expected).max() <= PARITY_32 * np.ptp(expected)


def test_a_ranker() -> None:
    groups = np.arange(len(LOANS)) // 20
    model = catboost.CatBoostRanker(**SMALL).fit(LOANS, TWO, group_id=groups)
    parity = convert(model, REFERENCES).parity
    assert parity is not None
    assert parity.relative < PARITY_32


def table(**more: Any) -> pd.DataFrame:
    random = np.random.default_rng(1)
    words = random.choice(["own", "rent", "frei", "zwölf", "5"], len(LOANS))
    return LOANS.assign(home=words, job=random.integers(0, 6, len(LOANS)), **more)


TABLE = table()
BAD = TWO ^ (TABLE["home"] == "own") ^ (TABLE["job"] % 3 == 0)
REGRESSOR, CLASSIFIER = catboost.CatBoostRegressor, catboost.CatBoostClassifier
MODELS: dict[str, tuple[type, Any, dict[str, Any]]] = {
    "combinations": (CLASSIFIER, BAD, {"nan_mode": "Max"}),
    "one-hot": (CLASSIFIER, BAD, {"one_hot_max_size": 10}),
    "of three": (CLASSIFIER, THREE, {}),
    "one against all": (CLASSIFIER, THREE, {"loss_function": "MultiClassOneVsAll"}),
    "trees of any shape": (CLASSIFIER, BAD, {"grow_policy": "Lossguide"}),
    "counts": (REGRESSOR, BAD, {"loss_function": "Poisson"}),
    "two targets": (REGRESSOR, np.stack([1000 * AMOUNT, BAD], axis=1), {"loss_function": "MultiRMSE"}),
    **{
        kind: (REGRESSOR, AMOUNT + 3 * BAD, {"simple_ctr": kind, "combinations_ctr": kind})
        for kind in (
            "Borders:TargetBorderCount=3",
            "Buckets:TargetBorderCount=3",
            "BinarizedTargetMeanValue",
            "Counter",
        )
    },
}


@pytest.mark.parametrize("coded", [True, False], ids=["categories", "numbers"])
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_booster(name: str, coded: bool) -> None:
    kind, y, options = MODELS[name]
    rows, settings = (TABLE, {"cat_features": ["home", "job"]}) if coded else (LOANS, {})
    model = kind(**{**SMALL, "iterations": 20, **options}).fit(rows, y, **settings)
    requests = rows.copy()
    if coded:
        requests.loc[:9, "home"], requests.loc[5:19, "job"] = "castle", 77
    parity = convert(model, requests).parity
    assert parity is not None
    assert parity.relative < PARITY_32
    assert (parity.labels or 0, parity.refuses_missing) == (0, ("job", "home") if coded else ())


@pytest.mark.parametrize("nan_mode", ["Min", "Max"])
def test_statistics_of_a_category_beside_splits(nan_mode: str, tmp_path: Path) -> None:
    """Of rows that have a number above a border, or another category, too."""
    options = {"max_ctr_complexity": 2, "model_size_reg": 0, "random_strength": 0, "one_hot_max_size": 5}
    options |= {"iterations": 60, "depth": 5, "boosting_type": "Plain", "nan_mode": nan_mode}
    y = np.where(TABLE["income now"] > 0, TABLE["job"] % 3 == 0, TABLE["home"].isin(["own", "frei"]))
    model = CLASSIFIER(**{**SMALL, **options}).fit(TABLE, y, cat_features=["home", "job"])
    model.save_model(str(tmp_path / "m.json"), format="json")
    statistics = json.loads((tmp_path / "m.json").read_text())["features_info"]["ctrs"]
    parts = {element["combination_element"] for entry in statistics for element in entry["elements"]}
    assert parts == {"cat_feature_value", "cat_feature_exact_value", "float_feature"}
    parity = convert(model, TABLE).parity
    assert parity is not None
    assert parity.relative < PARITY_32


def test_one_category_is_one_player() -> None:
    options = {**SMALL, "iterations": 20, "max_ctr_complexity": 1}
    model = CLASSIFIER(**options).fit(TABLE, BAD, cat_features=["home", "job"])
    answer = compile_model(model, TreeShap(TABLE)).explain(TABLE[:N].assign(home="castle"))
    expected = model.predict_proba(TABLE[:N].assign(home="castle"))
    assert np.abs(answer["probabilities"] - expected).max() < PARITY_32
    assert answer["home_attributions"].shape == (N, 1, 1)
    assert np.abs(answer["completeness_gap"]).max() < PARITY_32


def test_what_cannot_be_converted() -> None:
    model = CLASSIFIER(**{**SMALL, "iterations": 20}).fit(TABLE, BAD, cat_features=["home", "job"])
    with pytest.raises(InvalidOptionError, match=r"CatBoost.*convert\(model, example\)"):
        convert(model)
    with pytest.raises(
        InvalidReferencesError, match=r"--categories FILE .*convert\(model, all_rows\).* at weight 0"
    ):
        convert(model, TABLE[TABLE["home"] != "own"])
    with pytest.raises(UnsupportedModelError, match=r"CatBoost.*loss_function.*'RMSEWithUncertainty'"):
        convert(REGRESSOR(**SMALL, loss_function="RMSEWithUncertainty").fit(LOANS, AMOUNT))


def test_categories_come_from_the_decision_profile_if_the_references_lack_some() -> None:
    model = CLASSIFIER(**{**SMALL, "iterations": 20}).fit(TABLE, BAD, cat_features=["home", "job"])
    few = TABLE[(TABLE["home"] != "own") & (TABLE["job"] != TABLE["job"].min())][:20]
    names_by_column = {
        name: {str(value): f"called {value}" for value in set(TABLE[name])} for name in ("home", "job")
    }
    rules = {name: {"categories": categories} for name, categories in names_by_column.items()}
    profile = {"output": "probabilities[1]", "threshold": 0.5, "adverse": "above", "features": rules}
    compiled = compile_model(model, ExactShap(few), decision=profile)
    expected = model.predict_proba(TABLE[:N])
    assert np.abs(compiled.explain(TABLE[:N])["probabilities"] - expected).max() < PARITY_32
    assert np.abs([entry.score for entry in compiled.decide(TABLE[:N])] - expected[:, 1]).max() < PARITY_32
    del names_by_column["home"]["own"]
    with pytest.raises(InvalidReferencesError, match="decision profile"):
        compile_model(model, ExactShap(few), decision=profile)
    names_by_column["home"] |= {"own": "Own", "castle": "A castle"}
    with pytest.raises(InvalidProfileError, match="'castle'"):
        compile_model(model, ExactShap(TABLE[:40]), decision=profile)


def test_categories_come_from_a_file_of_rows(tmp_path: Path) -> None:
    model = CLASSIFIER(**{**SMALL, "iterations": 20}).fit(TABLE, BAD, cat_features=["home", "job"])
    model.save_model(str(tmp_path / "m.cbm"))
    TABLE.to_csv(tmp_path / "train.csv", index=False)
    few = TABLE[TABLE["home"] != "own"][:20]
    few.to_csv(tmp_path / "references.csv", index=False)
    request = CompileRequest(method="exactshap", categories=tmp_path / "train.csv")
    answer = compile_files(request, tmp_path / "m.cbm", tmp_path / "references.csv").explain(
        TABLE[:N].astype({"job": str})
    )
    assert np.abs(answer["probabilities"] - model.predict_proba(TABLE[:N])).max() < PARITY_32
    with pytest.raises(InvalidReferencesError, match="--categories FILE"):
        compile_files(CompileRequest(method="exactshap"), tmp_path / "m.cbm", tmp_path / "references.csv")
    with pytest.raises(InvalidOptionError, match="--categories"):
        compile_files(request, tmp_path / "m.onnx")
