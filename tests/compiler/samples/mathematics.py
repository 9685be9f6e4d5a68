"""Samples of elementwise functions, reductions, normalisations, products and choices by order."""

import numpy as np

from rationale.testing import Sample, Var


def math_samples() -> list[Sample]:
    return [*_trigonometry(), *_reductions(), *_products(), *_ordering(), *_computed(), *_norms()]


def _array(*shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape)


def _ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


def _scalar(number: float) -> np.ndarray:
    return np.asarray(number, np.float64)


def _trigonometry() -> list[Sample]:
    x = Var((3, 4))
    return [
        *(Sample(name, [x]) for name in ("Sinh", "Cosh", "Asinh")),
        Sample("Tan", [Var((3, 4), -1.4, 1.4)]),
        *(Sample(name, [Var((3, 4), -0.95, 0.95)]) for name in ("Acos", "Asin", "Atanh")),
        Sample("Acosh", [Var((3, 4), 1.05, 4.0)]),
        Sample("Cosh", [Var((5,), -12.0, 12.0)], note="wide"),
        Sample("Shrink", [x], {"lambd": 0.7, "bias": 0.3}),
        Sample("Shrink", [x], {"lambd": 0.7}, note="no bias"),
    ]


def _reductions() -> list[Sample]:
    x, positive = Var((3, 4, 5)), Var((3, 4, 5), 0.2, 2.0)
    samples = []
    for name in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceProd", "ReduceSumSquare"):
        operand = positive if name == "ReduceLogSum" else x
        samples += [
            Sample(name, [operand, _ints(2)], note="last"),
            Sample(name, [operand, _ints(-3, 2)], {"keepdims": 0}, note="two axes"),
        ]
    return [
        *samples,
        Sample("CumSum", [x, np.asarray(2)]),
        Sample("CumSum", [x, np.asarray(-2)], {"exclusive": 1}, note="exclusive"),
        Sample("CumSum", [x, np.asarray(1)], {"reverse": 1}, note="reverse"),
        Sample("CumSum", [x, np.asarray(3)], {"reverse": 1, "exclusive": 1}, note="both"),
        Sample("CumProd", [x, np.asarray(2)], opset=26, float64=False),
        Sample("CumProd", [x, np.asarray(1)], {"reverse": 1, "exclusive": 1}, opset=26, note="both"),
    ]


def _products() -> list[Sample]:
    a, b = Var((3, 4)), Var((4, 5))
    return [
        Sample("Einsum", [a, b], {"equation": "nij,njk->nik"}, note="matrices"),
        Sample("Einsum", [Var((3, 4)), _array(4, 5)], {"equation": "...j,jk->...k"}, note="ellipsis"),
        Sample("Einsum", [Var((3, 3)), _array(3, 4)], {"equation": "nii,ij->nj"}, note="diagonal"),
        Sample("Einsum", [Var((3, 4))], {"equation": "nij->nj"}, note="sum"),
        Sample("Einsum", [a, b, Var((5,))], {"equation": "nij,njk,nk->nik"}, note="three vary"),
        Sample(
            "Einsum", [a, _array(4, 5), _array(5, 2)], {"equation": "nij,jk,kl->nil"}, note="two constant"
        ),
        Sample("Einsum", [Var((2, 3, 5)), Var((2, 4, 5))], {"equation": "bhid,bhjd->bhij"}, note="attention"),
        Sample("Det", [Var((2, 3, 3))]),
        Sample("Det", [Var((4, 4))], note="4x4"),
        Sample("Mod", [a, _array(4, low=0.4, high=0.9)], {"fmod": 1}, smooth=False, note="constant"),
        Sample("Mod", [a, Var((3, 4), 0.5, 1.5)], {"fmod": 1}, smooth=False, note="both vary"),
        Sample("Pow", [Var((3,)), _array(3) * 0 + np.asarray([2.0, 3.0, 1.0])], note="several"),
        Sample("Pow", [Var((3,), 0.2, 2.0), Var((3,))], note="both vary"),
        Sample("Pow", [_array(3, low=0.5, high=2.0), Var((3,))], note="exponent varies"),
    ]


def _ordering() -> list[Sample]:
    x = Var((3, 7))
    return [
        Sample("TopK", [x, _ints(3)], unread=1),
        Sample("TopK", [x, _ints(2)], {"axis": 1, "largest": 0}, note="smallest", unread=1),
        Sample("TopK", [x, _ints(7)], note="sorted", unread=1),
        Sample("TopK", [x, _ints(1)], note="one", unread=1),
        Sample("Hardmax", [x], {"axis": 1}, smooth=False),
        Sample("Hardmax", [Var((6,))], smooth=False, note="rank 2"),
    ]


def _computed() -> list[Sample]:
    """Parameters that vary."""
    x, image = Var((3, 4)), Var((3, 4, 5))
    return [
        Sample("PRelu", [x, Var((3, 1))], smooth=False, note="slope varies"),
        Sample("Clip", [x, _scalar(-0.5), None], note="two operands"),
        Sample("LayerNormalization", [image, Var((1, 1, 5))], note="scale varies"),
        Sample("RMSNormalization", [image, Var((1, 1, 5))], opset=23, note="scale varies"),
    ]


def _norms() -> list[Sample]:
    x, image = Var((3, 4)), Var((3, 6, 7))
    return [
        Sample("LpNormalization", [x]),
        Sample("LpNormalization", [x], {"axis": 1, "p": 1}, note="p 1"),
        Sample("MeanVarianceNormalization", [image], {"axes": [2, 3]}),
        Sample("LpPool", [image], {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 1]}),
        Sample("LpPool", [image], {"kernel_shape": [3, 2], "p": 1}, note="p 1"),
        Sample("LpPool", [image], {"kernel_shape": [2, 2], "p": 3}, note="p 3"),
    ]
