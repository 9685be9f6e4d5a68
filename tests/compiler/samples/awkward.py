"""The awkward samples: odd beside even, padded and strided at once, negative axes, at the bounds, left out.

Each operator has one here or among its other samples. They are small: where values tie is drawn by the tests.
"""

from typing import Any

import numpy as np
from onnx import TensorProto

from rationale.testing import Sample, Var

BOOL, INT8, INT64 = TensorProto.BOOL, TensorProto.INT8, TensorProto.INT64


def awkward_samples() -> list[Sample]:
    return [
        *_bounds(),
        *_either_side(),
        *_products(),
        *_windows(),
        *_axes(),
        *_orders(),
        *_places(),
        *_spectra(),
    ]


def _array(*shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape)


def _ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


def _number(number: float) -> np.ndarray:
    return np.asarray(number, np.float64)


def _bounds() -> list[Sample]:
    """Kinks and jumps that lie where the tests draw, eighths of a range apart."""
    x, wide, positive = Var((5,)), Var((5,), -5.0, 5.0), Var((5,), 0.25, 2.25)
    return [
        Sample("HardSigmoid", [wide], {"alpha": 0.2}, note="at its bounds"),
        Sample("HardSwish", [Var((5,), -6.0, 6.0)], note="at its bounds"),
        Sample("Clip", [x, _number(-1.0), _number(1.5)], note="at its bounds"),
        Sample("Clip", [x, _number(0.5), _number(0.5)], smooth=False, note="to one number"),
        Sample("ThresholdedRelu", [x], note="at its threshold"),
        Sample("ThresholdedRelu", [x], {"alpha": -0.5}, smooth=False, note="below 0"),
        Sample("Shrink", [x], note="at its bounds"),
        Sample("Shrink", [x], {"lambd": 1.0, "bias": -0.5}, smooth=False, note="outwards"),
        Sample("LeakyRelu", [x], note="default"),
        Sample("LeakyRelu", [x], {"alpha": -1.5}, note="falling"),
        Sample("PRelu", [Var((3, 2)), np.asarray([[1.5], [1.0], [-0.5]])], note="above 1, 1, falling"),
        Sample("Elu", [x], note="default"),
        Sample("Selu", [x], {"alpha": 0.4, "gamma": 2.5}, note="of its own"),
        Sample("Celu", [x], {"alpha": 2.5}, float64=False, note="wide"),
        Sample("Swish", [x], opset=24, note="default"),
        *(Sample("Pow", [positive, _number(n)], note=f"exponent {n}") for n in (0.0, -3.0, 4.0)),
        Sample("Pow", [Var((3,)), np.asarray([0.0, 16.0, 3.0])], note="even and odd"),
        Sample("Pow", [positive, np.asarray(3, np.int64)], note="exponent of integers"),
        Sample("Abs", [Var((2, 1))], note="one wide"),
        Sample("QuantizeLinear", [wide, _number(0.02), np.asarray(100, np.uint8)], note="limits", **_CODED),
        Sample(
            "QuantizeLinear",
            [Var((2, 3)), np.asarray([0.1, 0.25, 0.5])],
            {"axis": -1},
            note="no zero, last axis",
            **_CODED,
        ),
        Sample(
            "DequantizeLinear",
            [Var((2, 3)), np.asarray([0.1, 0.25, 0.5]), np.asarray([3, 0, -7], np.int8)],
            {"axis": -1},
            given_as={0: INT8},
            smooth=False,
            float64=False,
            note="last axis",
        ),
    ]


_CODED: dict[str, Any] = {"counted": True, "smooth": False, "float64": False}


def _either_side() -> list[Sample]:
    row, column = Var((1, 4)), Var((3, 1))
    below, above = Var((3, 1), -2.0, -0.25), Var((1, 4), 0.25, 2.25)
    types = {0: BOOL, 1: BOOL}
    how: dict[str, Any] = {"counted": True, "smooth": False}
    samples = [
        Sample(name, [row, column], note="both broadcast") for name in ("Add", "Sub", "Mul", "Max", "Min")
    ]
    samples += [
        Sample(name, [_array(3, 1), row], note="constant left") for name in ("Sub", "Mul", "Max", "Min")
    ]
    samples += [Sample(name, [Var((5,))], note="alone") for name in ("Sum", "Mean", "Max", "Min")]
    samples += [
        Sample(name, [row, column], given_as=types, note="both broadcast", **how)
        for name in ("And", "Or", "Xor")
    ]
    samples += [
        Sample(
            name,
            [np.asarray([[True], [False], [True]]), row],
            given_as={1: BOOL},
            note="constant left",
            **how,
        )
        for name in ("And", "Or", "Xor")
    ]
    samples += [
        Sample(name, [_number(0.5), row], note="constant left", **how)
        for name in ("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")
    ]
    return [
        *samples,
        Sample("Sum", [column, row, _array(3, 4)], note="broadcast, constant"),
        Sample("Div", [column, above], note="both broadcast"),
        Sample("Div", [row, below], note="below 0"),
        Sample("Mod", [column, above], {"fmod": 1}, smooth=False, note="both broadcast"),
        Sample("Mod", [column, _ints(3)], given_as={0: INT64}, note="integers, floor", **how),
        Sample("Where", [column, row, Var((3, 1))], given_as={0: BOOL}, smooth=False, note="all broadcast"),
        Sample("Where", [row, _array(3, 4), column], given_as={0: BOOL}, smooth=False, note="a constant"),
        Sample("PRelu", [Var((3, 4)), Var((1, 4))], note="slope of a row"),
        Sample("Clip", [row, None, _number(0.5)], note="row, high only"),
    ]


