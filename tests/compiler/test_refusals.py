"""What is refused, and what the refusal says: a row for each that no other test provokes."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from compiler import DeepShap, Gradient, compile_model
from compiler.errors import InvalidModelError, UnsupportedModelError
from tests.compiler.models import parsed

X = "float[N, 3, 4] x"
REFERENCES = np.zeros((2, 3, 4), np.float32)
WEIGHTS = {
    "ones": np.ones(4, np.float32),
    "five": np.int64(5),
    "off_on": np.float32([0, 1]),
    "kernel": np.ones((2, 3, 1, 1), np.float32),
    "regions": np.float32([[0, 0, 2, 3]]),
    "which": np.zeros(1, np.int64),
    "w": np.ones((1, 2, 4), np.float32),
    "r": np.ones((1, 2, 2), np.float32),
    "none": np.zeros((0, 3), np.float32),
    "first": np.int64([0]),
    "flag": np.bool_(True),
    "zero": np.int64(0),
    "half": np.float32(0.5),
}

# `h` is of a rank that nobody knows before the model runs.
UNKNOWN = "h = Reshape (x, n)"
MORE = "int64[M] n"


def graph(body: str, more: str = "", opset: int = 21) -> onnx.ModelProto:
    inputs = ", ".join(v for v in (X, more) if v)
    text = f"g ({inputs}) => (float[N, A, B] y) {{ {body} }}"
    held = {name: array for name, array in WEIGHTS.items() if name in body}
    return parsed(text, held, opsets=f'"" : {opset}, "com.acme" : 1, "ai.onnx.ml" : 3')


# By name: the graph's body, its other inputs, and what the message says.
LOWERING: dict[str, tuple[str, str, str]] = {
    "pool of unknown rank": (f"{UNKNOWN} y = GlobalMaxPool (h)", MORE, "rank of 'h' is not known"),
    "norm of unknown rank": (
        f"{UNKNOWN} s = ReduceSum (x) y, m = LayerNormalization (h, s)",
        MORE,
        "rank of 'h' is not known",
    ),
    "windows of unknown size": (
        f"{UNKNOWN} y = LpPool <kernel_shape = [2]> (h)",
        MORE,
        "sizes of 'h' are not known",
    ),
    "a type that is not known": (
        "like = com.acme.Warp (x) y = CastLike (x, like)",
        "",
        "type of 'like' is not known",
    ),
    "some elements of unknown rank": (
        f"{UNKNOWN} y = ai.onnx.ml.ArrayFeatureExtractor (h, first)",
        MORE,
        "ArrayFeatureExtractor: the rank of 'h'",
    ),
    "a depth that is computed": (
        "i = Cast <to = 7> (x) y = OneHot (i, depth, off_on)",
        "int64 depth",
        "export with static feature",
    ),
    "a cache of unknown rank": (f"{UNKNOWN} y = TensorScatter (h, x)", MORE, "whose rank is not known"),
    "places of no known size": (
        'i = Reshape (p, n) y = ScatterElements <reduction = "mul"> (x, i, i2)',
        f"{MORE}, int64[N, 3, 4] p, float[N, 3, 4] i2",
        "'mul' at places of no known size",
    ),
    "places of no known number": (
        'i = Reshape (p, n) y = ScatterND <reduction = "max"> (x, i, i2)',
        f"{MORE}, int64[N, 3, 3] p, float[N, 3] i2",
        "how many places is not known",
    ),
    "a step that is computed": (
        "y = STFT (x, step, ones)",
        "int64 step",
        "STFT with a step or length that is computed",
    ),
    "no window": ("y = STFT (x, five)", "", "STFT needs a window or a frame length"),
    "a region's own number of samples": (
        "u = Unsqueeze (x, first) y = RoiAlign (u, regions, which)",
        "",
        "export with a fixed sampling_ratio",
    ),
    "regions of a plane of unknown size": (
        f"{UNKNOWN} y = RoiAlign <sampling_ratio = 2> (h, regions, which)",
        MORE,
        "of 'h' has no fixed size",
    ),
    "a sequence of unknown length": (
        f"{UNKNOWN} y, a = RNN <hidden_size = 2> (h, w, r)",
        MORE,
        "Export with a fixed",
    ),
    "no element there": (
        "s = SequenceConstruct (x, x) y = SequenceAt (s, five)",
        "",
        "no element 5 in a sequence of 2",
    ),
}


@pytest.mark.parametrize("name", LOWERING)
def test_what_cannot_be_lowered(name: str) -> None:
    body, more, words = LOWERING[name]
    opset = 24 if "TensorScatter" in body else 21
    with pytest.raises(UnsupportedModelError, match=words):
        compile_model(graph(body, more, opset), Gradient(), inputs=["x"])
