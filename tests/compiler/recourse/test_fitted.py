"""Recourse of fitted models, checked by the models: against every split of trees and every word."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from rationale import Compiled, PermutationShap, TreeShap, compile_model

NAMES = [f"x{i}" for i in range(5)]
THRESHOLD = 0.4


def table(missing: float = 0.0) -> tuple[pd.DataFrame, np.ndarray]:
    """Return rows whose numbers float32 rounds, and labels."""
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 5)) + 100
    y = (x[:, 0] + x[:, 1] * 0.5 - x[:, 2] > 50.2).astype(int)
    x[random.random(x.shape) < missing] = np.nan
    return pd.DataFrame(x, columns=NAMES), y


SMALL: dict[str, Any] = {"n_estimators": 12, "max_depth": 3}
MODELS: dict[str, Callable[[], Any]] = {
    "xgboost": lambda: xgboost.XGBClassifier(**SMALL, n_jobs=1),
    "lightgbm": lambda: lightgbm.LGBMClassifier(**SMALL, n_jobs=1, verbose=-1, min_child_samples=5),
    "hist": lambda: HistGradientBoostingClassifier(max_iter=12, max_depth=3),
    "boosting": lambda: GradientBoostingClassifier(**SMALL),
}


@dataclass(frozen=True)
class Fitted:
    """A fitted model, and its entry."""

    name: str
    options: Mapping[str, Any]
    missing: float = 0.0

    @cached_property
    def rows(self) -> pd.DataFrame:
        return table(self.missing)[0]

    @cached_property
    def model(self) -> Any:
        return MODELS[self.name]().fit(*table(self.missing))

    @cached_property
    def entry(self) -> Compiled:
        profile = {
            "output": "probabilities[1]",
            "threshold": THRESHOLD,
            "adverse": "above",
            "actionable": {name: {} for name in NAMES[:3]},
            **self.options,
        }
        return compile_model(self.model, TreeShap(self.rows[:60]), decision=profile)

    def scores(self, rows: pd.DataFrame) -> np.ndarray:
        return np.asarray(self.model.predict_proba(rows)[:, 1])

    def declined(self, count: int) -> pd.DataFrame:
        return self.rows[self.scores(self.rows) > THRESHOLD][:count]


def after(row: pd.DataFrame, changes: Mapping[str, Any]) -> pd.DataFrame:
    return row.assign(**changes)


@pytest.mark.parametrize("space", ["output", "margin"])
@pytest.mark.parametrize("name", MODELS)
def test_the_fitted_model_approves_each_plan_and_no_flip_point_is_too_far(name: str, space: str) -> None:
    fitted = Fitted(name, {"space": space})
    rows, planned = fitted.declined(12), 0
    spreads = {s.feature: s for s in fitted.entry.manifest.references.spreads}
    for i, found in enumerate(fitted.entry.recourse(rows)):
        row, points = rows.iloc[i : i + 1], {point.feature: point for point in found.flip_points}
        planned += bool(found.plans)
        for plan in found.plans:
            assert {*plan.changes} <= {*NAMES[:3]}
            assert fitted.scores(after(row, plan.changes))[0] <= THRESHOLD
        for feature in NAMES:
            low, high = spreads[feature].quantiles[0], spreads[feature].quantiles[-1]
            splits = np.asarray(fitted.entry.manifest.splits.get(feature, ()))
            numbers = np.concatenate([splits + 1e-4, splits - 1e-4])  # splits move as float32 rounds them
            numbers = numbers[(low <= numbers) & (numbers <= high)]
            scan = row.loc[row.index.repeat(len(numbers))].assign(**{feature: numbers})
            flips = numbers[fitted.scores(scan) <= THRESHOLD] if len(numbers) else numbers
            assert (feature in points) >= bool(len(flips)), feature
            if feature in points:
                value = points[feature].value
                assert points[feature].exact
                assert fitted.scores(after(row, {feature: value}))[0] <= THRESHOLD
                if len(flips):
                    off = abs(value - row[feature].iloc[0]) - np.abs(flips - row[feature].iloc[0]).min()
                    assert off <= 1e-4
    assert planned > 3


@pytest.mark.parametrize("name", ["xgboost", "lightgbm", "hist"])
def test_missing_numbers_and_a_band_that_a_person_decides(name: str) -> None:
    """A plan passes the whole band; what is missing may be given, and nothing is taken away."""
    fitted, planned = Fitted(name, {"refer": [0.3, 0.5]}, missing=0.2), 0
    rows = fitted.declined(15)
    for i, found in enumerate(fitted.entry.recourse(rows)):
        for plan in found.plans:
            planned += 1
            changed = after(rows.iloc[i : i + 1], plan.changes)
            assert fitted.scores(changed)[0] < 0.3
            assert np.isfinite([*plan.changes.values()]).all()
    assert planned > 3


HOMES = ("own", "rent", "other")


def with_words(seed: int = 1) -> tuple[pd.DataFrame, np.ndarray]:
    """Return rows of two numbers and two words, and labels of three classes."""
    random = np.random.default_rng(seed)
    rows = pd.DataFrame(
        {
            "home": random.choice(HOMES, 500),
            "debt": np.round(random.normal(5, 2, 500), 1),
            "job": random.choice(["none", "part", "full"], 500),
            "years": random.integers(0, 20, 500).astype(float),
        }
    )
    risk = rows.debt - rows.years / 4 + 2.0 * (rows.home == "rent") + 2.0 * (rows.job == "none")
    return rows, np.digitize(risk + random.normal(0, 0.3, 500), [2.5, 5.0])


def of_several_classes() -> tuple[Any, pd.DataFrame]:
    """Return a pipeline whose third class is adverse."""
    rows, labels = with_words()
    columns = make_column_transformer((OneHotEncoder(), ["home", "job"]), remainder="passthrough")
    model = make_pipeline(columns, GradientBoostingClassifier(n_estimators=20, max_depth=3))
    return model.fit(rows, labels), rows


def of_codes(booster: Any) -> tuple[Any, pd.DataFrame]:
    """Return a model that splits two columns of codes by sets, as its library's own categories."""
    rows, labels = with_words()
    coded = rows.assign(
        home=rows.home.map(HOMES.index).astype(float),
        job=rows.job.map(["none", "part", "full"].index).astype(float),
    )
    return booster(coded, labels == 2), coded