def _products() -> list[Sample]:
    a, b = Var((2, 3)), Var((3, 4))
    return [
        Sample("MatMul", [Var((3,)), _array(3, 4)], bare=True, note="vector left"),
        Sample("MatMul", [a, Var((3,))], bare=True, note="vector right"),
        Sample("MatMul", [Var((3,)), Var((3,))], bare=True, note="two vectors"),
        Sample("MatMul", [Var((3,)), Var((2, 3, 4))], bare=True, note="vector, stacked"),
        Sample("MatMul", [Var((1, 2, 3)), Var((4, 3, 2))], note="stacked, both vary"),
        Sample("Gemm", [Var((3, 2)), _array(3, 4), _array(4)], {"transA": 1}, bare=True, note="transA"),
        Sample(
            "Gemm",
            [Var((3, 2)), Var((4, 3)), Var((2, 1))],
            {"transA": 1, "transB": 1, "alpha": 0.5, "beta": -2.0},
            bare=True,
            note="all vary",
        ),
        Sample("Gemm", [a, Var((4, 3))], {"transB": 1}, bare=True, note="transB, both vary"),
        Sample("Gemm", [Var((3,)), _array(4, 3), _number(0.7)], {"transB": 1, "alpha": -0.5}, note="scaled"),
        Sample("Einsum", [a, b], {"equation": "ij,jk"}, bare=True, note="no output", result=(2, 4)),
        Sample("Einsum", [Var((3,)), Var((4,))], {"equation": "n i , n j -> n j i"}, note="outer"),
        Sample(
            "Einsum", [Var((2, 3)), Var((3,))], {"equation": "n...j,nj->n..."}, note="ellipsis, both vary"
        ),
        Sample("Einsum", [Var((3, 3, 2))], {"equation": "niij->nji"}, note="diagonal kept"),
        Sample("Det", [Var((2, 2))], note="2x2"),
        Sample("Det", [Var((3, 3))], bare=True, note="alone"),
        Sample(
            "BatchNormalization",
            [Var((3, 2)), _array(3), _array(3, seed=1), _array(3, seed=2), _array(3, low=0.1, high=0.3)],
            {"epsilon": 0.5},
            note="1-D, wide",
        ),
        Sample(
            "LRN",
            [Var((3, 2, 2))],
            {"size": 7, "alpha": 0.5, "beta": 2.0, "bias": 0.5},
            note="wider than all",
        ),
    ]


