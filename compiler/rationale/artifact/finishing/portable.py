"""Rewrites of a finished graph for other runtimes: the same operators, in shapes that they compute correctly.

OpenVINO 2026.4 errs on a CPU in two ways that a graph can avoid, both in what it caches (docs/adr/0029):

- For graphs with an open batch it caches the kernels of elementwise operators by their type, regardless of
  the number of axes. Shapes of up to six axes are filled up to six; one with more gets a kernel for other
  strides.
- It caches the packed weights of a product by their address, regardless of their orientation. If a square
  matrix is read plain and transposed, both readers get the same orientation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from rationale.graph.batching import is_elementwise
from rationale.graph.nodes import drop_unused_constants, new_constant

MOST_AXES = 6  # limit for an elementwise operator; TensorRT's tensors have eight at most
_TRANSPOSED = {"Gemm": ("transA", "transB"), "MatMul": ()}
Dims = Sequence[int | str | None]  # a symbol if the size depends on the rows, None if it is unknown


def merge_axes(model: ir.Model) -> None:
    """Merge axes of a graph with stated shapes (`state_shapes`), in place; its answers stay the same."""
    for i, graph in enumerate(model.graphs()):
        _Merging(graph, f"portable_{i}").run()
        drop_unused_constants(graph)
    passes.RemoveUnusedNodesPass()(model)


# -- elementwise operators ---------------------------------------------------------------------------------


class _Merging:
    """A rewrite that merges neighbouring axes over which all operands vary, or none does."""

    def __init__(self, graph: ir.Graph, scope: str) -> None:
        self._graph, self._scope = graph, scope
        self._merged: dict[ir.Value, ir.Value] = {}  # by the value reshaped from it
        self._shaped: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
        self._sizes: dict[tuple[int, ...], ir.Value] = {}
        self._made = 0

    def run(self) -> None:
        for node in list(self._graph):
            if len(node.outputs) == 1 and (operands := _operands(node)):
                dims, inputs = _dims(node.outputs[0]), [_dims(v) for v in operands.values()]
                groups = merged_axes(dims, inputs)
                if dims is not None and groups is not None:
                    self._merge(node, operands, dims, groups)

    def _merge(
        self, node: ir.Node, operands: Mapping[int, ir.Value], dims: Dims, groups: Sequence[Sequence[int]]
    ) -> None:
        output = node.outputs[0]
        for i, value in operands.items():
            shape = _padded(_dims(value) or (), len(dims))
            if node.op_type == "Expand":
                self._expand_to(node, shape, dims, groups)
            node.replace_input_with(i, self._in_shape(node, value, _lengths(shape, groups)))
        split = ir.node("Reshape", [output, self._ints(_shape(dims))], name=f"{output.name}/apart")
        value = split.outputs[0]
        ir.convenience.replace_all_uses_with(output, value, replace_graph_outputs=True)
        split.replace_input_with(0, output)
        value.name, output.name = output.name, f"{output.name}/merged"
        value.type, value.shape = output.type, output.shape
        output.shape = ir.Shape([None if n < 0 else n for n in _lengths(dims, groups)])
        self._graph.insert_after(node, split)
        self._merged[value] = output

    def _expand_to(self, node: ir.Node, shape: Dims, dims: Dims, groups: Sequence[Sequence[int]]) -> None:
        """Replace the target shape of an Expand, in which 1 leaves an axis as it is."""
        parts: list[ir.Value] = []
        for group in groups:
            sizes = [dims[i] for i in group]
            if not _fixed(sizes) and _fixed(shape[i] for i in group):
                sizes_input = self._before(node, "Gather", [node.inputs[1], self._ints(tuple(group))])
                parts.append(self._before(node, "ReduceProd", [sizes_input], keepdims=1))
            else:
                parts.append(self._ints((max(1, *_lengths(dims, [group])),)))
        node.replace_input_with(1, self._before(node, "Concat", parts, axis=0))

    def _before(
        self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], **options: int
    ) -> ir.Value:
        """Insert a new node in front of `node`."""
        self._made += 1
        new = ir.node(op_type, inputs, options, name=f"{self._scope}/{op_type}_{self._made}")
        new.outputs[0].name, new.outputs[0].type = new.name, inputs[0].type if inputs[0] else None
        self._graph.insert_before(node, new)
        return new.outputs[0]

    def _in_shape(self, node: ir.Node, value: ir.Value, lengths: tuple[int, ...]) -> ir.Value:
        """Return `value` in another shape before `node`, or the value that it was reshaped from."""
        source = self._merged.get(value, value)
        dims = _dims(source)
        if dims is not None and _shape(dims) == lengths:
            return source
        if (source, lengths) not in self._shaped:
            self._shaped[source, lengths] = self._reshaped(node, source, lengths)
        return self._shaped[source, lengths]

    def _reshaped(self, node: ir.Node, source: ir.Value, lengths: tuple[int, ...]) -> ir.Value:
        if source.const_value is not None and source.graph is self._graph:
            name = f"{source.name}/{'x'.join(map(str, lengths))}"
            return new_constant(self._graph, name, source.const_value.numpy().reshape(lengths))
        return self._before(node, "Reshape", [source, self._ints(lengths)])

    def _ints(self, lengths: tuple[int, ...]) -> ir.Value:
        if lengths not in self._sizes:
            name = f"{self._scope}/{'x'.join(map(str, lengths))}"
            self._sizes[lengths] = new_constant(self._graph, name, np.asarray(lengths, np.int64))
        return self._sizes[lengths]


def _operands(node: ir.Node) -> dict[int, ir.Value]:
    """Return the inputs that an elementwise or repeating node reads element by element; else nothing."""
    if (node.domain, node.op_type) == ("", "Expand"):  # OpenVINO multiplies by ones
        x, shape = node.inputs
        target = None if shape is None else _dims(shape)
        return {0: x} if x is not None and target == [len(_dims(node.outputs[0]) or [])] else {}
    if not is_elementwise(node.op_type, node.domain):
        return {}
    return {i: value for i, value in enumerate(node.inputs) if value is not None}


def merged_axes(output: Dims | None, inputs: Sequence[Dims | None]) -> list[list[int]] | None:
    """Return the groups of axes of an elementwise result that can merge; None if there are none, or unknown.

    Args:
        output: the result's axes; up to `MOST_AXES` of them need no merging.
        inputs: the axes of the operands, which broadcast to it.
    """
    if output is None or len(output) <= MOST_AXES or any(dims is None or None in dims for dims in inputs):
        return None
    operands = [_padded(dims, len(output)) for dims in inputs if dims is not None]
    if None in output or sum(isinstance(d, str) for d in output) > 1:
        return None
    varying = [tuple(dims[i] != 1 for dims in operands) for i in range(len(output))]
    groups: list[list[int]] = []
    for i, dim in enumerate(output):
        if dim == 1:
            continue
        if groups and varying[groups[-1][-1]] == varying[i]:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups or [[0]]


def _padded(dims: Dims, rank: int) -> Dims:
    return [*(1 for _ in range(rank - len(dims))), *dims]


def _lengths(dims: Dims, groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the shape by groups, −1 for the group with the rows."""
    parts = [[dims[i] for i in group] for group in groups]
    return tuple(math.prod(d for d in p if isinstance(d, int)) if _fixed(p) else -1 for p in parts)


