"""Every value of the model as a tensor (at x, at references, on paths), and the rules called on them.

A `RuleCall` is one operator of the path, with the results of its rule at x and at r. The walk reads the calls
in reverse; methods decide at which points to call a rule again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.graph.batching import Node, works_on_axis_0
from rationale.graph.memory.fit import build_whole
from rationale.graph.nodes import names_read
from rationale.graph.ops import Ops, mean, open_rows, open_weights
from rationale.graph.shapes import Spec
from rationale.graph.tensor import Tensor
from rationale.lowering import Lowered, narrow
from rationale.lowering.batch import (
    ONE_SCALE,
    dependent_on_batch,
    dependent_on_rows,
    first_to_mix,
    how_rows_mix,
)
from rationale.lowering.control_flow.branches import REASON
from rationale.lowering.precision import on_cpu
from rationale.lowering.rewrites.engine import RELEVANCE
from rationale.lowering.sizes import specs_at_batch
from rationale.references.reference_set import ReferenceSet
from rationale.references.request_time import WEIGHTS, references_name
from rationale.rules.rule import Rule


@dataclass(frozen=True)
class RulePoint:
    """The result of a rule at one point: its inputs, its outputs, and one pullback for each input."""

    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    pullbacks: tuple[Callable[[Any], Tensor] | None, ...]

    @property
    def y(self) -> Tensor:
        return self.outputs[0]

    @property
    def first(self) -> Tensor:
        """The first input; every operator on the path has it."""
        x = self.inputs[0]
        assert x is not None
        return x

    def pullback(self, i: int = 0) -> Callable[[Any], Tensor]:
        """Return the pullback of an input that varies."""
        pullback = self.pullbacks[i]
        assert pullback is not None
        return pullback


@dataclass(frozen=True)
class RuleCall:
    """One operator on the path from the explained inputs to the explained output.

    Attributes:
        varying: per input, whether it depends on the explained inputs. An input that does not (a weight, an
            unexplained input) is its own reference.
        r: None for methods without references.
        relevance: the way relevance passes a quantised operator: `UNCHANGED` or `HELD`; empty for other
            operators.
    """

    name: str
    rule: Rule
    attributes: Mapping[str, Any]
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    varying: tuple[bool, ...]
    x: RulePoint
    r: RulePoint | None = field(default=None)
    relevance: str = ""

    @property
    def sources(self) -> list[str]:
        """Names of the varying inputs, in order."""
        return [n for n, varying in zip(self.inputs, self.varying, strict=True) if varying and n is not None]

    def evaluate(self, op: Ops, inputs: Sequence[Tensor | None]) -> RulePoint:
        """Call the rule at another point."""
        return evaluate(op, self.rule, inputs, self.attributes, self.name)

    @property
    def reference(self) -> RulePoint:
        assert self.r is not None, "the method has no references"
        return self.r


Calls = Sequence[RuleCall]


def attributes_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as Python values.

    ONNX stores float attributes in float32: rules must compute with exactly that number.
    """
    return {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in values.items()}


def evaluate(
    op: Ops, rule: Rule, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], name: str
) -> RulePoint:
    """Call a rule.

    Raises:
        UnsupportedModelError: if the rule does not cover this use of the operator; the message names the
            node.
    """
    try:
        y, pullbacks = rule(op, *inputs, **attributes)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{rule.op_type} node {name!r}: {error}") from error
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise UnsupportedModelError(
            f"{rule.op_type} node {name!r}: its rule does not support these inputs or attributes ({error})"
        ) from error
    outputs = y if isinstance(y, tuple) else (y,)
    given_pullbacks = pullbacks if isinstance(pullbacks, tuple) else (pullbacks,)
    padded = (*given_pullbacks, *(None for _ in inputs[len(given_pullbacks) :]))
    return RulePoint(tuple(inputs), outputs, padded[: len(inputs)])


