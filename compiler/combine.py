"""The combined graph: the model at x, its rules at the references, and the walk back."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from compiler.backward import walk
from compiler.errors import InvalidOptionError, UnsupportedModelError
from compiler.fold import fold_constants
from compiler.forward import At, Call, attributes_of, evaluate
from compiler.graph import Ops
from compiler.lowering import Lowered
from compiler.methods import Method
from compiler.methods.base import OnPaths
from compiler.methods.planned import plan
from compiler.outputs import Explained, Seed, emit_outputs, names_of_outputs
from compiler.references import ReferenceSet
from compiler.rule import Rule
from compiler.targets import Path
from compiler.tensor import Tensor


def combine(
    lowered: Lowered,
    path: Path,
    method: Method,
    references: ReferenceSet | None,
    progress: Callable[[str, int, int], None],
) -> ir.Model:
    """Builds the combined model from the lowered one, in place, and returns it.

    Args:
        progress: called as `progress(stage, done, total)`.
    """
    graph = lowered.model.graph
    _check_names(lowered, names_of_outputs(method, path.inputs))
    targets = 1 if path.targets == "predicted" else len(path.targets)
    points = method.points if isinstance(method, OnPaths) else 1
    sizes = {"T": targets, "K": references.count if references else 1, "S": points}
    opset = graph.opset_imports.get("", 21)
    op = Ops(graph, opset, sizes, lowered.specs[path.output][1])
    values = _Values(op, lowered, path)
    calls = [values.evaluate_at_sample(node, rule) for node, rule in path.nodes]
    op.bind_batch(values.at_x(path.inputs[0]))
    at_r = None if references is None else _references(values, references)
    if at_r is not None:
        calls = [replace(call, r=at_r.evaluate(call)) for call in calls]
    starts, calls = _onto_paths(values, at_r, method, references, calls)
    weights = references.weights if references else None
    seed = _seed(op, path, values, at_r if method.has_base_value else None, weights)
    steps, pull = plan(op, method, calls)
    arriving = walk(
        op, steps, path.output, seed.multiplier, pull, lambda i: progress("walking back", i, len(steps))
    )
    explained = [Explained(i, values.at_x(i), arriving[i], starts[i]) for i in path.inputs]
    emit_outputs(op, method, explained, seed, references)
    progress("computing the references", 0, 1)
    return _finish(lowered.model)


def _check_names(lowered: Lowered, new: set[str]) -> None:
    taken = sorted(new & set(lowered.specs))
    if taken:
        raise InvalidOptionError(
            f"the model already has tensors named {taken}: rename them before compiling."
        )


class _Values:
    """Each value of the model as a tensor, at x."""

    def __init__(self, op: Ops, lowered: Lowered, path: Path) -> None:
        self.op, self.lowered, self.path = op, lowered, path
        graph = lowered.model.graph
        owned = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
        self._values = {str(v.name): v for v in owned}
        self._x: dict[str, Tensor] = {}

    def at_x(self, name: str) -> Tensor:
        if name not in self._x:
            if name not in self.lowered.specs:
                raise UnsupportedModelError(
                    f"the shape of {name!r} is not known before the model runs; export with static feature "
                    "sizes."
                )
            shape, dtype = self.lowered.specs[name]
            rows = name in self.lowered.batched
            lead = frozenset("N" if rows else "")
            self._x[name] = Tensor(self._values[name], shape, dtype, lead, rows)
        return self._x[name]

    def evaluate_at_sample(self, node: ir.Node, rule: Rule) -> Call:
        """Calls the rule at x; what it emits takes the node's place in the graph."""
        name = node.name or str(node.outputs[0].name)
        inputs = tuple(None if v is None else v.name for v in node.inputs)
        self.op.scope = f"forward/{name}"
        attributes = attributes_of({a.name: a.value for a in node.attributes.values()})
        at = evaluate(self.op, rule, [None if i is None else self.at_x(i) for i in inputs], attributes, name)
        self._check_outputs(node, at)
        outputs = tuple(str(v.name) for v in node.outputs)[: len(at.outputs)]
        at = replace(
            at, outputs=tuple(self._take_over(*pair) for pair in zip(node.outputs, at.outputs, strict=False))
        )
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            self.op.graph.remove(node, safe=True)
        varying = tuple(i in self.path.active for i in inputs)
        return Call(name, rule, attributes, inputs, outputs, varying, at)

    def _check_outputs(self, node: ir.Node, at: At) -> None:
        unruled = [v.name for v in node.outputs[len(at.outputs) :] if v.name in self.path.active]
        if unruled:
            raise UnsupportedModelError(
                f"{node.op_type} node {node.name!r}: the explained output reads its outputs {unruled}, for "
                "which its rule has no multiplier. Export without them."
            )
        for value, tensor in zip(node.outputs, at.outputs, strict=False):
            spec = self.lowered.specs.get(str(value.name))
            if not tensor.rows or (spec is not None and spec[0] != tensor.shape):
                raise UnsupportedModelError(
                    f"{node.op_type} node {node.name!r}: the batch does not stay on axis 0 of "
                    f"{value.name!r}, or its rows mix. Each row must be explained by itself."
                )

    def _take_over(self, old: ir.Value, new: Tensor) -> Tensor:
        """`new` in place of `old`, under its name."""
        name = str(old.name)
        ir.convenience.replace_all_uses_with(old, new.value, replace_graph_outputs=True)
        old.name, new.value.name = None, name
        new.value.dtype = new.dtype
        new.value.shape = ir.Shape(["N", *new.shape[1:]]) if new.shape[0] == 1 else None
        self._values[name], self._x[name] = new.value, new
        return new

    def producer(self, name: str) -> ir.Node:
        node = self._values[name].producer()
        assert node is not None
        return node


