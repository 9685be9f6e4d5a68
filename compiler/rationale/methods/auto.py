"""The automatic choice of a method: an exact one if possible, chosen after the model is loaded."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
import onnx_ir as ir

from rationale.errors import InvalidOptionError, InvalidReferencesError, UnsupportedModelError
from rationale.lowering import Lowered
from rationale.methods.coalitions.shapley import ExactShap, PermutationShap
from rationale.methods.engine import Method, MethodChoice, References, Selection, WeightedMethod
from rationale.methods.propagation.deepshap import DeepShap
from rationale.methods.propagation.engine import WALK
from rationale.methods.propagation.path import is_linear
from rationale.methods.trees.ensembles import TreeChoice
from rationale.methods.trees.treeshap import TreeShap
from rationale.schema.request import CompileRequest


@dataclass(frozen=True, eq=False)
class Auto(WeightedMethod):
    """Shapley values by the method that is exact for the explained output, else by an approximation.

    TreeShap if the output is the raw score of a tree ensemble; DeepShap if every operator before it is
    linear; ExactShap up to 12 features; else DeepShap, or PermutationShap if the model has operators without
    a rule, or text inputs, which DeepShap would leave out. The manifest names the chosen method, and a note
    gives the reason: a warning if the method approximates. If the output is a probability, or an exponential
    of scores, that output is explained; its margin is explained only if the request names it.

    Args:
        references: one array [K, …], or one for each explained input.
        weights: K weights of the references (they are normalised); None for equal weights.
    """

    references: References
    weights: npt.ArrayLike | None = None

    name: ClassVar[str] = "auto"
    engine = WALK
    """The engine until a method is chosen."""

    def in_space(self, space: str, transform: str) -> Method:
        del space, transform
        return self

    def choices(self, lowered: Lowered, request: CompileRequest) -> list[MethodChoice]:
        """Return the methods that can answer, in the order in which the compile tries them.

        Methods that are exact for the explained output come first. A later one is used if no graph can be
        made with those before it.

        Raises:
            InvalidOptionError, UnsupportedModelError, InvalidReferencesError: if no method can answer the
                request.
        """
        references, weights = self.references, self.weights
        treeshap, deepshap = TreeShap(references, weights=weights), DeepShap(references, weights)
        exactshap = ExactShap(references, weights)
        permutationshap = PermutationShap(references, weights=weights)
        choices = []
        ensemble = _try_select(lowered, treeshap, request)
        are_scores = ensemble is not None and _are_scores(ensemble, request)
        if are_scores:
            why = "treeshap, exact: the explained output is the score of one tree ensemble"
            choices.append(MethodChoice(treeshap, why))
        walk, game = (_try_select(lowered, method, request) for method in (deepshap, permutationshap))
        if walk and game and _leaves_words_out(walk, game):
            walk = None  # its attributions would be complete, but only for some of the features
        if walk and is_linear(walk.target, walk.choice):
            why = "deepshap, exact: every operator between the inputs and the output is linear"
            choices.append(MethodChoice(deepshap, why))
        if exact_selection := _try_select(lowered, exactshap, request):
            players = exact_selection.choice.game.players
            why = f"exactshap, exact: the model is called for every coalition of {players} features"
            choices.append(MethodChoice(exactshap, why))
        if walk:
            why = "deepshap, which approximates Shapley values: no exact method fits this model"
            choices.append(MethodChoice(deepshap, why, is_exact=False))
        if game:
            why = "permutationshap, which estimates Shapley values: no exact method fits this model, "
            why += "nor deepshap"
            if ensemble and not are_scores:
                why += "; treeshap explains the score behind it exactly: logits=True (--logits)"
            choices.append(MethodChoice(permutationshap, why, is_exact=False))
        if not choices:
            deepshap.engine.select(lowered, deepshap, request)
        return choices


def _try_select(lowered: Lowered, method: Method, request: CompileRequest) -> Selection[Any, Any] | None:
    """Return the selection; None if the method cannot answer the request."""
    try:
        return method.engine.select(lowered, method, request)
    except (InvalidOptionError, InvalidReferencesError, UnsupportedModelError):
        return None


def _leaves_words_out(walk: Selection[Any, Any], game: Selection[Any, Any]) -> bool:
    """Tell whether the game has text inputs as players that get no attributions on a walk."""
    inputs = walk.lowered.model.graph.inputs
    words = {str(v.name) for v in inputs if v.dtype == ir.DataType.STRING}
    return not words.isdisjoint(set(game.target.tensors) - set(walk.target.tensors))


def _are_scores(selection: Selection[Any, TreeChoice], request: CompileRequest) -> bool:
    """Tell whether the ensemble's scores are the output itself, or the request names them."""
    trees = selection.choice
    return bool((trees.ensemble.post_transform == "NONE" and not trees.link) or request.logits)
