"""The reverse walk, shared by all methods that walk, and the base class of these methods."""

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.engine import Gap, Method, Results
from rationale.methods.environment import Calls, RuleCall, RulePoint
from rationale.methods.leaves import OTHER_INPUT, Leaf
from rationale.methods.outputs import GAP_ERROR, STANDARD_ERROR
from rationale.methods.players import Players, by_player
from rationale.references.reference_set import ReferenceSet
from rationale.rules.pointwise.conditions import number
from rationale.rules.rule import Evaluation, Kind, Rule
from rationale.schema.manifest import GROUPS


@dataclass(frozen=True)
class Relevance:
    """Relevance R in place of a multiplier, in the value's own shape.

    R = m·x, so no multiplier can express the relevance of a value that may be 0. If readers of a value send
    back both kinds, they are added as R.
    """

    tensor: Tensor


Carried = Tensor | Relevance
Readers = Mapping[str, list[RuleCall]]
Pull = Callable[[Ops, RuleCall, Any], Sequence[Carried | None]]


def never_called(*_: object, **__: object) -> Evaluation:
    """Stand for the value of an operator that the walk reads but never evaluates again."""
    raise NotImplementedError("the walk reads this operator where it was evaluated")


_OUTSIDE_RULE = Rule("outside", "", Kind.LOCAL, never_called)
_OUTSIDE = RuleCall("outside", _OUTSIDE_RULE, {}, (None,), (), (False,), RulePoint((None,), (), (None,)))
"""The reader of a kept value outside of the path: no call can be joined with it."""


def readers_of(calls: Calls, keep: Collection[str] = ()) -> Readers:
    """Return the path's calls that read each value; a kept value also has a reader outside of the path."""
    readers: dict[str, list[RuleCall]] = defaultdict(list, {name: [_OUTSIDE] for name in keep})
    for call in calls:
        for name in call.sources:
            readers[name].append(call)
    return readers


def walk(
    op: Ops,
    calls: Calls,
    output: str,
    seed: Carried,
    pull: Pull,
    advance: Callable[[int], None],
    keep: Collection[str] = (),
) -> dict[str, Any]:
    """Carry the seed's multiplier from the explained output back to every value before it.

    Only this function handles fan-in and broadcasting: it adds the multipliers from all readers of a value,
    and sums them over the axes along which the value was repeated.

    Args:
        calls: the operators of the path in topological order.
        pull: the method's multipliers for one call: one per input, or None.
        advance: called with the number of operators done, for a progress bar.
        keep: names of values on the path whose multipliers are also returned.

    Returns:
        The multiplier, or relevance if `pull` returns it, of each value that nothing on the path computes,
        and of the kept values, by name.
    """
    arrived: dict[str, Carried] = {}
    pending: dict[str, list[Carried]] = defaultdict(list)
    pending[output].append(seed)
    read: dict[str, Tensor] = {}
    for count, call in enumerate(reversed(calls)):
        advance(count)
        if not any(name in pending for name in call.outputs):
            continue
        op.scope = f"backward/{call.name}"
        arriving = [
            _arriving(op, pending.pop(name, []), y)
            for name, y in zip(call.outputs, call.x.outputs, strict=True)
        ]
        arrived.update((n, m) for n, m in zip(call.outputs, arriving, strict=True) if n in keep)
        if call.rule.kind is not Kind.POINTWISE:
            arriving = [_expand(op, m, y) for m, y in zip(arriving, call.x.outputs, strict=True)]
        try:
            leaving = pull(op, call, arriving[0] if len(arriving) == 1 else tuple(arriving))
            for name, x, m in zip(call.inputs, call.x.inputs, leaving, strict=False):
                if name is not None and x is not None and m is not None and 0 not in x.shape:
                    pending[name].append(_sum_to(op, m, x))
                    read[name] = x
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{call.rule.op_type} node {call.name!r}: {error}") from error
    op.scope = "rationale"
    return arrived | {name: _gather(op, multipliers, read.get(name)) for name, multipliers in pending.items()}


def _arriving(op: Ops, multipliers: Sequence[Carried], y: Tensor) -> Carried:
    if not multipliers:  # a second output that does not reach the target
        return op.row_constant(np.zeros((1,) * y.rank, y.dtype.numpy()))
    return _gather(op, multipliers, y)


def _expand(op: Ops, m: Carried, y: Tensor) -> Carried:
    return m if isinstance(m, Relevance) else op.expand(m, y.shape)


