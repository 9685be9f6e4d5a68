"""The number of values in each window of an average pool, against counting one by one."""

from collections.abc import Sequence

import numpy as np
import pytest

from rationale.rules.windows.pool import _counts


def counted(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], out: int, with_pads: bool
) -> list[int]:
    before, after = pads
    inside = range(-before, size + after) if with_pads else range(size)
    return [sum(o * stride - before + tap * dilation in inside for tap in range(kernel)) for o in range(out)]


@pytest.mark.parametrize("with_pads", [0, 1])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "pads", "out"),
    [
        ((5,), (3,), (1,), (1,), (0, 0), (3,)),
        ((5,), (3,), (1,), (1,), (1, 1), (5,)),
        ((5,), (3,), (1,), (1,), (2, 0), (5,)),  # padded on one side alone
        ((5,), (3,), (1,), (1,), (0, 2), (5,)),
        ((5,), (3,), (2,), (1,), (0, 1), (3,)),  # the last window reaches beyond the pads (ceil_mode)
        ((6,), (3,), (2,), (1,), (1, 2), (4,)),
        ((7,), (2,), (2,), (3,), (1, 0), (3,)),
        ((5, 4), (3, 2), (1, 2), (1, 1), (0, 1, 2, 0), (5, 2)),  # before of both axes, then after
        ((4, 5), (2, 3), (2, 1), (1, 2), (1, 0, 0, 3), (2, 4)),
    ],
)
def test_a_window_divides_by_what_it_counts(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
    out: Sequence[int],
    with_pads: int,
) -> None:
    attributes = {
        "kernel_shape": kernel,
        "strides": stride,
        "dilations": dilation,
        "pads": pads,
        "count_include_pad": with_pads,
    }
    n = len(size)
    axes = [
        counted(size[i], kernel[i], stride[i], dilation[i], (pads[i], pads[n + i]), out[i], bool(with_pads))
        for i in range(n)
    ]
    expected = axes[0] if n == 1 else np.outer(*axes)
    assert np.array_equal(_counts(attributes, size, out)[0, 0], expected)
