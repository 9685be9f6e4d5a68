"""Texts of fitted models: those that they know, rare ones, others, and missing ones in every form."""

import warnings
from collections.abc import Callable
from typing import Any

import catboost
import lightgbm as lgb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xgboost as xgb
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder

from rationale import ExactShap, compile_model
from rationale.artifact.compiled import Compiled
from rationale.artifact.rows import inputs_of_arrow, read_inputs
from rationale.decisions.rows import feature_values
from rationale.errors import InvalidOptionError
from tests.compiler.conversion.data import compared_rows
from tests.compiler.references.test_frames import LIBRARIES

RANDOM = np.random.default_rng(7)
ROWS = 300
AGE = RANDOM.normal(40, 9, ROWS)
JOB = np.where(RANDOM.random(ROWS) < 0.03, "rare", RANDOM.choice(["clerk", "nurse", "pilot"], ROWS)).astype(
    object
)
GAPS = JOB.copy()
GAPS[::5] = None
Y = (AGE / 9 + 2 * (JOB == "nurse") - pd.isna(GAPS) + RANDOM.normal(size=ROWS) > 5).astype(int)
FORMS = {"None": None, "NaN": np.nan, "NA": pd.NA, "empty": ""}
CATEGORIES = ("clerk", "nurse", "pilot", "rare")


def frame(job: Any, *, category: bool = False) -> pd.DataFrame:
    return pd.DataFrame({"age": AGE[: len(job)], "job": pd.Categorical(job) if category else job})


def behind(*steps: Any) -> Any:
    encoder = make_column_transformer((make_pipeline(*steps), ["job"]), remainder="passthrough")
    return make_pipeline(encoder, HistGradientBoostingClassifier(max_iter=9))


# By name: the model, whether its column is of a pandas type for categories, whether it is trained with gaps,
# what it makes of other texts, and whether it takes missing ones.
Case = tuple[Callable[[], Any], bool, bool, str, bool]
CASES: dict[str, Case] = {
    "xgboost": (
        lambda: xgb.XGBClassifier(n_estimators=9, enable_categorical=True),
        True,
        True,
        "refused",
        True,
    ),
    "xgboost without gaps": (
        lambda: xgb.XGBClassifier(n_estimators=9, enable_categorical=True),
        True,
        False,
        "refused",
        True,
    ),
    "lightgbm": (lambda: lgb.LGBMClassifier(n_estimators=9, verbose=-1), True, True, "unknown", True),
    "histograms": (
        lambda: HistGradientBoostingClassifier(max_iter=9, categorical_features="from_dtype"),
        True,
        True,
        "unknown",
        True,
    ),
    "one-hot": (lambda: behind(OneHotEncoder()), False, False, "refused", False),
    "one-hot of gaps": (lambda: behind(OneHotEncoder()), False, True, "refused", True),
    "one-hot, first dropped": (lambda: behind(OneHotEncoder(drop="first")), False, True, "refused", True),
    "one-hot, ignoring": (
        lambda: behind(OneHotEncoder(handle_unknown="ignore")),
        False,
        False,
        "unknown",
        True,
    ),
    "one-hot, warning": (lambda: behind(OneHotEncoder(handle_unknown="warn")), False, True, "unknown", True),
    "one-hot, infrequent": (
        lambda: behind(OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=20)),
        False,
        True,
        "unknown",
        True,
    ),
    "one-hot, infrequent with a warning": (
        lambda: behind(OneHotEncoder(handle_unknown="warn", min_frequency=20)),
        False,
        True,
        "unknown",
        True,
    ),
    "one-hot, infrequent refused": (
        lambda: behind(OneHotEncoder(min_frequency=20)),
        False,
        True,
        "refused",
        True,
    ),
    "ordinal": (lambda: behind(OrdinalEncoder()), False, True, "refused", True),
    "ordinal, coded": (
        lambda: behind(
            OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2)
        ),
        False,
        True,
        "unknown",
        True,
    ),
    "target": (lambda: behind(TargetEncoder()), False, True, "unknown", True),
    "imputed": (
        lambda: behind(SimpleImputer(strategy="most_frequent"), OneHotEncoder()),
        False,
        True,
        "refused",
        True,
    ),
    "imputed by a constant": (
        lambda: behind(SimpleImputer(strategy="constant", fill_value="none"), OneHotEncoder()),
        False,
        True,
        "refused",
        True,
    ),
}


def compiled(name: str) -> tuple[Any, Compiled]:
    make, category, gaps, _, _ = CASES[name]
    rows = frame(GAPS if gaps else JOB, category=category)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make().fit(rows, Y)
        references = rows.iloc[1:60:5]  # without a gap
        return model, compile_model(model, ExactShap(references))