def _sum_to(op: Ops, m: Carried, x: Tensor) -> Carried:
    """Sum m to the shape of x.

    Raises:
        UnsupportedModelError: if the sizes of an operator's inputs contradict each other.
    """
    sent = m.tensor.shape if isinstance(m, Relevance) else m.shape
    pairs = list(zip(reversed(sent), reversed(x.shape), strict=False))
    if len(pairs) < x.rank or any(a != b and 1 not in (a, b) for a, b in pairs):
        raise UnsupportedModelError(
            f"its input {x.name!r} is {list(x.shape)}, but its other inputs need {list(sent)}. Export the "
            "model again."
        )
    if isinstance(m, Relevance):
        return Relevance(op.sum_to(m.tensor, x.shape))
    return op.sum_to(m, x.shape)


def _gather(op: Ops, carried: Sequence[Carried], x: Tensor | None) -> Carried:
    """Add the multipliers or relevance from all readers of x; beside relevance, multipliers become m·x."""
    multipliers = [m for m in carried if not isinstance(m, Relevance)]
    relevances = [m.tensor for m in carried if isinstance(m, Relevance)]
    if not relevances:
        return _add(op, multipliers)
    if multipliers:
        assert x is not None
        relevances.append(op.Mul(_add(op, multipliers), number(op, x)))
    return Relevance(_add(op, relevances))


def _add(op: Ops, multipliers: Sequence[Tensor]) -> Tensor:
    """Return Σ m.

    Multipliers that vary over fewer axes come first, so that they are added while they are small.
    """
    return reduce(op.Add, sorted(multipliers, key=lambda m: len(m.batch_axes)))


@runtime_checkable
class RulePull(Protocol):
    """A `Pull` that applies a rule of relevance propagation to each operator."""

    def __call__(self, op: Ops, call: RuleCall, m: Any) -> Sequence[Carried | None]: ...

    def rule_of(self, call: RuleCall) -> str | None:
        """Return the name of an operator's rule; None for an operator that only moves values."""


@dataclass(frozen=True)
class PathPoint:
    """The point that replaces x for the rules, on a path that begins at `start` (if it has one)."""

    x: Tensor
    start: Tensor | None


class PropagationMethod(Method):
    """A method that carries multipliers, or relevance, back from the output.

    Subclasses define `pull` and `attribute`. By default rules are called at x, the walk reads every operator
    unchanged, and there is no standard error.
    """

    explains_scores: ClassVar[bool] = False
    """True if the walk starts from scores rather than from the probabilities made of them."""

    averages: ClassVar[str] = ""
    """The axis of draws over which attributions are averaged, K or S; empty without draws."""

    each_reference: ClassVar[bool] = True
    """True if every reference has S points of its own."""

    @property
    def standard_error(self) -> bool:
        """True if the graph returns the standard error of each attribution."""
        return False

    @property
    def has_gap_error(self) -> bool:
        """True if the gap has a standard error, that is, if it is a sampling error.

        Without it, users could not tell such a gap from a fault.
        """
        return self.gap is Gap.SAMPLING

    @property
    def further_outputs(self) -> Sequence[str]:
        errors = ((STANDARD_ERROR, self.standard_error), (GAP_ERROR, self.has_gap_error))
        return [kind for kind, is_answered in errors if is_answered]

    @property
    def features_with_fixed_references(self) -> Sequence[str]:
        drawn = bool(self.points) and not self.each_reference
        faults = [f"{self.name} draws from the references when the graph is made"] if drawn else []
        return faults + ["a standard error"] * self.standard_error

    def axes(self, references: ReferenceSet | None) -> dict[str, int]:
        """Return the axes that can be computed in chunks, with their lengths; of a pair, the longer one."""
        counts = {"K": references.count} if references and not references.is_open else {}
        if not self.points:
            return counts
        if not self.each_reference:  # only the base value uses the references
            return {**counts, "S": self.points}
        return {"S": self.points} if "K" not in counts or self.points > counts["K"] else counts

    def rows_per_target(self, references: int) -> int:
        return (self.points or 1) * (references if self.each_reference else 1)

    def plan(self, op: Ops, calls: Calls, keep: Collection[str] = ()) -> tuple[Calls, Pull]:
        """Return the operators that the walk reads, in topological order, and their pull function.

        Override it to join operators into layers, or to treat a layer by its place.

        Args:
            keep: names of values whose multipliers are requested. The plan leaves these values if it
                joins operators only to save time; values inside a layer that the method's definition joins
                have none.
        """
        del op, keep
        return calls, self.pull

    def point(self, op: Ops, name: str, x: Tensor, r: Tensor | None, weights: np.ndarray | None) -> PathPoint:
        """Return the points of an explained input, along S, and along K with `each_reference`."""
        raise NotImplementedError(f"{self.name} has points, and says not where")

    def spread(self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None) -> Tensor:
        """Return the attributions of an input by each draw; all other axes of draws are averaged."""
        raise NotImplementedError(f"{self.name} averages, and says not what")

    @abstractmethod
    def pull(self, op: Ops, call: RuleCall, m: Any) -> Sequence[Carried | None]:
        """Return the multiplier of each input of `call`, given the multiplier(s) of its output(s)."""

    @abstractmethod
    def attribute(self, op: Ops, m: Any, x: Tensor, r: Tensor | None, weights: np.ndarray | None) -> Tensor:
        """Return the attributions of an input from its multiplier; the result has neither K nor S.

        Args:
            r: the references, or the start of the path that `point` returned.
        """


