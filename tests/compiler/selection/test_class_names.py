"""A classifier's class names are known where its scores are explained, however its label is made."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rationale import DeepShap, Gradient, TreeShap, compile_model
from tests.compiler.models import parsed, rows

NAMES = ("kept", "lost", "sent back")
TABLE = pd.DataFrame(rows(60, 2), columns=["age", "amount"])
RANK = pd.qcut(TABLE["age"] + TABLE["amount"], 3, labels=False).to_numpy()


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (HistGradientBoostingClassifier(max_iter=2), TreeShap),  # whose margins are explained
        (RandomForestClassifier(3, max_depth=2), TreeShap),
        (LogisticRegression(), DeepShap),
        (make_pipeline(StandardScaler(), MLPClassifier((4,), max_iter=5)), DeepShap),
        pytest.param(LGBMClassifier(n_estimators=2, verbose=-1), TreeShap, marks=pytest.mark.full),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_of_a_fitted_model_they_are_its_labels(model: Any, method: Any) -> None:
    fitted = model.fit(TABLE, np.array(NAMES)[RANK])
    manifest = compile_model(fitted, method(TABLE[:10]), targets="all").manifest
    assert manifest.class_names == NAMES
    assert [manifest.class_name(each) for each in manifest.targets] == [*NAMES]


@pytest.mark.parametrize(("labels", "expected"), [((7, 8, 9), ("7", "8", "9")), ((0, 1, 2), ())])
def test_numbers_are_names_unless_they_only_count(labels: tuple[int, ...], expected: tuple[str, ...]) -> None:
    fitted = LogisticRegression().fit(TABLE.to_numpy(np.float32), np.array(labels)[RANK])
    assert compile_model(fitted, DeepShap(TABLE[:10]), targets="all").manifest.class_names == expected


TWO_HEADS = """g (float[N, 2] x) => (float[N, 3] scores, float[N, 3] others, string[N] label) {
    logits = MatMul (x, w)
    scores = Softmax (logits)
    others = MatMul (x, v)
    best = ArgMax <axis = 1, keepdims = 0> (scores)
    label = Gather (names, best)
}"""


@pytest.mark.parametrize(("output", "expected"), [("scores", NAMES), ("logits", NAMES), ("others", ())])
def test_only_scores_that_choose_the_label_are_of_its_classes(output: str, expected: tuple[str, ...]) -> None:
    model = parsed(TWO_HEADS, {"w": rows(2, 3), "v": rows(2, 3, seed=1), "names": np.array(NAMES, object)})
    assert compile_model(model, Gradient(), output=output, targets="all").manifest.class_names == expected


def test_a_contrast_names_both_ends() -> None:
    model = parsed(TWO_HEADS, {"w": rows(2, 3), "v": rows(2, 3, seed=1), "names": np.array(NAMES, object)})
    manifest = compile_model(model, Gradient(), targets=[1, "2-0"]).manifest
    assert [manifest.class_name(each) for each in manifest.targets] == ["lost", "sent back against kept"]
    assert manifest.class_name("predicted") is None