def _windows() -> list[Sample]:
    image, line = Var((2, 5, 4)), Var((2, 7))
    all_at_once = {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]}
    pools = [
        ("same lower", image, {"kernel_shape": [2, 3], "strides": [2, 1], "auto_pad": "SAME_LOWER"}),
        ("valid", image, {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "VALID"}),
        ("with gaps", image, {"kernel_shape": [1, 2], "strides": [2, 3]}),
        ("same, with gaps", image, {"kernel_shape": [2, 1], "strides": [4, 3], "auto_pad": "SAME_UPPER"}),
        ("1-D, ceil", line, {"kernel_shape": [2], "strides": [3], "ceil_mode": 1}),
        (
            "1-D, dilated, padded",
            line,
            {"kernel_shape": [3], "dilations": [2], "pads": [1, 2], "strides": [2]},
        ),
    ]
    samples = [Sample(name, [x], how, note=note) for name in _POOLS for note, x, how in pools]
    return [
        *samples,
        Sample(
            "AveragePool",
            [line],
            {"kernel_shape": [4], "strides": [3], "pads": [2, 1], "ceil_mode": 1, "count_include_pad": 1},
            note="ceil, pads counted",
        ),
        Sample("Conv", [image, _array(3, 2, 2, 2), _array(3)], all_at_once, note="all at once"),
        Sample(
            "Conv",
            [Var((4, 5, 4)), _array(6, 2, 3, 2), _array(6)],
            {**all_at_once, "group": 2},
            note="all at once, groups",
        ),
        Sample("Conv", [image, _array(3, 2, 2, 2)], {"auto_pad": "VALID", "strides": [3, 2]}, note="valid"),
        Sample("Conv", [line, _array(3, 2, 4)], {"strides": [3], "auto_pad": "SAME_UPPER"}, note="same, 1-D"),
        Sample(
            "Conv", [line, _array(3, 2, 1)], {"strides": [3], "auto_pad": "SAME_LOWER"}, note="same, gaps"
        ),
        Sample("Conv", [image, _array(3, 2, 1, 1)], {"strides": [2, 3]}, note="1x1, odd strides"),
        Sample("Conv", [image, _array(3, 2, 1, 1)], {"pads": [1, 0, 0, 2]}, note="1x1, padded"),
        Sample("Conv", [image, _array(3, 2, 4, 3)], {"strides": [2, 2], "pads": [1, 1, 2, 1]}, note="4x3"),
        Sample("ConvTranspose", [image, _array(2, 3, 3, 2), _array(3)], all_at_once, note="all at once"),
        Sample(
            "ConvTranspose",
            [line, _array(2, 3, 2)],
            {"strides": [3], "output_padding": [1]},
            note="1-D, with gaps",
        ),
        Sample(
            "ConvTranspose", [image, _array(2, 1, 3, 3)], {"group": 2, "strides": [2, 1]}, note="depthwise"
        ),
        Sample("GlobalAveragePool", [line], note="1-D"),
        Sample("GlobalMaxPool", [Var((2, 3, 2, 2))], note="3-D"),
        Sample("LpPool", [image], {"kernel_shape": [2, 2], "strides": [3, 1]}, note="with gaps"),
    ]


_POOLS = ("MaxPool", "AveragePool")


def _axes() -> list[Sample]:
    x, positive = Var((3, 2, 2)), Var((3, 2, 2), 0.25, 2.25)
    samples = []
    for name in _REDUCTIONS:
        operand = positive if name == "ReduceLogSum" else x
        samples += [
            Sample(name, [operand, _ints(-1, -2)], {"keepdims": 0}, note="negative axes"),
            Sample(name, [Var(operand.shape[1:], operand.low, operand.high)], bare=True, note="all"),
        ]
    for name in ("ReduceSum", "ReduceMax", "ReduceProd"):
        noop = {"noop_with_empty_axes": 1}
        samples.append(Sample(name, [x, _ints()], noop, note="none"))
    for name in ("Softmax", "LogSoftmax", "LpNormalization"):
        samples.append(Sample(name, [x], {"axis": -2}, note="negative axis"))
    samples += [
        Sample(name, [Var((3, 1))], {"axis": -1}, note="of one") for name in ("Softmax", "LogSoftmax")
    ]
    scale = _array(2, low=0.4, high=1.6)
    return [
        *samples,
        Sample("Softmax", [Var((3, 2))], {"axis": 0}, bare=True, note="axis 0"),
        Sample("LpNormalization", [x], {"axis": -3, "p": 1}, note="p 1, negative axis"),
        Sample(
            "AffineGrid", [Var((2, 2, 3)), _ints(2, 1, 2, 3)], {"align_corners": 1}, bare=True, note="2 x 3"
        ),
        Sample("CumSum", [x, np.asarray(-3)], {"reverse": 1}, note="negative axis, reverse"),
        Sample("CumSum", [Var((3, 2)), np.asarray(0)], {"exclusive": 1}, bare=True, note="axis 0"),
        Sample("CumProd", [x, np.asarray(-3)], opset=26, float64=False, note="negative axis"),
        Sample("LayerNormalization", [x, _array(2, 2)], {"axis": -2}, note="no bias, two axes"),
        Sample("RMSNormalization", [x, _array(3, 2, 2)], {"axis": 1}, opset=23, note="all axes"),
        Sample("InstanceNormalization", [Var((2, 5)), scale, scale], note="1-D"),
        Sample(
            "GroupNormalization",
            [Var((4, 3)), _array(4), _array(4)],
            {"num_groups": 4},
            inferred=False,
            note="1-D, each",
        ),
        Sample(
            "MeanVarianceNormalization", [Var((2, 3, 4, 2))], bare=True, note="default", result=(2, 3, 4, 2)
        ),
    ]


_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare"
).split()


def _orders() -> list[Sample]:
    x = Var((4, 3))
    return [
        Sample("TopK", [x, _ints(2)], {"axis": -2}, note="negative axis", unread=1),
        Sample("TopK", [Var((4,)), _ints(3)], {"axis": 0, "largest": 0}, bare=True, note="axis 0", unread=1),
        Sample("Hardmax", [x], {"axis": -2}, smooth=False, note="negative axis"),
    ]


