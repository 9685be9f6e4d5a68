"""Fitted models that read texts, asked about unseen, misspelt, rare and missing ones in every such column.

The fitted model decides: what it answers is answered alike, with attributions as brute force finds them, or
refused by the column's name. What it refuses is refused.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import catboost as cb
import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from optbinning import BinningProcess, Scorecard
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

from rationale import Auto, Compiled, Explanation, RationaleError, compile_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NUMBERS, TEXTS = ["debt", "age"], ["home", "use"]
NAMES = NUMBERS + TEXTS
ROWS, K = 400, 10
OF_RANGE = 1e-5
_RANDOM = np.random.default_rng(3)
WHOLE = pd.DataFrame(
    {
        "debt": _RANDOM.normal(3000, 900, ROWS).round(2),
        "age": _RANDOM.integers(18, 80, ROWS).astype(float),
        "home": _RANDOM.choice(["own", "rent", "parents", "ship"], ROWS, p=[0.5, 0.3, 0.18, 0.02]).astype(
            object
        ),
        "use": _RANDOM.choice(["car", "garden", "travel", "other"], ROWS).astype(object),
    }
)
HOLES = WHOLE.assign(**{name: WHOLE[name].mask(_RANDOM.random(ROWS) < 0.1) for name in TEXTS})
GOOD = ((WHOLE.debt > 3000) ^ (WHOLE.home == "rent") ^ (WHOLE.use == "car")).astype(int)
SMALL: dict[str, Any] = {"n_estimators": 8, "max_depth": 3, "random_state": 0}
CAT: dict[str, Any] = {"iterations": 8, "depth": 3, "verbose": False, "allow_writing_files": False}
UNUSUAL = {
    "unseen": "zebra",
    "upper": "OWN",
    "spaced": "own ",
    "rare": "ship",
    "empty": "",
    "None": None,
    "NaN": np.nan,
    "NA": pd.NA,
}
Fit = Callable[[], Any]


def encoded(*steps: Any, x: pd.DataFrame = WHOLE, last: Any = None) -> Fit:
    columns = ColumnTransformer([("t", make_pipeline(*steps), TEXTS), ("n", StandardScaler(), NUMBERS)])
    model = LogisticRegression() if last is None else last
    return lambda: make_pipeline(columns, model).fit(x, GOOD)


def one_hot(**options: Any) -> OneHotEncoder:
    return OneHotEncoder(sparse_output=False, **options)


def of_categories(x: pd.DataFrame) -> pd.DataFrame:
    return x.assign(**{name: pd.Categorical(x[name]) for name in TEXTS})


def card(x: pd.DataFrame) -> Fit:
    binned = BinningProcess(NAMES, categorical_variables=TEXTS)
    return lambda: Scorecard(binned, LogisticRegression()).fit(x, GOOD, metric_missing="empirical")


COUNTED = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
MODELS: dict[str, tuple[Fit, pd.DataFrame]] = {
    "one-hot": (encoded(one_hot()), WHOLE),
    "one-hot, ignore": (encoded(one_hot(handle_unknown="ignore")), WHOLE),
    "one-hot, rare": (encoded(one_hot(handle_unknown="infrequent_if_exist", min_frequency=20)), WHOLE),
    "one-hot, warn": (encoded(one_hot(handle_unknown="warn", min_frequency=20)), WHOLE),
    "one-hot of holes": (encoded(one_hot(handle_unknown="ignore"), x=HOLES), HOLES),
    "ordinal": (encoded(OrdinalEncoder(), last=RandomForestClassifier(**SMALL)), WHOLE),
    "ordinal, unknown": (encoded(COUNTED, last=RandomForestClassifier(**SMALL)), WHOLE),
    "ordinal of holes": (encoded(COUNTED, last=xgb.XGBClassifier(**SMALL), x=HOLES), HOLES),
    "target": (encoded(TargetEncoder(random_state=0)), WHOLE),
    "target of holes": (encoded(TargetEncoder(random_state=0), x=HOLES), HOLES),
    "imputed": (
        encoded(SimpleImputer(strategy="most_frequent"), one_hot(handle_unknown="ignore"), x=HOLES),
        HOLES,
    ),
    "filled": (
        encoded(
            SimpleImputer(strategy="constant", fill_value="none"),
            one_hot(handle_unknown="ignore"),
            x=HOLES,
        ),
        HOLES,
    ),
    **{
        f"{name} of {kind}": (lambda make=make, x=x: make().fit(of_categories(x), GOOD), of_categories(x))
        for kind, x in (("texts", WHOLE), ("holes", HOLES))
        for name, make in {
            "xgboost": lambda: xgb.XGBClassifier(enable_categorical=True, **SMALL),
            "lightgbm": lambda: lgb.LGBMClassifier(verbose=-1, min_child_samples=5, **SMALL),
            "histograms": lambda: HistGradientBoostingClassifier(
                max_iter=8, categorical_features="from_dtype"
            ),
        }.items()
    },
    "catboost": (
        lambda: cb.CatBoostClassifier(
            iterations=8,
            depth=3,
            verbose=False,
            allow_writing_files=False,
            cat_features=TEXTS,
            max_ctr_complexity=1,
        ).fit(WHOLE, GOOD),
        WHOLE,
    ),
    "scorecard": (card(WHOLE), WHOLE),
    "scorecard of holes": (card(HOLES), HOLES),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_odd_text_is_answered_as_by_the_fitted_model_or_refused_by_name(name: str) -> None:
    fit, example = MODELS[name]
    model, references = fit(), _references(example)
    compiled = compile_model(model, Auto(references))
    answered = 0
    for column, (kind, text) in itertools.product(TEXTS, UNUSUAL.items()):
        row = WHOLE[5:6].assign(**{column: pd.Series([text], [5], object)})
        case = f"{kind} in {column}"
        answer = _explained(compiled, row)
        if isinstance(answer, str):
            assert column in answer, case
            print(f"refused: {case}:", answer)
            continue
        value, expected, span = _expected(model, _typed(row, example), references)
        ours = np.concatenate([answer[f"{n}_attributions"][0, 0].reshape(-1) for n in NAMES])
        says = answer["explained_value"][0, 0]
        error = max(abs(says - value), np.abs(ours - expected).max()) / span
        assert error <= OF_RANGE, f"{case}: {error:.1e} of the range"
        answered += 1
    assert answered


def _explained(compiled: Compiled, row: pd.DataFrame) -> Explanation | str:
    """Return the answer, or the refusal."""
    try:
        return compiled.explain(row)
    except RationaleError as refusal:
        return str(refusal)


def _references(example: pd.DataFrame) -> pd.DataFrame:
    """Rows with each category, and a missing one where the table has any."""
    distinct = example.drop_duplicates(TEXTS)
    return pd.concat([distinct, example[:K]])


def _typed(row: pd.DataFrame, example: pd.DataFrame) -> pd.DataFrame:
    """Rows in the types that the model was fitted on; a text that is no category becomes one more."""
    typed = row.copy()
    for name in TEXTS:
        texts = [np.nan if pd.isna(v) or v == "" else v for v in row[name]]
        kind = example[name].dtype
        if isinstance(kind, pd.CategoricalDtype):
            unseen = [v for v in dict.fromkeys(texts) if isinstance(v, str) and v not in kind.categories]
            typed[name] = pd.Categorical(texts, [*kind.categories, *unseen])
        else:
            typed[name] = np.array(texts, object)
    return typed.astype(dict.fromkeys(NUMBERS, float))


def _says(model: Any, rows: pd.DataFrame) -> np.ndarray:
    """[M] of what is explained."""
    answer = model.score(rows) if isinstance(model, Scorecard) else model.predict_proba(rows)[:, 1]
    return np.asarray(answer, np.float64)


def _expected(model: Any, row: pd.DataFrame, references: pd.DataFrame) -> tuple[float, np.ndarray, float]:
    """Return what the fitted model says of a row, its Shapley values [F], and the range of all it said."""
    count, masks = len(NAMES), list(itertools.product([False, True], repeat=len(NAMES)))
    tables = []
    for mask in masks:
        mixed = references.copy()
        for name, is_of_row in zip(NAMES, mask, strict=True):
            if is_of_row:
                value, kind = row[name].iloc[0], row[name].dtype
                mixed[name] = pd.Series([value] * len(mixed), mixed.index, kind)
            elif isinstance(row[name].dtype, pd.CategoricalDtype):
                mixed[name] = mixed[name].astype(row[name].dtype)
        tables.append(mixed)
    scores = _says(model, pd.concat(tables, ignore_index=True)).reshape(len(masks), -1)
    value = dict(zip(masks, scores.mean(axis=1), strict=True))
    expected = np.zeros(count)
    for f, mask in itertools.product(range(count), masks):
        if mask[f]:
            without = (*mask[:f], False, *mask[f + 1 :])
            expected[f] += (value[mask] - value[without]) / (count * math.comb(count - 1, sum(without)))
    return value[masks[-1]], expected, float(np.ptp(scores))
