"""The gradient and input × gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.forward import Call
from compiler.graph import Ops
from compiler.methods.base import Gap, pull_back
from compiler.tensor import Tensor


@dataclass(frozen=True)
class Gradient:
    """The signed gradient dy/dx of the target, or x·dy/dx with `times_input`.

    Simonyan et al., "Deep Inside Convolutional Networks", 2014 (there as an absolute value);
    Shrikumar et al., "Not Just a Black Box", 2016 for the product.
    Neither adds up to the output, so the graph has no base value and no completeness gap.
    """

    times_input: bool = False

    name: ClassVar[str] = "gradient"
    has_base_value: ClassVar[bool] = False
    gap: ClassVar[Gap | None] = None
    reference_set: ClassVar[None] = None
    reference_weights: ClassVar[None] = None

    @property
    def options(self) -> dict[str, Any]:
        return {"times_input": self.times_input}

    def pull(self, op: Ops, call: Call, m: Tensor | tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        return pull_back(call.x, call, m)

    def attribute(
        self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        return op.Mul(m, x) if self.times_input else op.expand(m, x.shape)
