"""The adjoint of a convolution, in variants that are fastest for different shapes.

Costs are times relative to the convolution's own forward pass, measured in ONNX Runtime on two cores
(docs/performance.md), as (one thread, two and more).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.graph.variants import Site, Task


@dataclass(frozen=True)
class Geometry:
    """A convolution's shape: x [C, *size] → y [M, *out]; pads are [begin…, end…].

    Attributes:
        channels: C, the number of input channels.
        filters: M, the number of output channels.
    """

    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    group: int
    channels: int
    filters: int

    @property
    def window(self) -> tuple[int, ...]:
        """The kernel with its dilation."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def dense(self) -> bool:
        """True without strides, and with padding smaller than the window."""
        inside = all(p < n for p, n in zip(self.pads, self.window * 2, strict=True))
        return inside and all(s == 1 for s in self.strides)

    @property
    def by_points(self) -> bool:
        """True if each position is independent: 1×1 without stride, padding or groups."""
        return self.dense and all(n == 1 for n in self.window) and self.group == 1

    @property
    def by_phases(self) -> bool:
        """True if every phase of the stride has taps, and no window begins or ends far outside."""
        plain = len(self.size) == 2 and all(d == 1 for d in self.dilations)
        overlapping = all(1 < s <= k for s, k in zip(self.strides, self.kernel, strict=True))
        return plain and overlapping and all(min(p.pads) >= 0 for p in _phases(self))

    @property
    def depthwise(self) -> bool:
        return self.group > 1


adjoint = Task("convolution adjoint")


