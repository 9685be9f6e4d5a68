"""The replacement of If, Loop and Scan by the nodes that they run, which every method can walk.

A constant condition chooses its branch at compile time. For a condition that depends on data, both branches
are computed and a Where chooses. A Loop is unrolled up to its trip count, or to a bound if the count depends
on data; a Scan is unrolled over the length of its axis. An iteration that data skips keeps the old values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from rationale.errors import UnsupportedModelError
from rationale.graph.nodes import names_read, take_place_of
from rationale.lowering.batch import dependent_on_batch
from rationale.lowering.bodies import detach_bodies, name_outputs, remove_identities
from rationale.lowering.control_flow.bounds import positions_read, span
from rationale.lowering.control_flow.constants import constants_of
from rationale.lowering.control_flow.sequences import OPERATORS as SEQUENCES
from rationale.lowering.control_flow.sequences import resolve_sequences
from rationale.lowering.inference import BATCH, infer, note_shapes
from rationale.lowering.rewrites.engine import Rewriting
from rationale.lowering.sizes import fold_weights

LIMIT = 20_000  # nodes that unrolling may add
REASON = "rationale.reason"  # metadata of a node that remains: the reason
_BRANCHING = frozenset({"If", "Loop", "Scan"})
OPERATORS = _BRANCHING | SEQUENCES


class _KeepNodeError(Exception):
    """The error that a node cannot be replaced; its text gives the reason, and advice."""


def inline_control_flow(model: ir.Model, settle: Callable[[ir.Model], object]) -> bool:
    """Replace If, Loop and Scan, in place; return True if anything was replaced.

    A node that cannot be replaced remains, with the reason in its metadata: it matters only on a path.

    Args:
        settle: infers shapes and folds values that depend only on sizes, in place, after each round.
    """
    resolve_sequences(model)
    if not _control_flow_nodes(model.graph):
        return False
    for graph in model.graph.subgraphs():
        name_outputs(graph)
    passes.LiftSubgraphInitializersToMainGraphPass()(model)
    inliner, changed = _Inliner(model), False
    while _control_flow_nodes(model.graph):
        settle(model)
        note_shapes(model)
        inliner.check_shapes()
        nodes = _control_flow_nodes(model.graph)
        replaced = [inliner.replace(node) for node in nodes]
        if not any(replaced):  # no node only waits for others to become known
            inliner.by_data = True
            if not any(inliner.replace(node) for node in nodes):
                break
            inliner.by_data = False
        changed = True
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        passes.RemoveUnusedNodesPass()(model)
        fold_weights(model)
        resolve_sequences(model)
    note_shapes(model)
    inliner.check_shapes()
    remove_identities(model)
    for graph in model.graph.subgraphs():  # the pass may replace their own outputs
        name_outputs(graph)
    note_shapes(model)
    return changed


def rows_decide(model: ir.Model) -> bool:
    """Tell whether control flow can differ between rows: by a condition, or by a Scan over them."""
    rows = dependent_on_batch(model)
    for node in _control_flow_nodes(model.graph):
        if node.op_type == "Scan" and _scans_rows(node):
            return True
        conditions = {v.name for v in node.inputs[: 1 if node.op_type == "If" else 2] if v is not None}
        body = node.attributes["body"].as_graph() if node.op_type == "Loop" else None
        ends = body is not None and not _keeps_its_condition(body) and not rows.isdisjoint(names_read(node))
        if node.op_type != "Scan" and (ends or not rows.isdisjoint(conditions)):
            return True
    return False


def _scans_rows(node: ir.Node) -> bool:
    """Tell whether each step of a Scan is a row of the batch, for all of its scanned inputs."""
    count = node.attributes["num_scan_inputs"].as_int()
    scanned = zip(node.inputs[-count:], _ints(node, "scan_input_axes", count), strict=True)
    return all(v is not None and v.shape is not None and v.shape[axis] == BATCH for v, axis in scanned)


def _control_flow_nodes(graph: ir.Graph) -> list[ir.Node]:
    return [n for n in graph if n.op_type in _BRANCHING and not n.domain]


@dataclass
class _Inliner:
    """A helper that replaces nodes one by one.

    Attributes:
        by_data: whether conditions that are not constant are treated as data.
        alternatives: pairs of values between which a Where chooses: both must have one shape.
    """

    model: ir.Model
    by_data: bool = False
    added: int = 0
    names: int = 0
    alternatives: list[tuple[str, ir.Value, ir.Value]] = field(default_factory=list)

    def replace(self, node: ir.Node) -> bool:
        graph, op, before = self.model.graph, Rewriting(self.model.graph, node), self.added
        op.count = self.names
        try:
            outputs = {"If": self._if, "Loop": self._loop, "Scan": self._scan}[node.op_type](op, node)
        except _KeepNodeError as reason:
            node.metadata_props[REASON], self.added = str(reason), before
            op.withdraw()
            return False
        finally:
            self.names = op.count
        used: set[ir.Value] = set()
        for old, new in zip(node.outputs, outputs, strict=True):
            if not old.name:
                continue
            is_new = new.producer() in op.emitted and new not in used
            value = new if is_new else op.Identity(new)
            used.add(value)
            take_place_of(old, value)
        graph.remove(node, safe=True)
        detach_bodies(node)
        return True

    def check_shapes(self) -> None:
        """Raise UnsupportedModelError if a condition chooses between values of different shapes."""
        unknown = any(v.shape is None for _, *pair in self.alternatives for v in pair)
        inferred = infer(self.model, 1) if unknown else {}  # a Where of two shapes stops the other inference
        for name, *pair in self.alternatives:
            a, b = (inferred.get(str(v.name), (None,))[0] if v.shape is None else v.shape for v in pair)
            if a is None or b is None:
                continue
            if len(a) != len(b) or any(map(_differ, a, b)):
                raise UnsupportedModelError(
                    f"node {name!r}: a condition that depends on the data chooses between the shapes "
                    f"{list(a)} and {list(b)}. Both shapes must be equal."
                )

    # -- the operators --------------------------------------------------------------------------------

    def _if(self, op: Rewriting, node: ir.Node) -> list[ir.Value]:
        condition = _require(node.inputs[0])
        then, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
        (constant,) = constants_of(self.model, [condition])
        if constant is not None:
            return self._splice(op, then if constant.all() else other, [])
        if not self.by_data:
            raise _KeepNodeError("its condition is known only when the model runs")
        _refuse_sequences(node)
        yes, no = self._splice(op, then, []), self._splice(op, other, [])
        return self._choose(op, node, _scalar(op, condition), yes, no)

    def _loop(self, op: Rewriting, node: ir.Node) -> list[ir.Value]:
        body = node.attributes["body"].as_graph()
        count, start, *initial = [*node.inputs, None][: max(2, len(node.inputs))]
        carried = [_require(v) for v in initial]
        collected: list[list[ir.Value]] = [[] for _ in body.outputs[1 + len(carried) :]]
        most, trips = self._trips(op, count, body)
        state = _LoopState(op, self.model, start)
        too_long = most * len(body) + self.added > LIMIT
        if state.can_run and too_long and (_keeps_its_condition(body) or trips is not None):
            raise _KeepNodeError(_TOO_LONG)
        t = 0
        while t < most and state.can_run:
            if t > LIMIT:
                raise _KeepNodeError(_TOO_LONG)
            index, true = op.constant(np.asarray(t, np.int64)), op.constant(np.asarray(True))
            if trips is not None:
                state.advance(op.Less(index, trips), [])
            self._check_loop(node, state, most, len(carried))
            going, *new = self._splice(op, body, [index, true, *carried])
            states, parts = new[: len(carried)], new[len(carried) :]
            for values, value in zip(collected, parts, strict=True):
                values.append(value)
            if state.mask is not None:
                states = self._choose(op, node, state.mask, states, carried)
            carried = state.advance(going, states)
            t += 1
        outputs = body.outputs[1 + len(carried) :]
        return [
            *carried,
            *(_collected_values(op, like, v) for like, v in zip(outputs, collected, strict=True)),
        ]

    def _trips(self, op: Rewriting, count: ir.Value | None, body: ir.Graph) -> tuple[float, ir.Value | None]:
        """Return the most iterations of a Loop, infinite without a bound; and the count, [], if it is data.

        Raises _StaysError: if the count is data without a bound.
        """
        if count is None:
            return positions_read(body), None
        (constant,) = constants_of(self.model, [count])
        if constant is not None:
            return constant.item() if constant.item() <= LIMIT else positions_read(body), None
        if not self.by_data:
            raise _KeepNodeError("its trip count is known only when the model runs")
        most = min(span(count)[1], positions_read(body))
        if most > LIMIT:
            raise _KeepNodeError(_UNBOUNDED_COUNT)
        return most, _scalar(op, count)

    def _check_loop(self, node: ir.Node, state: "_LoopState", most: float, carried: int) -> None:
        """Raise _StaysError if a condition is data and cannot be followed."""
        if state.mask is None:
            return
        if math.isinf(most):
            raise _KeepNodeError(_UNBOUNDED)
        if not self.by_data:
            raise _KeepNodeError("its stop condition is known only when the model runs")
        if any(v.name and (v.uses() or v.is_graph_output()) for v in node.outputs[carried:]):
            raise _KeepNodeError(_RAGGED)

    def _scan(self, op: Rewriting, node: ir.Node) -> list[ir.Value]:
        body, count = node.attributes["body"].as_graph(), node.attributes["num_scan_inputs"].as_int()
        inputs = [_require(v) for v in node.inputs]
        states, sequences = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
        axes, backwards = (_ints(node, f"scan_input_{name}", count) for name in ("axes", "directions"))
        lanes = [_slices(op, x, axis, back) for x, axis, back in zip(sequences, axes, backwards, strict=True)]
        collected: list[list[ir.Value]] = [[] for _ in body.outputs[len(states) :]]
        for parts in zip(*lanes, strict=True):
            new = self._splice(op, body, [*states, *parts])
            states = new[: len(states)]
            for values, value in zip(collected, new[len(states) :], strict=True):
                values.append(value)
        directions = _ints(node, "scan_output_directions", len(collected))
        ordered = [v[::-1] if back else v for v, back in zip(collected, directions, strict=True)]
        output_axes = _ints(node, "scan_output_axes", len(collected))
        return [*states, *(_stack(op, v, axis) for v, axis in zip(ordered, output_axes, strict=True))]

    # -- shared by the operators -----------------------------------------------------------------------

    def _splice(self, op: Rewriting, body: ir.Graph, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Insert a copy of the body before the node, with `arguments` as its inputs; return its outputs."""
        copy = body.clone(allow_outer_scope_values=True)
        mapped = dict(zip(copy.inputs, arguments, strict=True))
        outputs = [mapped.get(v, v) for v in copy.outputs]
        copy.outputs.clear()
        for value in copy.inputs:
            ir.convenience.replace_all_uses_with(value, mapped[value], replace_graph_outputs=True)
        nodes = list(copy)
        self.added += len(nodes)
        if self.added > LIMIT:
            raise _KeepNodeError(_TOO_LONG)
        copy.remove(nodes)
        for node in nodes:
            name = op.fresh(node.op_type)
            node.name = name
            for i, value in enumerate(node.outputs):
                value.name, value.shape = f"{name}.{i}" if value.name else "", None
        op.insert(nodes)
        return outputs

    def _choose(
        self,
        op: Rewriting,
        node: ir.Node,
        condition: ir.Value,
        yes: Sequence[ir.Value],
        no: Sequence[ir.Value],
    ) -> list[ir.Value]:
        pairs = list(zip(yes, no, strict=True))
        name = str(node.name or node.outputs[0].name)
        self.alternatives += [(name, a, b) for a, b in pairs if a is not b]
        return [a if a is b else op.Where(condition, a, b) for a, b in pairs]


