"""Samples of conditions, whole numbers and quantisation: steps, through which attributions add up."""

import numpy as np
from onnx import TensorProto

from rationale.testing import Sample, Var

BOOL, INT32, INT64 = TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
INT8, UINT8 = TensorProto.INT8, TensorProto.UINT8


def discrete_samples() -> list[Sample]:
    return [*_conditions(), *_whole_numbers(), *_quantised()]


def _conditions() -> list[Sample]:
    a, b, column = Var((3, 4)), Var((3, 4)), Var((3, 1))
    compares = "Greater Less GreaterOrEqual LessOrEqual Equal".split()
    types = {0: BOOL, 1: BOOL}
    return [
        *(Sample(name, [a, b], counted=True, smooth=False) for name in compares),
        Sample("Greater", [a, np.asarray(0.3)], counted=True, smooth=False, note="constant"),
        Sample("Less", [a, column], counted=True, smooth=False, note="broadcast"),
        Sample("Equal", [a, b], given_as={0: INT64, 1: INT64}, counted=True, smooth=False, note="integers"),
        *(
            Sample(name, [a, column], given_as=types, counted=True, smooth=False, note="broadcast")
            for name in ("And", "Or", "Xor")
        ),
        Sample("Not", [a], given_as={0: BOOL}, counted=True, smooth=False),
        Sample("Where", [a, b, Var((3, 4))], given_as={0: BOOL}, smooth=False, note="condition varies"),
        Sample("Where", [column, b, np.asarray(0.5)], given_as={0: BOOL}, smooth=False, note="or a constant"),
        Sample(
            "Where",
            [a, np.asarray(0.5), np.asarray(-2.0)],
            given_as={0: BOOL},
            smooth=False,
            note="condition alone",
        ),
        Sample(
            "Transpose",
            [a],
            {"perm": [0, 2, 1]},
            given_as={0: BOOL},
            counted=True,
            smooth=False,
            note="of conditions",
        ),
    ]


def _whole_numbers() -> list[Sample]:
    a, b = Var((3, 4)), Var((3, 4), 1.0, 3.0)
    whole = {0: INT64, 1: INT64}
    return [
        Sample("Cast", [a], {"to": INT32}, counted=True, smooth=False, note="to integers"),
        Sample("Cast", [a], {"to": BOOL}, counted=True, smooth=False, note="to conditions"),
        *(
            Sample(name, [a, b], given_as=whole, counted=True, smooth=False, note="integers")
            for name in ("Add", "Sub", "Mul", "Max")
        ),
        Sample("Div", [a, np.asarray(2)], given_as={0: INT64}, counted=True, smooth=False, note="integers"),
        Sample("Mod", [a, np.asarray(3)], given_as={0: INT64}, counted=True, smooth=False, note="integers"),
        Sample(
            "ReduceSum",
            [a, np.asarray([1])],
            given_as={0: INT32},
            counted=True,
            smooth=False,
            note="integers",
        ),
        Sample("Abs", [a], given_as={0: INT32}, counted=True, smooth=False, note="integers"),
    ]


def _quantised() -> list[Sample]:
    """ONNX has them in float32 alone: see test_steps.py for what adds up."""
    x, how = Var((3, 4)), {"smooth": False, "float64": False}
    scales, zeros = np.asarray([0.1, 0.25, 0.5]), np.asarray([3, 0, -7], np.int8)
    from_8 = {"given_as": {0: INT8}, **how}
    return [
        Sample("QuantizeLinear", [x, np.asarray(0.1), zeros[0]], counted=True, **how),
        Sample("QuantizeLinear", [x, scales, zeros], {"axis": 1}, counted=True, note="per channel", **how),
        Sample("DynamicQuantizeLinear", [x], counted=True, unread=2, bare=True, **how),
        Sample("DequantizeLinear", [x, np.asarray(0.1), zeros[0]], **from_8),
        Sample("DequantizeLinear", [x, scales], {"axis": 1}, note="per channel", **from_8),
        *_integer_layers(),
    ]


def _integer_layers() -> list[Sample]:
    random = np.random.default_rng(4)
    weight, kernel = (random.integers(-5, 6, shape).astype(np.int8) for shape in ((4, 5), (2, 3, 2, 2)))
    x, image, zero = Var((3, 4)), Var((3, 4, 5), 0.0, 5.0), np.asarray(3, np.uint8)
    scales, nothing = np.asarray([0.1, 0.2]), np.zeros(2, np.int8)
    how = {"counted": True, "smooth": False, "float64": False}
    small, none = np.asarray(0.1), np.asarray(0, np.int8)
    return [
        Sample("MatMulInteger", [x, weight, np.asarray(2, np.int8)], given_as={0: INT8}, **how),
        Sample("ConvInteger", [image, kernel.astype(np.uint8), zero], given_as={0: UINT8}, **how),
        Sample(
            "QLinearMatMul",
            [x, small, none, weight, small, none, np.asarray(0.37), none],
            given_as={0: INT8},
            **how,
        ),
        Sample(
            "QLinearConv",
            [image, small, zero, kernel, scales, nothing, np.asarray(0.37), zero],
            {"pads": [1, 0, 0, 1]},
            given_as={0: UINT8},
            **how,
        ),
    ]
