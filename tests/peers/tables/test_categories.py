"""Boosters with categories of their own on credit data: raw words (German credit) and codes (Taiwan).

Each is held against itself: its probabilities on 1,000 rows, and by the definition of the Shapley value its
mean margins over every coalition of columns. The data (tests.needs) is made if it is not there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import catboost
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost

from rationale import InvalidOptionError, TreeShap, compile_model
from tests.needs import GERMAN, TAIWAN
from tests.peers.tables.test_german import NAMES as GERMAN_NAMES

ROWS, K = 1000, 60
OF_RANGE = 1e-5  # the largest error, of the range
MISSING = {True: "", False: np.nan}  # of a text, and of a number

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@dataclass(frozen=True)
class Loans:
    """A table whose categories are texts or whole numbers, and which loans went bad.

    Attributes:
        categories: columns of these.
        numbers: the others.
        unseen: a category that no row has.
    """

    table: pd.DataFrame
    bad: np.ndarray
    categories: list[str]
    numbers: list[str]
    unseen: Any

    @property
    def texts(self) -> bool:
        return isinstance(self.unseen, str)

    def typed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """With a pandas type of the categories that the table has: any other is missing."""
        categories = {c: sorted(v for v in self.table[c].unique() if v != "") for c in self.categories}
        rows = rows.assign(**{c: rows[c].where(rows[c].isin(categories[c])) for c in categories})
        return rows.assign(**{c: pd.Categorical(rows[c], categories[c]) for c in categories})

    def references(self) -> pd.DataFrame:
        """With every category."""
        firsts = [self.table.drop_duplicates(c) for c in self.categories]
        return pd.concat([*firsts, self.table[-K:]])[: max(K, sum(map(len, firsts)))]


def german() -> Loans:
    categories, numbers = (
        ["status", "history", "purpose", "savings", "employment"],
        ["duration", "amount", "age"],
    )
    random = np.random.default_rng(5)
    if GERMAN.exists():
        table = pd.read_csv(GERMAN, sep="\t", header=None).set_axis([*GERMAN_NAMES, "class"], axis=1)
        bad = table["class"].to_numpy() == 2
    else:
        draws = {name: random.integers(0, 8, ROWS) for name in [*categories, *numbers]}
        table = pd.DataFrame({n: [f"A{v}" for v in d] if n in categories else d for n, d in draws.items()})
        bad = draws["status"] % 3 + draws["age"] / 4 + random.normal(size=ROWS) > 2
    table = table[[*categories, *numbers]].astype(dict.fromkeys(numbers, float))
    table.loc[::17, "amount"], table.loc[::13, "savings"] = np.nan, ""
    return Loans(table, bad.astype(int), categories, numbers, "A999")


def taiwan() -> Loans:
    categories = ["SEX", "EDUCATION", "MARRIAGE", "PAY_1"]
    numbers = ["LIMIT_BAL", "AGE", "BILL_AMT1", "PAY_AMT1"]
    random = np.random.default_rng(6)
    if TAIWAN.exists():
        table = pd.read_csv(TAIWAN).sample(ROWS, random_state=0, ignore_index=True)
        bad = table.iloc[:, -1].to_numpy()
    else:
        table = pd.DataFrame({c: random.integers(0, 7, ROWS) for c in [*categories, *numbers]})
        bad = table["PAY_1"] % 3 + table["AGE"] / 4 + random.normal(size=ROWS) > 2
    table = table[[*categories, *numbers]].astype(dict.fromkeys(numbers, float))
    return Loans(table, np.asarray(bad).astype(int), categories, numbers, 99)


SMALL: dict[str, Any] = {"n_estimators": 40, "max_depth": 4}
Scores = Callable[[pd.DataFrame], np.ndarray]


def of_xgboost(loans: Loans, **options: Any) -> tuple[Any, Scores]:
    model = xgboost.XGBClassifier(**SMALL, enable_categorical=True, **options)
    model.fit(loans.typed(loans.table), loans.bad)
    return model, lambda rows: model.predict(loans.typed(rows), output_margin=True)


def of_lightgbm(loans: Loans, **options: Any) -> tuple[Any, Scores]:
    model = lightgbm.LGBMClassifier(**SMALL, min_data_per_group=5, verbose=-1, **options)
    model.fit(loans.typed(loans.table), loans.bad)
    return model, lambda rows: model.predict(loans.typed(rows), raw_score=True)


def of_catboost(loans: Loans, **options: Any) -> tuple[Any, Scores]:
    model = catboost.CatBoostClassifier(
        iterations=40, depth=4, verbose=0, allow_writing_files=False, max_ctr_complexity=1, **options
    )
    model.fit(loans.table, loans.bad, cat_features=loans.categories)
    return model, lambda rows: model.predict(rows, prediction_type="RawFormulaVal")


MODELS: dict[str, Callable[[Loans], tuple[Any, Scores]]] = {
    "XGBoost's sets": lambda loans: of_xgboost(loans, max_cat_to_onehot=1),
    "XGBoost's ones": lambda loans: of_xgboost(loans, max_cat_to_onehot=100),
    "LightGBM's sets": lambda loans: of_lightgbm(loans, max_cat_to_onehot=1),
    "LightGBM's ones": lambda loans: of_lightgbm(loans, max_cat_to_onehot=100),
    "CatBoost's statistics": of_catboost,
    "CatBoost's ones": lambda loans: of_catboost(loans, one_hot_max_size=100),
}


def brute_force(score: Scores, x: pd.DataFrame, references: pd.DataFrame) -> np.ndarray:
    """[N, columns]: by the definition, every coalition of columns asked with every reference."""
    names, values = list(x.columns), np.zeros(x.shape)
    inside = np.arange(2 ** len(names))[:, None] >> np.arange(len(names)) & 1 == 1
    size = inside.sum(axis=1)
    for row in range(len(x)):
        mixed = {
            name: np.where(inside[:, [j]], x[name].iloc[row], references[name].to_numpy()[None]).reshape(-1)
            for j, name in enumerate(names)
        }
        frame = pd.DataFrame(mixed).astype(references.dtypes)
        worth = np.asarray(score(frame), np.float64).reshape(len(inside), -1).mean(axis=1)
        for j in range(len(names)):
            without = np.flatnonzero(~inside[:, j])
            shares = [1 / (len(names) * math.comb(len(names) - 1, s)) for s in size[without]]
            values[row, j] = shares @ (worth[without + 2**j] - worth[without])
    return values


@pytest.mark.parametrize("of", [german, taiwan], ids=["words", "codes"])
@pytest.mark.parametrize("name", MODELS)
def test_answers_and_attributions_are_the_boosters(of: Callable[[], Loans], name: str) -> None:
    """Of a category that nobody has seen, and of a missing one, too."""
    loans = of()
    model, score = MODELS[name](loans)
    references, x = loans.references(), loans.table[:4].copy()
    places = {column: list(x.columns).index(column) for column in loans.categories}
    compiled = compile_model(model, TreeShap(references))
    accepted = x.copy()
    x.iloc[1, places[loans.categories[0]]] = x.iloc[2, places[loans.categories[3]]] = loans.unseen
    if "XGBoost" in name:  # which refuses them itself
        fault = f"row 1: feature '{loans.categories[0]}' is '{loans.unseen}'"
        with pytest.raises(InvalidOptionError, match=fault):
            compiled.explain(x)
        x = accepted
    if "CatBoost" not in name:  # which takes no category that is missing
        x = x.astype({loans.categories[1]: references.dtypes[loans.categories[1]] if loans.texts else float})
        x.iloc[3, places[loans.categories[1]]] = MISSING[loans.texts]
    answer, every = compiled.explain(x), compiled.explain(loans.table)["probabilities"][:, 1]
    margins = np.asarray(score(loans.table), np.float64)
    expected = 1 / (1 + np.exp(-margins))
    assert np.abs(every - expected).max() <= OF_RANGE * np.ptp(expected)
    values = np.stack([answer[f"{c}_attributions"].reshape(len(x)) for c in x.columns], axis=1)
    attributions = brute_force(score, x, references.astype(x.dtypes))
    assert np.abs(values - attributions).max() <= OF_RANGE * np.ptp(margins)
    np.testing.assert_allclose(
        answer["explained_value"].reshape(-1), score(x), atol=OF_RANGE * np.ptp(margins)
    )
    of_categories = np.abs(attributions[:, : len(loans.categories)]).max(axis=0)
    assert (of_categories > 100 * OF_RANGE * np.ptp(margins)).sum() >= 2, "nothing to compare"
