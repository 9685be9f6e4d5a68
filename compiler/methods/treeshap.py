"""Exact Shapley values of tree ensembles over a reference set: tables that a row is looked up in.

Lundberg et al., "From local explanations to global understanding with explainable AI for trees", 2020,
"interventional"; docs/decisions/0032-trees-as-tables.md says how they become tables.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.methods.base import Gap, References
from compiler.references.reference_set import ReferenceSet
from compiler.trees.emit import emit_tables
from compiler.trees.ensemble import Ensemble
from compiler.trees.tables import build_tables


@dataclass(frozen=True, eq=False)
class TreeShap:
    """Shapley values of a tree ensemble's scores: a coalition's features come from the row, others from a
    reference. Exact, and the time of an answer does not depend on how many references there are.

    Args:
        references: one array [K, F]; NaN where a value is missing.
        weights: K weights of the references (they are normalised); None for equal weights.
    """

    references: References
    weights: npt.ArrayLike | None = None

    name: ClassVar[str] = "treeshap"
    has_base_value: ClassVar[bool] = True
    gap: ClassVar[Gap | None] = Gap.ROUNDING

    @property
    def reference_set(self) -> References:
        return self.references

    @property
    def reference_weights(self) -> npt.ArrayLike | None:
        return self.weights

    @property
    def options(self) -> dict[str, Any]:
        return {}

    def attributions(
        self,
        op: Ops,
        ensemble: Ensemble,
        asked: np.ndarray,
        x: Tensor,
        references: ReferenceSet,
        owners: np.ndarray | None = None,
    ) -> Tensor:
        """Looks up what was computed for every pattern of conditions that a row can satisfy."""
        (rows,) = references.arrays.values()
        rows = rows.reshape(len(rows), -1)
        tables = build_tables(ensemble, ensemble.weights @ asked, rows, references.weights, owners)
        return emit_tables(op, tables, op.reshape(x, (1, rows.shape[1])), op.dtype)
