"""What a model says of rows: the score of a decision profile, and the rows in the model's own dtypes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from rationale.decisions.rows import score_index, shortest
from rationale.errors import InvalidProfileError, InvalidReferencesError
from rationale.graph.runtime.session import Run, Runner
from rationale.lowering import Lowered, lower
from rationale.references.reference_set import check_count, check_rows, unnamed, whole_numbers
from rationale.schema.profile import DecisionProfile

_BLOCK = 4096  # rows that are run at once


@dataclass(frozen=True)
class Scores:
    """A model's answers to rows, with the scores among them.

    Attributes:
        model: the model's digest.
        feeds: [rows, …] by input, in the model's dtypes.
        answers: [rows, m], the profile's output, flattened.
        dtype: in which the model answers.
        index: which of the m is the score.
    """

    model: str
    feeds: dict[str, np.ndarray]
    answers: np.ndarray
    index: int
    dtype: np.dtype[Any]

    @property
    def scores(self) -> np.ndarray:
        """The scores, [rows]."""
        return np.array(shortest(self.answers[:, self.index].astype(self.dtype)))


def scores_of(
    model: str | Path | onnx.ModelProto, rows: Mapping[str | None, np.ndarray], profile: DecisionProfile
) -> Scores:
    """Run a model on rows, for the scores of a profile.

    Args:
        rows: [rows, …] by input, or under None of the only one.

    Raises:
        InvalidModelError, InvalidReferencesError: the model does not run on these rows, or says NaN of some.
        InvalidProfileError: the model has no such output.
    """
    lowered = lower(model, references={name: array.shape for name, array in rows.items()})
    feeds = _feeds(lowered, rows)
    _check_output(lowered, profile)
    run = Runner(answering(lowered.source, profile.tensor), given=True)
    answers = run_in_blocks(run, feeds, profile.tensor, _BLOCK)
    if answers.dtype.kind != "f":
        raise InvalidProfileError(
            f"output {profile.output!r} holds {answers.dtype}, which is no score. Name an output of floats."
        )
    count, elements = answers.shape
    index = score_index(profile.index, elements)
    if index >= elements or (profile.index is None and elements > 2):
        raise InvalidProfileError(
            f"output {profile.output!r}: a row of it has {elements} elements. Name the score's, "
            f"{profile.tensor}[0] to {profile.tensor}[{elements - 1}]."
        )
    found = Scores(lowered.digest, feeds, answers.astype(np.float64), index, answers.dtype)
    wrong = np.flatnonzero(~np.isfinite(found.scores))
    if wrong.size:
        raise InvalidReferencesError(
            f"{wrong.size} of {count} rows have no finite score, the first is row {wrong[0]} (from 0). Are "
            "values missing that the model needs? Impute, or drop such rows."
        )
    return found


def _feeds(lowered: Lowered, rows: Mapping[str | None, np.ndarray]) -> dict[str, np.ndarray]:
    names = [str(value.name) for value in lowered.model.graph.inputs]
    if None in rows and len(names) == 1:
        rows = {names[0]: rows[None]}
    elif None in rows:
        raise unnamed(names)
    if set(rows) != set(names):
        raise InvalidReferencesError(
            f"the rows are of {sorted(map(str, rows))}, and the model takes {sorted(names)}: give an .npz "
            "with an array for each, or the columns of each by --features INPUT=A,B,C."
        )
    found = {}
    for name in names:
        shape, kind = lowered.specs[name]
        dtype = lowered.narrow.edges.get(name, kind).numpy()
        check_rows(name, rows[name], shape, dtype)
        with np.errstate(all="ignore"):
            found[name] = rows[name].astype(dtype)
        if dtype.kind in "iub" and not np.array_equal(found[name], rows[name]):
            raise whole_numbers(name, dtype)
    check_count(found)
    return found


def _check_output(lowered: Lowered, profile: DecisionProfile) -> None:
    graph = lowered.source.graph
    outputs = [value.name for value in graph.output]
    if profile.tensor not in outputs and not any(profile.tensor in node.output for node in graph.node):
        raise InvalidProfileError(
            f"output {profile.output!r}: the model has no such tensor; its outputs are {', '.join(outputs)}."
        )


def answering(model: onnx.ModelProto, tensor: str) -> onnx.ModelProto:
    """Return a model with a tensor among its outputs, an inner one too."""
    if any(value.name == tensor for value in model.graph.output):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.output.append(onnx.ValueInfoProto(name=tensor))
    return changed


def run_in_blocks(run: Run, rows: Mapping[str, np.ndarray], tensor: str, size: int) -> np.ndarray:
    """Return [rows, m]: what a run answers in a tensor, `size` rows at a time."""
    blocks = (
        run({name: array[start : start + size] for name, array in rows.items()}, [tensor])[tensor]
        for start in range(0, len(next(iter(rows.values()))), size)
    )
    return np.concatenate([block.reshape(len(block), -1) for block in blocks])