class Environment:
    """The tensors of all values of the model, at x."""

    def __init__(
        self,
        op: Ops,
        lowered: Lowered,
        batch_leading: frozenset[str],
        active: frozenset[str] = frozenset(),
        blocked: frozenset[tuple[str, int]] = frozenset(),
    ) -> None:
        self.op, self.lowered, self.active, self.blocked = op, lowered, active, blocked
        graph = lowered.model.graph
        values = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
        self._values = {str(v.name): v for v in values}
        self._replaced: dict[ir.Value, str] = {}  # replaced outputs, with their names in the model
        self._batch_dependent = dependent_on_batch(lowered.model)
        self._batch_leading = batch_leading
        self._x: dict[str, Tensor] = {}

    def tensor(self, name: str) -> Tensor:
        for node in _nodes_to_compute(name, self._is_known, self):
            self._lift(node)
        if name not in self._x:
            lifted = not self.lies_flat(name)
            self._x[name] = (
                self.op.constant(self.lowered.constants[name]) if lifted else self._model_tensor(name)
            )
        return self._x[name]

    def lies_flat(self, name: str) -> bool:
        """Tell whether the value is laid out as in `Ops`: rows one after the other on axis 0, or no rows."""
        return name in self._batch_leading or name not in self._batch_dependent

    def _is_known(self, name: str) -> bool:
        return name in self._x or self.lies_flat(name) or name in self.lowered.constants

    def _model_tensor(self, name: str) -> Tensor:
        if name not in self.lowered.specs:
            raise UnsupportedModelError(
                f"the shape of {name!r} is not known before the model runs; export with static feature sizes."
            )
        shape, dtype = self.lowered.specs[name]
        rows = name in self._batch_leading
        return Tensor(self._values[name], shape, dtype, frozenset("N" if rows else ""), rows)

    def _lift(self, node: ir.Node) -> None:
        """Lift a node off the path: its rows lie elsewhere, or its graph is made for one row's sizes."""
        inputs = [None if v is None else self.tensor(self.name_of(v)) for v in node.inputs]
        self.op.scope = f"forward/{node.name}"
        outputs = emit_copy(self.op, node, inputs, "sample", self.specs_of(node))
        self._x.update(zip(map(self.name_of, node.outputs), outputs, strict=True))

    def evaluate_at_sample(self, node: ir.Node, rule: Rule) -> RuleCall:
        """Call the rule at x; the nodes that it emits replace the node in the graph."""
        name = node.name or str(node.outputs[0].name)
        inputs = tuple(None if v is None else v.name for v in node.inputs)
        self.op.scope = f"forward/{name}"
        values = attributes_of({a.name: a.value for a in node.attributes.values()})
        point = evaluate(self.op, rule, [None if i is None else self.tensor(i) for i in inputs], values, name)
        self._check_outputs(node, point)
        outputs = tuple(str(v.name) for v in node.outputs)[: len(point.outputs)]
        point = replace(
            point,
            outputs=tuple(self._replace(*pair) for pair in zip(node.outputs, point.outputs, strict=False)),
        )
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            self.op.graph.remove(node, safe=True)
        first = str(outputs[0])
        varying = tuple(n in self.active and (first, i) not in self.blocked for i, n in enumerate(inputs))
        relevance = node.metadata_props.get(RELEVANCE, "")
        return RuleCall(name, rule, values, inputs, outputs, varying, point, relevance=relevance)

    def lift_outputs(self) -> None:
        """Replace the model's outputs by lifted ones: all of them if the model takes a single row."""
        names = [str(value.name) for value in self.op.graph.outputs]
        lifted = {i: self.tensor(name) for i, name in enumerate(names) if self._has_to_be_lifted(name)}
        for i, y in lifted.items():
            of_batch = y.shape[:1] == (1,)  # else the output has no batch axis
            batched = self.op.Identity(self.op.flat(y) if of_batch else self.op.stacked(y)).value
            self._replaced[value := self.op.graph.outputs[i]] = names[i]
            value.name, batched.name = f"{names[i]}/row", names[i]
            batched.dtype, batched.shape = y.dtype, ir.Shape(["N", *(y.shape[1:] if of_batch else y.shape)])
            self.op.graph.outputs[i] = batched

    def _has_to_be_lifted(self, name: str) -> bool:
        computed = name in self._x and name in self.lowered.batched and self._x[name].shape[:1] == (1,)
        return not self.lies_flat(name) and (self.lowered.single_row_only or computed)

    def _check_outputs(self, node: ir.Node, point: RulePoint) -> None:
        unruled = [v.name for v in node.outputs[len(point.outputs) :] if v.name in self.active]
        if unruled:
            raise UnsupportedModelError(
                f"{node.op_type} node {node.name!r}: the explained output reads its outputs {unruled}, for "
                "which its rule has no multiplier. Export without them."
            )
        for value, tensor in zip(node.outputs, point.outputs, strict=False):
            spec = self.lowered.specs.get(str(value.name))
            if not tensor.rows or (spec is not None and spec[0] != tensor.shape):
                raise UnsupportedModelError(
                    f"{node.op_type} node {node.name!r}: one row of {value.name!r} has the shape "
                    f"{list(spec[0]) if spec else '?'} in the model and {list(tensor.shape)} by the "
                    "operator's rule. Each row must be explained by itself."
                )

    def _replace(self, old: ir.Value, new: Tensor) -> Tensor:
        """Replace `old` by `new`, under its name; keep both if the model lays out the rows differently."""
        name = str(old.name)
        if not self.lies_flat(name):
            self._x[name] = new
            return new
        new = self.op.flat(new)
        if new.value.producer() is None or new.value.name in self._values:
            new = self.op.Identity(new)
        ir.convenience.replace_all_uses_with(old, new.value, replace_graph_outputs=True)
        old.name, new.value.name = None, name
        new.value.dtype = new.dtype
        new.value.shape = ir.Shape(["N", *new.shape[1:]]) if new.shape[0] == 1 else None
        self._values[name], self._x[name] = new.value, new
        return new

    def specs_of(self, node: ir.Node) -> list[Spec] | None:
        """Return row shape and type of each output of a node for which ONNX infers none; else None."""
        if node.domain != "ai.onnx.ml" or not node.op_type.startswith("TreeEnsemble"):
            return None
        unread: Spec = (1,), ir.DataType.UNDEFINED  # such as a classifier's labels
        return [self.lowered.specs.get(self.name_of(value), unread) for value in node.outputs]

    def name_of(self, value: ir.Value) -> str:
        """Return the value's name in the model, even if the graph has renamed the value."""
        return self._replaced.get(value, str(value.name))

    def producer(self, name: str) -> ir.Node:
        node = self._values[name].producer()
        assert node is not None
        return node


