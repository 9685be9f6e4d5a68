"""Exact Shapley values of tree ensembles, over a reference set or by the covers of their nodes.

Lundberg et al., "From local explanations to global understanding with explainable AI for trees", 2020;
docs/adr/0032-trees-as-tables.md describes the tables in which a row is looked up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from rationale.errors import InvalidOptionError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.engine import Gap, Method, References
from rationale.methods.trees.engine import TREES
from rationale.methods.trees.method import OpenScores, TreeMethod, TreeScores
from rationale.references.reference_set import OpenReferences
from rationale.trees.by_leaf import build_leaves, split_by_size
from rationale.trees.covers import with_counted_covers
from rationale.trees.emit import emit_interactions, emit_rescaled, emit_slope, emit_tables
from rationale.trees.emit_leaves import emit_leaves
from rationale.trees.pairs import Weighting, build_pairs, emit_pairs
from rationale.trees.picking import Picker
from rationale.trees.probability import separate_slope
from rationale.trees.tables import Tables, build_tables, trees_of


@dataclass(frozen=True, eq=False)
class TreeShap(TreeMethod):
    """Exact Shapley values of a tree ensemble's scores.

    The time does not depend on the number of references, unless they come with each request.

    With references, a coalition's features come from the row, all others from a reference (interventional).
    Without references, a row goes both ways at a split by a feature outside the coalition, weighted by the
    shares of training rows that went each way (path-dependent).

    Args:
        references: one array [K, F]; NaN for a missing value. None for path-dependent values.
        covers: for path-dependent values, rows [R, F] that determine the nodes' covers; by default the
            model's own covers (nodes_hitrates), which few converters write.
        space: "output", the ensemble's scores, or "probability", their LOGISTIC: each reference's
            attributions are rescaled, as shap does with model_output="probability".
        interactions: also return `<input>_interactions` [N, T, F, F]: off the diagonal half the Shapley
            interaction of two features, on the diagonal the rest of a feature's attribution.
        weights: K weights of the references or covers (they are normalised); None for equal weights.

    Raises:
        InvalidOptionError: if there are both references and covers, weights without either, an unknown space,
            or probabilities without references or with interactions.
    """

    references: References | None = None
    covers: References | None = None
    space: str = "output"
    interactions: bool = False
    weights: npt.ArrayLike | None = None

    name: ClassVar[str] = "treeshap"
    engine = TREES
    has_base_value: ClassVar[bool] = True
    gap: ClassVar[Gap | None] = Gap.ROUNDING

    def __post_init__(self) -> None:
        if self.references is not None and self.covers is not None:
            raise InvalidOptionError("treeshap uses references or covers, not both: give one of the two.")
        if isinstance(self.covers, OpenReferences):
            raise InvalidOptionError("requests cannot bring covers: give rows.")
        if self.weights is not None and self.reference_set is None:
            raise InvalidOptionError("weights need references or covers: give one of them.")
        if self.space not in ("output", "probability"):
            raise InvalidOptionError(f"space {self.space!r}: choose output or probability.")
        if self.probability and (self.references is None or self.interactions):
            raise InvalidOptionError(
                "space 'probability' rescales the attributions to each reference: it needs references, "
                "and has no interactions."
            )

    @property
    def probability(self) -> bool:
        return self.space == "probability"

    @property
    def reference_set(self) -> References | None:
        """References or covers: the base value is the mean output over these rows."""
        return self.covers if self.references is None else self.references

    @property
    def reference_weights(self) -> npt.ArrayLike | None:
        return self.weights

    @property
    def features_with_fixed_references(self) -> Sequence[str]:
        return ["interactions"] if self.interactions else []

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "path_dependent": self.references is None,
            "interactions": self.interactions,
        }
        options["space"] = self.space if self.probability else None
        return {name: chosen for name, chosen in options.items() if chosen}

    def in_space(self, space: str, transform: str) -> Method:
        """Return a method for a space; a probability needs a LOGISTIC; rescaled margins explain it."""
        if space == "output" and transform not in ("", "NONE", "LOGISTIC"):
            raise InvalidOptionError(
                f"space 'output': {self.name} explains the margin of a {transform}: choose exactshap or "
                "permutationshap"
            )
        if space == "margin" or transform != "LOGISTIC":
            return self
        try:
            return replace(self, space="probability")
        except InvalidOptionError as error:
            raise InvalidOptionError(
                f"space 'output', a probability of trees: {str(error).rstrip('.')}"
            ) from error

    def attributions(self, op: Ops, scores: TreeScores) -> Tensor:
        """Look up the result for the row's pattern of conditions."""
        if scores.open is not None:
            return _by_pairs(op, scores, scores.open)
        if (
            scores.margins is not None
            and scores.margins.at_references is not None
            and scores.rows is not None
        ):
            return _rescale(op, scores, scores.rows, scores.margins.at_x, scores.margins.at_references)
        if self.references is not None and scores.rows is not None:
            return _by_references(op, scores, scores.rows)
        return emit_tables(op, self._tables(scores), _flat(op, scores.x), op.dtype)

    def interaction_values(self, op: Ops, scores: TreeScores, attributions: Tensor) -> Tensor:
        """Look interactions up in tables of their own."""
        return emit_interactions(op, self._tables(scores, pairs=True), _flat(op, scores.x), attributions)

    def _tables(self, scores: TreeScores, *, pairs: bool = False) -> Tables:
        ensemble, rows, weights = scores.ensemble, scores.rows, scores.weights
        if self.references is None and rows is not None:
            ensemble, rows = with_counted_covers(ensemble, rows, weights), None
        return build_tables(ensemble, scores.leaf_values, rows, weights, scores.player_of, pairs=pairs)


