"""The scores behind probabilities: relevance starts from a score, since a probability saturates."""

from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import onnx

from compiler.lowering import Lowered
from compiler.methods import Method
from compiler.targets import Path, Targets, choose_path

_PROBABILITIES = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})
_PASSED = frozenset({"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"})


def scores_behind(model: onnx.ModelProto, output: str) -> str | None:
    """The tensor of which `output` is the Softmax, LogSoftmax or Sigmoid; None if it is no such."""
    producers = {name: node for node in model.graph.node for name in node.output}
    node = producers.get(output)
    while node is not None and node.op_type in _PASSED:
        node = producers.get(node.input[0])
    return str(node.input[0]) if node is not None and node.op_type in _PROBABILITIES else None


@runtime_checkable
class ExplainsScores(Protocol):
    """A method that starts from scores rather than from probabilities."""

    explains_scores: ClassVar[bool]


def prefer_scores(
    lowered: Lowered,
    path: Path,
    method: Method,
    output: str | None,
    targets: Targets,
) -> tuple[Lowered, Path, tuple[str, ...]]:
    """The path that the method explains, and what the user is told about it.

    Where no output was named, a method that explains scores takes those behind the probabilities; one that
    was named is explained, with a warning that names the scores.
    """
    scores = scores_behind(lowered.source, path.output) if isinstance(method, ExplainsScores) else None
    if scores is None or scores not in path.active or scores in path.tensors:
        return lowered, path, ()
    if output is not None:
        return (
            lowered,
            path,
            (
                f"{path.output!r} holds probabilities, which saturate: {method.name} is defined for scores. "
                f"Explain {scores!r} instead (--output).",
            ),
        )
    note = (
        f"explains the scores {scores!r} behind the probabilities {path.output!r}: {method.name} is defined "
        "for scores (--output chooses another tensor)"
    )
    lowered, chosen = choose_path(lowered, scores, targets, path.inputs)
    return lowered, replace(chosen, notes=path.notes), (note,)
