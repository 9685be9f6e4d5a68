"""`rationale.Explainer`: `fit`, `explain` and `transform`, as users of scikit-learn expect them."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from rationale import DeepShap, Explainer, InvalidOptionError, TreeShap, compile_model
from tests.compiler.models import two_inputs

NAMES = ["age", "income", "debt", "term"]


@pytest.fixture(scope="module")
def data() -> tuple[pd.DataFrame, np.ndarray]:
    x, y = make_classification(200, 4, n_informative=3, n_redundant=0, random_state=0)
    return pd.DataFrame(x, columns=NAMES), y


@pytest.fixture(scope="module")
def forest(data: Any) -> RandomForestClassifier:
    return RandomForestClassifier(5, max_depth=3, random_state=0).fit(*data)


def test_it_explains_as_compile_model_does(data: Any, forest: Any) -> None:
    x, _ = data
    explainer = Explainer(forest, TreeShap, references=None).fit(x)
    expected = compile_model(forest, TreeShap(x)).explain(x[:7])
    answer = explainer.explain(x[:7])
    assert answer.keys() == expected.keys()
    assert all(np.array_equal(answer[name], expected[name]) for name in expected)
    assert np.array_equal(explainer.transform(x[:7]), expected["x_attributions"][:, 0])
    assert list(explainer.get_feature_names_out()) == list(explainer.feature_names_in_) == NAMES


def test_references_are_drawn_by_the_seed(data: Any, forest: Any) -> None:
    x, _ = data
    fitted = [Explainer(forest, TreeShap, references=20, random_state=seed).fit(x) for seed in (0, 0, 1)]
    first, same, other = (each.compiled_.manifest.digests.references for each in fitted)
    assert first == same != other
    assert fitted[0].compiled_.manifest.references.count == 20


@pytest.mark.parametrize(
    "as_rows", [np.asarray, pl.from_pandas, lambda x: x], ids=["array", "polars", "pandas"]
)
def test_rows_of_any_library(data: Any, as_rows: Any) -> None:
    x, y = data
    model = LogisticRegression().fit(x.to_numpy(), y)
    here = Explainer(model, references=30).fit(as_rows(x))
    assert np.allclose(here.transform(as_rows(x)[:5]), Explainer(model, references=30).fit_transform(x)[:5])


def test_what_is_fitted_stays_as_it_is(forest: Any) -> None:
    before = forest.get_params()
    explainer = Explainer(forest, DeepShap, references=7, targets=[0])
    copy = clone(explainer)
    assert copy.get_params()["references"] == 7
    assert copy.get_params()["targets"] == [0]
    assert copy.set_params(targets=[1], references=9).get_params()["references"] == 9
    assert copy.options == {"targets": [1]}
    assert explainer.options == {"targets": [0]}
    assert forest.get_params() == before


def test_references_of_two_inputs_are_the_same_rows() -> None:
    order = np.arange(40, dtype=np.float32)
    x = {"a": np.repeat(order[:, None], 3, axis=1), "b": np.repeat(order[:, None], 4, axis=1)}
    drawn = Explainer(None, references=9)._drawn(x)
    assert np.array_equal(drawn["a"][:, 0], drawn["b"][:, 0])
    most = Explainer(None, references=39)._drawn(x)["a"][:, 0]
    assert np.array_equal(most, np.unique(most)), "each row once, in their order"
    assert len(most) == 39
    explainer = Explainer(two_inputs(), DeepShap, references=9, targets=[0]).fit(x)
    assert explainer.compiled_.manifest.references.count == 9
    assert explainer.transform(x).shape == (40, 7)


def test_a_clone_explains_the_same_model(data: Any, forest: Any) -> None:
    """scikit-learn clones the estimators among the arguments, and a clone of those is not fitted."""
    x, _ = data
    explainer = Explainer(forest, TreeShap).fit(x)
    copy = clone(explainer)
    with pytest.raises(InvalidOptionError, match=r"call fit\(X\) first"):
        copy.explain(x)
    assert copy.model is forest
    assert np.array_equal(copy.fit(x).transform(x), explainer.transform(x))


def test_faults_say_what_to_do(data: Any, forest: Any) -> None:
    x, _ = data
    with pytest.raises(InvalidOptionError, match=r"call fit\(X\) first"):
        Explainer(forest).explain(x)
    for count in (0, -1, 2.5, 300.5):
        with pytest.raises(InvalidOptionError, match=f"references={count}: give 1 or more"):
            Explainer(forest, references=count).fit(x)
    with pytest.raises(InvalidOptionError, match="give an array or a DataFrame"):
        Explainer(forest).fit(3)
    with pytest.raises(InvalidOptionError, match="choose one target"):
        Explainer(forest, TreeShap, targets="all").fit(x).transform(x)


def test_an_unknown_parameter_is_refused_as_scikit_learn_does(forest: Any) -> None:
    """No parameter is set if one of them is unknown."""
    explainer = Explainer(forest, references=7, targets=[0])
    pattern = "Invalid parameter 'refrences' for estimator {}\\(\\). Valid parameters are: \\["
    with pytest.raises(ValueError, match=pattern.format("Explainer")):
        explainer.set_params(references=9, refrences=8)
    with pytest.raises(ValueError, match=pattern.format("LogisticRegression")):
        LogisticRegression().set_params(refrences=8)
    assert explainer.get_params()["references"] == 7
