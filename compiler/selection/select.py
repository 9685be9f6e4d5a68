"""The second stage of a compile: what is explained, by which inputs, and the operators between."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.errors import InvalidReferencesError
from compiler.lowering import Lowered
from compiler.methods import Method
from compiler.methods.base import ExplainsScores
from compiler.selection.labelled import FeatureNames, by_name
from compiler.selection.path import Path, Targets, choose_path


@dataclass(frozen=True)
class Question:
    """What to explain, and by what; see `compile_model`."""

    output: str | None = None
    logits: bool = False
    targets: Targets = None
    inputs: Sequence[str] | None = None
    feature_names: FeatureNames | None = None


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

    Raises:
        InvalidOptionError: an output, target, input or feature name that does not exist, or no logits.
        UnsupportedModelError: operators without a rule (every one is listed), or rows that mix.
        InvalidReferencesError: a method that needs references has none, or their columns do not fit.
    """
    given = method.reference_set
    lowered, path = choose_path(
        lowered,
        question.output,
        question.targets,
        question.inputs,
        given if isinstance(given, Mapping) else (),
        question.logits,
        method.name if isinstance(method, ExplainsScores) else None,
    )
    if given is None and method.has_base_value:
        raise InvalidReferencesError(f"{method.name} needs references: an array [K, …] of typical rows.")
    method, names = by_name(method, lowered, path, question.feature_names)
    return Selection(lowered, path, method, names)
