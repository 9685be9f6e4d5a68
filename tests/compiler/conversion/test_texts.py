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
from rationale.artifact.entry import inputs_of_arrow, read_inputs
from rationale.decisions.rows import values_of
from rationale.errors import InvalidOptionError
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
KNOWN = ("clerk", "nurse", "pilot", "rare")


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
    _, _, _, others, missing = CASES[name]
    manifest = compiled(name)[1].manifest
    assert manifest.parity is not None
    (rule,) = manifest.parity.texts["job"]
    assert rule is not None
    assert (set(rule.known) - {"none"}, rule.others, rule.missing) == (set(KNOWN), others, missing)
    assert ("job" in manifest.takes_missing) == missing
    assert "age" in manifest.takes_missing  # though no reference lacks it
    assert not manifest.parity.texts_differ
    assert not manifest.parity.missing_differs


@pytest.mark.parametrize("name", CASES)
def test_every_text_is_answered_as_the_model_answers_it_or_refused(name: str) -> None:
    _, category, gaps, others, missing = CASES[name]
    model, own = compiled(name)
    texts = [*KNOWN, *(["h9"] if others == "unknown" else [])] + ([None] if missing and gaps else [])
    rows = frame(np.array(texts, object), category=category)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        due = model.predict_proba(rows)
    found = own.explain(rows)
    assert np.abs(found["probabilities"] - due).max() < 1e-6
    assert np.abs(found["completeness_gap"]).max() < 1e-5
    for odd in ("Nurse", "nurse ", "h9") if others == "refused" else ():
        with pytest.raises(
            InvalidOptionError, match=f"row 1: feature 'job' is '{odd}', which the model was not"
        ):
            own.explain(frame(np.array(["clerk", odd], object)))
    if not missing:
        with pytest.raises(
            InvalidOptionError, match="row 0: feature 'job' is missing, and the model takes no"
        ):
            own.explain(frame(np.array([None], object)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["xgboost", "imputed", "one-hot of gaps"])
def test_each_form_of_a_missing_text_is_the_same_one(name: str, form: str, tmp_path: Any) -> None:
    _, own = compiled(name)
    due = own.explain({"age": np.array([[40.0]]), "job": np.array([[""]], object)})
    given = pd.DataFrame({"age": [40.0], "job": np.array([FORMS[form]], object)})
    found = own.explain(given)
    assert found["job_attributions"].tolist() == due["job_attributions"].tolist()
    (values,) = values_of(own.manifest, own.fit(given))
    assert values["job"] is None
    csv = tmp_path / "rows.csv"
    csv.write_text("age,job\n40.0,\n41.0,clerk\n")
    parquet = tmp_path / "rows.parquet"
    pd.DataFrame({"age": [40.0, 41.0], "job": ["", "clerk"]}).replace({"": None}).to_parquet(parquet)
    for file in (csv, parquet):
        assert read_inputs(own, file)["job"].tolist() == [[""], ["clerk"]]
    batch = pa.record_batch({"age": [40.0], "job": pa.array([None], pa.string())})
    assert inputs_of_arrow(own, batch)["job"].tolist() == [[""]]


@pytest.mark.parametrize("name", ["xgboost", "histograms", "one-hot of gaps", "imputed"])
@pytest.mark.parametrize("form", ["None", "NaN"])
def test_references_may_lack_texts(name: str, form: str) -> None:
    make, category, _, _, _ = CASES[name]
    job = np.array([FORMS[form] if text is None else text for text in GAPS], object)
    rows = frame(job, category=category)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make().fit(rows, Y)
        own = compile_model(model, ExactShap(rows[:40]))
    assert np.abs(own.explain(rows[:9])["probabilities"] - model.predict_proba(rows[:9])).max() < 1e-6
    assert own.manifest.references is not None


def test_a_category_that_is_the_empty_text_is_the_missing_one() -> None:
    rows = frame(pd.Series(GAPS).fillna("").to_numpy(object), category=True)
    model = xgb.XGBClassifier(n_estimators=9, enable_categorical=True).fit(rows, Y)
    own = compile_model(model, ExactShap(rows[:40]))
    due = model.predict_proba(rows[:1])
    for form in FORMS.values():
        given = pd.DataFrame({"age": rows["age"][:1], "job": np.array([form], object)})
        assert np.abs(own.explain(given)["probabilities"] - due).max() < 1e-6


def test_catboost_knows_its_categories() -> None:
    model = catboost.CatBoostClassifier(iterations=9, verbose=False, allow_writing_files=False)
    rows = frame(JOB)
    own = compile_model(model.fit(rows, Y, cat_features=["job"]), ExactShap(rows[:150]))
    assert own.manifest.parity is not None
    (rule,) = own.manifest.parity.texts["job"]
    assert rule is not None
    assert (rule.others, rule.missing) == ("unknown", False)
    with pytest.raises(InvalidOptionError, match="feature 'job' is missing"):
        own.explain(frame(np.array([None], object)))


def test_what_takes_missing_numbers_is_measured_column_by_column() -> None:
    rows = pd.DataFrame({"a": AGE, "b": AGE[::-1], "c": AGE * 2})
    encoder = make_column_transformer((SimpleImputer(), ["a", "c"]), remainder="passthrough")
    from sklearn.linear_model import LogisticRegression

    model = make_pipeline(encoder, LogisticRegression()).fit(rows, Y)
    own = compile_model(model, ExactShap(rows[:40]))
    assert own.manifest.takes_missing == {"a", "c"}
    gap = rows[:1].assign(a=np.nan)
    assert np.abs(own.explain(gap)["probabilities"] - model.predict_proba(gap)).max() < 1e-6


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
    make, others = NUMBERS[name]
    table = pd.DataFrame({"age": AGE, "code": np.where(Y, 2, np.where(AGE > 40, 31, 7))})
    given = table.assign(code=pd.Categorical(table["code"])) if name in ("xgboost", "lightgbm") else table
    model = make().fit(given, Y)
    compiled = compile_model(model, ExactShap(given[:20]))
    parity = compiled.manifest.parity
    assert parity is not None
    (rule,) = (rule for rules in parity.texts.values() for rule in rules if rule is not None)
    assert rule.known == ("2", "7", "31")
    assert rule.others == others
    odd = table[:3].assign(code=[2, 8, 31])
    if others == "refused":
        with pytest.raises(InvalidOptionError, match="row 1: feature 'code' is '8', which the model was not"):
            compiled.explain(odd)
    else:
        answer = compiled.explain(odd)
        assert [warning[:22] for warning in answer.warnings] == ["row 1: feature 'code' "]
        due = model.predict_proba(odd.assign(code=pd.Categorical(odd["code"])) if name == "lightgbm" else odd)
        np.testing.assert_allclose(answer["probabilities"], due, atol=1e-6)
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
    due = whole.explain(rows[:40])
    for found in (whole.explain(table(columns)), compiled.explain(table(columns))):
        for output in ("probabilities", "job_attributions"):
            np.testing.assert_allclose(found[output], due[output], atol=1e-6)
    odd = table(columns.assign(job=["Nurse", *GAPS[1:40]]))
    if name == "xgboost":
        with pytest.raises(InvalidOptionError, match=r"row 0: feature 'job' is 'Nurse', .*'nurse'"):
            whole.explain(odd)
    else:
        assert len(whole.explain(odd).warnings) == 1