def _fixed(dims: Iterable[object]) -> bool:
    return all(isinstance(d, int) for d in dims)


def _shape(dims: Dims) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else -1 for d in dims)


def _dims(value: ir.Value) -> list[int | str | None] | None:
    constant = value.const_value
    shape = value.shape if constant is None else constant.shape
    return None if shape is None else [d if isinstance(d, int) else d.value for d in shape]


# -- products ------------------------------------------------------------------------------------------------


def separate_squares(model: ir.Model) -> None:
    """Give each orientation in which a square weight is read a constant of its own, in place."""
    for graph in model.graphs():
        for value in list(graph.initializers.values()):
            _separate(graph, value)


def _separate(graph: ir.Graph, value: ir.Value) -> None:
    dims, weight = _dims(value), value.const_value
    if weight is None or dims is None or len(dims) != 2 or dims[0] != dims[1]:
        return
    constants: dict[bool, ir.Value] = {}
    for node, i in list(value.uses()):
        if node.op_type not in _TRANSPOSED or node.domain or i > 1:
            continue
        transposed = _is_transposed(node, i)
        if transposed not in constants:
            other = bool(constants)
            constants[transposed] = (
                new_constant(graph, f"{value.name}/other", weight.numpy().copy()) if other else value
            )
        node.replace_input_with(i, constants[transposed])


def _is_transposed(node: ir.Node, i: int) -> bool:
    names = _TRANSPOSED[node.op_type]
    attribute = node.attributes.get(names[i]) if names else None
    return attribute is not None and bool(attribute.as_int())
