"""Trees on German credit data: pipelines from raw columns of words and numbers, and shap on coded ones.

On UCI "Statlog (German Credit Data)" (tests.needs) if it is there, else on rows like it.
"""

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import lightgbm
import numpy as np
import onnxruntime
import pandas as pd
import pytest
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from rationale import TreeShap, compile_model, convert
from tests.needs import GERMAN

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside what it imports
    import shap

WORDS = ["status", "history", "purpose", "savings", "employment"]
NUMBERS = ["duration", "amount", "age"]
NAMES = (
    "status duration history purpose amount savings employment rate personal guarantors residence property "
    "age plans housing credits job dependants telephone foreign".split()
)
K, N, COALITIONS_K = 1000, 12, 60
OF_RANGE = 1e-5  # the largest error, of the range of the explained output


@pytest.fixture(scope="module")
def loans() -> tuple[pd.DataFrame, np.ndarray]:
    """[1000, 20], amounts missing here and there; and whether a loan was bad."""
    random = np.random.default_rng(5)
    if GERMAN.exists():
        table = pd.read_csv(GERMAN, sep="\t", header=None)
        x, bad = table.iloc[:, :-1].set_axis(NAMES, axis=1), table.iloc[:, -1].to_numpy() == 2
    else:
        draws = random.integers(1, 5, (K, len(NAMES)))
        columns = zip(NAMES, draws.T, strict=True)
        coded = {n: (d if n in (*NUMBERS, "rate") else [f"A{v}" for v in d]) for n, d in columns}
        x, bad = pd.DataFrame(coded), draws[:, 0] + draws[:, 1] + random.normal(size=K) > 6
    x = x.astype({name: float for name in NAMES if pd.api.types.is_numeric_dtype(x[name])})
    x.loc[::17, "amount"] = np.nan
    return x, bad.astype(int)


SMALL: dict[str, Any] = {"n_estimators": 25, "max_depth": 4, "random_state": 0}
MODELS: dict[str, Callable[[], Any]] = {
    "XGBoost": lambda: xgboost.XGBClassifier(**SMALL, n_jobs=1),
    "LightGBM": lambda: lightgbm.LGBMClassifier(**SMALL, n_jobs=1, verbose=-1),
    "histograms": lambda: HistGradientBoostingClassifier(max_iter=25, max_depth=4, random_state=0),
}


class Converted:
    """A pipeline's ONNX model in ONNX Runtime."""

    def __init__(self, pipeline: Any, example: pd.DataFrame) -> None:
        model = convert(pipeline, example).model
        self.session = onnxruntime.InferenceSession(model.SerializeToString())

    def __call__(self, x: pd.DataFrame) -> np.ndarray:
        """[N]: log odds."""
        columns = {name: x[name].to_numpy()[:, None] for name in x}
        fed = {n: c if c.dtype == object else c.astype(np.float64) for n, c in columns.items()}
        (odds,) = self.session.run(["probabilities"], fed)
        return np.log(odds.astype(np.float64)) @ [-1, 1]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of the converters and boosters, about themselves
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_shap(loans: tuple[pd.DataFrame, np.ndarray], name: str) -> None:
    table, bad = loans
    words = [n for n in NAMES if n not in table.select_dtypes("number")]
    x = table.assign(**dict(zip(words, OrdinalEncoder().fit_transform(table[words]).T, strict=True)))
    estimator = MODELS[name]().fit(x, bad)
    compiled = compile_model(estimator, TreeShap(x))
    assert "no labels differ" in str(compiled.conversion)
    references, rows = x.to_numpy(np.float32), x.to_numpy(np.float32)[:N]
    background = shap.maskers.Independent(references, max_samples=K)
    explainer = shap.TreeExplainer(estimator, background, feature_perturbation="interventional")
    expected = np.asarray(explainer.shap_values(rows, check_additivity=False))
    answer = compiled.explain(x[:N])
    span = np.ptp(compiled.explain(x)["explained_value"])
    assert np.isnan(rows).any()
    assert np.abs(answer["x_attributions"][:, 0] - expected).max() <= OF_RANGE * span
    assert np.abs(answer["completeness_gap"]).max() <= OF_RANGE * span


def brute_force(margins: Converted, x: pd.DataFrame, references: pd.DataFrame) -> np.ndarray:
    """[N, columns]: by the definition, the model asked for every coalition of raw columns."""
    names, values = list(x.columns), np.zeros(x.shape)
    for row in range(len(x)):
        worth = {}
        for size in range(len(names) + 1):
            for coalition in itertools.combinations(names, size):
                mixed = references.copy()
                for name in coalition:
                    mixed[name] = x[name].iloc[row]
                worth[coalition] = margins(mixed).mean()
        for i, name in enumerate(names):
            rivals = names[:i] + names[i + 1 :]
            for size in range(len(names)):
                share = 1 / (len(names) * math.comb(len(rivals), size))
                for coalition in itertools.combinations(rivals, size):
                    joined = tuple(n for n in names if n in coalition or n == name)
                    values[row, i] += share * (worth[joined] - worth[coalition])
    return values


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_raw_columns_of_a_pipeline(loans: tuple[pd.DataFrame, np.ndarray]) -> None:
    """One-hot words and imputed, scaled numbers: eight columns, which are the players."""
    table, bad = loans
    table = table[WORDS + NUMBERS]
    prepared = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), WORDS),
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), NUMBERS),
    )
    pipeline = make_pipeline(prepared, GradientBoostingClassifier(**SMALL)).fit(table, bad)
    references, x = table[-COALITIONS_K:], table[table["amount"].isna()][:1]
    x = pd.concat([x, table[:1].assign(purpose="unheard of")])
    compiled = compile_model(pipeline, TreeShap(references))
    answer = compiled.explain(x)
    ours = np.stack([answer[f"{name}_attributions"].reshape(len(x)) for name in table.columns], axis=1)
    margins = Converted(pipeline, references)
    expected, span = brute_force(margins, x, references), np.ptp(margins(table))
    np.testing.assert_allclose(margins(x), pipeline.decision_function(x), atol=OF_RANGE * span)
    assert np.abs(ours - expected).max() <= OF_RANGE * span
    assert np.abs(expected).max() > 1000 * OF_RANGE * span, "nothing to compare"
