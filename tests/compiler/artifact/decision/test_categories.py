"""Categories of a profile against those that the model knows, in its encoders."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from rationale import Compiled, ExactShap, compile_model
from rationale.errors import InvalidProfileError
from tests.compiler.models import parsed

N = 200
RANDOM = np.random.default_rng(0)
LOANS = pd.DataFrame(
    {
        "age": RANDOM.uniform(18, 80, N).round(),
        "housing": RANDOM.choice(["A151", "A152", "A153"], N),
        "job": RANDOM.choice(["A171", "A172"], N),
        "kids": RANDOM.choice([1.0, 2.0, 3.0], N),
    }
)
LABELS = RANDOM.integers(0, 2, N)
ENCODERS: dict[str, BaseEstimator] = {
    "one-hot": OneHotEncoder(handle_unknown="ignore"),
    "dropped": OneHotEncoder(drop="first"),
    "ordinal": OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
}


def decided(model: Any, references: Any, features: dict[str, Any], output: str, **options: Any) -> Compiled:
    profile = {"output": output, "threshold": 0.4, "adverse": "above", "features": features}
    return compile_model(model, ExactShap(references), decision=profile, **options)


def of_categories(**keys: str) -> dict[str, Any]:
    """Words with a space between, by feature; a feature is open where they end in …"""
    values: dict[str, Any] = {}
    for name, words in keys.items():
        categories = {key: f"called {key}" for key in words.rstrip("…").split()}
        values[name] = {"categories": categories, "open": words.endswith("…")}
    return values


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_encoders_of_a_pipeline(kind: str) -> None:
    parts = [("encoded", ENCODERS[kind], ["housing", "job", "kids"])]
    pipeline = make_pipeline(ColumnTransformer(parts, remainder=StandardScaler()), LogisticRegression())
    pipeline.fit(LOANS, LABELS)
    wrong = of_categories(housing="A151 a151", job="A171 A179 A171-…", kids="1 2 3.0 4")
    with pytest.raises(InvalidProfileError) as caught:
        decided(pipeline, LOANS[:4], {**wrong, "years": {}}, "probabilities[1]")
    for warnings in (
        "4 problems",
        "features.housing: the model has no category 'a151' (do you mean 'A151'?)",
        "features.job: the model has no categories 'A179', 'A171-': there are 'A171', 'A172'",
        "features.kids: the model has no category '4': there are '1', '2', '3'",
        "the model has no feature 'years'",
    ):
        assert warnings in str(caught.value)
    right = of_categories(housing="A151 A153", job="A171…", kids="1 2.0 3") | {"age": {"least": 18}}
    warnings = decided(pipeline, LOANS[:4], right, "probabilities[1]").manifest.warnings
    assert [warning for warning in warnings if "does not take" in warning] == [
        "decision: the profile does not take 'A152' of 'housing', which the model knows"
    ]


def test_a_column_among_others() -> None:
    """Of one table of numbers, behind an imputer; the column beside it is a number to the model."""
    table = np.c_[RANDOM.integers(0, 3, N), RANDOM.integers(0, 3, N)].astype(np.float32)
    encoder = make_pipeline(SimpleImputer(), OneHotEncoder(handle_unknown="ignore"))
    parts = [("encoded", encoder, [0])]
    pipeline = make_pipeline(ColumnTransformer(parts, remainder="passthrough"), LogisticRegression())
    pipeline.fit(table, LABELS)
    features = of_categories(code="0 1 2 7", number="0 9")
    with pytest.raises(InvalidProfileError, match=r"code: .*'7'") as caught:
        decided(pipeline, table[:4], features, "probabilities[1]", feature_names=["code", "number"])
    assert "number" not in str(caught.value)


GRAPHS = {
    "CategoryMapper": (
        'c = ai.onnx.ml.CategoryMapper <cats_strings = ["a", "b"], cats_int64s = [4, 5]> (x)',
        "a b",
    ),
    "LabelEncoder": ('c = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_int64s = [4]> (x)', "a"),
    "two of them": (
        'd = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_int64s = [4]> (x) '
        'e = ai.onnx.ml.LabelEncoder <keys_strings = ["b"], values_int64s = [3]> (x) c = Add (d, e)',
        "a b",
    ),
    "compared": ("is = Equal (x, word)  c = Cast <to = 7> (is)", "a"),
    "reshaped": (
        'y = Reshape (x, shape)  c = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_int64s = [4]> (y)',
        "a",
    ),
    "joined": (
        "y = StringConcat (x, word)"
        '  c = ai.onnx.ml.LabelEncoder <keys_strings = ["aa"], values_int64s = [4]> (y)',
        "a Z",  # not told: of another operator they may be any
    ),
}


def of_text(nodes: str) -> onnx.ModelProto:
    head = "g (string[N, 1] x, float[N, 1] z) => (float[N, 1] y1)"
    constants = {"word": np.array(["a"], object), "shape": np.array([-1, 1])}
    used = {name: value for name, value in constants.items() if name in nodes}
    text = f"{head} {{ {nodes}  f = Cast <to = 1> (c)  s = Add (f, z)  y1 = Sigmoid (s) }}"
    return parsed(text, used, opsets='"" : 21, "ai.onnx.ml" : 3')


@pytest.mark.parametrize("kind", GRAPHS)
def test_what_else_tells_texts_apart(kind: str) -> None:
    nodes, categories = GRAPHS[kind]
    references = pa.table({"x": ["a", "b"], "z": np.zeros(2, np.float32)})
    decided(of_text(nodes), references, of_categories(x=categories), "y1")
    unknown = pytest.raises(InvalidProfileError, match=r"features\.x: .*'A'")
    with nullcontext() if kind == "joined" else unknown:
        decided(of_text(nodes), references, of_categories(x=f"{categories} A"), "y1")