class _Elsewhere:
    """The same values where the explained inputs hold something else: references, or points of paths.

    Args:
        scope: of the names of what is emitted.
        held: what the explained inputs hold there, by name.
    """

    def __init__(self, values: _Values, scope: str, held: dict[str, Tensor]) -> None:
        self.values, self.op, self.scope = values, values.op, scope
        self._there = dict(held)

    def at(self, name: str) -> Tensor:
        """The value there; itself where it does not depend on what is explained."""
        if name in self._there:
            return self._there[name]
        if name not in self.values.path.dependent:
            return self.values.at_x(name)
        node = self.values.producer(name)
        inputs = [None if v is None else self.at(str(v.name)) for v in node.inputs]
        attributes = {a.name: a.value for a in node.attributes.values()}
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            raise UnsupportedModelError(
                f"{node.op_type} node {node.name!r}: control flow at the {self.scope}s"
            )
        self.op.scope = f"{self.scope}/{node.name}"
        outputs = self.op.emit(
            node.op_type, inputs, attributes, outputs=len(node.outputs), domain=node.domain
        )
        self._there.update(zip((str(v.name) for v in node.outputs), outputs, strict=True))
        return self._there[name]

    def evaluate(self, call: Call) -> At:
        """The call's rule, there."""
        inputs = [None if i is None else self.at(i) for i in call.inputs]
        self.op.scope = f"{self.scope}/{call.name}"
        at = call.at(self.op, inputs)
        self._there.update(zip(call.outputs, at.outputs, strict=True))
        return at


def _references(values: _Values, references: ReferenceSet) -> _Elsewhere:
    values.op.scope = "reference"
    held = {name: values.op.along(array, "K") for name, array in references.arrays.items()}
    return _Elsewhere(values, "reference", held)


def _onto_paths(
    values: _Values,
    at_r: _Elsewhere | None,
    method: Method,
    references: ReferenceSet | None,
    calls: list[Call],
) -> tuple[dict[str, Tensor | None], list[Call]]:
    """Where the paths to x start, by input; and the calls at their points where the method walks there."""
    starts = {name: at_r.at(name) if at_r else None for name in values.path.inputs}
    if not isinstance(method, OnPaths):
        return starts, calls
    values.op.scope = "point"
    weights = references.weights if references else None
    points = {
        name: method.point(values.op, name, values.at_x(name), r, weights) for name, r in starts.items()
    }
    there = _Elsewhere(values, "point", {name: point.at for name, point in points.items()})
    moved = [replace(call, x=there.evaluate(call)) for call in calls]
    return {name: point.start for name, point in points.items()}, moved


def _seed(op: Ops, path: Path, values: _Values, at_r: _Elsewhere | None, weights: np.ndarray | None) -> Seed:
    """At x also for a method that walks elsewhere: a row is explained for its own predicted class.

    Args:
        at_r: the references; None for a method without base value.
    """
    op.scope = "seed"
    y = values.at_x(path.output)
    size = int(np.prod(y.shape))
    row = op.reshape(y, (1, size))
    mean = None if at_r is None else op.mean(op.reshape(at_r.at(path.output), (1, size)), "K", weights)
    if path.targets == "predicted":
        winner = op.ArgMax(row, axis=1, keepdims=1)
        one_hot = op.Cast(op.Equal(winner, np.arange(size, dtype=np.int64)), to=int(y.dtype))
        base = None if mean is None else op.ReduceSum(op.Mul(one_hot, mean), [1], keepdims=1)
        explained = op.GatherElements(row, winner, axis=1)
        return Seed(op.reshape(one_hot, y.shape), explained, base)
    targets = list(path.targets)
    ones = np.zeros((len(targets), size), y.dtype.numpy())
    ones[np.arange(len(targets)), targets] = 1
    lead = frozenset("T" if len(targets) > 1 else "")
    seed = replace(op.constant(ones.reshape(-1, *y.shape[1:])), shape=y.shape, lead=lead, rows=True)
    base = None if mean is None else op.Gather(mean, targets, axis=1)
    return Seed(seed, op.Gather(row, targets, axis=1), base)


def _finish(model: ir.Model) -> ir.Model:
    """Sorted, without what nothing reads, and with everything constant computed."""
    for step in (passes.RemoveUnusedNodesPass(), passes.TopologicalSortPass()):
        step(model)
    fold_constants(model)
    for cleanup in (
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.DeduplicateInitializersPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.TopologicalSortPass(),
    ):
        cleanup(model)
    return model