def adjoint_kernel(op: Ops, w: Tensor, group: int) -> Tensor:
    """Turn W [M, C/g, *k] into [C, M/g, *k], spatially reversed: the kernel of the adjoint at stride 1."""
    outputs, inputs, *kernel = w.shape
    axes = list(range(2, w.rank))
    if group > 1:
        w = op.Reshape(w, [group, outputs // group, inputs, *kernel])
        w = op.Transpose(w, perm=[0, 2, 1, *range(3, w.rank)])
        w = op.Reshape(w, [group * inputs, outputs // group, *kernel])
    else:
        w = op.Transpose(w, perm=[1, 0, *axes])
    if all(k == 1 for k in kernel):
        return w
    return op.Slice(w, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))


def _flipped_cost(site: Site) -> float:
    """Return the cost; few channels at the end leave most of a vector register empty."""
    return 3.0 if site.geometry.channels < 8 and not site.geometry.depthwise else 1.0


@adjoint.variant("flipped kernel", fits=lambda g: g.dense, cost=_flipped_cost)
def by_flipped_kernel(op: Ops, m: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """Convolve with the reversed kernel, at stride 1."""
    back = [n - 1 - p for p, n in zip(g.pads, g.window * 2, strict=True)]
    return op.Conv(m, adjoint_kernel(op, w, g.group), dilations=list(g.dilations), group=g.group, pads=back)


def _points_cost(site: Site) -> float:
    """Return the cost; no layout conversion is needed, which pays on large planes with enough rows."""
    g: Geometry = site.geometry
    pays = min(g.size) >= 28 and g.channels >= 96 and site.deployment.provider == "cpu"
    return 0.97 if pays else 1.1


@adjoint.variant("product at each point", fits=lambda g: g.by_points, cost=_points_cost)
def by_points(op: Ops, m: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """Multiply Wᵀ [C, M] by m [M, positions], for 1×1 kernels."""
    weights = op.Transpose(op.Reshape(w, [g.filters, g.channels]), perm=[1, 0])
    columns = op.reshape(m, (m.shape[0], g.filters, math.prod(g.out)))
    return op.reshape(op.MatMul(weights, columns), (m.shape[0], g.channels, *g.size))


def _transposed_cost(site: Site) -> float:
    """Return the cost; ONNX Runtime's operator scales poorly over threads, depthwise worst."""
    g: Geometry = site.geometry
    if site.deployment.provider != "cpu":
        return 0.9
    if g.depthwise:
        single_core, several_cores = (1.6, 2.6) if max(g.kernel) <= 3 else (4.0, 6.2)
    elif max(g.kernel) == 1:
        single_core, several_cores = 0.93, 1.01
    elif g.channels < 8:
        single_core, several_cores = 1.1, 1.2 if max(g.kernel) <= 3 else 2.3
    else:
        single_core, several_cores = (1.2, 1.4) if min(g.out) < 14 or max(g.strides) == 1 else (1.07, 1.6)
    return single_core if site.deployment.cores == 1 else several_cores


@adjoint.variant("transposed convolution", cost=_transposed_cost)
def by_transposed(op: Ops, m: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """Apply a ConvTranspose, for any stride, padding and dilation."""
    n = len(g.size)
    reach = [
        (o - 1) * s + k - g.pads[i] - g.pads[n + i]
        for i, (o, s, k) in enumerate(zip(m.shape[2:], g.strides, g.window, strict=True))
    ]
    gaps = [want - have for want, have in zip(g.size, reach, strict=True)]
    crop = [max(-extra, 0) for extra in gaps]  # windows that ceil_mode let reach past the padding
    return op.ConvTranspose(
        m,
        w,
        dilations=list(g.dilations),
        group=g.group,
        pads=[*g.pads[:n], *(g.pads[n + i] + crop[i] for i in range(n))],
        strides=list(g.strides),
        output_padding=[max(extra, 0) for extra in gaps],
    )


@dataclass(frozen=True)
class _Phase:
    """Positions i ≡ start (mod stride) along each axis, and the taps of the kernel that reach them."""

    first: tuple[int, ...]  # first tap, from which every stride-th one follows
    pads: tuple[int, ...]


def _phases(g: Geometry) -> list[_Phase]:
    """Return the phases, row by row.

    With i + p = s·q + φ, Σ over o·s + k = i + p is a convolution over taps φ, φ + s, …
    """
    phases = []
    for start in product(*(range(s) for s in g.strides)):
        first, begin, end = [], [], []
        for i, a in enumerate(start):
            shift, tap = divmod(a + g.pads[i], g.strides[i])
            taps = math.ceil((g.kernel[i] - tap) / g.strides[i])
            positions = math.ceil(g.size[i] / g.strides[i])
            first.append(tap)
            begin.append(taps - 1 - shift)
            end.append(positions - g.out[i] + shift)
        phases.append(_Phase(tuple(first), (*begin, *end)))
    return phases


def _phases_cost(site: Site) -> float:
    g: Geometry = site.geometry
    if site.deployment.provider != "cpu":
        return 1.5
    if g.depthwise:
        single_core, several_cores = (1.5, 1.8) if max(g.kernel) <= 3 else (2.2, 2.65)
    elif g.channels < 8:
        single_core, several_cores = 2.0, 2.4
    else:
        single_core, several_cores = (0.95, 0.98) if min(g.out) < 14 else (1.09, 1.27)
    return single_core if site.deployment.cores == 1 else several_cores


@adjoint.variant("one kernel for each phase", fits=lambda g: g.by_phases, cost=_phases_cost)
def by_phases(op: Ops, m: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """Apply s² small convolutions at stride s, each for the positions of one phase, and interleave them."""
    kernel = adjoint_kernel(op, w, g.group)
    parts = []
    for phase in _phases(g):
        last = [(k - 1 - f) for k, f in zip(g.kernel, phase.first, strict=True)]  # tap `first`, reversed
        begin = [n % s for n, s in zip(last, g.strides, strict=True)]
        taps = op.Slice(kernel, begin, [n + 1 for n in last], [2, 3], list(g.strides))
        parts.append(op.Conv(m, taps, group=g.group, pads=list(phase.pads)))
    plane = interleave(op, parts, g.strides)
    return cropped(op, plane, g.size)


def interleave(op: Ops, parts: Sequence[Tensor], strides: Sequence[int]) -> Tensor:
    """Interleave phases [R, C, h, w], row by row, to [R, C, h·strides[0], w·strides[1]]."""
    down, across = strides
    rows, channels, h, w = parts[0].shape
    lines = []
    for i in range(down):
        line = [op.Unsqueeze(p, [-1]) for p in parts[i * across : (i + 1) * across]]
        lines.append(op.reshape(op.Concat(*line, axis=4), (rows, channels, h, w * across)))
    return op.reshape(op.Concat(*lines, axis=3), (rows, channels, h * down, w * across))


def repeat_blocks(op: Ops, x: Tensor, times: Sequence[int]) -> Tensor:
    """Repeat each value of a plane in a block of its own."""
    scales = op.constant(np.asarray([1, 1, *times], np.float32))
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return op.Resize(x, None, scales, **attributes)


def cropped(op: Ops, plane: Tensor, size: Sequence[int]) -> Tensor:
    """Return the first `size` elements of a plane [R, C, h, w]."""
    return plane if plane.shape[2:] == tuple(size) else op.Slice(plane, [0, 0], list(size), [2, 3])
