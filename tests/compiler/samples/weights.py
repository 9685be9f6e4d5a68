"""Layers whose weights vary from row to row, and rows of scores that are masked everywhere."""

from rationale.testing import Sample, Var


def weight_samples() -> list[Sample]:
    image, kernel, bias = Var((2, 2, 5, 6)), Var((3, 2, 3, 2)), Var((3,))
    return [
        Sample("Conv", [image, kernel, bias], bare=True, note="weights vary"),
        Sample(
            "Conv",
            [image, kernel],
            {"strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [1, 2]},
            bare=True,
            note="varying, strides",
        ),
        Sample(
            "Conv",
            [Var((2, 4, 4, 5)), Var((6, 2, 3, 2))],
            {"group": 2, "strides": [1, 2]},
            bare=True,
            note="weights vary, groups",
        ),
        Sample("Conv", [Var((2, 3, 7)), Var((2, 3, 3))], {"dilations": [2]}, bare=True, note="varying, 1-D"),
    ]
