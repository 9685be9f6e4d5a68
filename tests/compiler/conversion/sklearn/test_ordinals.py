"""Numbers that are categories: each has the code that scikit-learn's OrdinalEncoder gives it."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from rationale import ExactShap, TreeShap, compile_model, convert
from rationale.conversion.parity import LIMIT

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(0)
VALUES, SHARES = [1.5, 2.0, 3.25, 4.0, 5.0, 6.0, np.nan], [0.3, 0.3, 0.2, 0.05, 0.05, 0.02, 0.08]
HOLES = RANDOM.choice(VALUES, p=SHARES, size=(400, 3))
Y = (np.nan_to_num(HOLES[:, 0]) + RANDOM.normal(size=400) > 2).astype(int)
UNKNOWN: dict[str, Any] = {"handle_unknown": "use_encoded_value"}
ENCODERS = {
    "plain": OrdinalEncoder(),
    "rare by count": OrdinalEncoder(min_frequency=30),
    "rare by share": OrdinalEncoder(min_frequency=0.1),
    "the most frequent": OrdinalEncoder(max_categories=4),
    "a code for missing": OrdinalEncoder(min_frequency=30, encoded_missing_value=-2),
    "a code for unknown": OrdinalEncoder(min_frequency=30, **UNKNOWN, unknown_value=-1),
    "both": OrdinalEncoder(**UNKNOWN, unknown_value=-1, encoded_missing_value=-1),
    "unknown is missing": OrdinalEncoder(max_categories=3, **UNKNOWN, unknown_value=np.nan),
    "whole codes": OrdinalEncoder(min_frequency=30, dtype=np.int64, encoded_missing_value=9),
}


@pytest.mark.parametrize("holes", [True, False])
@pytest.mark.parametrize("name", ENCODERS)
def test_a_code_is_that_of_scikit_learn(name: str, holes: bool) -> None:
    rows = HOLES if holes else np.nan_to_num(HOLES, nan=2.0)
    encoder = ENCODERS[name]
    model = make_pipeline(encoder, RandomForestClassifier(9, random_state=0)).fit(rows, Y)
    converted = convert(model, rows)
    assert converted.parity is not None
    assert converted.parity.relative < LIMIT
    assert not converted.warnings
    tried = rows[:50].copy()
    if encoder.handle_unknown != "error":
        tried[::7, 1] = 77.0
    if holes:
        tried[::5, 2] = np.nan
    compiled = compile_model(converted, TreeShap(rows[:40]))
    answer = compiled.explain(tried)
    np.testing.assert_allclose(answer["probabilities"], model.predict_proba(tried), atol=1e-5)
    exact = compile_model(converted, ExactShap(rows[:40])).explain(tried)
    np.testing.assert_allclose(answer["x_attributions"], exact["x_attributions"], atol=1e-5)


def test_codes_of_some_columns_of_a_frame() -> None:
    table = pd.DataFrame(HOLES, columns=list("abc"))
    columns = make_column_transformer(
        (OrdinalEncoder(min_frequency=30), ["c", "a"]),
        remainder="passthrough",
    )
    model = make_pipeline(columns, RandomForestClassifier(9, random_state=0)).fit(table, Y)
    compiled = compile_model(model, ExactShap(table[:30]))
    assert compiled.manifest.parity is not None
    assert compiled.manifest.parity.relative < LIMIT
    np.testing.assert_allclose(
        compiled.explain(table)["probabilities"], model.predict_proba(table), atol=1e-5
    )
