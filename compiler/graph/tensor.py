"""A value of the combined graph, and how values broadcast."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

AXES = ("N", "T", "K", "S")
STACKED = ("M",)  # in place of the axes of `Tensor.split`: all of them as one
Lead = frozenset[str]
NONE: Lead = frozenset()

BROADCASTING = frozenset(
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh Cast Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor "
    "Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log "
    "Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin "
    "Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor".split()
)
_BOOLEAN = frozenset("And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor".split())


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the combined graph.

    Attributes:
        shape: the shape it has for one row (at batch 1, one target, one reference).
        lead: the axes among N, T, K, S over which it varies.
        rows: whether it belongs to a row, even where all rows have the same; False for weights.
        split: the lead axes that stand in front of `shape` in memory; None where it is flat.
    """

    value: ir.Value
    shape: tuple[int, ...]
    dtype: ir.DataType
    lead: Lead = NONE
    rows: bool = False
    split: tuple[str, ...] | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def name(self) -> str:
        return self.value.name or "?"

    @property
    def constant(self) -> np.ndarray | None:
        """The array behind an initializer; None for computed values."""
        return None if self.value.const_value is None else self.value.const_value.numpy()


def broadcasts(op_type: str, domain: str) -> bool:
    """Whether an operator runs element by element."""
    return not domain and op_type in BROADCASTING


def result_dtype(op_type: str, tensors: Sequence[Tensor], attributes: Mapping[str, Any]) -> ir.DataType:
    """The dtype of such an operator's result."""
    if op_type in _BOOLEAN:
        return ir.DataType.BOOL
    if op_type == "Cast":
        return ir.DataType(attributes["to"])
    return tensors[1].dtype if op_type == "Where" else tensors[0].dtype
