"""Samples of operators that resample: Resize, spectra, grids, regions."""

from typing import Any

import numpy as np

from rationale.testing import Sample, Var


def _ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


def _single(*numbers: float) -> np.ndarray:
    """float32, which scales are in models of any type."""
    return np.asarray(numbers, np.float32)


def resampling_samples() -> list[Sample]:
    return [
        *_resized(),
        *_spectra(),
        *_grids(),
        *_sampled(),
        *_transposed(),
        *_regions(),
        *_varying_weights(),
    ]


def _resized() -> list[Sample]:
    image, line = Var((2, 5, 6)), Var((2, 7))

    def sample(note: str, x: Var, *operands: Any, **attributes: Any) -> Sample:
        return Sample("Resize", [x, *operands], attributes, note=note)

    up, down = _single(1, 1, 2, 1.5), _single(1, 1, 0.6, 0.5)
    samples = [
        sample(f"{mode} by {name}, {how}", image, None, scales, mode=mode, coordinate_transformation_mode=how)
        for mode in ("linear", "cubic")
        for name, scales in (("2 and 1.5", up), ("0.6 and 0.5", down))
        for how in ("half_pixel", "align_corners")
    ]
    samples += [
        sample(f"linear, {how}", image, None, up, mode="linear", coordinate_transformation_mode=how)
        for how in ("asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
    ]
    samples += [
        sample(f"nearest, {how}", image, None, up, mode="nearest", nearest_mode=how)
        for how in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ]
    return [
        *samples,
        sample("nearest to sizes", image, None, None, _ints(8, 3), mode="nearest", axes=[2, 3]),
        sample(
            "nearest, one aspect",
            image,
            None,
            None,
            _ints(8, 8),
            axes=[2, 3],
            keep_aspect_ratio_policy="not_larger",
        ),
        # To sizes that no scales round to: 7 · (31 / 7) is less than 31.
        sample("nearest, 7 to 31", line, None, None, _ints(31), mode="nearest", axes=[2]),
        sample(
            "a crop of 7 to 31",
            line,
            _single(0.4, 1.2),
            None,
            _ints(31),
            axes=[2],
            mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=3.0,
        ),
        sample("linear, antialiased", image, None, down, mode="linear", antialias=1),
        sample("cubic, antialiased", image, None, down, mode="cubic", antialias=1, cubic_coeff_a=-0.5),
        sample("cubic, nothing outside", image, None, up, mode="cubic", exclude_outside=1),
        sample(
            "a crop",
            image,
            _single(0.4, -0.2, 1.2, 0.9),
            None,
            _ints(4, 3),
            axes=[2, 3],
            mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=3.0,
        ),
        sample(
            "a crop of one length",
            line,
            _single(0.25, 0.75),
            None,
            _ints(5),  # of the same length, ONNX Runtime copies and does not crop
            axes=[2],
            mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize",
        ),
        sample("1-D", line, None, _single(1, 1, 1.6), mode="linear"),
        sample("3-D", Var((2, 3, 4, 2)), None, _single(1, 1, 2, 1.5, 2), mode="linear"),
        Sample("Resize", [Var((3, 4)), None, _single(2, 1.5)], {"mode": "linear"}, bare=True, note="axis 0"),
        Sample("Upsample", [image, _single(1, 1, 2, 3)], {"mode": "linear"}, opset=9),
        Sample("Upsample", [image, _single(1, 1, 2, 3)], opset=9, note="nearest"),
        Sample("Resize", [image, down], {"mode": "linear"}, opset=10, note="opset 10"),
    ]


def _spectra() -> list[Sample]:
    real, complex_ = Var((6, 3, 1)), Var((6, 3, 2))
    step, window = np.asarray(1), np.random.default_rng(0).uniform(0.2, 1, 5)
    return [
        Sample("DFT", [real, None, step]),
        Sample("DFT", [complex_, None, step], {"inverse": 1}, note="inverse"),
        Sample("DFT", [complex_, np.asarray(8), step], note="longer"),
        Sample("DFT", [complex_, np.asarray(5), step], {"inverse": 1}, note="shorter, inverse"),
        Sample("DFT", [real, None, step], {"onesided": 1}, note="one side"),
        Sample("DFT", [Var((2, 7, 1)), None, np.asarray(-2)], {"onesided": 1}, note="one side, odd"),
        Sample("DFT", [Var((5, 3, 1)), np.asarray(8), step], {"onesided": 1}, note="one side, longer"),
        Sample("DFT", [Var((4, 3, 2)), None, step], {"inverse": 1, "onesided": 1}, note="to real"),
        Sample(
            "DFT", [Var((4, 3, 2)), np.asarray(7), step], {"inverse": 1, "onesided": 1}, note="to real, odd"
        ),
        Sample("DFT", [complex_, None, np.asarray(0)], bare=True, note="axis 0"),
        Sample("DFT", [Var((5, 3, 2))], note="no axis"),
        Sample("STFT", [Var((17, 1)), np.asarray(3), window], note="window", result=(5, 3, 2)),
        Sample("STFT", [Var((17, 2)), np.asarray(4), None, np.asarray(6)], {"onesided": 0}, note="length"),
        Sample(
            "STFT",
            [Var((2, 9, 1)), np.asarray(2), Var((5,))],
            bare=True,
            note="window varies",
            result=(2, 3, 3, 2),
        ),
    ]


def _grids() -> list[Sample]:
    plane, volume = _ints(2, 3, 3, 4), _ints(2, 2, 3, 2, 4)
    return [
        Sample("AffineGrid", [Var((2, 2, 3)), plane], bare=True),
        Sample("AffineGrid", [Var((2, 2, 3)), plane], {"align_corners": 1}, bare=True, note="corners"),
        Sample("AffineGrid", [Var((2, 3, 4)), volume], bare=True, note="3-D"),
    ]


def _sampled() -> list[Sample]:
    plane, grid = Var((2, 3, 4)), Var((3, 2, 2), -1.3, 1.3)
    fixed = np.random.default_rng(4).uniform(-1.2, 1.2, (1, 3, 2, 2))
    every = [
        ("linear", "zeros", 0),
        ("linear", "border", 1),
        ("linear", "reflection", 0),
        ("nearest", "reflection", 1),
        ("cubic", "zeros", 1),
        ("cubic", "border", 0),
        ("cubic", "reflection", 1),
    ]

    def sample(mode: str, padding: str, corners: int) -> Sample:
        attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        note = " ".join([mode, padding, "corners" if corners else ""]).strip()
        return Sample("GridSample", [plane, grid], attributes, note=note)

    return [
        *(sample(*choice) for choice in every),
        Sample("GridSample", [Var((2, 3, 2, 4)), Var((2, 3, 2, 3), -1.3, 1.3)], note="3-D"),
        Sample("GridSample", [Var((1, 2, 3, 4)), fixed], {"mode": "cubic"}, bare=True, note="fixed grid"),
    ]


def _transposed() -> list[Sample]:
    x, w, b = Var((4, 3, 5)), np.random.default_rng(6).uniform(-1, 1, (4, 2, 3, 4)), np.asarray([0.5, -0.2])

    def sample(note: str, **attributes: Any) -> Sample:
        return Sample("ConvTranspose", [x, w, b], {"strides": [2, 3], **attributes}, note=note)

    return [
        sample("same upper", auto_pad="SAME_UPPER"),
        sample("same lower", auto_pad="SAME_LOWER"),
        sample("valid", auto_pad="VALID"),
        sample("to a shape", output_shape=[6, 14], output_padding=[1, 0]),
        sample("valid, to a shape", auto_pad="VALID", output_shape=[6, 14]),
    ]


def _regions() -> list[Sample]:
    w = np.random.default_rng(7).uniform(-1, 1, (4, 2, 2, 3))
    deformed = [
        ("offsets vary", [Var((2, 4, 5)), w, Var((12, 3, 3), -1.0, 1.0)], {}),
        (
            "mask, two groups",
            [
                Var((4, 4, 5)),
                w,
                Var((24, 2, 3), -1.5, 1.5),
                np.asarray([0.1, 0.2, 0.3, 0.4]),
                Var((12, 2, 3), 0.0, 1.0),
            ],
            {"group": 2, "offset_group": 2, "strides": [2, 2], "pads": [0, 1, 1, 1], "dilations": [2, 1]},
        ),
    ]
    rois = np.asarray([[0.3, 0.2, 3.1, 4.3], [-2.0, 1.0, 6.4, 3.0]])
    plane, which = Var((2, 3, 5, 6)), _ints(1, 0)
    how = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    return [
        *(Sample("DeformConv", operands, how, note=note, opset=22) for note, operands, how in deformed),
        Sample("RoiAlign", [plane, rois, which], how, bare=True, opset=22),
        Sample("RoiAlign", [plane, rois, which], {**how, "mode": "max"}, bare=True, opset=22, note="max"),
        Sample(
            "RoiAlign",
            [plane, Var((2, 4), 0.2, 4.7), which],
            {**how, "coordinate_transformation_mode": "output_half_pixel", "spatial_scale": 0.9},
            bare=True,
            opset=22,
            note="regions vary",
        ),
    ]


def _varying_weights() -> list[Sample]:
    x, y = Var((2, 2, 4, 5)), Var((2, 4, 3, 4))
    how = {"strides": [2, 1], "pads": [1, 0, 0, 1], "dilations": [1, 2]}
    grouped = {**how, "group": 2}
    return [
        Sample("Conv", [x, Var((3, 2, 2, 3)), Var((3,))], how, bare=True, note="all vary"),
        Sample("ConvTranspose", [x, Var((2, 3, 2, 3)), Var((3,))], how, bare=True, note="all vary"),
        Sample("ConvTranspose", [y, Var((4, 3, 2, 3)), Var((6,))], grouped, bare=True, note="groups, vary"),
        Sample(
            "ConvTranspose",
            [Var((1, 4, 2, 3)), Var((4, 2, 3, 3))],
            {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
            bare=True,
            note="same, all vary",
        ),
    ]
