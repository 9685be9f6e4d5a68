"""Sample inputs of every operator: what a new rule brings to be checked by all the harness has.

Dimensions are unequal and never 1 where an operator allows it, so that a transposed or mis-summed
multiplier cannot pass.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from rationale.rules.pointwise.power import MOST_EXPONENTS
from rationale.testing import Sample, Var
from tests.compiler.samples.awkward import awkward_samples
from tests.compiler.samples.discrete import discrete_samples
from tests.compiler.samples.mathematics import math_samples
from tests.compiler.samples.moving import moving_samples
from tests.compiler.samples.recurrent import recurrent_samples
from tests.compiler.samples.resampling import resampling_samples
from tests.compiler.samples.weights import weight_samples

__all__ = ["SAMPLES", "Sample", "Var", "parameters"]


def _array(*shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape)


def _ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


def _scalar(number: float) -> np.ndarray:
    return np.asarray(number, np.float64)


def _pointwise() -> list[Sample]:
    x = Var((3, 4))
    positive = Var((3, 4), 0.05, 3.0)
    samples = [
        Sample(name, [x])
        for name in "Relu Sigmoid Tanh Exp Abs Neg Softsign Softplus Erf Sin Cos Atan Identity".split()
    ]
    samples += [Sample(name, [x], smooth=False) for name in "Sign Floor Ceil Round".split()]
    samples += [Sample(name, [positive]) for name in "Log Sqrt Reciprocal".split()]
    samples += [Sample("Reciprocal", [Var((5,), -3.0, -0.2)], note="negative")]
    samples += [Sample("Sigmoid", [Var((7,), -30.0, 30.0)], note="saturated")]
    samples += [Sample("Pow", [Var((4,)), _scalar(n)], note=f"integer {n}") for n in (2.0, 3.0, 5.0)]
    samples += [Sample("Pow", [Var((5,), -1.5, 1.5), _scalar(17.0)], note="integer 17")]
    samples += [
        Sample("Pow", [positive, _scalar(n)], note=f"real {n}") for n in (0.5, -0.75, 1.7, -1.0, -2.0, 1.0)
    ]
    exponents = np.linspace(0.5, 4, MOST_EXPONENTS)
    samples += [Sample("Pow", [Var((MOST_EXPONENTS,), 0.05, 3.0), exponents], note="as many as may be")]
    samples += [
        Sample("LeakyRelu", [x], {"alpha": 0.3}),
        Sample("PRelu", [x, _array(4, low=-0.5)]),
        Sample("PRelu", [Var((3, 4, 2)), _array(3, 1, 1)], note="per channel"),
        Sample("ThresholdedRelu", [x], {"alpha": 0.7}),
        Sample("Clip", [x, _scalar(-0.5), _scalar(0.8)]),
        Sample("Clip", [x, _scalar(-0.5)], note="low only"),
        Sample("Clip", [x, None, _scalar(0.8)], note="high only"),
        Sample("Clip", [x], note="no bounds"),
        Sample("HardSigmoid", [Var((3, 4), -5.0, 5.0)], {"alpha": 0.3, "beta": 0.4}),
        Sample("Elu", [x], {"alpha": 1.3}),
        Sample("Selu", [x]),
        Sample("Celu", [x], {"alpha": 0.6}, float64=False),
        Sample("HardSwish", [Var((3, 4), -5.0, 5.0)]),
        Sample("Mish", [x]),
        Sample("Gelu", [x], {"approximate": "none"}, note="erf"),
        Sample("Gelu", [x], {"approximate": "tanh"}, note="tanh"),
        Sample("Swish", [x], {"alpha": 1.4}, opset=24),
    ]
    return samples


def _arithmetic() -> list[Sample]:
    a, b, column = Var((3, 4)), Var((3, 4)), Var((3, 1))
    positive = Var((3, 4), 0.3, 2.0)
    samples = [Sample(name, [a, b]) for name in "Add Sub Mul Max Min Sum Mean".split()]
    samples += [Sample(name, [a, column], note="broadcast") for name in "Add Sub Mul Max Min".split()]
    samples += [Sample(name, [a, _array(4)], note="constant") for name in "Add Sub Mul Max Min".split()]
    samples += [
        Sample("Sum", [a, b, column], note="three"),
        Sample("Max", [a, b, column], note="three"),
        Sample("Mean", [a, b, a], note="three"),
        Sample("Div", [a, positive]),
        Sample("Div", [a, _array(4, low=0.5, high=2.0)], note="constant"),
        Sample("Div", [_array(4), positive], note="constant numerator"),
        Sample("MatMul", [Var((5,)), _array(5, 3)]),
        Sample("MatMul", [Var((2, 3, 5)), _array(5, 4)], note="stacked"),
        Sample("MatMul", [Var((2, 3, 5)), Var((2, 5, 4))], note="both vary"),
        Sample("MatMul", [_array(2, 3, 5), Var((2, 5, 4))], note="constant left"),
        Sample("Gemm", [Var((5,)), _array(5, 3), _array(3)], {"alpha": 0.7, "beta": 1.3}),
        Sample("Gemm", [Var((5,)), _array(3, 5)], {"transB": 1}, note="transB"),
        Sample("Gemm", [Var((5,)), _array(5, 3), Var((3,))], {"beta": 0.4}, note="c varies"),
        Sample(
            "BatchNormalization",
            [Var((3, 4, 5)), _array(3), _array(3, seed=1), _array(3, seed=2), _array(3, low=0.5, high=2.0)],
        ),
        Sample(
            "BatchNormalization",
            [Var((3,)), _array(3), _array(3, seed=1), _array(3, seed=2), _array(3, low=0.5, high=2.0)],
            note="rank 2",
        ),
        Sample("LRN", [Var((6, 3, 2))], {"size": 3, "alpha": 0.5, "beta": 0.75, "bias": 1.5}),
        Sample("LRN", [Var((6, 3, 2))], {"size": 5, "alpha": 0.02}, note="size 5"),
        Sample(
            "Scaler",
            [Var((3,))],
            {"offset": [0.5, -1.0, 2.0], "scale": [2.0, 0.1, -3.0]},
            domain="ai.onnx.ml",
            float64=False,
            inferred=False,
        ),
    ]
    return samples


def _convolution() -> list[Sample]:
    image = Var((4, 7, 6))
    return [
        Sample("Conv", [image, _array(6, 4, 3, 3), _array(6)], {"pads": [1, 1, 1, 1]}, note="3x3"),
        Sample("Conv", [image, _array(6, 4, 3, 2)], {"pads": [2, 0, 1, 1]}, note="uneven pads"),
        Sample("Conv", [image, _array(6, 4, 3, 3)], {"pads": [4, 4, 4, 4]}, note="wide pads"),
        Sample(
            "Conv", [image, _array(6, 4, 3, 3)], {"strides": [2, 2], "pads": [1, 1, 1, 1]}, note="stride 2"
        ),
        Sample("Conv", [image, _array(6, 4, 2, 3)], {"strides": [3, 2]}, note="stride 3"),
        Sample("Conv", [image, _array(6, 4, 2, 3)], {"dilations": [2, 2]}, note="dilated"),
        Sample("Conv", [image, _array(6, 2, 3, 3)], {"group": 2, "pads": [1, 1, 1, 1]}, note="groups"),
        Sample("Conv", [image, _array(4, 1, 3, 3)], {"group": 4, "strides": [2, 2]}, note="depthwise"),
        Sample("Conv", [image, _array(8, 1, 3, 3)], {"group": 4}, note="depthwise, two each"),
        Sample("Conv", [image, _array(6, 4, 1, 1)], note="1x1"),
        Sample("Conv", [image, _array(6, 4, 1, 1)], {"strides": [2, 2]}, note="1x1 stride 2"),
        Sample(
            "Conv", [image, _array(6, 4, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, note="same"
        ),
        Sample("Conv", [image, _array(6, 4, 2, 2)], {"auto_pad": "SAME_LOWER"}, note="same lower"),
        Sample("Conv", [Var((4, 9)), _array(5, 4, 3)], {"strides": [2], "pads": [1, 0]}, note="1-D"),
        Sample("Conv", [Var((2, 4, 5, 3)), _array(3, 2, 2, 3, 2)], {"pads": [1, 1, 0, 0, 1, 1]}, note="3-D"),
        Sample(
            "ConvTranspose",
            [Var((4, 3, 5)), _array(4, 3, 3, 2), _array(3)],
            {"strides": [2, 2], "pads": [1, 0, 0, 1]},
        ),
        Sample(
            "ConvTranspose",
            [Var((4, 3, 5)), _array(4, 2, 3, 3)],
            {"group": 2, "dilations": [2, 1]},
            note="groups",
        ),
    ]


def _pooling() -> list[Sample]:
    image = Var((3, 7, 8))
    pools = [
        ("2x2", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("overlapping", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("uneven pads", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 0, 2]}),
        ("stride 1", {"kernel_shape": [3, 2]}),
        ("ceil", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("ceil and pads", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
        ("dilated", {"kernel_shape": [2, 3], "dilations": [2, 2]}),
        ("same", {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("same blocks", {"kernel_shape": [7, 4], "strides": [7, 4], "pads": [1, 1, 1, 1]}),
        (
            "dilated blocks",
            {"kernel_shape": [1, 2], "strides": [1, 2], "dilations": [1, 2], "pads": [0, 1, 0, 1]},
        ),
    ]
    samples = [Sample("MaxPool", [image], attributes, note=note) for note, attributes in pools]
    samples += [Sample("AveragePool", [image], attributes, note=note) for note, attributes in pools]
    samples += [
        Sample("AveragePool", [image], {**attributes, "count_include_pad": 1}, note=f"{note}, pads counted")
        for note, attributes in pools
        if "pads" in attributes
    ]
    samples += [
        Sample("MaxPool", [Var((3, 9))], {"kernel_shape": [3], "strides": [2]}, note="1-D"),
        Sample("AveragePool", [Var((3, 9))], {"kernel_shape": [3], "strides": [2]}, note="1-D"),
        Sample("MaxPool", [Var((2, 4, 5, 3))], {"kernel_shape": [2, 2, 2]}, note="3-D"),
        *(
            Sample("MaxPool", [Var((3, size))], {"kernel_shape": [width], "strides": [3]}, note=note)
            for size, width, note in ((8, 2, "gaps between windows"), (7, 1, "single values"), (9, 2, "gaps"))
        ),
        Sample("MaxPool", [Var((3, 6, 8))], {"kernel_shape": [2, 4], "strides": [2, 4]}, note="tiles"),
        Sample("GlobalAveragePool", [image]),
        Sample("GlobalMaxPool", [image]),
        Sample("GlobalMaxPool", [Var((3, 5))], note="1-D"),
    ]
    return samples


def _reductions() -> list[Sample]:
    x = Var((3, 4, 5))
    samples = []
    for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceLogSumExp"):
        samples += [
            Sample(name, [x, _ints(2)], note="last"),
            Sample(name, [x, _ints(-3, 2)], {"keepdims": 0}, note="two axes"),
            Sample(name, [x, _ints(1)], {"keepdims": 0}, note="first"),
        ]
    for name in ("Softmax", "LogSoftmax"):
        samples += [Sample(name, [Var((6,), -4.0, 4.0)]), Sample(name, [x], {"axis": 1}, note="inner axis")]
    samples.append(Sample("Softmax", [Var((4,), -60.0, 60.0)], note="peaked"))
    return samples


def _shapes() -> list[Sample]:
    x = Var((3, 4, 5))
    return [
        Sample("Reshape", [x, _ints(-1, 5, 12)]),
        Sample("Reshape", [x, _ints(0, 0, -1)], note="zeros"),
        Sample("Flatten", [x]),
        Sample("Squeeze", [Var((3, 1, 4)), _ints(2)]),
        Sample("Unsqueeze", [x, _ints(1, -1)]),
        Sample("Expand", [Var((3, 1)), _ints(1, 3, 4)]),
        Sample("Transpose", [x], {"perm": [0, 3, 1, 2]}),
        Sample("Concat", [x, Var((2, 4, 5)), x], {"axis": 1}),
        Sample("Split", [Var((2, 7)), _ints(2, 4, 1)], {"axis": 2}, outputs=3),
        Sample("Split", [Var((2, 7))], {"axis": -1, "num_outputs": 3}, outputs=3, note="by number"),
        Sample("Pad", [x, _ints(0, 1, 0, 2, 0, 0, 3, 1), _scalar(0.7)]),
        Sample("Pad", [x, _ints(1, -1, 0, 2), None, _ints(1, 3)], note="axes, negative"),
        Sample("Slice", [x, _ints(1, 0), _ints(4, -1), _ints(3, 2)]),
        Sample("Slice", [x, _ints(-1), _ints(-100), _ints(3), _ints(-2)], note="backwards"),
        Sample("Slice", [x, _ints(0), _ints(5), _ints(3), _ints(2)], note="steps"),
        Sample("Gather", [x, _ints(3, 0, 0)], {"axis": 2}),
        Sample("Gather", [x, np.asarray([[1, -1], [0, 2]])], {"axis": 1}, note="table"),
        Sample("Gather", [x, np.asarray(2)], {"axis": 3}, note="one"),
        Sample("Dropout", [x]),
        Sample("Dropout", [x, _scalar(0.3), np.asarray(False)], note="not in training"),
        Sample("Cast", [x], {"to": "own"}),
    ]


def _normalisations() -> list[Sample]:
    x, image, scale = Var((3, 4, 5)), Var((6, 3, 2)), _array(6, low=0.4, high=1.6)
    last, table = _array(5, low=0.4, high=1.6), _array(4, 5, seed=1)
    return [
        Sample("LayerNormalization", [x, last, _array(5, seed=2)]),
        Sample("LayerNormalization", [x, last], {"epsilon": 0.3}, note="no bias"),
        Sample("LayerNormalization", [x, table, table], {"axis": -2}, note="two axes"),
        Sample("RMSNormalization", [x, last], {"epsilon": 0.1}, opset=23),
        Sample("RMSNormalization", [x, table], {"axis": 2}, opset=23, note="two axes"),
        Sample("InstanceNormalization", [image, scale, _array(6, seed=3)], {"epsilon": 0.2}),
        Sample(
            "GroupNormalization",
            [image, scale, _array(6, seed=3)],
            {"num_groups": 2, "epsilon": 0.2},
            inferred=False,
        ),
    ]


def _choices() -> list[Sample]:
    chosen = np.random.default_rng(5).random((3, 4)) < 0.5
    a, b = Var((3, 4)), Var((3, 4))
    return [
        Sample("Where", [chosen, a, b]),
        Sample("Where", [chosen[:, :1], a, _scalar(-0.7)], note="or a constant"),
        Sample("Where", [chosen, _array(3, 4), Var((1, 4))], note="a constant or broadcast"),
    ]


SAMPLES = [
    *recurrent_samples(),
    *discrete_samples(),
    *math_samples(),
    *moving_samples(),
    *resampling_samples(),
    *weight_samples(),
    *awkward_samples(),
    *_pointwise(),
    *_arithmetic(),
    *_convolution(),
    *_pooling(),
    *_reductions(),
    *_shapes(),
    *_normalisations(),
    *_choices(),
]


def parameters(samples: Iterable[Sample]) -> list[Any]:
    """Return the samples as parameters: an operator's last for every run, its others for `make test-full`."""
    samples = [*samples]
    in_every_run = {(s.domain, s.op_type): s for s in samples}.values()
    return [pytest.param(s, marks=() if s in in_every_run else pytest.mark.full, id=s.label) for s in samples]
