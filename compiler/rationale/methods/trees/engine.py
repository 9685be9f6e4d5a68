"""The engine that explains the scores of a tree ensemble by its tables."""

from collections.abc import Sequence
from dataclasses import replace

from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.lowering import Lowered
from rationale.methods.engine import Canvas, Engine, MissingValues, Selection, demand_no_layers
from rationale.methods.feature_names import with_named_features
from rationale.methods.leaves import Leaf, raw_leaves
from rationale.methods.logits import choose_logits
from rationale.methods.players import coalition_game
from rationale.methods.trees.emit import emit
from rationale.methods.trees.ensembles import TreeChoice, choose_ensemble, players_of_features
from rationale.methods.trees.method import TreeMethod
from rationale.schema.request import CompileRequest


class TreeTables(Engine[TreeMethod, TreeChoice]):
    """An engine without a walk: tables hold the result for every pattern of the trees' conditions."""

    missing = MissingValues.ALWAYS  # trees choose a side for NaN

    def leaves(self, lowered: Lowered, method: TreeMethod, inputs: Sequence[str] | None) -> tuple[Leaf, ...]:
        return raw_leaves(lowered, inputs)

    def select(
        self, lowered: Lowered, method: TreeMethod, request: CompileRequest
    ) -> Selection[TreeMethod, TreeChoice]:
        """Find the ensemble, and the player of each feature that it reads.

        Raises:
            InvalidOptionError: also if the request names layers or concepts, which need a walk, or logits of
                plain scores, or logits beside probabilities.
            UnsupportedModelError: also for interactions of groups or of several inputs.
        """
        demand_no_layers(method, request)
        lowered, target, trees = choose_ensemble(lowered, method, request)
        if request.logits and method.probability:
            raise InvalidOptionError("logits and space 'probability' exclude each other: leave one out.")
        if request.logits and trees.ensemble.post_transform == "NONE" and not trees.link:
            choose_logits(lowered.source, target.output)
        selection = with_named_features(Selection(lowered, target, method, None, trees), request)
        target = selection.target
        if method.interactions and (request.groups or len(target.leaves) > 1):
            raise UnsupportedModelError(
                "treeshap computes interactions between features of one input, without groups. Explain "
                f"the tensor that the trees read (--input {trees.reads}), or leave interactions out."
            )
        trees = replace(trees, game=coalition_game(lowered, target.leaves, target.players))
        player_of = players_of_features(lowered, target, trees, method.name)
        return replace(selection, choice=replace(trees, player_of=player_of))

    def emit(self, canvas: Canvas[TreeMethod, TreeChoice]) -> None:
        """Add lookups in tables of the results for every pattern of conditions that a row can satisfy."""
        emit(canvas)


TREES = TreeTables()