class MovedEnvironment:
    """The same values, computed with other explained inputs: references, or points of a path.

    Args:
        scope: prefix for the names of the emitted nodes.
        inputs: the values of the explained inputs at that point, by name.
        dependent: names of the values that depend on them.
    """

    def __init__(
        self, at_x: Environment, scope: str, inputs: dict[str, Tensor], dependent: frozenset[str]
    ) -> None:
        self.origin, self.op, self.scope, self.dependent = at_x, at_x.op, scope, dependent
        self._moved = dict(inputs)

    def tensor(self, name: str) -> Tensor:
        """Return the value at that point; a value that depends on no explained input is that at x."""
        for node in _nodes_to_compute(name, self._is_known, self.origin):
            self._emit(node)
        return self._moved[name] if name in self._moved else self.origin.tensor(name)

    def _is_known(self, name: str) -> bool:
        elsewhere = name in self.dependent and name not in self.origin.lowered.constants
        return name in self._moved or not elsewhere

    def _emit(self, node: ir.Node) -> None:
        inputs = [None if v is None else self.tensor(self.origin.name_of(v)) for v in node.inputs]
        self.op.scope = f"{self.scope}/{node.name}"
        outputs = emit_copy(self.op, node, inputs, self.scope, self.origin.specs_of(node))
        self._moved.update(zip(map(self.origin.name_of, node.outputs), outputs, strict=True))

    def evaluate(self, call: RuleCall) -> RulePoint:
        """Evaluate the call's rule at that point."""
        inputs = [None if i is None else self.tensor(i) for i in call.inputs]
        self.op.scope = f"{self.scope}/{call.name}"
        point = call.evaluate(self.op, inputs)
        self._moved.update(zip(call.outputs, point.outputs, strict=True))
        return point


def at_open_references(
    at_x: Environment,
    references: ReferenceSet,
    dependent: frozenset[str],
    total: Callable[[Tensor], Tensor] | None = None,
) -> MovedEnvironment:
    """Return the values at references that come with a request: inputs that this adds to the graph.

    Args:
        references: examples of such rows, of the same shapes and types.
        dependent: names of the values that depend on the explained inputs.
        total: see `open_weights`.
    """
    op = at_x.op
    op.scope = "reference"
    dtype = ir.DataType.from_numpy(references.weights_dtype)
    op.weights["K"] = open_weights(op, WEIGHTS, "K", dtype, total)
    rows = {
        name: open_rows(op, references_name(name), array.shape[1:], "K", _type_of(array))
        for name, array in references.arrays.items()
    }
    return MovedEnvironment(at_x, "reference", rows, dependent)


