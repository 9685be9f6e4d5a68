"""Which methods answer a question, those first that are exact for the explained output."""

from dataclasses import dataclass

import onnx_ir as ir

from compiler.errors import InvalidOptionError, InvalidReferencesError, UnsupportedModelError
from compiler.lowering import Lowered
from compiler.methods import Auto, DeepShap, ExactShap, Method, PermutationShap, TreeShap
from compiler.rules.rule import Kind, Rule, Trait
from compiler.selection.path import Path
from compiler.selection.select import Question, Selection, select

_JOINT = frozenset({Trait.ELEMENTWISE, Trait.MOVING})  # of a bilinear one: sums and copies of all its inputs


@dataclass(frozen=True)
class Way:
    """A method, and what the user is told of it."""

    method: Method
    why: str


def ways_of(lowered: Lowered, asked: Auto, question: Question) -> list[Way]:
    """In the order in which they shall be tried: a later one where a graph cannot be made of those before it.

    Raises:
        InvalidOptionError, UnsupportedModelError, InvalidReferencesError: no method answers the question.
    """
    given, weights = asked.references, asked.weights
    trees, deep = TreeShap(given, weights=weights), DeepShap(given, weights)
    enumerated, drawn = ExactShap(given, weights), PermutationShap(given, weights=weights)
    ways = []
    if (found := _selected(lowered, trees, question)) and _are_scores(found.path, question):
        ways.append(Way(trees, "treeshap, exact: what is explained is the score of one tree ensemble"))
    walked = _selected(lowered, deep, question)
    if walked and is_linear(walked.path):
        ways.append(Way(deep, "deepshap, exact: every operator between the inputs and the output is linear"))
    if played := _selected(lowered, enumerated, question):
        assert played.path.game is not None
        players = played.path.game.players
        why = f"exactshap, exact: the model is called for every coalition of {players} features"
        ways.append(Way(enumerated, why))
    if walked:
        ways.append(Way(deep, "deepshap, which approximates Shapley values: no exact method fits this model"))
    if _selected(lowered, drawn, question):
        why = "permutationshap, which estimates Shapley values: no exact method fits this model, nor deepshap"
        ways.append(Way(drawn, why))
    if not ways:
        select(lowered, deep, question)
    return ways


def _selected(lowered: Lowered, method: Method, question: Question) -> Selection | None:
    """None where the method does not answer the question."""
    try:
        return select(lowered, method, question)
    except (InvalidOptionError, InvalidReferencesError, UnsupportedModelError):
        return None


def _are_scores(path: Path, question: Question) -> bool:
    """Whether they are the output itself, or asked for by name: not the margin of a probability."""
    assert path.trees is not None
    return path.trees.ensemble.post_transform == "NONE" or question.logits


def is_linear(path: Path) -> bool:
    """Whether the explained output is a linear function of what is explained, as far as operators tell."""
    if path.stops or any(leaf.places is not None for leaf in path.leaves):
        return False
    return all(_is_linear(node, rule, path) for node, rule in path.nodes)


def _is_linear(node: ir.Node, rule: Rule, path: Path) -> bool:
    names = [None if v is None else str(v.name) for v in node.inputs]
    varying = [i for i, name in enumerate(names) if name in path.active]
    if len(varying) < sum(name in path.dependent for name in names):  # what the row decides without a rule
        return False
    if rule.kind is not Kind.BILINEAR or rule.deeplift_form is not None:
        return Trait.LINEAR_IN_FIRST in rule.traits and varying == [0]
    return len(varying) == 1 or (bool(rule.traits & _JOINT) and Trait.PRODUCT not in rule.traits)