class _LoopState:
    """The state of a Loop: whether its next iteration runs.

    Attributes:
        can_run: false if it certainly does not run.
        mask: the condition if it is data.
    """

    def __init__(self, op: Rewriting, model: ir.Model, start: ir.Value | None) -> None:
        self.op, self.model, self.can_run = op, model, True
        self.mask: ir.Value | None = None
        if start is not None:
            self.advance(start, [])

    def advance(self, condition: ir.Value, states: Sequence[ir.Value]) -> list[ir.Value]:
        """Take the next condition; return the states, as constants if they are constant."""
        constant, *constants = constants_of(self.model, [condition, *states])
        if constant is None:
            current = _scalar(self.op, condition)
            self.mask = current if self.mask is None else self.op.And(self.mask, current)
        else:
            self.can_run = bool(constant.all())
        return [
            v if a is None or v.producer() is None else self.op.constant(a)
            for v, a in zip(states, constants, strict=True)
        ]


_UNBOUNDED_COUNT = (
    "its trip count is computed from data, and nothing bounds it: unrolling it has to end somewhere. "
    "Export with Min(trip count, the most iterations that may be needed). A Clip, a remainder, an ArgMax, a "
    "count along an axis or a tensor that is read at the number of the iteration bounds it, too"
)
_UNBOUNDED = (
    "it runs until a condition on the data fails, without a limit. Export it with a trip count (the "
    "largest number of iterations) in addition to the condition"
)
_TOO_LONG = f"unrolled, the model would have more than {LIMIT} nodes. Explain fewer steps"
_RAGGED = (
    "the number of values that it collects depends on the data. Export with a constant number of "
    "iterations, or explain an output that does not depend on these values"
)