def _type_of(array: np.ndarray) -> ir.DataType:
    return ir.DataType.STRING if array.dtype.kind in "OU" else ir.DataType.from_numpy(array.dtype)


def mean_at_references(at_r: MovedEnvironment, output: str, weights: np.ndarray | None = None) -> Tensor:
    """Return the mean of an output over the references, row shape [1, elements].

    It is computed in float64: a float32 sum of thousands of large outputs loses their differences.
    """
    op, y_r = at_r.op, at_r.tensor(output)
    y_r = op.reshape(y_r, (1, int(np.prod(y_r.shape))))
    wide = y_r if y_r.dtype == ir.DataType.DOUBLE else op.Cast(y_r, to=int(ir.DataType.DOUBLE))
    return mean(op, wide, "K", weights)


def _nodes_to_compute(name: str, is_known: Callable[[str], bool], at_x: Environment) -> Iterator[ir.Node]:
    """Yield the nodes that a value needs, each after the nodes that it reads.

    The loop avoids recursion, since chains may be longer than Python's stack.
    """
    pending = [name]
    while pending:
        node = None if is_known(pending[-1]) else at_x.producer(pending[-1])
        before = [] if node is None else [at_x.name_of(v) for v in node.inputs if v is not None]
        missing = [n for n in before if not is_known(n)]
        if node is not None and not missing:
            yield node
        if not missing:
            pending.pop()
        pending += missing


def emit_copy(
    op: Ops,
    node: ir.Node,
    inputs: Sequence[Tensor | None],
    where: str,
    specs: Sequence[Spec] | None = None,
) -> list[Tensor]:
    """Emit a copy of a model's node with other inputs; see `Ops.emit`."""
    attributes = {a.name: a if specs else a.value for a in node.attributes.values()}
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        why = node.metadata_props.get(REASON, "it stays in the graph")
        raise UnsupportedModelError(f"{_describe_node(node)} cannot be expanded for each {where}: {why}.")
    return op.emit(
        node.op_type, inputs, attributes, outputs=len(node.outputs), domain=node.domain, specs=specs
    )


def with_batch(lowered: Lowered) -> Lowered:
    """Return a model whose graph takes any number of rows, made from one whose graph takes one row.

    Raises:
        UnsupportedModelError: if the lifted graph's answers differ from the model's.
    """
    if not lowered.single_row_only:
        return lowered
    model = lowered.model.clone()
    op = Ops(model.graph, model.graph.opset_imports[""], {}, ir.DataType.FLOAT)
    at_x = Environment(op, replace(lowered, model=model), batch_leading(lowered))
    op.bind_batch(at_x.tensor(str(model.graph.inputs[0].name)))
    at_x.lift_outputs()
    source = narrow(build_whole(model), lowered.narrow)
    if how_rows_mix(source, ir.from_proto(lowered.source), batch_leading=True) is not None:
        raise UnsupportedModelError(
            "the batch is fixed at 1 and cannot be made symbolic, because the answers change with more "
            "rows. Export it with a dynamic batch axis (dynamic_axes or dynamic_shapes in "
            "torch.onnx.export)."
        )
    return replace(lowered, source=ir.serde.serialize_model(source))


# -- the axis on which rows lie ---------------------------------------------------------------------------
#
# In the model's inputs rows lie one after the other, [N, …], as in `Ops`. They still do after a node that
# leaves axis 0 alone. After any other node they may lie on another axis, or within one ([L·N, …]): from there
# on every node is lifted, and no value is taken from the model's own nodes. Shapes do not show whether rows
# mix on the way, so the model is run.


def batch_leading(lowered: Lowered) -> frozenset[str]:
    """Return the names of the values whose rows the model lays out as `Ops` does."""
    leading = {str(v.name) for v in lowered.model.graph.inputs} & lowered.batched
    batch_dependent = dependent_on_batch(lowered.model)
    sizes = {name for name in batch_dependent - dependent_on_rows(lowered.model) if _is_size(lowered, name)}
    for node in lowered.model.graph:
        if names_read(node) & batch_dependent <= leading | sizes and not _works_on_axis_0(lowered, node):
            leading.update(str(v.name) for v in node.outputs if v.name in lowered.batched)
    return frozenset(leading)