@pytest.mark.parametrize("name", CASES)
def test_the_manifest_holds_what_the_model_makes_of_texts(name: str) -> None:
    _, _, _, unknown_rule, missing = CASES[name]
    manifest = compiled(name)[1].manifest
    assert manifest.parity is not None
    (rule,) = manifest.parity.texts["job"]
    assert rule is not None
    assert (set(rule.known) - {"none"}, rule.others, rule.missing) == (set(CATEGORIES), unknown_rule, missing)
    assert ("job" in manifest.takes_missing) == missing
    assert "age" in manifest.takes_missing  # though no reference lacks it
    assert not any(errors.refused for errors in manifest.parity.errors)
    assert compared_rows(manifest.parity, "categories")
    assert bool(compared_rows(manifest.parity, "unknown_categories")) == (unknown_rule == "unknown")


@pytest.mark.parametrize("name", CASES)
def test_every_text_is_answered_as_the_model_answers_it_or_refused(name: str) -> None:
    _, category, gaps, unknown_rule, missing = CASES[name]
    model, compiled_model = compiled(name)
    texts = [*CATEGORIES, *(["h9"] if unknown_rule == "unknown" else [])] + (
        [None] if missing and gaps else []
    )
    rows = frame(np.array(texts, object), category=category)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.predict_proba(rows)
    answer = compiled_model.explain(rows)
    assert np.abs(answer["probabilities"] - expected).max() < 1e-6
    assert np.abs(answer["completeness_gap"]).max() < 1e-5
    for unusual in ("Nurse", "nurse ", "h9") if unknown_rule == "refused" else ():
        with pytest.raises(InvalidOptionError, match=rf"row 1: .*'job' .*'{unusual}'"):
            compiled_model.explain(frame(np.array(["clerk", unusual], object)))
    if not missing:
        with pytest.raises(InvalidOptionError, match=r"row 0: .*'job' .*missing"):
            compiled_model.explain(frame(np.array([None], object)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["xgboost", "imputed", "one-hot of gaps"])
def test_each_form_of_a_missing_text_is_the_same_one(name: str, form: str, tmp_path: Any) -> None:
    _, compiled_model = compiled(name)
    expected = compiled_model.explain({"age": np.array([[40.0]]), "job": np.array([[""]], object)})
    sample = pd.DataFrame({"age": [40.0], "job": np.array([FORMS[form]], object)})
    answer = compiled_model.explain(sample)
    assert answer["job_attributions"].tolist() == expected["job_attributions"].tolist()
    (values,) = feature_values(compiled_model.manifest, compiled_model.fit(sample))
    assert values["job"] is None
    csv = tmp_path / "rows.csv"
    csv.write_text("age,job\n40.0,\n41.0,clerk\n")
    parquet = tmp_path / "rows.parquet"
    pd.DataFrame({"age": [40.0, 41.0], "job": ["", "clerk"]}).replace({"": None}).to_parquet(parquet)
    for file in (csv, parquet):
        assert read_inputs(compiled_model, file)["job"].tolist() == [[""], ["clerk"]]
    batch = pa.record_batch({"age": [40.0], "job": pa.array([None], pa.string())})
    assert inputs_of_arrow(compiled_model, batch)["job"].tolist() == [[""]]


@pytest.mark.parametrize("name", ["xgboost", "histograms", "one-hot of gaps", "imputed"])
@pytest.mark.parametrize("form", ["None", "NaN"])
def test_references_may_lack_texts(name: str, form: str) -> None:
    make, category, _, _, _ = CASES[name]
    job = np.array([FORMS[form] if text is None else text for text in GAPS], object)
    rows = frame(job, category=category)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make().fit(rows, Y)
        compiled_model = compile_model(model, ExactShap(rows[:40]))
    assert (
        np.abs(compiled_model.explain(rows[:9])["probabilities"] - model.predict_proba(rows[:9])).max() < 1e-6
    )
    assert compiled_model.manifest.references is not None


def test_a_category_that_is_the_empty_text_is_the_missing_one() -> None:
    rows = frame(pd.Series(GAPS).fillna("").to_numpy(object), category=True)
    model = xgb.XGBClassifier(n_estimators=9, enable_categorical=True).fit(rows, Y)
    compiled_model = compile_model(model, ExactShap(rows[:40]))
    expected = model.predict_proba(rows[:1])
    for form in FORMS.values():
        sample = pd.DataFrame({"age": rows["age"][:1], "job": np.array([form], object)})
        assert np.abs(compiled_model.explain(sample)["probabilities"] - expected).max() < 1e-6


def test_catboost_knows_its_categories() -> None:
    model = catboost.CatBoostClassifier(iterations=9, verbose=False, allow_writing_files=False)
    rows = frame(JOB)
    compiled_model = compile_model(model.fit(rows, Y, cat_features=["job"]), ExactShap(rows[:150]))
    assert compiled_model.manifest.parity is not None
    (rule,) = compiled_model.manifest.parity.texts["job"]
    assert rule is not None
    assert (rule.others, rule.missing) == ("unknown", False)
    with pytest.raises(InvalidOptionError, match="feature 'job' is missing"):
        compiled_model.explain(frame(np.array([None], object)))


def test_what_takes_missing_numbers_is_measured_column_by_column() -> None:
    rows = pd.DataFrame({"a": AGE, "b": AGE[::-1], "c": AGE * 2})
    encoder = make_column_transformer((SimpleImputer(), ["a", "c"]), remainder="passthrough")
    from sklearn.linear_model import LogisticRegression

    model = make_pipeline(encoder, LogisticRegression()).fit(rows, Y)
    compiled_model = compile_model(model, ExactShap(rows[:40]))
    assert compiled_model.manifest.takes_missing == {"a", "c"}
    gap = rows[:1].assign(a=np.nan)
    assert np.abs(compiled_model.explain(gap)["probabilities"] - model.predict_proba(gap)).max() < 1e-6


NUMBERS: dict[str, tuple[Callable[[], Any], str]] = {
    "xgboost": (lambda: xgb.XGBClassifier(n_estimators=9, enable_categorical=True), "refused"),
    "lightgbm": (lambda: lgb.LGBMClassifier(n_estimators=9, verbose=-1), "unknown"),
    "catboost": (
        lambda: catboost.CatBoostClassifier(iterations=9, verbose=0, cat_features=["code"]),
        "unknown",
    ),
    "histograms": (
        lambda: HistGradientBoostingClassifier(max_iter=9, categorical_features=["code"]),
        "unknown",
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_categories_are_known_as_texts_are(name: str) -> None:
    make, unknown_rule = NUMBERS[name]
    table = pd.DataFrame({"age": AGE, "code": np.where(Y, 2, np.where(AGE > 40, 31, 7))})
    sample = table.assign(code=pd.Categorical(table["code"])) if name in ("xgboost", "lightgbm") else table
    model = make().fit(sample, Y)
    compiled = compile_model(model, ExactShap(sample[:20]))
    parity = compiled.manifest.parity
    assert parity is not None
    (rule,) = (rule for rules in parity.texts.values() for rule in rules if rule is not None)
    assert rule.known == ("2", "7", "31")
    assert rule.others == unknown_rule
    unusual = table[:3].assign(code=[2, 8, 31])
    if unknown_rule == "refused":
        with pytest.raises(InvalidOptionError, match=r"row 1: .*'code' .*'8'"):
            compiled.explain(unusual)
    else:
        answer = compiled.explain(unusual)
        assert [warning[:22] for warning in answer.warnings] == ["row 1: feature 'code' "]
        expected = model.predict_proba(
            unusual.assign(code=pd.Categorical(unusual["code"])) if name == "lightgbm" else unusual
        )
        np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-6)
    assert not compiled.explain(table[:9]).warnings


@pytest.mark.parametrize(("form", "dtype"), [(None, object), (np.nan, object), (np.nan, float)])
def test_references_that_all_lack_a_text_do_not_make_it_a_number(form: Any, dtype: type) -> None:
    job = np.array([form if text is None else text for text in GAPS], object)
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["job"]), remainder="passthrough"
    )
    model = make_pipeline(encoder, LogisticRegression()).fit(frame(job), Y)
    bare = frame(job)[pd.isna(GAPS)][:20]
    compiled = compile_model(model, ExactShap(bare.astype({"job": dtype})))
    assert {spec.name: spec.datatype for spec in compiled.manifest.inputs} == {"age": "FP64", "job": "BYTES"}
    rows = frame(job)[:20]
    np.testing.assert_allclose(compiled.explain(rows)["probabilities"], model.predict_proba(rows), atol=1e-6)


@pytest.mark.parametrize("table", [LIBRARIES["polars"], LIBRARIES["pyarrow"]], ids=["polars", "arrow"])
@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_tables_of_polars_and_arrow_are_those_of_pandas(table: Callable[[Any], Any], name: str) -> None:
    rows = frame(GAPS, category=True)
    model = NUMBERS[name][0]().fit(rows, Y)
    whole = compile_model(model, ExactShap(rows[:40]))
    columns = frame(GAPS[:40]).assign(more=0)
    compiled = compile_model(model, ExactShap(table(columns)))
    expected = whole.explain(rows[:40])
    for answer in (whole.explain(table(columns)), compiled.explain(table(columns))):
        for output in ("probabilities", "job_attributions"):
            np.testing.assert_allclose(answer[output], expected[output], atol=1e-6)
    unusual = table(columns.assign(job=["Nurse", *GAPS[1:40]]))
    if name == "xgboost":
        with pytest.raises(InvalidOptionError, match=r"row 0: feature 'job' is 'Nurse', .*'nurse'"):
            whole.explain(unusual)
    else:
        assert len(whole.explain(unusual).warnings) == 1