def _by_references(op: Ops, scores: TreeScores, rows: np.ndarray) -> Tensor:
    """Look attributions up in tables, or compute them leaf by leaf if tables would be too large."""
    x, values, weights, player_of = _flat(op, scores.x), scores.leaf_values, scores.weights, scores.player_of
    ensemble = replace(scores.ensemble, share=None)
    in_tables, leaf_by_leaf = split_by_size(trees_of(ensemble, values), values, player_of)
    tables = build_tables(ensemble, values, rows, weights, player_of, trees=in_tables)
    looked_up = emit_tables(op, tables, x, op.dtype)
    if not any(tree.groups for tree in leaf_by_leaf):
        return looked_up
    leaves = build_leaves(leaf_by_leaf, values, rows, weights, player_of)
    return op.Add(looked_up, emit_leaves(op, leaves, x, op.dtype))


def _by_pairs(op: Ops, scores: TreeScores, references: OpenScores) -> Tensor:
    """Compare the row with each of its references, leaf by leaf; rescale by the slopes for probabilities."""
    ensemble, values = replace(scores.ensemble, share=None), scores.leaf_values
    pairs = build_pairs(trees_of(ensemble, values), scores.player_of, references.count)
    x, r = _flat(op, scores.x), _flat(op, references.features)
    if scores.margins is None or references.margins is None:
        return emit_pairs(op, pairs, x, r, [Weighting(references.weights, values)])
    double, pick = int(ir.DataType.DOUBLE), Picker(op)
    at_x, at_r = (op.Cast(t, to=double) for t in (scores.margins.at_x, references.margins))
    slopes = op.Cast(emit_slope(op, at_x, at_r), to=int(op.dtype))
    weightings = [
        Weighting(
            op.Mul(
                op.reshape(op.beside(pick(slopes, np.array([c])), "K"), (1, references.count)),
                references.weights,
            ),
            ensemble.weights[:, [c]] * scores.target_matrix[[c]],
        )
        for c in np.flatnonzero(scores.target_matrix.any(axis=1))
    ]
    return emit_pairs(op, pairs, x, r, weightings)


def _rescale(
    op: Ops, scores: TreeScores, rows: np.ndarray, at_x: Tensor, at_references: np.ndarray
) -> Tensor:
    """Return the margin's attributions to each reference, multiplied by the slope to it.

    The slope is a sum of products, each with a table of its own.
    """
    ensemble, target_matrix = scores.ensemble, scores.target_matrix
    columns, x = np.flatnonzero(target_matrix.any(axis=1)), _flat(op, scores.x)
    reference_margins = at_references.astype(np.float64)
    low, high = ensemble.scores_between() + (reference_margins - ensemble.scores(rows)).mean(axis=0)
    terms = [separate_slope(reference_margins[:, c], low[c], high[c]) for c in columns]
    of_column = np.repeat(columns, [len(t.margins) for t in terms])
    share = np.full(len(rows), 1 / len(rows)) if scores.weights is None else scores.weights
    weights = np.concatenate([t.weights for t in terms]) * share
    tables = build_tables(ensemble, ensemble.weights[:, of_column], rows, weights, scores.player_of)
    return emit_rescaled(op, tables, x, Picker(op)(at_x, columns), terms, target_matrix[columns])


def _flat(op: Ops, x: Tensor) -> Tensor:
    return op.reshape(x, (1, prod(x.shape[1:])))