def _require(value: ir.Value | None) -> ir.Value:
    if value is None:
        raise _KeepNodeError("an input of it is left out")
    return value


def _differ(a: object, b: object) -> bool:
    """Tell whether two sizes are known and differ."""
    return isinstance(a, int) and isinstance(b, int) and a != b


def _refuse_sequences(node: ir.Node) -> None:
    for value in node.outputs:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            raise _KeepNodeError("a condition that depends on the data chooses between sequences")


def _keeps_its_condition(body: ir.Graph) -> bool:
    """Tell whether a body returns its condition unchanged, so that only the trip count ends the Loop."""
    going = body.outputs[0]
    node = going.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        going = node.inputs[0]
        node = going.producer()
    return going is body.inputs[1] or (node is None and going.const_value is not None)


def _scalar(op: Rewriting, x: ir.Value) -> ir.Value:
    """Return a condition or a count [] or [1] as []."""
    return op.Reshape(x, op.constant(np.zeros(0, np.int64)))


def _ints(node: ir.Node, name: str, count: int) -> Sequence[int]:
    """Return a list attribute of Scan: zeros if it is omitted."""
    return node.attributes[name].as_ints() if name in node.attributes else [0] * count


def _slices(op: Rewriting, x: ir.Value, axis: int, backwards: int) -> list[ir.Value]:
    """Return the slices of x along an axis, without that axis."""
    if x.shape is None or not isinstance(x.shape[axis], int):
        raise _KeepNodeError(
            f"the length of {x.name!r} along axis {axis}, its number of steps, is not known before the "
            "model runs. Export with a fixed length"
        )
    count = int(str(x.shape[axis]))
    if count == 0:
        raise _KeepNodeError(f"it runs over {x.name!r}, which is empty")
    parts = [op.Squeeze(element, [axis]) for element in op.split(x, [1] * count, axis=axis)]
    return parts[::-1] if backwards else parts


def _stack(op: Rewriting, parts: list[ir.Value], axis: int) -> ir.Value:
    """Stack the parts along a new axis."""
    return op.concat([op.Unsqueeze(v, [axis]) for v in parts], axis=axis)


def _collected_values(op: Rewriting, like: ir.Value, parts: list[ir.Value]) -> ir.Value:
    """Return the values that a Loop collects, along a new axis 0."""
    if parts:
        return _stack(op, parts, 0)
    shape = [] if like.shape is None else list(like.shape)
    if like.dtype is None or like.shape is None or not all(isinstance(d, int) for d in shape):
        raise _KeepNodeError("it never runs, and the shape of its outputs is unknown")
    return op.constant(np.zeros((0, *(int(str(d)) for d in shape)), like.dtype.numpy()))
