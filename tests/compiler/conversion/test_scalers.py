"""Scalers before trees whose thresholds lie on numbers that rows hold: a rounding would be another leaf."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingRegressor, GradientBoostingRegressor, RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

from compiler import convert
from compiler.conversion.parity import LIMIT

_RANDOM = np.random.default_rng(3)
TABLE = pd.DataFrame(_RANDOM.integers(1, 90, (400, 6)).astype(float), columns=list("abcdef"))
DUE = TABLE["a"] % 7 * TABLE["b"] + np.where(TABLE["c"] > 30, TABLE["d"], -TABLE["e"]) + TABLE["f"] % 3

SCALERS = [
    StandardScaler(),
    StandardScaler(with_mean=False),
    StandardScaler(with_std=False),
    RobustScaler(),
    RobustScaler(with_scaling=False),
    MaxAbsScaler(),
    MinMaxScaler((-1, 2)),
    MinMaxScaler((0.1, 0.7), clip=True),
    ColumnTransformer([("a", StandardScaler(), list("abc")), ("b", MinMaxScaler(), list("def"))]),
]
TREES = [
    GradientBoostingRegressor(n_estimators=30, max_depth=4, random_state=0),
    RandomForestRegressor(8, max_depth=7, random_state=0),
    BaggingRegressor(n_estimators=4, random_state=0),
    xgb.XGBRegressor(n_estimators=20, max_depth=4),
]


@pytest.mark.parametrize("trees", TREES, ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("scaler", SCALERS, ids=str)
def test_a_row_falls_into_the_leaf_of_the_fitted_model(scaler: Any, trees: Any) -> None:
    parity = convert(make_pipeline(scaler, trees).fit(TABLE, DUE), TABLE).parity
    assert parity is not None
    assert parity.mixtures
    assert parity.relative < LIMIT
