"""Operators that move values without computing; each adjoint moves them back."""

import functools
from collections.abc import Sequence

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.moving.indexing import put_back, take
from rationale.rules.rule import Evaluation, Kind, Trait, rule

BILINEAR = Kind.BILINEAR


def ints(tensor: Tensor | None, operand: str) -> list[int]:
    """Return a constant operand as a list of ints.

    Raises:
        UnsupportedModelError: if it is computed.
    """
    if tensor is None or tensor.constant is None:
        raise UnsupportedModelError(f"computed {operand}")
    return [int(i) for i in tensor.constant.reshape(-1)]


@rule("Identity", kind=BILINEAR, traits=[Trait.MOVING])
def identity(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = x."""
    return op.Identity(x), lambda m: m


@rule("Dropout", kind=BILINEAR, traits=[Trait.MOVING])
def dropout(
    op: Ops,
    x: Tensor,
    ratio: Tensor | None = None,
    training: Tensor | None = None,
    *,
    seed: int | None = None,
) -> Evaluation:
    """Compute y = x at inference."""
    del ratio, training  # lowering refuses training mode
    return op.Identity(x), (lambda m: m, None, None)


@rule("Cast", kind=BILINEAR, traits=[Trait.MOVING, Trait.DISCRETE])
def cast(op: Ops, x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Evaluation:
    """Compute y = x in another type. A cast that drops fractions or makes conditions is rewritten."""

    def cast_pullback(m: Tensor) -> Tensor:
        return op.Cast(m, to=int(x.dtype)) if x.dtype.is_floating_point() else m

    return op.Cast(x, to=to), cast_pullback


def _declare_reshape(op_type: str) -> None:
    def forward(op: Ops, x: Tensor, shape: Tensor | None = None, **attributes: int) -> Evaluation:
        def pullback(m: Tensor) -> Tensor:
            return op.reshape(m, x.shape)

        pullback.__name__ = f"{op_type.lower()}_pullback"
        return getattr(op, op_type)(x, shape, **attributes), (pullback, None)

    forward.__doc__ = "y = x with another shape."
    rule(op_type, kind=BILINEAR, traits=[Trait.MOVING])(forward)


for _op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
    _declare_reshape(_op_type)


@rule("Expand", kind=BILINEAR, traits=[Trait.MOVING])
def expand(op: Ops, x: Tensor, shape: Tensor) -> Evaluation:
    """Compute y = x broadcast; the adjoint sums over the repetitions."""
    return op.Expand(x, shape), (lambda m: m, None)


@rule("Transpose", kind=BILINEAR, traits=[Trait.MOVING])
def transpose(op: Ops, x: Tensor, *, perm: Sequence[int] | None = None) -> Evaluation:
    """Compute y = x with its axes in another order."""
    perm = list(perm) if perm is not None else list(reversed(range(x.rank)))

    def transpose_pullback(m: Tensor) -> Tensor:
        return op.Transpose(m, perm=[perm.index(i) for i in range(len(perm))])

    return op.Transpose(x, perm=perm), transpose_pullback


@rule("Concat", kind=BILINEAR, traits=[Trait.MOVING])
def concat(op: Ops, *xs: Tensor, axis: int) -> Evaluation:
    """Compute y = the inputs side by side."""
    axis = axis % xs[0].rank
    sizes = [x.shape[axis] for x in xs]

    @functools.lru_cache(1)  # one Split returns the parts of all inputs
    def parts(m: Tensor) -> list[Tensor]:
        return op.emit("Split", (m, sizes), {"axis": axis}, outputs=len(sizes)) if len(sizes) > 1 else [m]

    def concat_pullback(i: int, m: Tensor) -> Tensor:
        return parts(m)[i]

    pullbacks = tuple(functools.partial(concat_pullback, i) for i in range(len(xs)))
    filled = [x for x, size in zip(xs, sizes, strict=True) if size]  # in a Reshape, 0 means another size
    return op.Concat(*(filled or xs), axis=axis), pullbacks


@rule("Split", kind=BILINEAR, traits=[Trait.MOVING])
def split(
    op: Ops, x: Tensor, sizes: Tensor | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> Evaluation:
    """Compute ys = x in parts along an axis."""
    axis = axis % x.rank
    if sizes is None:
        count = num_outputs or 1
        size = -(-x.shape[axis] // count)
        parts = [min(size, x.shape[axis] - i * size) for i in range(count)]
    else:
        parts = ints(sizes, "Split sizes")
    ys = op.emit("Split", (x, parts), {"axis": axis}, outputs=len(parts))

    def split_pullback(ms: tuple[Tensor, ...]) -> Tensor:
        parts = [m for m in ms if 0 not in m.shape]
        return op.Concat(*parts, axis=axis)

    return tuple(ys), (split_pullback, None)


@rule("Slice", kind=BILINEAR, traits=[Trait.MOVING])
def slice_(
    op: Ops,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Evaluation:
    """Compute y = a strided part of x; the adjoint puts it back among zeros."""
    begin, end = ints(starts, "Slice starts"), ints(ends, "Slice ends")
    numbers = ints(axes, "Slice axes") if axes is not None else range(len(begin))
    stride = ints(steps, "Slice steps") if steps is not None else [1] * len(begin)
    picks = {
        a % x.rank: list(range(*slice(b, _open_end(e, s), s).indices(x.shape[a])))
        for a, b, e, s in zip(numbers, begin, end, stride, strict=True)
    }
    picks = {a: index for a, index in picks.items() if index != list(range(x.shape[a]))}

    def slice_pullback(m: Tensor) -> Tensor:
        for axis, index in picks.items():
            m = put_back(op, m, index, axis, x.shape[axis])
        return m

    y = x
    for axis, index in picks.items():
        y = take(op, y, index, axis)
    return (op.Identity(x) if y is x else y), (slice_pullback, None, None, None, None)


def _open_end(end: int, step: int) -> int | None:
    """Return None for ONNX's `end` far below 0, which means "past the first element" when going backwards."""
    return None if step < 0 and end < -(2**30) else end
