"""Trees: the scores of one tree ensemble, explained by its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.lowering import Lowered
from rationale.methods.engine import Canvas, Engine, Method, Selection, demand_no_layers
from rationale.methods.feature_names import named
from rationale.methods.leaves import Leaf, raw_leaves
from rationale.methods.logits import choose_logits
from rationale.methods.outputs import Outputs
from rationale.methods.players import coalition_game
from rationale.methods.trees.emit import emit
from rationale.methods.trees.ensembles import choose_ensemble, players_of_features, splits_of
from rationale.references.reference_set import ReferenceSet
from rationale.schema.manifest import FLOATS, TensorSpec
from rationale.schema.request import CompileRequest


class TreeTables(Engine):
    """A walk is not needed: what trees decide is known for every pattern of their conditions."""

    def leaves(self, lowered: Lowered, method: Method, inputs: Sequence[str] | None) -> tuple[Leaf, ...]:
        return raw_leaves(lowered, inputs)

    def select(self, lowered: Lowered, method: Any, request: CompileRequest) -> Selection:
        """Find the ensemble, and whose each feature is that it reads.

        Raises:
            InvalidOptionError: besides, layers or concepts, which only a walk meets; logits of plain scores,
                or beside probabilities.
            UnsupportedModelError: besides, interactions of groups or of several inputs.
        """
        demand_no_layers(method, request)
        lowered, target, trees = choose_ensemble(lowered, method, request)
        if request.logits and method.probability:
            raise InvalidOptionError("logits and space 'probability' exclude each other: leave one out.")
        if request.logits and trees.ensemble.post_transform == "NONE" and not trees.link:
            choose_logits(lowered.source, target.output)
        selection = named(Selection(lowered, target, method, None, trees), request)
        target = selection.target
        if method.interactions and (request.groups or len(target.leaves) > 1):
            raise UnsupportedModelError(
                "interactions are given of each two features of one input without groups. Ask for those of "
                f"what the trees read (--input {trees.reads}), or leave them out."
            )
        trees = replace(trees, game=coalition_game(lowered, target.leaves, target.players))
        player_of = players_of_features(lowered, target, trees, method.name)
        return replace(selection, part=replace(trees, player_of=player_of))

    def splits(self, selection: Selection) -> Mapping[str, Sequence[Sequence[float]]]:
        return splits_of(selection.lowered, selection.target, selection.part)

    def outputs(self, selection: Selection) -> Outputs:
        method: Any = selection.method
        return Outputs.of(selection.target, interactions=method.interactions)

    def answers_missing(
        self, selection: Selection, spec: TensorSpec, references: ReferenceSet | None
    ) -> bool:
        """Tell whether NaN is answered: trees have a side for it."""
        return spec.datatype in FLOATS or super().answers_missing(selection, spec, references)

    def in_space(self, method: Any, space: str, transform: str) -> Method:
        """Explain a probability by rescaled margins, and only that of a LOGISTIC."""
        if space == "output" and transform not in ("", "NONE", "LOGISTIC"):
            raise InvalidOptionError(
                f"space 'output': {method.name} explains the margin of a {transform}: say space: margin, or "
                "choose permutationshap"
            )
        if space == "margin" or transform != "LOGISTIC":
            return super().in_space(method, space, "")
        try:
            rescaled: Method = replace(method, space="probability")
        except InvalidOptionError as error:
            raise InvalidOptionError(
                f"space 'output', a probability of trees: {error} Or say space: margin"
            ) from error
        return rescaled

    def emit(self, canvas: Canvas) -> None:
        """Look up what was computed for every pattern of conditions that a row can satisfy."""
        emit(canvas, self.outputs(canvas.selection))


TREES = TreeTables()
