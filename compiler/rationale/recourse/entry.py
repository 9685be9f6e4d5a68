"""The parts of a compiled entry that recourse reads: its scores, its decisions and its trees."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from rationale.decisions.decide import Decision
from rationale.decisions.decided import Cells, Undecided, decide_inputs, knock_out_columns
from rationale.decisions.rows import Tensors, feature_values, profile_of, score_location
from rationale.recourse.cells import FLOAT_TYPES
from rationale.recourse.levers import Values
from rationale.recourse.recourse import Recourse, RecourseFinder
from rationale.schema.form import FormField, feature_names, knock_out_fields, model_fields
from rationale.schema.manifest import Manifest
from rationale.trees.boxes import Boxes, boxes
from rationale.trees.read import read_ensemble


@dataclass(frozen=True, eq=False)
class RunEntry:
    """An entry whose graphs are run by functions.

    Attributes:
        predict: a function that runs the plain model.
        explain: a function that runs the combined graph.
    """

    manifest: Manifest
    predict: Callable[[Tensors], Tensors]
    explain: Callable[[Tensors], Tensors]

    def scores(self, inputs: Tensors) -> np.ndarray:
        tensor, index = score_location(self.manifest)
        is_plain = any(spec.name == tensor for spec in self.manifest.outputs)
        answers = (self.predict if is_plain else self.explain)(inputs)[tensor]
        return answers.reshape(len(answers), -1)[:, index].astype(np.float64)

    def decide(self, inputs: Tensors, values: Sequence[Values]) -> list[Decision | Undecided]:
        beside = knock_out_columns(self.manifest, inputs)
        cells = {name: [own.get(name) for own in values] for name in beside}
        return list(decide_inputs(self.manifest, self.explain, inputs, cells))


def recourse_finder(manifest: Manifest, source: onnx.ModelProto) -> RecourseFinder:
    """Return the search for recourse of an entry.

    Args:
        source: the plain model.
    """
    return RecourseFinder(manifest, form_fields(manifest), tree_boxes(manifest, source))


def recourse_of_rows(
    finder: RecourseFinder, entry: RunEntry, inputs: Tensors, cells: Cells
) -> Iterator[tuple[Decision | Undecided, Recourse]]:
    """Yield the decision on each row, and its recourse; a row without a decision has none.

    Args:
        entry: the functions that score and decide rows.
        inputs: rows by input, [N, …] each.
        cells: cells of the columns that knock-outs read and the model does not, by name.
    """
    for i, own in enumerate(feature_values(finder.manifest, inputs)):
        values = {**own, **{name: column[i] for name, column in cells.items()}}
        row = {name: rows[i : i + 1] for name, rows in inputs.items()}
        (decision,) = entry.decide(row, [values])
        if isinstance(decision, Decision):
            yield decision, finder.find(entry, row, values, decision)
        else:
            yield decision, Recourse(note=decision.fault)


def form_fields(manifest: Manifest) -> tuple[FormField, ...]:
    """Return the description of each feature, and of those that only knock-outs read."""
    profile = profile_of(manifest).profile
    named = [(name, tensor) for tensor, names in feature_names(manifest).items() for name in names]
    spreads = manifest.references.spreads if manifest.references else ()
    return (
        *model_fields(manifest, named, profile, spreads),
        *knock_out_fields(profile, {name for pair in named for name in pair}),
    )


def tree_boxes(manifest: Manifest, source: onnx.ModelProto) -> Boxes | None:
    """Return the leaves of the trees whose score decides; larger scores are more adverse.

    Return None if the score is not the sum of leaves or its Sigmoid.
    """
    trees = manifest.trees
    if trees is None:
        return None
    node = next((node for node in source.graph.node if trees.output in node.output), None)
    if node is None:
        return None
    dtype = np.dtype(FLOAT_TYPES[trees.datatype])
    ensemble = read_ensemble(node, len(trees.features), dtype)
    if ensemble.post_transform not in ("NONE", "LOGISTIC"):
        return None
    profile = profile_of(manifest).profile
    bounds = [(rule.feature, (rule.above, rule.below, rule.equals)) for rule in profile.knock_outs]
    apart = [
        [each for name, ends in bounds if name == feature for each in ends if isinstance(each, int | float)]
        for feature in trees.features
    ]
    factor = 1.0 if profile.adverse == "above" else -1.0
    return boxes(ensemble, len(trees.features), trees.column, dtype, factor, apart)
