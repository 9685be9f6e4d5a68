"""One graph for every length of an axis, merged from the graphs for a few lengths.

A combined graph is made for one length, which stands in its constants: the targets of Reshapes, the divisor
of a mean, the part of a table that is read. This module compares the graphs for several lengths node for
node. Each constant in which they differ becomes a formula of the length, which is read from an input when the
graph runs: at each compared length, the merged graph is the one made for it.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy

import onnx
import onnx_ir as ir

from rationale.artifact.checks.measure import relative_error
from rationale.artifact.checks.probes import probe_rows
from rationale.artifact.finishing.formulas import (
    DEGREE,
    Beginning,
    DiffersError,
    Formula,
    Polynomial,
    Share,
    formula,
)
from rationale.errors import CheckFailedError, InvalidOptionError, UnsupportedModelError
from rationale.graph.nodes import NodeBuilder, constant_array, drop_unused_constants
from rationale.graph.runtime.session import Runner, interface
from rationale.lowering.inference import Span
from rationale.methods.engine import Method
from rationale.schema.machine import Deployment

LOOKED_AT = DEGREE + 3  # lengths: as many as a polynomial needs, and two that check it
TRIED = 2 * LOOKED_AT  # a length that another axis has too may give a graph of its own
SAME = 1e-4  # share of the largest value: float32 adds in the same order, except in kernels chosen by length


def check_span(span: Span, method: Method, deployment: Deployment, *, grouped: bool) -> None:
    """Raise InvalidOptionError for options that fix a length by their nature."""
    if method.reference_set is not None:
        raise InvalidOptionError(
            f"{method.name} stores what it computes from its references, which have one length: "
            f"give one length ({span.name}={span.most}), or take a method without references, such as "
            "gradient, lrp or attnlrp."
        )
    if grouped:
        raise InvalidOptionError(
            f"groups need a fixed number of features: give one length ({span.name}={span.most}), or leave "
            "the groups out."
        )
    if deployment.one_shot:
        raise InvalidOptionError(
            "a one-shot entry returns zeros of a fixed shape for rows that it does not explain: give one "
            f"length ({span.name}={span.most}), or leave one-shot out."
        )


def edges_at_longest(edges: onnx.ModelProto, span: Span) -> onnx.ModelProto:
    """Return a model's inputs and outputs at the longest length."""
    longest = deepcopy(edges)
    for value in (*longest.graph.input, *longest.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == span.name:
                dim.dim_value = span.most
    return longest


def merge_lengths(longest: ir.Model, build: Callable[[dict[str, int]], ir.Model], span: Span) -> None:
    """Turn the graph for the longest length into one for every length of a span, in place.

    Args:
        build: a function that makes the graph for one length: `{name: length}`.

    Raises:
        UnsupportedModelError: if the graphs differ in more than constants, or in constants of no known
            formula.
        CheckFailedError: if, at a length not used to merge it, its answers differ from that length's graph.
    """
    models, lengths, fault = [longest], [span.most], "it spans too few lengths"
    for length in range(span.most - 1, max(span.least, span.most - TRIED) - 1, -1):
        other = build({span.name: length})
        try:
            differences([longest, other])
        except DiffersError as reason:
            fault = str(reason)
            continue
        models.append(other)
        lengths.append(length)
        if len(models) == LOOKED_AT:
            break
    try:
        if len(models) <= DEGREE:
            raise DiffersError(fault)
        merge_graphs(models, lengths, span.name)
    except DiffersError as reason:
        raise UnsupportedModelError(
            f"no graph serves {span.name} = {span.least} to {span.most}: {reason}. Give one length (--size "
            f"{span.name}={span.most}) and compile an entry for each length that you need."
        ) from reason
    for length in {span.least, (span.least + span.most) // 2} - set(lengths):
        _check(longest, build({span.name: length}), f"{span.name} = {length}")


def _check(merged: ir.Model, expected: ir.Model, where: str) -> None:
    """Raise CheckFailedError if the answers are not those of the length's own graph."""
    rows = probe_rows(interface(expected), {})
    got, want = Runner(merged)(rows), Runner(expected)(rows)
    error = max(relative_error(got[name], answer) for name, answer in want.items())
    if not error <= SAME:
        raise CheckFailedError(
            f"the graph for all lengths differs from the graph for {where} alone by {error:.1e} "
            "(relative). Give one length (--size NAME=LENGTH), and please report the model."
        )


Use = tuple[ir.Node, int]  # an operand, by its position


def differences(models: Sequence[ir.Model]) -> dict[Use, tuple[ir.Value, ...]]:
    """Return the constants at the same place of all graphs, by the place in the first.

    Raises:
        DiffersError: if the graphs differ in more than constants.
    """
    outputs = [list(m.graph.outputs) for m in models]
    waiting = list(zip(*outputs, strict=True))
    seen: set[tuple[ir.Value, ...]] = set()
    constants: dict[Use, tuple[ir.Value, ...]] = {}
    while waiting:
        values = waiting.pop()
        if values in seen:
            continue
        seen.add(values)
        nodes = [n for n in (v.producer() for v in values) if n is not None]
        if len(nodes) < len(values):
            if nodes or len({v.name for v in values}) > 1:
                raise DiffersError(f"{values[0].name!r} is computed only for some lengths")
            continue
        _demand_same(nodes, [v.index() for v in values])
        for i, row in enumerate(zip(*(n.inputs for n in nodes), strict=True)):
            operands = tuple(v for v in row if v is not None)
            if operands and len(operands) < len(row):
                raise DiffersError(f"{_node_label(nodes[0])} lacks an operand for some lengths")
            if not all(v.const_value is not None for v in operands):
                waiting.append(operands)
            elif operands and constants.setdefault((nodes[0], i), operands) != operands:
                raise DiffersError(f"{_node_label(nodes[0])} corresponds to several nodes for another length")
    return constants


def _node_label(node: ir.Node) -> str:
    return f"{node.op_type} node {node.name!r}"


def _demand_same(nodes: Sequence[ir.Node], indices: Sequence[int]) -> None:
    first = nodes[0]
    for node in nodes[1:]:
        kinds = {(n.op_type, n.domain, len(n.inputs)) for n in (first, node)}
        if len(kinds) > 1 or len(set(indices)) > 1:
            raise DiffersError(f"{_node_label(first)} is {_node_label(node)} for another length")
        for name in {*first.attributes, *node.attributes}:
            a, b = (n.attributes.get(name) for n in (first, node))
            if a is None or b is None or _attribute_bytes(a) != _attribute_bytes(b):
                raise DiffersError(f"{_node_label(first)}: its {name} depends on the length")


def _attribute_bytes(attribute: ir.Attr) -> bytes:
    """Return an attribute's bytes; raise DiffersError for a body.

    A body's reads from outside are not compared.
    """
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        raise DiffersError("an operator runs row by row, or in chunks, in a Scan")
    return bytes(ir.serde.serialize_attribute(attribute).SerializeToString())


# -- formulas as nodes --------------------------------------------------------------------------------


class _Formulas:
    """Formulas as nodes of a graph, before all others."""

    def __init__(self, graph: ir.Graph, source: ir.Value, axis: int) -> None:
        self.op = NodeBuilder(graph, "rationale/length", before=graph[0])
        self.length = self.op.Squeeze(self.op.Shape(source, start=axis, end=axis + 1))

    def emit(self, formula: Formula, longest: ir.Value) -> ir.Value:
        if isinstance(formula, Polynomial):
            return self._polynomial(formula, longest)
        if isinstance(formula, Share):
            return self._share(formula, longest)
        return self._beginning(formula, longest)

    def _polynomial(self, polynomial: Polynomial, like: ir.Value) -> ir.Value:
        total = self.op.constant(polynomial.coefficients[0])
        power = self.length
        for i, factor in enumerate(polynomial.coefficients[1:]):
            power = self.op.Mul(power, self.length) if i else power
            if factor.any():
                total = self.op.Add(total, self.op.Mul(power, factor))
        assert like.dtype is not None
        return total if like.dtype == ir.DataType.INT64 else self.op.Cast(total, to=int(like.dtype))

    def _share(self, share: Share, like: ir.Value) -> ir.Value:
        assert like.dtype is not None
        length = self.op.Cast(self.length, to=int(like.dtype))
        return self.op.Div(share.numerator.astype(like.dtype.numpy()), length)

    def _beginning(self, beginning: Beginning, longest: ir.Value) -> ir.Value:
        starts = self.op.constant([0] * len(beginning.axes))
        return self.op.Slice(longest, starts, self._polynomial(beginning.sizes, starts), list(beginning.axes))


def merge_graphs(models: Sequence[ir.Model], lengths: Sequence[int], name: str) -> ir.Model:
    """Return the first model, that of the longest length, for every length: its axis is called `name`.

    Raises:
        DiffersError: if the graphs for these lengths have no formula in common.
    """
    graph = models[0].graph
    uses = differences(models)
    groups = dict.fromkeys(uses.values())
    formulas = {values: formula([constant_array(v) for v in values], lengths) for values in groups}
    source, axis = _open_axis([list(m.graph.inputs) for m in models])
    emitter = _Formulas(graph, source, axis)
    emitted = {values: emitter.emit(f, values[0]) for values, f in formulas.items() if f is not None}
    for (node, i), values in uses.items():
        node.replace_input_with(i, emitted.get(values, values[0]))
    for value in [v for node in graph for v in node.outputs if not v.is_graph_output()]:
        value.shape = None
    for edges in ([m.graph.inputs for m in models], [m.graph.outputs for m in models]):
        for values in zip(*edges, strict=True):
            _open_shape(values, lengths, name)
    drop_unused_constants(graph)
    return models[0]


def _open_axis(inputs: Sequence[Sequence[ir.Value]]) -> tuple[ir.Value, int]:
    """Return an input with an axis of the open length, and the axis."""
    for values in zip(*inputs, strict=True):
        for axis, dims in enumerate(zip(*(v.shape or () for v in values), strict=True)):
            if len(set(dims)) > 1:
                return values[0], axis
    raise DiffersError("no input has the length")


def _open_shape(values: Sequence[ir.Value], lengths: Sequence[int], name: str) -> None:
    """Leave open the axes that differ in an input's or output's shape."""
    if any(v.shape is None for v in values):
        return
    axes = list(zip(*(v.shape for v in values if v.shape is not None), strict=True))
    open_dims = {dims: name if dims == tuple(lengths) else None for dims in axes if len(set(dims)) > 1}
    values[0].shape = ir.Shape([open_dims.get(dims, dims[0]) for dims in axes])
