"""Samples of operators that move values: padding, tiling, dealing, gathering, scattering."""

import numpy as np

from rationale.testing import Sample, Var


def _ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


def _places(shape: tuple[int, ...], low: int, high: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape)


def moving_samples() -> list[Sample]:
    return [*_borders(), *_rearranged(), *_gathered(), *_scattered()]


def _borders() -> list[Sample]:
    x = Var((3, 4, 5))
    samples = [
        Sample("Pad", [x, _ints(0, 1, 0, 2, 0, 0, 3, 1)], {"mode": mode}, note=mode)
        for mode in ("edge", "reflect", "wrap")
    ]
    samples.append(
        Sample("Pad", [Var((3, 4)), _ints(2, -1, 1, 3)], {"mode": "edge"}, bare=True, note="edge, cut")
    )
    crop = [
        ("crop", _ints(4, 2), [2, 3]),
        ("pad", _ints(7, 8), [2, -1]),
        ("both", _ints(6, 2, 6), [1, 2, 3]),
    ]
    return [
        *samples,
        Sample("Pad", [Var((3, 4)), _ints(2, 0, 1, 3), Var()], bare=True, note="border varies"),
        Sample("Pad", [Var((3, 4)), _ints(2, 0, 1, 3), Var((1,))], bare=True, note="list of one border"),
        *(Sample("CenterCropPad", [Var((3, 5, 5)), s], {"axes": a}, note=n) for n, s, a in crop),
        Sample("CenterCropPad", [Var((5, 4)), _ints(2, 7)], bare=True, note="all axes"),
    ]


def _rearranged() -> list[Sample]:
    x = Var((3, 4, 5))
    return [
        Sample("Tile", [x, _ints(1, 2, 1, 3)]),
        Sample("Tile", [Var((3, 4)), _ints(2, 3)], bare=True, note="axis 0"),
        Sample("Trilu", [x]),
        Sample("Trilu", [x, np.asarray(-1)], {"upper": 0}, note="lower"),
        Sample("Trilu", [Var((4, 3)), np.asarray(1)], bare=True, note="shifted"),
        Sample("DepthToSpace", [Var((12, 2, 3))], {"blocksize": 2}),
        Sample("DepthToSpace", [Var((12, 2, 3))], {"blocksize": 2, "mode": "CRD"}, note="CRD"),
        Sample("SpaceToDepth", [Var((3, 4, 6))], {"blocksize": 2}),
        Sample(
            "ReverseSequence", [Var((3, 4, 2)), _ints(1, 4, 2)], {"batch_axis": 0, "time_axis": 1}, bare=True
        ),
        Sample("ReverseSequence", [Var((4, 3, 2)), _ints(1, 4, 2)], bare=True, note="time first"),
        Sample("CastLike", [x, np.zeros(1)]),
        Sample("ArrayFeatureExtractor", [Var((7,)), _ints(3, 0, 3)], domain="ai.onnx.ml", float64=False),
    ]


def _gathered() -> list[Sample]:
    x = Var((4, 3, 5))
    some = np.asarray([True, False, True, True, False])
    return [
        Sample("GatherElements", [x, _places((2, 3, 5), -4, 4)], bare=True),
        Sample("GatherElements", [x, _places((2, 3, 4), -5, 5)], {"axis": -1}, bare=True, note="inner"),
        Sample("GatherND", [x, _places((2, 6, 2), -3, 3)], bare=True),
        Sample("GatherND", [x, _places((4, 6, 2), 0, 3)], {"batch_dims": 1}, bare=True, note="batch"),
        Sample("GatherND", [x, _places((6, 3), -3, 3)], bare=True, note="elements"),
        Sample("Gather", [x, _ints(2, -1, 2)], bare=True, note="axis 0"),
        Sample("Compress", [x, some], {"axis": -1}, result=(4, 3, 3)),
        Sample("Compress", [Var((2, 3)), some], bare=True, note="flat", result=(3,)),
        Sample("Col2Im", [Var((2 * 6, 16)), _ints(5, 6), _ints(2, 3)]),
        Sample(
            "Col2Im",
            [Var((2 * 6, 9)), _ints(5, 6), _ints(2, 3)],
            {"strides": [2, 2], "pads": [1, 0, 1, 1], "dilations": [2, 1]},
            note="strided, dilated, padded",
        ),
        Sample("Col2Im", [Var((2 * 3, 6)), _ints(8), _ints(3)], note="1-D"),
    ]


def _scattered() -> list[Sample]:
    x = Var((4, 3))
    apart = np.asarray([[2, -1, 0], [0, 1, -1]])
    tuples = np.asarray([[0, 2], [3, -2], [1, 1]])
    twice = np.asarray([[0, 2], [3, -2], [0, 2]])
    samples = [
        Sample(
            "ScatterElements",
            [x, _places((2, 3), 0, 2), Var((2, 3))],
            {"reduction": reduction},
            bare=True,
            note=reduction,
        )
        for reduction in ("mul", "max", "min")
    ]
    samples += [
        Sample("ScatterND", [x, twice, Var((3,))], {"reduction": reduction}, bare=True, note=reduction)
        for reduction in ("mul", "max", "min")
    ]
    hot = np.asarray([[1, -2], [0, 7]])
    cache, update = Var((2, 5, 3)), Var((2, 2, 3))
    return [
        *samples,
        Sample("OneHot", [hot, np.asarray(4), Var((2,))], {"axis": 1}, bare=True, note="values vary"),
        Sample(
            "OneHot",
            [Var((3,), -3.0, 3.0), np.asarray(4), np.asarray([0.2, 1.5])],
            smooth=False,
            note="steps",
        ),
        Sample("TensorScatter", [cache, update, _ints(1, 3)], bare=True, opset=24),
        Sample(
            "TensorScatter",
            [cache, update, _ints(4, 0)],
            {"mode": "circular"},
            bare=True,
            opset=24,
            note="circular",
        ),
        Sample(
            "MaxUnpool",
            [Var((1, 1, 2, 2)), np.asarray([[[[5, 7], [13, 15]]]]), _ints(1, 1, 5, 5)],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            bare=True,
            note="to a shape",
            result=(1, 1, 5, 5),
        ),
        Sample(
            "MaxUnpool",
            [Var((1, 2, 2, 2)), np.random.default_rng(0).permutation(32)[:8].reshape(1, 2, 2, 2)],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            bare=True,
        ),
        Sample("ScatterElements", [x, apart, Var((2, 3))], bare=True),
        Sample(
            "ScatterElements",
            [x, _places((4, 2), 0, 3), Var((4, 2))],
            {"axis": 1, "reduction": "add"},
            bare=True,
            note="add",
        ),
        Sample("ScatterND", [x, tuples, Var((3,))], bare=True),
        Sample(
            "ScatterND",
            [x, _ints(3, 0, 3)[:, None], Var((3, 3))],
            {"reduction": "add"},
            bare=True,
            note="add slices",
        ),
    ]