def lightgbm_of(rows: pd.DataFrame, labels: np.ndarray) -> Any:
    model = lightgbm.LGBMClassifier(n_estimators=20, max_depth=3, n_jobs=1, verbose=-1, min_child_samples=5)
    return model.fit(rows, labels, categorical_feature=[0, 2])


def hist_of(rows: pd.DataFrame, labels: np.ndarray) -> Any:
    return HistGradientBoostingClassifier(max_iter=20, max_depth=3, categorical_features=[0, 2]).fit(
        rows, labels
    )


WORDED: dict[str, Callable[[], tuple[Any, pd.DataFrame]]] = {
    "several classes": of_several_classes,
    "lightgbm": lambda: of_codes(lightgbm_of),
    "hist": lambda: of_codes(hist_of),
}


@pytest.mark.parametrize("name", WORDED)
def test_words_and_codes_change_to_those_that_are_known(name: str) -> None:
    """Each plan and flip point holds in the fitted model; codes that a library splits by sets stay codes."""
    model, rows = WORDED[name]()
    column = model.classes_.tolist().index(2 if len(model.classes_) > 2 else True)
    profile = {
        "output": f"probabilities[{column}]",
        "threshold": THRESHOLD,
        "adverse": "above",
        "actionable": {"home": {}, "debt": {"direction": "down"}, "job": {}},
    }
    is_softmax = len(model.classes_) > 2  # which no table of trees explains
    method = PermutationShap(rows[:20], 5, seed=0) if is_softmax else TreeShap(rows[:80])
    entry = compile_model(model, method, decision=profile)

    def scores(table: pd.DataFrame) -> np.ndarray:
        return np.asarray(model.predict_proba(table)[:, column])

    declined = rows[scores(rows) > THRESHOLD][:15]
    changed_features = set[str]()
    for i, found in enumerate(entry.recourse(declined)):
        row = declined.iloc[i : i + 1]
        for plan in found.plans:
            changed_features |= {*plan.changes}
            changed = after(row, plan.changes)
            assert scores(changed)[0] <= THRESHOLD
            assert changed.debt.iloc[0] <= row.debt.iloc[0]
        points = {point.feature: point for point in found.flip_points}
        for feature in ("home", "job"):
            choices = rows[feature].unique()
            tried = row.loc[row.index.repeat(len(choices))].assign(**{feature: choices})
            flips = {*choices[scores(tried) <= THRESHOLD]}
            assert (feature in points) == bool(flips), feature
            if feature in points:
                assert points[feature].value in flips
        for plan in found.plans:
            assert all(plan.changes[name] in {*rows[name]} for name in plan.changes if name != "debt")
    assert changed_features >= {"home", "job"}
