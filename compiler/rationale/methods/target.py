"""The target of an explanation, and the dependencies of values in a graph."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
import onnx_ir as ir

from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.graph.nodes import names_read, reached_from
from rationale.lowering import Lowered
from rationale.methods.answers import holds_numbers
from rationale.methods.leaves import Leaf, is_float
from rationale.methods.players import Players
from rationale.schema.manifest import contrast_ends
from rationale.schema.profile import parse_output
from rationale.schema.request import CompileRequest, Element

SIZE_OPERATORS = frozenset({"Shape", "Size", "EyeLike"})  # operators that depend on no value


def computes(node: ir.Node, ends: Sequence[str]) -> bool:
    """Tell whether a node computes one of the `ends`."""
    return any(v.name in ends for v in node.outputs)


def reach_forward(graph: ir.Graph, ends: Sequence[str]) -> frozenset[str]:
    """Return the names of the values that depend on the `ends`; nodes that compute `ends` do not count."""
    return reached_from(ends, (n for n in graph if n.op_type not in SIZE_OPERATORS and not computes(n, ends)))


def reach_backward(graph: ir.Graph, output: str, ends: Sequence[str]) -> frozenset[str]:
    """Return the names of the values from which an output is computed, back to the `ends`."""
    reached = {output}
    for node in reversed(graph):
        if any(v.name in reached for v in node.outputs) and not computes(node, ends):
            reached.update(names_read(node))
    return frozenset(reached)


BY_PLACE = "it chooses values by place, and has no multiplier"
AMONG_CARRIERS = f"{BY_PLACE} of its own beside theirs"
MOST_STOPS = 5  # in a warning; the manifest lists all
_CONTRAST = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_TWO_CLASSES = (2,)  # row of two classes; explaining the winner would change the question between rows


@dataclass(frozen=True)
class Stop:
    """The end of attributions on the path: the value `tensor`, read by `node`."""

    node: str
    operator: str
    tensor: str
    reason: str

    @property
    def is_among_carriers(self) -> bool:
        """True if the value selects among others that carry attributions, which may be all there are."""
        return self.reason == AMONG_CARRIERS


@dataclass(frozen=True)
class Target:
    """The explained tensors and outputs, common to all engines.

    Attributes:
        leaves: the tensors that get attributions, and the inputs that they explain.
        output: the name of the explained tensor.
        elements: flat indices into the output's row, contrasts of two, or "predicted".
        players: the players that get attributions if features are in groups.
        stops: the ends of attributions on the path.
        notes: texts for the user about the choice.
        closed: the requested tensor, if `output` is the tensor behind it.
    """

    leaves: tuple[Leaf, ...]
    output: str = ""
    elements: tuple[Element, ...] | Literal["predicted"] = ()
    players: Players | None = None
    stops: tuple[Stop, ...] = ()
    notes: tuple[str, ...] = ()
    closed: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the explained inputs or inner tensors."""
        return tuple(dict.fromkeys(s.name for s in self.leaves))

    @property
    def ungrouped(self) -> tuple[str, ...]:
        """Names of the explained inputs without grouped features: each has attributions of its own."""
        return tuple(
            name for name in self.inputs if self.players is None or name not in self.players.player_of
        )

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that get attributions."""
        return tuple(s.tensor for s in self.leaves)

    @property
    def filled(self) -> frozenset[str]:
        """Names of the inputs with missing values that are explained by the numbers that replace them."""
        return frozenset(s.name for s in self.leaves if s.is_filled)

    @property
    def count(self) -> int:
        """T, the number of targets."""
        return 1 if self.elements == "predicted" else len(self.elements)

    def matrix(self, size: int) -> np.ndarray:
        """Return [size, T], each target's coefficients of the output's row; not defined for "predicted"."""
        coefficients = np.zeros((size, self.count))
        for column, element in zip(coefficients.T, self.elements, strict=True):
            first, against = contrast_ends(element) if isinstance(element, str) else (int(element), None)
            column[first] = 1
            if against is not None:
                column[against] = -1
        return coefficients


def stop_warnings(stops: Sequence[Stop]) -> tuple[str, ...]:
    """Return a warning that names the operators at which attributions end; none without such operators."""
    if not stops:
        return ()
    return (f"attributions end, so that operators behind these have none: {_list_stops(stops)}",)


def stop_notes(stops: Sequence[Stop], gap: float) -> tuple[str, ...]:
    """Return a note for the user about these ends if attributions add up nevertheless."""
    return (
        f"attributions add up within {gap:.1e} of the output's difference on the rows of the check, although "
        f"none pass here: {_list_stops(stops)}",
    )


def _list_stops(stops: Sequence[Stop]) -> str:
    named = [f"{s.operator} {s.node!r} reads {s.tensor!r}: {s.reason}" for s in stops[:MOST_STOPS]]
    more = [f"and {len(stops) - MOST_STOPS} more"] if len(stops) > MOST_STOPS else []
    return "; ".join([*named, *more])


def check_shapes(lowered: Lowered, tensors: Sequence[str]) -> None:
    """Raise UnsupportedModelError if an explained tensor has no fixed number of features."""
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    for name in tensors:
        if name not in lowered.specs:
            shape = ", ".join(str(d) for d in values[name].shape or ())
            raise UnsupportedModelError(
                f"input {name!r} has the shape [{shape}]: every axis but the first needs a fixed size, since "
                "each feature gets an attribution. Give it (--size NAME=LENGTH, sizes={NAME: LENGTH}), give "
                "references of that length, or export the model with static feature sizes."
            )
        if 0 in lowered.specs[name][0]:
            raise UnsupportedModelError(f"input {name!r} has no features: an axis of it has length 0.")


def choose_output(lowered: Lowered, output: str | None, ends: Sequence[str]) -> str:
    """Return the named tensor, or the first float output that depends on the `ends` of a walk.

    Raises:
        InvalidOptionError, UnsupportedModelError: if there is none.
    """
    dependent = reach_forward(lowered.model.graph, ends) - set(ends)
    names = [str(v.name) for v in lowered.model.graph.outputs]
    if output is not None:
        if output not in dependent:
            raise InvalidOptionError(
                f"no tensor {output!r} depends on the explained inputs; the model's outputs are {names}, "
                "and any inner tensor can be named (look it up in Netron)."
            )
        return output
    for value in lowered.model.graph.outputs:
        if value.name in dependent and is_float(lowered, value):
            return str(value.name)
    raise UnsupportedModelError(
        f"none of the outputs {names} holds floats that depend on the explained inputs. Name an inner tensor "
        "that does, such as the scores before an ArgMax (--output)."
    )


def with_element(request: CompileRequest, lowered: Lowered) -> CompileRequest:
    """Replace an output such as `probabilities[1]`, as in decision profiles, by the tensor and its target.

    Raises:
        InvalidOptionError: if the request has targets as well.
    """
    if not request.output or not request.output.endswith("]"):
        return request
    tensor, index = parse_output(request.output)
    inner_names = {str(v.name) for node in lowered.model.graph for v in node.outputs}
    if index is None or request.output in inner_names:
        return request
    if request.targets is not None:
        raise InvalidOptionError(
            f"output {request.output!r} names a target, and so does targets={request.targets!r}: leave one "
            f"out, or give output={tensor!r}."
        )
    return request.model_copy(update={"output": tensor, "targets": [index]})


def choose_targets(
    targets: object, output: str, lowered: Lowered
) -> tuple[Element, ...] | Literal["predicted"]:
    """Return the targets as flat indices, contrasts, or "predicted".

    Args:
        targets: the requested targets.
        output: one of the model's tensors, with a known row shape.

    Raises:
        InvalidOptionError: if a target is neither an element's index nor a contrast of two different ones.
    """
    row = lowered.specs[output][0][1:]
    size = prod(row)
    if targets is None and size > 1 and holds_numbers(lowered.source, output):
        targets = "all"
    if targets is None and row == _TWO_CLASSES:
        return (1,)
    if targets is None:
        return (0,) if size == 1 else "predicted"
    if targets == "predicted":
        return "predicted"
    if targets == "all":
        return tuple(range(size))
    if isinstance(targets, str) or not isinstance(targets, Iterable):
        raise InvalidOptionError(
            f"targets {targets!r}: give a list of indices (or contrasts such as '1-0'), 'all' or 'predicted'."
        )
    requested = list(targets)
    if not requested or not all(_is_index(t, size) or _is_contrast(t, size) for t in requested):
        raise InvalidOptionError(
            f"targets {requested}: output {output!r} has indices 0 to {size - 1}, and contrasts of two "
            "different ones such as '1-0'."
        )
    return tuple(t if isinstance(t, str) else int(t) for t in requested)


def _is_index(target: object, size: int) -> bool:
    if isinstance(target, bool) or not isinstance(target, int | np.integer):
        return False
    return 0 <= int(target) < size


def _is_contrast(target: object, size: int) -> bool:
    parts = _CONTRAST.fullmatch(target) if isinstance(target, str) else None
    first, second = map(int, parts.groups()) if parts else (0, 0)
    return first != second and max(first, second) < size


def check_names(lowered: Lowered, names: Collection[str]) -> None:
    """Raise InvalidOptionError if the model's inputs or outputs already have one of these names.

    Inner tensors with these names are renamed.
    """
    graph = lowered.source.graph
    collisions = sorted({*names} & {v.name for v in (*graph.input, *graph.output)})
    if collisions:
        raise InvalidOptionError(
            f"the model already has inputs or outputs named {collisions}, and outputs of the explanation "
            "need these names: rename them before compiling (input_names and output_names in "
            "torch.onnx.export)."
        )