def _is_size(lowered: Lowered, name: str) -> bool:
    """Tell whether a value that depends on the batch's size is a number or a list of them at any size."""
    return name in lowered.specs and len(lowered.specs[name][0]) < 2 and name not in lowered.batched


def _works_on_axis_0(lowered: Lowered, node: ir.Node) -> bool:
    """Tell whether a node changes axis 0; False if shapes are unknown before the model runs."""
    if any(v is not None and v.name not in lowered.specs for v in node.inputs):
        return False
    inputs = [None if v is None else _row_tensor(lowered, v) for v in node.inputs]
    try:
        return works_on_axis_0(
            Node(node.op_type, inputs, {a.name: a.value for a in node.attributes.values()})
        )
    except UnsupportedModelError:
        return False


def _row_tensor(lowered: Lowered, value: ir.Value) -> Tensor:
    shape, dtype = lowered.specs[str(value.name)]
    rows = value.name in lowered.batched
    return Tensor(value, shape, dtype, frozenset("N" if rows else ""), rows)


def demand_rows(lowered: Lowered, output: str, needed: Collection[str]) -> None:
    """Raise UnsupportedModelError if the output does not have one row for each row of the batch.

    Args:
        needed: names of the values that the output depends on.
    """
    if not lowered.single_row_only:
        _demand_independent_rows(lowered, output, needed)
    fault = _row_fault(lowered, output)
    if fault is not None:
        node = next(n for n in lowered.model.graph for v in n.outputs if v.name == output)
        raise UnsupportedModelError(
            f"{_describe_node(node)}: {output!r} cannot be explained, since {fault}. Name an output of shape "
            "[N, …] (--output), or export the model so that axis 0 of its outputs is the batch."
        )


def _demand_independent_rows(lowered: Lowered, output: str, needed: Collection[str]) -> None:
    quantised = _first_with_one_scale(lowered, needed)
    if quantised is not None:
        raise UnsupportedModelError(
            f"{_describe_node(quantised)}: dynamic quantisation computes one scale for all rows of a "
            "batch, so a row's answer depends on the other rows. Export the model with a batch of 1 "
            "before you quantise it: the entries still take any number of rows, each with its own scale. "
            "Or quantise it statically."
        )
    mixes = first_to_mix(lowered.model, lowered.specs, specs_at_batch(lowered.model, 2)[0], needed)
    if mixes is not None:
        raise _mixing_error(mixes, "it works along the batch axis and mixes the rows of a batch")
    node = _first_off_axis_0(lowered, needed)
    if node is None:
        return
    output_names = [v.name for v in lowered.source.graph.output]
    source, _ = on_cpu(ir.from_proto(lowered.source))
    mixing = how_rows_mix(source, outputs=[output] if output in output_names else output_names)
    if mixing is not None:
        raise _mixing_error(node, f"it works on axis 0, the batch, and {mixing}")


def _mixing_error(node: ir.Node, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{_describe_node(node)}: {why}. Each row must be explained by itself: "
        "explain an output before it (--output), or export the model in evaluation mode and with the batch "
        "on axis 0."
    )


def _first_with_one_scale(lowered: Lowered, needed: Collection[str]) -> ir.Node | None:
    if not any(node.op_type in ONE_SCALE for node in lowered.source.graph.node):
        return None
    nodes = (n for n in ir.from_proto(lowered.source).graph if n.op_type in ONE_SCALE)
    return next((n for n in nodes for v in n.outputs if v.name in needed), None)


def _first_off_axis_0(lowered: Lowered, needed: Collection[str]) -> ir.Node | None:
    """Return the first node after which the rows may lie on another axis."""
    elsewhere = (dependent_on_rows(lowered.model) - batch_leading(lowered)).intersection(needed)
    return next((n for n in lowered.model.graph for v in n.outputs if v.name in elsewhere), None)


def _row_fault(lowered: Lowered, output: str) -> str | None:
    """Return the reason, by its shape, why the output lacks a row [1, …] per row of the batch, or None."""
    spec = lowered.specs.get(output)
    if spec is None:
        return "its shape is not known before the model runs"
    if not lowered.single_row_only and output not in lowered.batched:
        return "its axis 0 is not the batch"
    if spec[0][:1] != (1,):
        return f"one row of the batch has the shape {list(spec[0])} there, which does not begin with 1"
    return None


def _describe_node(node: ir.Node) -> str:
    return f"{node.op_type} node {node.name or node.outputs[0].name!r}"
