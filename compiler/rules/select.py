"""Choices between values."""

from compiler.errors import UnsupportedModelError
from compiler.graph import Ops
from compiler.rule import Evaluation, Kind, Trait, rule
from compiler.tensor import Tensor


@rule("Where", kind=Kind.LOCAL, traits=[Trait.ELEMENTWISE])
def where(op: Ops, condition: Tensor, a: Tensor, b: Tensor) -> Evaluation:
    """y = a where the condition holds, else b: linear in both, as long as it holds."""

    def where_pullback_a(m: Tensor) -> Tensor:
        return op.Where(condition, m, 0.0)

    def where_pullback_b(m: Tensor) -> Tensor:
        return op.Where(condition, 0.0, m)

    return op.Where(condition, a, b), (None, where_pullback_a, where_pullback_b)


@where.deeplift
def where_multiplier(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor
) -> tuple[None, Tensor, Tensor]:
    """The adjoint, where x and r have the same condition."""
    if xs[0] is not rs[0]:
        raise UnsupportedModelError(
            "its condition depends on what is explained, and may differ between x and its reference"
        )
    return None, op.Where(xs[0], m, 0.0), op.Where(xs[0], 0.0, m)


@where.relevance
def where_relevance(op: Ops, m: Tensor, xs: list[Tensor], y: Tensor) -> tuple[None, Tensor, Tensor]:
    """To what was chosen."""
    return None, op.Where(xs[0], m, 0.0), op.Where(xs[0], 0.0, m)
