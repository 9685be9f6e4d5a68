"""Operators are walked together, or in another order, where that takes fewer steps."""

import re

import numpy as np

from rationale import DeepShap, compile_model
from tests.compiler.models import parsed, rows

SHAPE = (2, 4, 6)
POOL = "MaxPool <kernel_shape = [2, 2], strides = [2, 2]>"
MEAN = "AveragePool <kernel_shape = [2, 2], strides = [2, 2]>"
CONSTANTS = {
    "scale": np.array([1.5, 0.5], np.float32),
    "zero": np.zeros(2, np.float32),
    "one": np.ones(2, np.float32),
    "w": rows(3, 2, 3, 3),
    "narrow": rows(3, 2, 1, 1),
}


def walked(text: str) -> list[str]:
    """Return the named operators for which the way back has nodes, by their first node."""
    named = re.findall(r"\w+", text)
    constants = {name: array for name, array in CONSTANTS.items() if name in named}
    model = parsed(f"g (float[N, 2, 4, 6] x) => (float[N, C, H, W] y) {{ {text} }}", constants)
    graph = compile_model(model, DeepShap(rows(5, *SHAPE)), targets="all").model
    names = [
        name.split("/")[1] for n in graph.graph.node for name in n.output if name.startswith("backward/")
    ]
    return list(dict.fromkeys(names))


def test_what_never_falls_is_walked_with_the_selection_behind_it() -> None:
    assert walked(f"[relu] r = Relu (x)  [pool] y = {POOL} (r)") == ["pool"]


def test_what_is_read_elsewhere_too_is_walked_by_itself() -> None:
    text = f"[relu] r = Relu (x)  [pool] p = {POOL} (r)  [mean] q = {MEAN} (r)  [sum] y = Add (p, q)"
    assert {"pool", "relu"} <= set(walked(text))


def test_a_factor_of_each_channel_goes_into_the_layer_behind() -> None:
    text = """[before] u = Tanh (x)  [norm] n = BatchNormalization (u, scale, zero, zero, one)
        [relu] r = Relu (n)  [conv] c = Conv (r, w)  [behind] y = Tanh (c)"""
    assert set(walked(text)) == {"behind", "conv", "relu", "before"}


def test_a_mean_behind_a_layer_is_walked_as_if_it_stood_before_it() -> None:
    text = f"[conv] c = Conv (x, narrow)  [mean] q = {MEAN} (c)  [behind] y = Tanh (q)"
    assert walked(text) == ["behind", "conv", "mean"]
