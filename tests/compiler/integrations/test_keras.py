"""Keras 3 on the torch backend: models as they are, explained as Keras predicts."""

import os
from typing import Any

import numpy as np
import pytest

import rationale

os.environ["KERAS_BACKEND"] = "torch"
keras = pytest.importorskip("keras", reason="Keras is missing (pip install keras)")

pytestmark = pytest.mark.filterwarnings(  # of torch.export, and of Keras' own variables
    "ignore::FutureWarning:copyreg", "ignore:__array__ implementation:DeprecationWarning"
)
RANDOM = np.random.default_rng(0)


def perceptron() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((10,)),
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(3, activation="softmax"),
        ]
    )


def convolutions() -> Any:
    layers = keras.layers
    x = layers.Input((12, 11, 3))
    z = layers.MaxPooling2D()(layers.Conv2D(4, 3, activation="relu")(x))
    return keras.Model(x, layers.Dense(3)(layers.Flatten()(z)))


@pytest.mark.parametrize(
    ("build", "shape"), [(perceptron, (10,)), (convolutions, (12, 11, 3))], ids=["perceptron", "convolutions"]
)
def test_a_model_is_explained_as_it_predicts(build: Any, shape: tuple[int, ...]) -> None:
    keras.utils.set_random_seed(0)
    model = build()
    x = RANDOM.normal(size=(9, *shape)).astype(np.float32)
    compiled = rationale.compile_model(model, rationale.DeepShap(x[:4]), targets="all")
    answer = compiled.explain(x)
    np.testing.assert_allclose(answer["explained_value"], model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
    assert np.abs(answer["completeness_gap"]).max() < 1e-4
    attributions = answer[compiled.manifest.explained[0].attributions]
    assert attributions.shape == (9, 3, *shape)
    assert np.abs(attributions).max() > 1e-3


def test_several_inputs_are_refused() -> None:
    a, b = keras.layers.Input((3,)), keras.layers.Input((3,))
    model = keras.Model([a, b], keras.layers.Add()([a, b]))
    with pytest.raises(rationale.InvalidModelError, match="has 2 inputs: write it by model"):
        rationale.convert(model, np.zeros((2, 3), np.float32))
