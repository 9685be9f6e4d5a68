"""Borders, added to a row or cut from it."""

from collections.abc import Sequence

import numpy as np

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.moving.indexing import put_back, take
from rationale.rules.moving.shape import ints
from rationale.rules.rule import Evaluation, Kind, Trait, rule

Borders = dict[int, tuple[int, int]]  # per axis, lengths added before and after; negative: cut off


@rule("Pad", kind=Kind.BILINEAR, traits=[Trait.MOVING])
def pad(
    op: Ops,
    x: Tensor,
    pads: Tensor,
    value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Evaluation:
    """Compute y = x with a border: of a constant, or of x's own values (edge, reflect, wrap)."""
    amounts = ints(pads, "Pad amounts")
    padded_axes = [a % x.rank for a in ints(axes, "Pad axes")] if axes is not None else list(range(x.rank))
    borders = {a: (amounts[i], amounts[len(padded_axes) + i]) for i, a in enumerate(padded_axes)}
    borders = {a: b for a, b in borders.items() if any(b)}
    if mode != "constant":
        return _own_values(op, x, borders, mode)

    def pad_pullback(m: Tensor) -> Tensor:
        return _without(op, m, borders)

    def pad_pullback_value(m: Tensor) -> Tensor:
        border = op.Sub(_total(op, m), _total(op, _inside(op, m, borders)))
        return op.reshape(border, value.shape if value is not None else ())

    if value is not None and value.batch_axes:  # the node takes one number for all rows
        ones = op.constant(np.ones(x.shape, x.dtype.numpy()))
        border = op.Sub(1.0, _with(op, op.Expand(ones, x.shape), borders))
        y = op.Add(_with(op, x, borders), op.Mul(border, op.reshape(value, (1,) * x.rank)))
    else:
        y = _with(op, x, borders, value)
    return y, (pad_pullback, None, pad_pullback_value, None)


def _with(op: Ops, x: Tensor, borders: Borders, value: Tensor | None = None) -> Tensor:
    if not borders:
        return op.Identity(x)
    before, after = zip(*borders.values(), strict=True)
    return op.Pad(x, [*before, *after], value, list(borders))


def _inside(op: Ops, m: Tensor, borders: Borders) -> Tensor:
    """Return the part of `m` inside the borders."""
    cut = {a: (max(b, 0), max(e, 0)) for a, (b, e) in borders.items() if b > 0 or e > 0}
    if not cut:
        return m
    starts = [b for b, _ in cut.values()]
    ends = [m.shape[a] - e for a, (_, e) in cut.items()]
    return op.Slice(m, starts, ends, list(cut))


def _without(op: Ops, m: Tensor, borders: Borders) -> Tensor:
    """Compute the adjoint of a constant border: cut it off, with zeros where x was cut."""
    lost = {a: (max(-b, 0), max(-e, 0)) for a, (b, e) in borders.items() if b < 0 or e < 0}
    m = _inside(op, m, borders)
    return _with(op, m, lost) if lost else m


def _total(op: Ops, m: Tensor) -> Tensor:
    return op.ReduceSum(m, list(range(m.rank)), keepdims=1)


_NUMPY_MODES = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def _own_values(op: Ops, x: Tensor, borders: Borders, mode: str) -> Evaluation:
    """Pad with x's own values, axis by axis."""
    if mode not in _NUMPY_MODES:
        raise UnsupportedModelError(f"Pad with mode {mode!r}")
    index = {a: _pad(x.shape[a], *border, mode) for a, border in borders.items()}

    def pad_pullback(m: Tensor) -> Tensor:
        for axis, indices in index.items():
            m = put_back(op, m, indices, axis, x.shape[axis])
        return m

    y = x
    for axis, indices in index.items():
        y = take(op, y, indices, axis)
    return (op.Identity(x) if y is x else y), (pad_pullback, None, None, None)


def _pad(size: int, before: int, after: int, mode: str) -> list[int]:
    indices = np.arange(size)[max(-before, 0) : size - max(-after, 0)]
    padded = np.pad(indices, (max(before, 0), max(after, 0)), mode=_NUMPY_MODES[mode])  # type: ignore[call-overload]  # its stubs want a literal mode
    return [int(i) for i in padded]


@rule("CenterCropPad", kind=Kind.BILINEAR, traits=[Trait.MOVING])
def center_crop_pad(op: Ops, x: Tensor, shape: Tensor, *, axes: Sequence[int] | None = None) -> Evaluation:
    """Compute y = the middle of x, or x in the middle of zeros, axis by axis."""
    cropped_axes = [a % x.rank for a in axes] if axes is not None else list(range(x.rank))
    borders = {}
    for axis, target in zip(cropped_axes, ints(shape, "CenterCropPad sizes"), strict=True):
        extra = target - x.shape[axis]
        if extra:  # half of it before, rounded towards 0
            before = extra // 2 if extra > 0 else -(-extra // 2)
            borders[axis] = (before, extra - before)

    def center_crop_pad_pullback(m: Tensor) -> Tensor:
        return _without(op, m, borders)

    return _with(op, x, borders), (center_crop_pad_pullback, None)
