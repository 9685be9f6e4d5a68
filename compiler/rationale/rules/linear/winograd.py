"""The adjoint of a 3×3 convolution by Winograd's minimal filtering F(2×2, 3×3), in standard operators.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), equation 8:
Y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A for tiles of 2×2 places: 16 products instead of 36. The filters G g Gᵀ are
constants; Bᵀ d B is 16 depthwise convolutions of 2×2 taps with stride 2, the products are 16 convolutions of
1×1, and Aᵀ…A is sums. All of them keep the blocked layout of ONNX Runtime's convolutions, until the 2×2
places of a tile are interleaved at the end.
"""

import math
from collections.abc import Sequence

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.graph.variants import Site
from rationale.rules.linear.conv_adjoint import Geometry, adjoint, adjoint_kernel, cropped, interleave

_FILTER = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])  # G
_TAPS = (((0, 2), (1, -1)), ((1, 2), (1, 1)), ((1, 2), (-1, 1)), ((1, 3), (1, -1)))  # rows of Bᵀ: where, what
_POINTS = len(_TAPS)

_PRODUCTS = 0.45  # 16/36 of the products; 1×1 convolutions run about as fast as larger ones
_TRANSFORMS = 20.0  # cost of the transforms relative to the products of one channel
_NODES = {True: 2e7, False: 1e8}  # floating-point operations that take as long as starting all its nodes
_BLOCK = 16  # channels of a block of ONNX Runtime's layout


def _fits(g: Geometry) -> bool:
    """Tell whether the kernel is a plain 3×3 on a plane, padded by at most one place."""
    return g.dense and g.kernel == g.window == (3, 3) and g.group == 1 and max(g.pads) <= 1


def _cost(site: Site) -> float:
    g: Geometry = site.geometry
    blocked = g.channels % _BLOCK == 0 and g.filters % _BLOCK == 0
    if site.deployment.provider != "cpu" or not blocked:
        return 9.0
    positions = math.prod(g.size)
    tiles = math.prod(math.ceil(n / 2) for n in g.size)
    work = 2 * 9 * g.channels * g.filters * positions * site.rows
    transforms = _TRANSFORMS * (1 / g.channels + 1 / g.filters)
    return _PRODUCTS * 4 * tiles / positions + transforms + _NODES[site.deployment.cores == 1] / work


@adjoint.variant("minimal filtering", fits=_fits, cost=_cost)
def by_minimal_filtering(op: Ops, m: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """Compute tiles of 2×2 positions of x with the flipped kernel, by Winograd's F(2×2, 3×3)."""
    filters = _filters(op, adjoint_kernel(op, w, 1))
    products = [
        [op.Conv(_tiles(op, m, i, j, g), filters[_POINTS * i + j]) for j in range(_POINTS)]
        for i in range(_POINTS)
    ]
    lines = [_transform_outputs(op, [products[i][j] for i in range(_POINTS)]) for j in range(_POINTS)]
    outputs = [_transform_outputs(op, [lines[j][i] for j in range(_POINTS)]) for i in range(2)]
    plane = interleave(op, [output for line in outputs for output in line], (2, 2))
    return cropped(op, plane, g.size)


def _filters(op: Ops, w: Tensor) -> list[Tensor]:
    """Return G g Gᵀ of W [C, M, 3, 3]: 16 of [C, M, 1, 1]."""
    outputs, inputs = w.shape[:2]
    transform = op.constant(np.kron(_FILTER, _FILTER).T.astype(w.dtype.numpy()))  # [9, 16]
    by_point = op.Transpose(op.MatMul(op.Reshape(w, [outputs * inputs, 9]), transform), perm=[1, 0])
    filters = op.emit("Split", (by_point, [1] * _POINTS**2), {"axis": 0}, outputs=_POINTS**2)
    return [op.Reshape(filter_, [outputs, inputs, 1, 1]) for filter_ in filters]


def _tiles(op: Ops, m: Tensor, i: int, j: int, g: Geometry) -> Tensor:
    """Return (Bᵀ d B)[i, j] of every tile d of m [R, M, *out]: [R, M, ⌈H/2⌉, ⌈W/2⌉]."""
    taps = np.outer(_TAPS[i][1], _TAPS[j][1])
    kernel = np.broadcast_to(taps, (g.filters, 1, 2, 2)).astype(m.dtype.numpy())
    begin, end, dilations = [], [], []
    for axis, ((first, last), _) in enumerate((_TAPS[i], _TAPS[j])):
        before = 2 - g.pads[axis]  # positions of the first tile in front of m
        tiles = math.ceil(g.size[axis] / 2)
        begin.append(before - first)
        end.append(2 * (tiles - 1) + last - before - (g.out[axis] - 1))
        dilations.append(last - first)
    pads = [*begin, *end]
    return op.Conv(m, op.constant(kernel), group=g.filters, strides=[2, 2], dilations=dilations, pads=pads)


def _transform_outputs(op: Ops, x: Sequence[Tensor]) -> list[Tensor]:
    """Return Aᵀx: x₀ + x₁ + x₂ and x₁ − x₂ − x₃. Differences are convolutions by −1, which fuse with Add."""
    first = op.Add(x[0], op.Add(x[1], x[2]))
    second = op.Add(op.Add(x[1], _negative(op, x[2])), _negative(op, x[3]))
    return [first, second]


def _negative(op: Ops, x: Tensor) -> Tensor:
    """Return −x in the blocked layout, which Neg and Sub would leave."""
    channels = x.shape[1]
    minus = op.constant(np.full((channels, 1, 1, 1), -1, x.dtype.numpy()))
    return op.Conv(x, minus, group=channels)
