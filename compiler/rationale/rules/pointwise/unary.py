"""Functions of one value, declared by their slopes alone."""

from collections.abc import Callable, Iterable

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.rule import Evaluation, Kind, Trait, rule


def declare_unary(
    op_type: str,
    formula: str,
    derivative: Callable[[Ops, Tensor], Tensor] | None,
    secant: Callable[..., Tensor] | None = None,
    traits: Iterable[Trait] = (),
) -> None:
    """Declare y = f(x), one of ONNX's own operators.

    Args:
        derivative: f'(x); None for a step.
        secant: see `Rule.secant`.
    """

    def forward(op: Ops, x: Tensor) -> Evaluation:
        y = op.emit(op_type, (x,), {})[0]
        if derivative is None:
            return y, zero_pullback(op, x)

        def pullback(m: Tensor) -> Tensor:
            return op.Mul(m, derivative(op, x))

        pullback.__name__ = f"{op_type.lower()}_pullback"
        return y, pullback

    forward.__doc__ = formula
    declared = rule(op_type, kind=Kind.POINTWISE, traits=traits)(forward)
    if secant is not None:
        declared.secant(secant)


def zero_pullback(op: Ops, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the pullback of a step: a gradient of 0."""
    dtype = x.dtype if x.dtype.is_floating_point() else op.dtype

    def step_pullback(_: Tensor) -> Tensor:
        return op.row_constant(np.zeros((1,) * x.rank, dtype.numpy()))

    return step_pullback
