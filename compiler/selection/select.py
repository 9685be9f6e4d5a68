"""The second stage of a compile: what is explained, by which inputs, and the operators between."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from compiler.errors import InvalidOptionError, InvalidReferencesError, UnsupportedModelError
from compiler.lowering import Lowered
from compiler.manifest import elements
from compiler.methods import Method
from compiler.methods.base import ExplainsScores, OfCoalitions, OfTrees, OnPaths, Walked
from compiler.selection.games.coalitions import choose_game
from compiler.selection.games.ensembles import choose_ensemble, owners_of
from compiler.selection.labelled import FeatureNames, by_name, features_of
from compiler.selection.logits import choose_logits
from compiler.selection.path import Concepts, Layers, Path, choose_path, foremost
from compiler.selection.players import Groups, choose_players, game_of
from compiler.selection.targets import Targets


@dataclass(frozen=True)
class Question:
    """What to explain, and by what; see `compile_model`."""

    output: str | None = None
    logits: bool = False
    targets: Targets = None
    inputs: Sequence[str] | None = None
    feature_names: FeatureNames | None = None
    layers: Layers = ()
    concepts: Concepts | None = None
    groups: Groups | None = None


@dataclass(frozen=True)
class Selection:
    """A lowered model with the path that is walked in it.

    Attributes:
        method: with arrays in place of tables whose columns have names.
        feature_names: as they were given, or as those columns are called.
    """

    lowered: Lowered
    path: Path
    method: Method
    feature_names: FeatureNames | None


def select(lowered: Lowered, method: Method, question: Question) -> Selection:
    """Finds the path from the explained inputs to the explained output.

    It begins at the first of the layers that are named where an operator before them has no rule.

    Raises:
        InvalidOptionError: an output, target, input, layer or feature name that does not exist, no logits,
            groups that do not fit, or layers of a method that walks between inputs.
        UnsupportedModelError: operators without a rule (every one is listed), or rows that mix.
        InvalidReferencesError: a method that needs references has none, or their columns do not fit.
    """
    given = method.reference_set
    if (question.layers or question.concepts) and isinstance(method, OnPaths):
        raise InvalidOptionError(
            f"{method.name} takes its points on a path between inputs, so that one walk explains no layers: "
            "explain a layer by itself (--input LAYER), or choose deepshap, gradient, lrp or attnlrp."
        )
    if isinstance(method, OfTrees):
        return _of_trees(lowered, method, question)
    if isinstance(method, OfCoalitions):
        return _of_coalitions(lowered, method, question)
    scores_for = method.name if isinstance(method, ExplainsScores) else None
    referenced = given if isinstance(given, Mapping) else ()

    def path_from(inputs: Sequence[str] | None) -> tuple[Lowered, Path]:
        return choose_path(
            lowered,
            question.output,
            question.targets,
            inputs,
            referenced,
            question.logits,
            scores_for,
            question.layers,
            question.concepts,
        )

    try:
        lowered, path = path_from(question.inputs)
    except UnsupportedModelError as error:
        if question.inputs is not None or question.layers == "all" or not question.layers:
            raise
        first = foremost(lowered, question.layers)
        lowered, path = path_from(first)
        note = f"attributions end at {first}, and the inputs have none: {error}"
        path = replace(path, notes=(*path.notes, note))
    if given is None and method.has_base_value:
        raise InvalidReferencesError(f"{method.name} needs references: an array [K, …] of typical rows.")
    return _named(lowered, path, method, question)


def _of_trees(lowered: Lowered, method: OfTrees, question: Question) -> Selection:
    """The same for a method that needs no walk.

    Raises:
        InvalidOptionError: besides, layers or concepts, which only a walk meets; logits of plain scores, or
            beside probabilities.
        UnsupportedModelError: besides, interactions of groups or of several inputs.
    """
    _demand_no_layers(method, question)
    lowered, path = choose_ensemble(
        lowered,
        method.name,
        question.output,
        question.targets,
        question.inputs,
        method.reference_set,
        method.probability,
    )
    assert path.trees is not None
    if question.logits and method.probability:
        raise InvalidOptionError("logits and space 'probability' exclude each other: leave one out.")
    if question.logits and path.trees.ensemble.post_transform == "NONE":
        choose_logits(lowered.source, path.output)
    selection = _named(lowered, path, method, question)
    if method.interactions and (question.groups or len(path.leaves) > 1):
        raise UnsupportedModelError(
            "interactions are given of each two features of one input without groups. Ask for those of what "
            f"the trees read (--input {path.trees.reads}), or leave them out."
        )
    owners = owners_of(lowered, selection.path, method.name)
    trees = replace(path.trees, owners=owners)
    return replace(selection, path=replace(selection.path, trees=trees))


def _named(lowered: Lowered, path: Path, method: Method, question: Question) -> Selection:
    """With names of features, groups of them as players, and the game that is played without a walk."""
    method, names = by_name(method, lowered, path, question.feature_names)
    if question.groups:
        rows = {name: tuple(lowered.specs[name][0][1:]) for name in path.inputs}
        known = features_of(path.inputs, rows, names)
        features = {i: named or elements(i, prod(rows[i])) for i, named in known.items()}
        path = replace(path, players=choose_players(question.groups, features))
    if not isinstance(method, Walked):
        path = replace(path, game=game_of(lowered, path.leaves, path.players))
    return Selection(lowered, path, method, names)


def _of_coalitions(lowered: Lowered, method: OfCoalitions, question: Question) -> Selection:
    """The same for a method that needs no rules.

    Raises:
        InvalidOptionError: besides, layers or concepts, which only a walk meets; too many players.
    """
    _demand_no_layers(method, question)
    if method.reference_set is None:
        raise InvalidReferencesError(f"{method.name} needs references: an array [K, …] of typical rows.")
    lowered, path = choose_game(
        lowered,
        method.name,
        question.output,
        question.targets,
        question.inputs,
        method.reference_set,
        question.logits,
    )
    selection = _named(lowered, path, method, question)
    assert selection.path.game is not None
    method.coalitions(selection.path.game.players)
    return selection


def _demand_no_layers(method: Method, question: Question) -> None:
    if question.layers or question.concepts:
        raise InvalidOptionError(f"{method.name} walks through no layers: leave --layers and --concepts out.")
