"""The scores behind probabilities: relevance starts from a score, since a probability saturates."""

from dataclasses import replace
from math import prod
from typing import ClassVar, Protocol, runtime_checkable

from compiler.lowering import Lowered
from compiler.methods import Method
from compiler.selection.logits import logits_behind
from compiler.selection.path import Path, Targets, choose_path


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
    scores = logits_behind(lowered.source, path.output) if isinstance(method, ExplainsScores) else None
    if scores is None or scores not in path.active or scores in path.tensors:
        return lowered, path, ()
    sizes = {prod(lowered.specs[name][0]) for name in (scores, path.output)}
    if output is not None or (targets is not None and len(sizes) > 1):  # whose indices would be others
        return (
            lowered,
            path,
            (
                f"{path.output!r} holds probabilities, which saturate: {method.name} is defined for scores. "
                f"Explain {scores!r} instead (--logits).",
            ),
        )
    note = (
        f"explains the scores {scores!r} behind the probabilities {path.output!r}: {method.name} is defined "
        "for scores (--output chooses another tensor)"
    )
    lowered, chosen = choose_path(lowered, scores, targets, path.inputs)
    return lowered, replace(chosen, notes=path.notes), (note,)
