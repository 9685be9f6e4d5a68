"""CatBoost models, compiled as they are and from their files."""

from pathlib import Path
from typing import Any

import catboost
import numpy as np
import pandas as pd
import pytest

from compiler import TreeShap, UnsupportedModelError, compile_model, convert
from compiler.conversion.files import read_fitted
from tests.compiler.conversion.data import AMOUNT, ASKED, FEATURES, LOANS, REFERENCES, THREE, TWO, K, N
from tests.tolerances import PARITY_32

SMALL: dict[str, Any] = {"iterations": 6, "depth": 3, "verbose": 0, "allow_writing_files": False}


@pytest.mark.parametrize("classes", [TWO, THREE], ids=["two", "three"])
def test_classifiers(classes: pd.Series, tmp_path: Path) -> None:
    model = catboost.CatBoostClassifier(**SMALL).fit(LOANS, classes)
    model.save_model(str(tmp_path / "m.cbm"))
    due = model.predict_proba(ASKED)
    for given in (model, read_fitted(tmp_path / "m.cbm")):
        compiled = compile_model(given, TreeShap(REFERENCES))
        answer, parity = compiled.explain(ASKED), compiled.manifest.parity
        assert parity is not None
        assert (parity.rows, parity.labels, parity.relative < PARITY_32) == (K, 0, True)
        assert compiled.manifest.explained[0].feature_names == tuple(FEATURES)
        assert np.abs(answer["probabilities"] - due).max() <= PARITY_32
        np.testing.assert_array_equal(answer["label"], model.predict(ASKED).reshape(N))


def test_numbers() -> None:
    model = catboost.CatBoostRegressor(**SMALL).fit(LOANS.to_numpy(), AMOUNT)
    answer = compile_model(model, TreeShap(REFERENCES.to_numpy())).explain(ASKED.to_numpy())
    due = model.predict(ASKED.to_numpy())
    assert np.abs(answer["predictions"].reshape(N) - due).max() <= PARITY_32 * np.ptp(due)


def test_categories_are_refused() -> None:
    table = LOANS.assign(rate=np.resize(["a", "b"], len(LOANS)))
    model = catboost.CatBoostClassifier(**SMALL).fit(table, TWO, cat_features=["rate"])
    with pytest.raises(UnsupportedModelError, match=r"categorical features \['rate'\] cannot be exported"):
        convert(model)
