"""What other runtimes do otherwise than ONNX Runtime, by the label of the sample, and why.

`tests/compiler/runtimes/test_samples.py` holds that these differ, or do not load, and no others.
"""

_TWO_SIDED = "OpenVINO gives the spectrum of one side, or the real signal, in another shape"
_UNFOLDED = "OpenVINO's average counts what ceil_mode adds behind the padding"
_SQUARES = "OpenVINO sums squares over another window"

# The model itself is not loaded, or answers otherwise, without any explanation.
OPENVINO = {
    "AveragePool-ceil and pads, pads counted": _UNFOLDED,
    "DFT-no axis": "OpenVINO transforms axis 1 where none is given, not the last but one",
    "DFT-one side": _TWO_SIDED,
    "DFT-one side, longer": "OpenVINO pads no signal before a one-sided transform",
    "DFT-one side, odd": _TWO_SIDED,
    "DFT-shorter, real": _TWO_SIDED,
    "DFT-to real": _TWO_SIDED,
    "DFT-to real, odd": _TWO_SIDED,
    **dict.fromkeys(("Det-2x2", "Det-4x4", "Det-[2,3,3]", "Det-alone"), "OpenVINO has no Det"),
    "GatherElements-inner": "OpenVINO wants indices as long as the data on every other axis",
    "GridSample-3-D": "OpenVINO samples planes alone",
    "LRN-[6,3,2]": _SQUARES,
    "LRN-wider than all": _SQUARES,
    "QuantizeLinear-no zero, last axis": "OpenVINO's CPU takes no scale for each element of axis 2",
    "Resize-a crop": "OpenVINO has no tf_crop_and_resize",
    "Resize-a crop of one length": "OpenVINO has no tf_crop_and_resize",
    "Resize-cubic, antialiased": "OpenVINO's antialiasing is another",
    "Resize-cubic, nothing outside": "OpenVINO does not leave out what lies outside",
    "Resize-linear, antialiased": "OpenVINO's antialiasing is another",
    "Resize-linear, half_pixel_symmetric": "OpenVINO has no half_pixel_symmetric",
    "STFT-even": _TWO_SIDED,
    "STFT-length": _TWO_SIDED,
    "STFT-window": _TWO_SIDED,
    "STFT-window varies": _TWO_SIDED,
}

# The explanation alone.
OPENVINO_EXPLAINED = {
    "DynamicQuantizeLinear-[3,4]": "OpenVINO rounds to 16 bits with an error of 1/256, to another step",
}

_NEGATIVE = "the evaluator's Pad crops nothing: it takes no negative pads"
_INDICES = "the evaluator's MaxPool counts the places of winners otherwise"
_LRN = "the evaluator's LRN sums squares over another window"
_P1 = "the evaluator's LpNormalization divides by the sum where p is 1, not by that of sizes"

# of the onnx package
EVALUATOR = {
    **dict.fromkeys(
        (
            "CenterCropPad-all axes",
            "CenterCropPad-both",
            "CenterCropPad-crop",
            "CenterCropPad-odd, negative axes",
            "CumProd-[3,4,5]x[]",
            "CumProd-both",
            "CumProd-negative axis",
            "Pad-axes, negative",
            "Pad-both, negative axes",
            "ReduceProd-all",
            "ReduceProd-last",
            "ReduceProd-negative axes",
            "ReduceProd-none",
            "ReduceProd-two axes",
        ),
        _NEGATIVE,
    ),
    "ConvTranspose-groups": "the evaluator's ConvTranspose knows no groups",
    "GatherElements-inner": "the evaluator wants indices as long as the data on every other axis",
    "GridSample-cubic border": "the evaluator's cubic sampling clamps the place, not each of its neighbours",
    **dict.fromkeys(("LRN-[6,3,2]", "LRN-size 5", "LRN-wider than all"), _LRN),
    **dict.fromkeys(("LpNormalization-p 1", "LpNormalization-p 1, negative axis"), _P1),
    **dict.fromkeys(("MaxPool-3-D", "MaxPool-stride 1"), _INDICES),
}
EVALUATOR_LRP = {  # where LRP's graph alone has what the evaluator lacks
    "Conv-all at once, groups": "the evaluator's Conv knows groups with one bias alone",
}

_ELSEWHERE = "LRP has no references near which rows are drawn, and these lie where the model is not defined"

LRP_NOT_COMPILED = {
    **dict.fromkeys(
        (
            "Acos-[3,4]",
            "Asin-[3,4]",
            "Atanh-[3,4]",
            "Acosh-[3,4]",
            "ReduceLogSum-last",
            "ReduceLogSum-two axes",
            "Pow-both vary",
            "ReduceLogSum-negative axes",
            "Log-[3,4]",
            "Sqrt-[3,4]",
            "Pow-real 0.5",
            "Pow-real -0.75",
            "Pow-real 1.7",
        ),
        _ELSEWHERE,
    ),
}
