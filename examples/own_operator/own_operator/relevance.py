"""An LRP rule: every input takes part by the size of its contribution, z = |W|·|x| + |b|."""

from dataclasses import dataclass
from typing import ClassVar

from rationale import Ops, Tensor
from rationale.methods.propagation.lrp.rules import STABILISER, Group, RelevanceRule, Term


def absolute(op: Ops, v: Tensor) -> Tensor:
    return op.Abs(v)


@dataclass(frozen=True)
class Absolute(RelevanceRule):
    """R_j = Σ_k |x_j·w_jk| / (Σ_j |x_j·w_jk| + |b_k|) · R_k."""

    epsilon: float = STABILISER
    name: ClassVar[str] = "absolute"

    def groups(self) -> tuple[Group, ...]:
        return (Group((Term(absolute, absolute, absolute),)),)
