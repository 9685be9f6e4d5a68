"""A value of the combined graph."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

AXES = ("N", "T", "C", "K", "S")
STACKED = ("M",)  # in place of the axes of `Tensor.split`: all of them as one
Lead = frozenset[str]
NONE: Lead = frozenset()


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the combined graph.

    Attributes:
        shape: the shape it has for one row (at batch 1, one target, one reference).
        lead: the axes over which it varies: rows N, targets T, concepts C, references K, points S.
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
