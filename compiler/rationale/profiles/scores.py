"""A model's answers to rows: the score of a decision profile, and the rows in the model's own dtypes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from rationale.decisions.rows import ENDS, SIGMOID_ERROR, decision_scores, score_index, sigmoid
from rationale.errors import InvalidProfileError, InvalidReferencesError, UnsupportedModelError
from rationale.graph.nodes import NodeBuilder
from rationale.graph.runtime.session import Run, Runner
from rationale.graph.shapes import ROWS
from rationale.lowering import Lowered, lower
from rationale.methods.logits import closing_operator
from rationale.methods.trees.ensembles import with_scores_behind
from rationale.references.reference_set import check_count, check_rows, unnamed_error, whole_number_error
from rationale.schema.manifest import contrast_ends
from rationale.schema.profile import DecisionProfile
from rationale.trees.ensemble import Ensemble
from rationale.trees.read import is_ensemble, read_ensemble

SCORE_MARGIN = "score_margin"  # the output that holds it
_MOVES = frozenset("Cast Flatten Identity Reshape Squeeze Unsqueeze".split())
_BLOCK = 4096  # rows that are run at once


@dataclass(frozen=True)
class ModelScores:
    """A model's answers to rows, with the scores among them.

    Attributes:
        model: the model's digest.
        feeds: [rows, …] by input, in the model's dtypes.
        answers: [rows, m], the profile's output, flattened.
        scores: [rows], as decisions have them.
        index: the score's index among the m.
    """

    model: str
    feeds: dict[str, np.ndarray]
    answers: np.ndarray
    scores: np.ndarray
    index: int


def score_rows(
    model: str | Path | onnx.ModelProto, rows: Mapping[str | None, np.ndarray], profile: DecisionProfile
) -> ModelScores:
    """Run a model on rows, for the scores of a profile.

    Args:
        rows: [rows, …] by input; the key None stands for the only one.

    Raises:
        InvalidModelError, InvalidReferencesError: if the model does not run on these rows, or answers NaN.
        InvalidProfileError: if the model has no such output.
    """
    lowered = lower(model, references={name: array.shape for name, array in rows.items()})
    feeds = _feeds(lowered, rows)
    _check_output(lowered, profile)
    answers, _ = Scorer(lowered, profile)(feeds)
    if answers.dtype.kind != "f":
        raise InvalidProfileError(
            f"output {profile.output!r} holds {answers.dtype}, which cannot be a score. Name an output of "
            "floats."
        )
    count, elements = answers.shape
    index = score_index(profile.index, elements)
    if index >= elements or (profile.index is None and elements > 2):
        raise InvalidProfileError(
            f"output {profile.output!r}: each row has {elements} elements. Name the element of the score, "
            f"{profile.tensor}[0] to {profile.tensor}[{elements - 1}]."
        )
    margin = deciding_margin(lowered, profile, feeds)
    _, scores = Scorer(lowered, profile, margin)(feeds)
    wrong = np.flatnonzero(~np.isfinite(scores))
    if wrong.size:
        raise InvalidReferencesError(
            f"{wrong.size} of {count} rows have no finite score; the first is row {wrong[0]} (counted from "
            "0). Check for missing values: impute them, or drop such rows."
        )
    return ModelScores(lowered.digest, feeds, answers.astype(np.float64), scores, index)


def _feeds(lowered: Lowered, rows: Mapping[str | None, np.ndarray]) -> dict[str, np.ndarray]:
    names = [str(value.name) for value in lowered.model.graph.inputs]
    if None in rows and len(names) == 1:
        rows = {names[0]: rows[None]}
    elif None in rows:
        raise unnamed_error(names)
    if set(rows) != set(names):
        raise InvalidReferencesError(
            f"the rows have the inputs {sorted(map(str, rows))}, but the model takes {sorted(names)}: give "
            "a .npz with an array for each, or name the columns of each (--features INPUT=A,B,C)."
        )
    feeds = {}
    for name in names:
        shape, kind = lowered.specs[name]
        dtype = lowered.narrow.edges.get(name, kind).numpy()
        check_rows(name, rows[name], shape, dtype)
        with np.errstate(all="ignore"):
            feeds[name] = rows[name].astype(dtype)
        if dtype.kind in "iub" and not np.array_equal(feeds[name], rows[name]):
            raise whole_number_error(name, dtype)
    check_count(feeds)
    return feeds


def _check_output(lowered: Lowered, profile: DecisionProfile) -> None:
    graph = lowered.source.graph
    outputs = [value.name for value in graph.output]
    if profile.tensor not in outputs and not any(profile.tensor in node.output for node in graph.node):
        raise InvalidProfileError(
            f"output {profile.output!r}: the model has no such tensor; its outputs are {', '.join(outputs)}."
        )


def with_output(model: onnx.ModelProto, tensor: str) -> onnx.ModelProto:
    """Return a model with a tensor among its outputs, also an inner one."""
    if any(value.name == tensor for value in model.graph.output):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.output.append(onnx.ValueInfoProto(name=tensor))
    return changed


class Scorer:
    """A plain model that answers the scores of a profile, as decisions have them.

    Args:
        margin: the margin whose Sigmoid is the score; None if none is known, or none is needed.
    """

    def __init__(self, lowered: Lowered, profile: DecisionProfile, margin: "Margin | None" = None) -> None:
        self._profile, self._margin = profile, margin
        model = lowered.source if margin is None else ir.serde.serialize_model(margin.added(lowered).model)
        self._run: Run = Runner(with_output(model, profile.tensor), users_model=True)
        self._size = 1 if lowered.single_row_only else _BLOCK

    def __call__(self, rows: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return [N, m], the profile's output, flattened, and [N], the scores, for rows [N, …] by input."""
        answers, margins = self.answers(rows)
        index = score_index(self._profile.index, answers.shape[1])
        answered = answers[:, min(index, answers.shape[1] - 1)]
        return answers, np.array(decision_scores(self._profile, answered, margins), np.float64)

    def answers(self, rows: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
        """Return [N, m], the profile's output, flattened, and [N], the margins, if they are known."""
        names = [self._profile.tensor, *([self._margin.name] if self._margin else ())]
        blocks = [
            self._run({name: array[start : start + self._size] for name, array in rows.items()}, names)
            for start in range(0, len(next(iter(rows.values()))), self._size)
        ]
        whole = [np.concatenate([b[name].reshape(len(b[name]), -1) for b in blocks]) for name in names]
        return whole[0], whole[1][:, 0] if self._margin else None


# -- margins ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Margin:
    """The number whose Sigmoid is a score.

    Attributes:
        tensor: the tensor that holds it; for trees (`of_trees`) their output, which is computed from it.
        element: an element of the tensor's row, or a difference of two, such as "1-0".
        negated: whether the score is the Sigmoid of the negative: 1 − p beside p.
        name: the name of the output that holds the margin in `added`.
    """

    tensor: str
    element: int | str
    of_trees: bool
    negated: bool = False
    name: str = SCORE_MARGIN

    def added(self, lowered: Lowered) -> Lowered:
        """Return the model with one more output, [N, 1], the margin.

        Raises:
            UnsupportedModelError: if the tensor has no row for each of the model's, or trees do not answer
                the
                function of their scores that they declare.
        """
        tensor: str | None = self.tensor
        if self.of_trees:
            lowered, tensor = with_scores_behind(lowered, self.tensor)
        has_own_rows = not lowered.single_row_only and not lowered.narrow.dtypes
        if tensor is None or tensor not in lowered.batched or not has_own_rows:
            raise UnsupportedModelError(f"{self.tensor!r}: the graph has no margin for each row.")
        model = lowered.model.clone()
        op = NodeBuilder(model.graph, self.name)
        values = (*model.graph.inputs, *(v for node in model.graph for v in node.outputs))
        (value,) = (v for v in values if v.name == tensor)
        row = op.Flatten(value, axis=1)
        first, against = (
            contrast_ends(self.element) if isinstance(self.element, str) else (self.element, None)
        )
        margin = op.Gather(row, [first], axis=1)
        if against is not None:
            margin = op.Sub(margin, op.Gather(row, [against], axis=1))
        margin = op.Neg(margin) if self.negated else margin
        margin.name, margin.shape = self.name, ir.Shape([ROWS, 1])
        margin.dtype = lowered.specs[tensor][1]
        model.graph.outputs.append(margin)
        return replace(lowered, model=model)


def margin_behind(lowered: Lowered, tensor: str, elements: int, index: int) -> Margin | None:
    """Return the margin whose Sigmoid is an element of a tensor's row; None if the graph shows none.

    Args:
        elements: the number of elements in the row.
    """
    transform = transform_of(lowered, tensor)
    closed = closing_operator(lowered.source, tensor)
    if closed is None and not transform:  # a lowered classifier of ai.onnx.ml
        closed = closing_operator(ir.serde.serialize_model(lowered.model), tensor)
    operator, behind = (transform, tensor) if closed is None else closed
    spec = lowered.specs.get(behind)
    count = elements if closed is None or spec is None else prod(spec[0][1:])
    index = index if count > 1 else 0
    if operator in ("Softmax", "SOFTMAX") and count == 2:
        return Margin(behind, f"{index}-{1 - index}", closed is None)
    return Margin(behind, index, closed is None) if operator in ("Sigmoid", "LOGISTIC") else None


def deciding_margin(
    lowered: Lowered, profile: DecisionProfile, rows: Mapping[str, np.ndarray]
) -> Margin | None:
    """Return the margin that a profile decides by; None if none is needed or known.

    Args:
        rows: rows for a test: the score must be the Sigmoid of the margin on most of them.
    """
    if profile.space == "output" and not bounds_near_ends(profile):
        return None
    first, _ = Scorer(lowered, profile).answers({name: array[:1] for name, array in rows.items()})
    elements = first.shape[1]
    index = score_index(profile.index, elements)
    margin = margin_behind(lowered, profile.tensor, elements, index)
    if margin is None:
        return None
    while margin.name in lowered.specs:
        margin = replace(margin, name=f"{margin.name}_")
    try:
        answers, margins = Scorer(lowered, profile, margin).answers(rows)
    except UnsupportedModelError:
        return None
    assert margins is not None
    for negated in (False, True):
        errors = np.abs(sigmoid(-margins if negated else margins) - answers[:, index])
        if (errors <= SIGMOID_ERROR).mean() > 0.5:
            return replace(margin, negated=negated)
    return None


def bounds_near_ends(profile: DecisionProfile) -> list[float]:
    """Return the bounds so near 0 or 1 that probabilities of float32 cannot tell their sides."""
    bounds = [profile.threshold, *(n for n in profile.refer or () if n not in (0, 1))]
    return [n for n in bounds if min(abs(n), abs(n - 1)) <= ENDS]


def transform_of(lowered: Lowered, tensor: str) -> str:
    """Return an ensemble's function of its scores, such as LOGISTIC; "" if no trees make the tensor."""
    trees = trees_behind(lowered.source, tensor)
    return trees.post_transform if trees else ""


def trees_behind(model: onnx.ModelProto, output: str) -> Ensemble | None:
    """Return the ensemble whose scores, or a function of them, a tensor holds."""
    producers = {name: node for node in model.graph.node for name in node.output}
    node = producers.get(output)
    while node is not None and node.op_type in _MOVES:
        node = producers.get(node.input[0])
    return read_ensemble(node) if node is not None and is_ensemble(node.op_type, node.domain) else None