def _places() -> list[Sample]:
    x = Var((3, 2, 4))
    return [
        Sample("Flatten", [x], {"axis": -3}, note="negative axis"),
        Sample("Flatten", [Var((2, 3, 2))], {"axis": 2}, bare=True, note="axis 2"),
        Sample("Squeeze", [Var((1, 3, 1))], bare=True, note="all"),
        Sample("Squeeze", [Var((3, 1, 2, 1)), _ints(-1, 2)], note="negative axes"),
        Sample("Unsqueeze", [x, _ints(-2, 1, -1)], note="out of order"),
        Sample("Expand", [Var((3, 1)), _ints(1, 1, 2)], note="ones"),
        Sample("Expand", [Var((3, 1)), _ints(2, 1, 4)], bare=True, note="new axis"),
        Sample("Transpose", [Var((3, 2, 4))], bare=True, note="reversed"),
        Sample("Concat", [_array(2, 3), Var((2, 1)), Var((2, 2))], {"axis": -1}, bare=True, note="constant"),
        Sample("Concat", [Var((2, 3)), Var((1, 3))], {"axis": 0}, bare=True, note="axis 0"),
        Sample("Split", [Var((4, 2))], {"axis": -2, "num_outputs": 2}, outputs=2, note="negative axis"),
        Sample("Pad", [x, _ints(-1, 2, 2, -1), _number(-0.5), _ints(-1, 1)], note="both, negative axes"),
        Sample("Pad", [x, _ints(1, 1, 0, 1), None, _ints(-1, -2)], {"mode": "wrap"}, note="axes, wrap"),
        Sample(
            "Slice",
            [Var((3, 5)), _ints(-1), _ints(-5), _ints(-1), _ints(-2)],
            note="two back, not to the first",
        ),
        Sample("Slice", [Var((5,)), _ints(-9), _ints(9)], bare=True, note="beyond"),
        Sample(
            "Slice",
            [Var((5, 2)), _ints(3, 0), _ints(-9, 1), _ints(0, 1), _ints(-3, 1)],
            bare=True,
            note="two",
        ),
        Sample("Gather", [x, _ints(-1, 0, -1)], {"axis": -2}, note="negative axis"),
        Sample("Gather", [x, np.asarray(-1)], {"axis": 1}, note="the last"),
        Sample("GatherElements", [Var((3, 2)), np.asarray([[-1, 0], [2, 2]])], bare=True, note="twice"),
        Sample(
            "ScatterElements",
            [Var((3, 2)), np.asarray([[-1, 0], [-1, 1]]), Var((2, 2))],
            {"reduction": "add", "axis": 0},
            bare=True,
            note="add, twice, negative",
        ),
        Sample("Tile", [Var((3, 1, 2)), _ints(1, 1, 2, 1)], note="ones"),
        Sample("Trilu", [Var((2, 3)), np.asarray(-1)], note="far below"),
        Sample("Trilu", [Var((3, 2)), np.asarray(1)], {"upper": 0}, note="lower, above"),
        Sample("DepthToSpace", [Var((9, 1, 2))], {"blocksize": 3, "mode": "CRD"}, note="3, CRD"),
        Sample("SpaceToDepth", [Var((2, 3, 6))], {"blocksize": 3}, note="3"),
        Sample("CenterCropPad", [Var((4, 5)), _ints(7, 2)], {"axes": [-2, -1]}, note="odd, negative axes"),
        Sample(
            "Compress",
            [Var((3, 2)), np.asarray([True, False])],
            {"axis": 1},
            bare=True,
            result=(3, 1),
            note="1",
        ),
        Sample(
            "GridSample",
            [Var((2, 3, 4)), Var((2, 1, 2), -1.5, 1.5)],
            {"mode": "linear", "padding_mode": "reflection", "align_corners": 1},
            note="reflection, corners, far",
        ),
        Sample(
            "Resize",
            [Var((2, 3, 4)), None, None, _ints(6, 3)],
            {"axes": [-2, -1], "mode": "linear"},
            note="odd",
        ),
    ]


def _spectra() -> list[Sample]:
    return [
        Sample("DFT", [Var((5, 2)), None, np.asarray(1)], {"inverse": 1}, note="inverse, odd"),
        Sample("DFT", [Var((2, 5, 1)), np.asarray(4), np.asarray(-2)], note="shorter, real"),
        Sample("STFT", [Var((7, 1)), np.asarray(2), None, np.asarray(4)], note="even", result=(2, 3, 2)),
    ]
