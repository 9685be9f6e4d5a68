"""DeepLIFT's multipliers through one operator, in float64, from its formula: the truth of the samples.

Forwards, one reference at a time: a `Flow` holds a value at x and at r, and what each element of the inputs
has for a multiplier to each element of it. Three rules make all of them: a function that is affine, a
function of one number by its quotient, and a product at its midpoint. Operators of which values alone say
what is due are left out: see `coalitions`.

Shrikumar et al., "Learning Important Features Through Propagating Activation Differences", 2017; products:
Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", 2017, section 4.2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch

from tests.references.operators.windows import average_pool, conv, max_pool

Array = np.ndarray
NEAR = 1e-5  # of x and r, see `Flow.each`
Operand = Any  # a Flow, or an array that does not vary


@dataclass(frozen=True)
class Flow:
    """x and r [*shape]; m [*shape, P], the multipliers of the P elements of all inputs."""

    x: Array
    r: Array
    m: Array

    def affine(self, f: Callable[[Array], Array]) -> "Flow":
        """f(x), for a function that moves, adds up and scales."""
        nothing = f(np.zeros_like(self.x))
        columns = [f(self.m[..., p]) - nothing for p in range(self.m.shape[-1])]
        return Flow(f(self.x), f(self.r), np.stack(columns, axis=-1))

    def each(self, f: Callable[[Array], Array], slope: Callable[[Array], Array] | None = None) -> "Flow":
        """f(x) element by element: the quotient, and f' in the middle where x and r are near.

        f' is off by d²/24·f‴ there, where rounding would leave 1e-16/d of the quotient. A step has none: 0.
        """
        d = self.x - self.r
        near = np.abs(d) <= (NEAR if slope else 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):  # where the quotient is taken
            middle = slope((self.x + self.r) / 2) if slope else np.zeros_like(d)
        risen = quotient(f(self.x) - f(self.r), np.where(near, 0.0, d))
        return Flow(f(self.x), f(self.r), np.where(near, middle, risen)[..., None] * self.m)

    def through(self, x: Array, r: Array, expected: Array) -> "Flow":
        """A value x, r of which `expected` [*shape, *self.shape] is what each element of this one adds."""
        slopes = quotient(expected, np.broadcast_to(self.x - self.r, expected.shape)).reshape(
            x.size, self.x.size
        )
        m = slopes @ self.m.reshape(self.x.size, -1)
        return Flow(x, r, m.reshape(*x.shape, -1))

    def __add__(self, other: Operand) -> "Flow":
        other = constant(other)
        return Flow(self.x + other.x, self.r + other.r, _wide(self, other) + _wide(other, self))

    def __mul__(self, other: Operand) -> "Flow":
        other = constant(other)
        m = self.m * (other.x + other.r)[..., None] / 2 + other.m * (self.x + self.r)[..., None] / 2
        return Flow(self.x * other.x, self.r * other.r, m)

    def __neg__(self) -> "Flow":
        return Flow(-self.x, -self.r, -self.m)

    def __sub__(self, other: Operand) -> "Flow":
        return self + -constant(other)

    def __truediv__(self, other: Operand) -> "Flow":
        return self * constant(other).each(lambda v: 1 / v, lambda v: -1 / v**2)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Operand) -> "Flow":
        return -self + other

    def __getitem__(self, places: Any) -> "Flow":
        return self.affine(lambda v: v[places])

    def sum(self, axes: Sequence[int] | int, keep: bool = True) -> "Flow":
        axes = axes if isinstance(axes, int) else tuple(axes)
        return self.affine(lambda v: v.sum(axes, keepdims=keep))

    def mean(self, axes: Sequence[int] | int) -> "Flow":
        axes = axes if isinstance(axes, int) else tuple(axes)
        return self.affine(lambda v: v.mean(axes, keepdims=True))


def constant(value: Operand) -> Flow:
    if isinstance(value, Flow):
        return value
    array = np.asarray(value, np.float64)
    return Flow(array, array, np.zeros((*array.shape, 1)))


def quotient(top: Array, bottom: Array) -> Array:
    zeros = np.zeros(np.broadcast_shapes(top.shape, bottom.shape))
    return np.divide(top, bottom, out=zeros, where=bottom != 0)


def _wide(flow: Flow, other: Flow) -> Array:
    shape = np.broadcast_shapes(flow.x.shape, other.x.shape)
    return np.broadcast_to(flow.m, (*shape, flow.m.shape[-1])) if flow.m.size else flow.m


def starting(xs: Sequence[Array], rs: Sequence[Array], varying: Sequence[bool]) -> list[Operand]:
    """The operands at the beginning: one multiplier for each element that varies."""
    count = sum(x.size for x, v in zip(xs, varying, strict=True) if v)
    unit, first, flows = np.eye(count), 0, []
    for x, r, varies in zip(xs, rs, varying, strict=True):
        if varies:
            flows.append(Flow(x, r, unit[first : first + x.size].reshape(*x.shape, count)))
            first += x.size
        else:
            flows.append(x)
    return flows


def side_by_side(parts: Sequence[Flow], axis: int) -> Flow:
    count = max(p.m.shape[-1] for p in parts)
    ms = [np.broadcast_to(p.m, (*p.x.shape, count)) for p in parts]
    rank = parts[0].x.ndim
    return Flow(
        np.concatenate([p.x for p in parts], axis),
        np.concatenate([p.r for p in parts], axis),
        np.concatenate(ms, axis % rank),
    )


# -- reductions, products and normalisations ------------------------------------------------------------


def _axes(x: Flow, axes: Any, noop: int = 0) -> tuple[int, ...]:
    if axes is None or np.size(axes) == 0:
        return () if noop else tuple(range(x.x.ndim))
    return tuple(int(a) % x.x.ndim for a in np.ravel(axes))


def _reducing(f: Callable[[Flow, tuple[int, ...]], Flow]) -> Callable[..., Flow]:
    """A function of sums that keeps its axes, as an operator that may drop them."""

    def run(x: Flow, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Flow:
        chosen = _axes(x, axes, noop_with_empty_axes)
        y = f(x, chosen)
        return y if keepdims else y.affine(lambda v: np.squeeze(v, chosen))

    return run


def square(x: Flow) -> Flow:
    return x.each(np.square, lambda v: 2 * v)


def log_sum_exp(x: Flow, axes: tuple[int, ...]) -> Flow:
    shift = np.maximum(x.x, x.r).max(axes, keepdims=True)  # of which no multiplier depends
    return (x - shift).each(np.exp, np.exp).sum(axes).each(np.log, lambda v: 1 / v) + shift


def norm(x: Flow, axes: tuple[int, ...], p: int = 2) -> Flow:
    if p == 1:
        return x.each(np.abs, np.sign).sum(axes)
    return root(size(x, p).sum(axes), p)


def size(x: Flow, p: int) -> Flow:
    """|x|^p."""
    return x.each(lambda v: np.abs(v) ** p, lambda v: p * np.sign(v) * np.abs(v) ** (p - 1))


def root(x: Flow, p: int) -> Flow:
    return x.each(lambda v: v ** (1 / p), lambda v: v ** (1 / p - 1) / p)


def softmax(x: Flow, *, axis: int = -1) -> Flow:
    """p_i = e^(z_i − LSE), a chain of exponentials and one logarithm."""
    return log_softmax(x, axis=axis).each(np.exp, np.exp)


def log_softmax(x: Flow, *, axis: int = -1) -> Flow:
    return x - log_sum_exp(x, (axis,))


def standardised(x: Flow, axes: Sequence[int], epsilon: float, centred: bool = True) -> Flow:
    d = x - x.mean(axes) if centred else x
    return d * (square(d).mean(axes) + epsilon).each(lambda v: v**-0.5, lambda v: -(v**-1.5) / 2)


def layer_norm(
    x: Flow, scale: Operand, bias: Operand = 0.0, *, axis: int = -1, epsilon: float = 1e-5
) -> Flow:
    z = standardised(x, range(axis % x.x.ndim, x.x.ndim), epsilon)
    return z * scale + bias


def rms_norm(x: Flow, scale: Operand, *, axis: int = -1, epsilon: float = 1e-5) -> Flow:
    return standardised(x, range(axis % x.x.ndim, x.x.ndim), epsilon, centred=False) * scale


def instance_norm(x: Flow, scale: Array, bias: Array, *, epsilon: float = 1e-5) -> Flow:
    shape = (-1, *(1 for _ in x.x.shape[2:]))
    return standardised(x, range(2, x.x.ndim), epsilon) * scale.reshape(shape) + bias.reshape(shape)


def group_norm(x: Flow, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5) -> Flow:
    whole, shape = x.x.shape, (-1, *(1 for _ in x.x.shape[2:]))
    groups = x.affine(lambda v: v.reshape(whole[0], num_groups, -1))
    z = standardised(groups, (2,), epsilon).affine(lambda v: v.reshape(whole))
    return z * scale.reshape(shape) + bias.reshape(shape)


def mean_variance_norm(x: Flow, *, axes: Sequence[int] = (0, 2, 3)) -> Flow:
    d = x - x.mean(axes)
    return d / (root(square(d).mean(axes), 2) + 1e-9)


def lp_norm(x: Flow, *, axis: int = -1, p: int = 2) -> Flow:
    """x·s with s = 1/‖x‖, 0 at 0."""

    def inverse(v: Array) -> Array:
        return quotient(np.ones_like(v), v)

    return x * norm(x, (axis % x.x.ndim,), p).each(inverse, lambda v: -(inverse(v) ** 2))


def lrn(x: Flow, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Flow:
    """x·s^−β, s over ⌊(size − 1)/2⌋ channels before and ⌈(size − 1)/2⌉ behind."""
    before, behind = math.floor((size - 1) / 2), math.ceil((size - 1) / 2)
    channels = range(x.x.shape[1])
    near = np.asarray([[c - before <= d <= c + behind for d in channels] for c in channels], np.float64)
    s = square(x).affine(lambda v: np.moveaxis(np.tensordot(near, v, (1, 1)), 0, 1)) * (alpha / size) + bias
    return x * s.each(lambda v: v**-beta, lambda v: -beta * v ** (-beta - 1))


def cumulative_product(x: Flow, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Flow:
    """By products of neighbours 1, 2, 4 … apart."""
    along, count = int(axis) % x.x.ndim, x.x.shape[int(axis)]

    def shifted(flow: Flow, by: int) -> Flow:
        source = np.arange(count) + (by if reverse else -by)
        inside = ((source >= 0) & (source < count)).reshape([-1, *(1 for _ in x.x.shape[along + 1 :])])
        return flow.affine(lambda v: np.where(inside, np.take(v, source % count, along), 1.0))

    x, step = (shifted(x, 1) if exclusive else x), 1
    while step < count:
        x, step = x * shifted(x, step), 2 * step
    return x


# -- choices --------------------------------------------------------------------------------------------


def cross_maximum(x: Flow, reads: Array, shape: tuple[int, ...]) -> Flow:
    """The largest of what each output reads (`reads` [outputs, elements of x]), the first of equal ones.

    c = max(y, y_r): c − y_r to x's winner, y − c to r's.
    """
    flat = [np.where(reads, v.reshape(-1), -np.inf) for v in (x.x, x.r)]
    winner, winner_r = (v.argmax(1) for v in flat)
    y, y_r = (v.max(1) for v in flat)
    c, each = np.maximum(y, y_r), np.arange(len(reads))
    expected = np.zeros(reads.shape)
    np.add.at(expected, (each, winner), c - y_r)
    np.add.at(expected, (each, winner_r), y - c)
    return x.through(y.reshape(shape), y_r.reshape(shape), expected.reshape(*shape, *x.x.shape))


def greatest(x: Flow, axes: tuple[int, ...]) -> Flow:
    """Over axes, which it keeps."""
    groups = np.arange(x.x.size).reshape(x.x.shape)
    first = np.broadcast_to(groups.min(axes, keepdims=True), x.x.shape).reshape(-1)
    reads = np.unique(first)[:, None] == first
    return cross_maximum(x, reads, tuple(1 if i in axes else n for i, n in enumerate(x.x.shape)))


def pairwise_greatest(a: Operand, b: Operand) -> Flow:
    """Of two players: what each adds, averaged over both orders."""
    a, b = constant(a), constant(b)
    slopes = [
        (
            quotient(np.maximum(p.x, q.r) - np.maximum(p.r, q.r), p.x - p.r)
            + quotient(np.maximum(p.x, q.x) - np.maximum(p.r, q.x), p.x - p.r)
        )
        / 2
        for p, q in ((a, b), (b, a))
    ]
    m = slopes[0][..., None] * a.m + slopes[1][..., None] * b.m
    return Flow(np.maximum(a.x, b.x), np.maximum(a.r, b.r), m)


def greatest_of_windows(x: Flow, *, auto_pad: str = "NOTSET", **how: Any) -> Flow:
    """What each window reads is asked of the operator: the one number above the others."""
    how |= {"auto_pad": auto_pad.encode()}
    probes = torch.eye(x.x.size, dtype=torch.float64).reshape(x.x.size, *x.x.shape[1:])
    reads = max_pool(probes, **how)[0]
    return cross_maximum(x, reads.reshape(x.x.size, -1).numpy().T > 0, (1, *reads.shape[1:]))


def lp_pool(x: Flow, *, p: int = 2, **how: Any) -> Flow:
    """(Σ|x|^p)^(1/p) over each window."""

    def summed(v: Array) -> Array:
        means = average_pool(torch.from_numpy(v), **how, count_include_pad=1)
        return means.numpy() * math.prod(how["kernel_shape"])

    return root(size(x, p).affine(summed), p)


def several_greatest(*xs: Operand) -> Flow | None:
    return reduce(pairwise_greatest, xs) if len(xs) > 2 else None


def several_least(*xs: Operand) -> Flow | None:
    return -reduce(pairwise_greatest, [-constant(x) for x in xs]) if len(xs) > 2 else None


def top_k(x: Flow, k: Array, *, axis: int = -1, largest: int = 1, **_: int) -> Flow:
    """½(P_x + P_r), and what is then missing of Δy in proportion to |Δx|."""
    x = x.affine(lambda v: np.moveaxis(v, axis, -1))
    ways = [np.argsort(-v if largest else v, axis=-1, kind="stable")[..., : k.item()] for v in (x.x, x.r)]
    y, y_r = (np.take_along_axis(v, w, -1) for v, w in zip((x.x, x.r), ways, strict=True))
    d, expected = x.x - x.r, np.zeros((*y.shape, *x.x.shape))
    for place in np.ndindex(y.shape):
        line = place[:-1]
        for way in ways:
            expected[(*place, *line, way[place])] += d[(*line, way[place])] / 2
        missing = y[place] - y_r[place] - expected[place].sum()
        expected[(*place, *line)] += missing * quotient(np.abs(d[line]), np.abs(d[line]).sum())
    return x.through(y, y_r, expected).affine(lambda v: np.moveaxis(v, -1, axis))


def hardmax(x: Flow, *, axis: int = -1) -> Flow:
    """A step of what x's winner is ahead of r's."""
    x = x.affine(lambda v: np.moveaxis(v, axis, -1))
    y, y_r = (np.eye(v.shape[-1])[v.argmax(-1)] for v in (x.x, x.r))
    expected = np.zeros((*y.shape, *x.x.shape))
    for line in np.ndindex(y.shape[:-1]):
        change = y[line] - y_r[line]
        gain = change * (x.x[line] - x.r[line])
        for i, step in enumerate(change):
            expected[(*line, i, *line)] = step * quotient(gain, gain.sum())
    return x.through(y, y_r, expected).affine(lambda v: np.moveaxis(v, -1, axis))


# -- what works in two orders ---------------------------------------------------------------------------


def _in_two_orders(f: Callable[[Array], float], x: Array, r: Array) -> Array:
    """What each of a list of players [players, …] adds to f: from first to last, and back; the mean."""
    expected = np.zeros(x.shape)
    for order in (range(len(x)), range(len(x) - 1, -1, -1)):
        now = r.copy()
        for i in order:
            for place in np.ndindex(x[i].shape):  # f is linear in what a player holds
                moved = now.copy()
                moved[(i, *place)] = x[(i, *place)]
                expected[(i, *place)] += (f(moved) - f(now)) / 2
            now[i] = x[i]
    return expected


def reduce_prod(x: Flow, axes: tuple[int, ...]) -> Flow:
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.x.shape))
    y, y_r = (v.prod(axes, keepdims=True) for v in (x.x, x.r))
    expected = np.zeros((*shape, *x.x.shape))
    for place in np.ndindex(shape):
        line = tuple(slice(None) if i in axes else p for i, p in enumerate(place))
        products = _in_two_orders(lambda v: float(v.prod()), x.x[line].reshape(-1), x.r[line].reshape(-1))
        expected[(*place, *line)] = products.reshape(x.x[line].shape)
    return x.through(y, y_r, expected)


def determinant(x: Flow) -> Flow:
    """Row by row, in which it is linear."""
    y, y_r = np.linalg.det(x.x), np.linalg.det(x.r)
    expected = np.zeros((*y.shape, *x.x.shape))
    for place in np.ndindex(y.shape):
        expected[(*place, *place)] = _in_two_orders(lambda v: float(np.linalg.det(v)), x.x[place], x.r[place])
    return x.through(y, y_r, expected)


# -- pairs, steps and scatters --------------------------------------------------------------------------


def _comparing(f: Callable[[Array], Array]) -> Callable[..., Flow]:
    """A step of the difference of two operands."""
    return lambda a, b: (constant(a) - b).each(lambda v: f(v).astype(np.float64))


def modulo(a: Operand, b: Operand, *, fmod: int = 0) -> Flow:
    """a − q·b, q a step of a·(1/b)."""
    whole = np.trunc if fmod else np.floor
    return constant(a) - (constant(a) / b).each(whole) * b


def power(x: Operand, n: Operand) -> Flow | None:
    """e^(n·ln x) where the exponent varies."""
    return (
        (constant(x).each(np.log, lambda v: 1 / v) * n).each(np.exp, np.exp) if isinstance(n, Flow) else None
    )


_COMBINED: dict[str, Callable[[Flow, Flow], Flow]] = {
    "mul": lambda a, b: a * b,
    "max": pairwise_greatest,
    "min": lambda a, b: -pairwise_greatest(-a, -b),
}


def _combined_at(x: Flow, targets: Sequence[Any], updates: Sequence[Flow], reduction: str) -> Flow:
    """One update after the other."""
    for target, update in zip(targets, updates, strict=True):
        new = _COMBINED[reduction](x[target], update)
        parts = [v.copy() for v in (x.x, x.r, x.m)]
        for array, value in zip(parts, (new.x, new.r, new.m), strict=True):
            array[target] = value
        x = Flow(*parts)
    return x


def scatter_elements(
    x: Flow, places: Array, updates: Flow, *, axis: int = 0, reduction: str = "none"
) -> Flow | None:
    if reduction in ("none", "add"):
        return None
    targets = []
    for index in np.ndindex(places.shape):
        target = list(index)
        target[axis] = int(places[index])
        targets.append(tuple(target))
    return _combined_at(x, targets, [updates[i] for i in np.ndindex(places.shape)], reduction)


def scatter_nd(x: Flow, places: Array, updates: Flow, *, reduction: str = "none") -> Flow | None:
    if reduction in ("none", "add"):
        return None
    outer = list(np.ndindex(places.shape[:-1]))
    return _combined_at(x, [tuple(places[i]) for i in outer], [updates[i] for i in outer], reduction)


# -- layers of whole numbers ----------------------------------------------------------------------------


def _quantised(z: Flow, scale: Array, zero: Array) -> Flow:
    limits = np.iinfo(zero.dtype)
    return z.each(lambda v: np.clip(np.round(v / scale) + zero, limits.min, limits.max))


def matmul_integer(a: Flow, b: Array, a_zero: Operand = 0, b_zero: Operand = 0) -> Flow:
    """Linear: products and sums of whole numbers are whole."""
    weight = b.astype(np.float64) - (0 if b_zero is None else b_zero)
    return (a - (0 if a_zero is None else a_zero)).affine(lambda v: v @ weight)


def conv_integer(x: Flow, w: Array, x_zero: Operand = 0, w_zero: Operand = 0, **how: Any) -> Flow:
    weight = torch.from_numpy(w.astype(np.float64) - w_zero)
    return (x - x_zero).affine(lambda v: conv(torch.from_numpy(v), weight, **how).numpy())


def qlinear_matmul(
    a: Flow, s: Array, z: Array, b: Array, b_s: Array, b_z: Array, y_s: Array, y_z: Array
) -> Flow:
    weight = (b.astype(np.float64) - b_z) * b_s
    return _quantised(((a - z) * s).affine(lambda v: v @ weight), y_s, y_z)


def qlinear_conv(
    x: Flow, s: Array, z: Array, w: Array, w_s: Array, w_z: Array, y_s: Array, y_z: Array, **how: Any
) -> Flow:
    shape = (-1, 1, 1, 1)
    weight = torch.from_numpy((w.astype(np.float64) - w_z.reshape(shape)) * w_s.reshape(shape))
    y = ((x - z) * s).affine(lambda v: conv(torch.from_numpy(v), weight, **how).numpy())
    return _quantised(y, y_s, y_z)


# -- sequences ------------------------------------------------------------------------------------------


def _sigmoid(x: Flow) -> Flow:
    return x.each(lambda v: 1 / (1 + np.exp(-v)), lambda v: 1 / (2 + np.exp(v) + np.exp(-v)))


def _tanh(x: Flow) -> Flow:
    return x.each(np.tanh, lambda v: 1 / np.cosh(v) ** 2)


def _times(h: Flow, w: Array) -> Flow:
    return h.affine(lambda v: v @ w.T)


def _rnn(z: Flow, states: list[Flow], r: Array, rb: Array, attributes: Any, _: Any) -> list[Flow]:
    z = z + _times(states[0], r) + rb
    if attributes.get("activations") == ["Affine"]:
        (alpha,), (beta,) = attributes["activation_alpha"], attributes["activation_beta"]
        return [z * alpha + beta]
    return [_tanh(z)]


def _gru(z: Flow, states: list[Flow], r: Array, rb: Array, attributes: Any, _: Any) -> list[Flow]:
    (h,), size = states, len(r) // 3
    (r_z, r_r, r_h), (b_z, b_r, b_h) = np.split(r, 3), np.split(rb, 3)
    update = _sigmoid(z[..., :size] + _times(h, r_z) + b_z)
    reset = _sigmoid(z[..., size : 2 * size] + _times(h, r_r) + b_r)
    if attributes.get("linear_before_reset"):
        inner = reset * (_times(h, r_h) + b_h)
    else:
        inner = _times(reset * h, r_h) + b_h
    new = _tanh(z[..., 2 * size :] + inner)
    return [(1 - update) * new + update * h]


def _lstm(z: Flow, states: list[Flow], r: Array, rb: Array, attributes: Any, peepholes: Any) -> list[Flow]:
    (h, c), size = states, len(r) // 4
    z_i, z_o, z_f, z_c = ((z + _times(h, r) + rb)[..., k * size : (k + 1) * size] for k in range(4))
    p_i, p_o, p_f = np.zeros((3, size)) if peepholes is None else np.split(peepholes, 3)
    i = _sigmoid(z_i + c * p_i)
    forget = 1 - i if attributes.get("input_forget") else _sigmoid(z_f + c * p_f)
    c = forget * c + i * _tanh(z_c)
    return [_sigmoid(z_o + c * p_o) * _tanh(c), c]


def _recurrent(step: Callable[..., list[Flow]], held: int) -> Callable[..., Flow]:
    """Y [N, S, D, H] of a layer with its rows first."""

    def run(
        x: Flow, w: Array, r: Array, b: Any = None, _: None = None, *rest: Any, **attributes: Any
    ) -> Flow:
        initial, peepholes = rest[:held], rest[held] if len(rest) > held else None
        direction, outputs = attributes.get("direction", "forward"), []
        for d in range(len(w)):
            w_bias, r_bias = np.zeros((2, len(w[d]))) if b is None else np.split(b[d], 2)
            zero = constant(np.zeros((len(x.x), r.shape[2])))
            states = [v[:, d] if v is not None else zero for v in initial] or [zero] * held
            back = direction == "reverse" or d == 1
            steps = range(x.x.shape[1])
            hidden: dict[int, Flow] = {}
            for t in reversed(steps) if back else steps:
                z = _times(x[:, t], w[d]) + w_bias
                states = step(
                    z, states, r[d], r_bias, attributes, None if peepholes is None else peepholes[d]
                )
                hidden[t] = states[0]
            outputs.append(side_by_side([hidden[t][:, None, None] for t in steps], 1))
        return side_by_side(outputs, 2)

    return run


FORMULAS: dict[str, Callable[..., Flow | None]] = {
    "ConvInteger": conv_integer,
    "CumProd": cumulative_product,
    "Det": determinant,
    "Equal": _comparing(lambda v: v == 0),
    "GRU": _recurrent(_gru, 1),
    "Greater": _comparing(lambda v: v > 0),
    "GreaterOrEqual": _comparing(lambda v: v >= 0),
    "GroupNormalization": group_norm,
    "GlobalMaxPool": lambda x: greatest(x, tuple(range(2, x.x.ndim))),
    "Hardmax": hardmax,
    "InstanceNormalization": instance_norm,
    "LRN": lrn,
    "LSTM": _recurrent(_lstm, 2),
    "LayerNormalization": layer_norm,
    "Less": _comparing(lambda v: v < 0),
    "LessOrEqual": _comparing(lambda v: v <= 0),
    "LogSoftmax": log_softmax,
    "LpNormalization": lp_norm,
    "LpPool": lp_pool,
    "MatMulInteger": matmul_integer,
    "Max": several_greatest,
    "MaxPool": greatest_of_windows,
    "MeanVarianceNormalization": mean_variance_norm,
    "Min": several_least,
    "Mod": modulo,
    "Pow": power,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    "RMSNormalization": rms_norm,
    "RNN": _recurrent(_rnn, 1),
    "ReduceL2": _reducing(norm),
    "ReduceLogSum": _reducing(lambda x, axes: x.sum(axes).each(np.log, lambda v: 1 / v)),
    "ReduceLogSumExp": _reducing(log_sum_exp),
    "ReduceMax": _reducing(greatest),
    "ReduceMin": _reducing(lambda x, axes: -greatest(-x, axes)),
    "ReduceProd": _reducing(reduce_prod),
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Softmax": softmax,
    "TopK": top_k,
}