def pull_back(point: RulePoint, call: RuleCall, m: Any) -> list[Tensor | None]:
    """Return the multiplier of each varying input, by its pullback at a point; None for other inputs.

    Raises:
        UnsupportedModelError: if the operator's rule has no pullback for a varying input.
    """
    leaving: list[Tensor | None] = []
    for i, (varying, pullback) in enumerate(zip(call.varying, point.pullbacks, strict=True)):
        if varying and pullback is None:
            raise UnsupportedModelError(
                f"its input {i} ({call.inputs[i]!r}) depends on the explained inputs, but its rule takes "
                "it as fixed"
            )
        leaving.append(pullback(m) if varying and pullback is not None else None)
    return leaving


# -- where a walk ends ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExplainedTensor:
    """A tensor at the walk's end: its multiplier, and the start of its path to x."""

    leaf: Leaf
    x: Tensor
    multiplier: Tensor
    start: Tensor | None


@dataclass(frozen=True)
class FinishedWalk(Results):
    """The results of a walk.

    Attributes:
        explained: the explained tensors with their multipliers.
    """

    method: PropagationMethod
    explained: Sequence[ExplainedTensor]
    references: ReferenceSet | None
    players: Players | None

    def attribute(self, e: ExplainedTensor) -> Tensor:
        """Return the attributions of one tensor."""
        weights = self.references.weights if self.references else None
        return self.method.attribute(self.op, e.multiplier, e.x, e.start, weights)

    def by_output(self, value: Callable[[ExplainedTensor], Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield each ungrouped tensor's name and value, then the value of all players together."""
        op, players, grouped = self.op, self.players, {}
        for name, parts in by_explained_name(self.explained).items():
            values = sum_over_tensors(op, parts, [value(e) for e in parts])
            if players is None or name not in players.player_of:
                yield name, values
            else:
                grouped[name] = values
        if players is not None:
            yield GROUPS, by_player(op, players, grouped)


def by_explained_name(explained: Sequence[ExplainedTensor]) -> dict[str, list[ExplainedTensor]]:
    """Return the explained tensors by the name of the input, or tensor, that they explain."""
    groups: dict[str, list[ExplainedTensor]] = {}
    for e in explained:
        groups.setdefault(e.leaf.name, []).append(e)
    return groups


def sum_over_tensors(op: Ops, parts: Sequence[ExplainedTensor], attributions: Sequence[Tensor]) -> Tensor:
    """Return the attributions of one input, summed over the tensors that explain it."""
    return reduce(op.Add, [sum_by_id(op, e.leaf, a) for e, a in zip(parts, attributions, strict=True)])


def sum_by_id(op: Ops, leaf: Leaf, attributions: Tensor) -> Tensor:
    """Sum over the table row of each id; each sum goes to the id's index in the input's row."""
    if leaf.indices is None:
        return attributions
    axes = list(range(leaf.indices.ndim, attributions.rank))
    attributions = op.ReduceSum(attributions, axes, keepdims=0) if axes else attributions
    indices, shape = leaf.indices.reshape(1, -1), leaf.row
    attributions = op.reshape(attributions, indices.shape)
    if not (is_of_input := indices != OTHER_INPUT).all():
        attributions = op.Gather(attributions, op.constant(np.flatnonzero(is_of_input)), axis=1)
        indices = indices[:, is_of_input[0]]
    if not np.array_equal(indices[0], np.arange(math.prod(shape))):
        zeros = op.row_constant(np.zeros((1, math.prod(shape)), attributions.dtype.numpy()))
        to = op.row_constant(indices.astype(np.int64))
        attributions = op.ScatterElements(zeros, to, attributions, axis=1, reduction="add")
    return op.reshape(attributions, shape)
