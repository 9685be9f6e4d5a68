"""The combined graph: the model at x, its rules at the references, and the walk back."""

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from compiler.references import ReferenceSet
from compiler.rule import Rule
from compiler.targets import Path
from compiler.tensor import Tensor

BASE_VALUE, EXPLAINED_VALUE, GAP = "base_value", "explained_value", "completeness_gap"


def attributions_name(name: str) -> str:
    return f"{name}_attributions"


@dataclass(frozen=True)
class Seed:
    """Where the walk starts: multiplier 1 at each target, and the targets' values at x and at r."""

    multiplier: Tensor
    explained: Tensor
    base: Tensor | None


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
    _check_names(lowered, path)
    targets = 1 if path.targets == "predicted" else len(path.targets)
    sizes = {"T": targets, "K": references.count if references else 1}
    opset = graph.opset_imports.get("", 21)
    op = Ops(graph, opset, sizes, lowered.specs[path.output][1])
    values = _Values(op, lowered, path)
    at_x = [values.evaluate_at_sample(node, rule) for node, rule in path.nodes]
    op.bind_batch(values.at_x(path.inputs[0]))
    if references is not None:
        values.bind_references(references)
        at_x = [values.evaluate_at_references(call) for call in at_x]
    weights = references.weights if references else None
    seed = _seed(op, path, values, weights, method.has_base_value)
    steps = len(at_x)
    arriving = walk(
        op, at_x, path.output, seed.multiplier, method.pull, lambda i: progress("walking back", i, steps)
    )
    _emit_outputs(op, path, method, values, arriving, seed, weights)
    progress("computing the references", 0, 1)
    return _finish(lowered.model)


def _check_names(lowered: Lowered, path: Path) -> None:
    new = {BASE_VALUE, EXPLAINED_VALUE, GAP, *(attributions_name(i) for i in path.inputs)}
    taken = sorted(new & set(lowered.specs))
    if taken:
        raise InvalidOptionError(
            f"the model already has tensors named {taken}: rename them before compiling."
        )


class _Values:
    """Each value of the model as a tensor, at x and at r."""

    def __init__(self, op: Ops, lowered: Lowered, path: Path) -> None:
        self.op, self.lowered, self.path = op, lowered, path
        graph = lowered.model.graph
        owned = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
        self._values = {str(v.name): v for v in owned}
        self._x: dict[str, Tensor] = {}
        self._r: dict[str, Tensor] = {}

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
        self._check_rows(node, at)
        outputs = tuple(str(v.name) for v in node.outputs)[: len(at.outputs)]
        at = replace(
            at, outputs=tuple(self._take_over(*pair) for pair in zip(node.outputs, at.outputs, strict=False))
        )
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            self.op.graph.remove(node, safe=True)
        varying = tuple(i in self.path.active for i in inputs)
        return Call(name, rule, attributes, inputs, outputs, varying, at)

    def _check_rows(self, node: ir.Node, at: At) -> None:
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

    def bind_references(self, references: ReferenceSet) -> None:
        self.op.scope = "reference"
        for name, array in references.arrays.items():
            x = self.at_x(name)
            constant = self.op.constant(array)
            self._r[name] = replace(constant, shape=x.shape, lead=frozenset("K"), rows=True)

    def at_r(self, name: str) -> Tensor:
        """The value at the references; itself where it does not depend on what is explained."""
        if name in self._r:
            return self._r[name]
        if name not in self.path.dependent:
            return self.at_x(name)
        node = self._values[name].producer()
        assert node is not None
        inputs = [None if v is None else self.at_r(str(v.name)) for v in node.inputs]
        attributes = {a.name: a.value for a in node.attributes.values()}
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            raise UnsupportedModelError(f"{node.op_type} node {node.name!r}: control flow at the references")
        self.op.scope = f"reference/{node.name}"
        outputs = self.op.emit(
            node.op_type, inputs, attributes, outputs=len(node.outputs), domain=node.domain
        )
        self._r.update(zip((str(v.name) for v in node.outputs), outputs, strict=True))
        return self._r[name]

    def evaluate_at_references(self, call: Call) -> Call:
        inputs = [None if i is None else self.at_r(i) for i in call.inputs]
        self.op.scope = f"reference/{call.name}"
        at = call.at(self.op, inputs)
        self._r.update(zip(call.outputs, at.outputs, strict=True))
        return replace(call, r=at)


def _seed(op: Ops, path: Path, values: _Values, weights: np.ndarray | None, has_base: bool) -> Seed:
    op.scope = "seed"
    y = values.at_x(path.output)
    size = int(np.prod(y.shape))
    row = op.reshape(y, (1, size))
    mean = (
        op.mean_over_references(op.reshape(values.at_r(path.output), (1, size)), weights)
        if has_base
        else None
    )
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


def _emit_outputs(
    op: Ops,
    path: Path,
    method: Method,
    values: _Values,
    arriving: dict[str, Tensor],
    seed: Seed,
    weights: np.ndarray | None,
) -> None:
    """Adds the attributions, base value, explained value and gap to the graph's outputs."""
    op.scope = "attributions"
    targets = op.sizes["T"]
    outputs, sums = [], []
    for name in path.inputs:
        x = values.at_x(name)
        r = values.at_r(name) if seed.base is not None else None
        attributions = method.attribute(op, arriving[name], x, r, weights)
        value = op.attributions_output(attributions, attributions_name(name))
        outputs.append(value)
        whole = Tensor(value, (1, targets, *x.shape[1:]), x.dtype, frozenset("N"), rows=True)
        axes = list(range(2, whole.rank))
        sums.append(op.ReduceSum(whole, axes, keepdims=0) if axes else whole)
    if seed.base is not None:
        outputs.append(op.rows_output(seed.base, BASE_VALUE))
    outputs.append(op.rows_output(seed.explained, EXPLAINED_VALUE))
    if method.gap is not None:
        gap = seed.explained if seed.base is None else op.Sub(seed.explained, seed.base)
        for total in sums:
            gap = op.Sub(gap, total)
        outputs.append(op.rows_output(gap, GAP))
    op.graph.outputs.extend(outputs)


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
