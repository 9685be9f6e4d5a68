"""A chunked graph in ONNX's terms: precomputed values as constants, the rest in the body of a Scan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.graph.memory.budget import Region, is_pseudo
from rationale.graph.nodes import extract, new_constant, nodes_behind
from rationale.graph.runtime.session import Runner
from rationale.graph.tensor import Chunks
from rationale.schema.request import Progress

HALF_LOSS = 1e-3  # relative to a tensor's length: twice the rounding of float16
TINY = 1e-30  # replaces a total weight of 0


def precompute(
    model: ir.Model, region: Region, chunks: Chunks, values: Sequence[ir.Value], progress: Progress
) -> dict[ir.Value, np.ndarray]:
    """Run the precomputed part of a region chunk by chunk; return the values, [chunks, …] each."""
    entering = [n for n in region.precomputed if is_pseudo(n, "Chunk")]
    nodes = [n for n in region.precomputed if not is_pseudo(n)]
    parts = {n.outputs[0]: chunks.parts[n.attributes["part"].as_int()][1] for n in entering}
    outputs = [v for v in dict.fromkeys(values) if v not in parts]
    count = chunks.axes[region.axis].chunks
    arrays = {v: parts[v] for v in values if v in parts}
    if outputs:
        needed = nodes_behind(nodes, outputs, ())
        runner = Runner(extract(model, needed, list(parts), outputs), optimise=False)
        for i in range(count):
            progress("computing the references", i, count)
            results = runner({str(v.name): np.asarray(array[i]) for v, array in parts.items()})
            for value in outputs:
                array = results[str(value.name)]
                arrays.setdefault(value, np.empty((count, *array.shape), array.dtype))[i] = array
    for value in values:
        value.dtype = ir.DataType.from_numpy(arrays[value].dtype)
    return arrays


def precompute_sums(
    model: ir.Model, region: Region, nodes: Sequence[ir.Node], chunks: Chunks, progress: Progress
) -> dict[ir.Node, np.ndarray]:
    """Compute the values of Sum nodes that depend only on constants."""
    leaving = [n.inputs[0] for n in nodes if n.inputs[0] is not None]
    arrays = precompute(model, region, chunks, leaving, progress)
    totals = {v: np.asarray(a.sum(axis=0, dtype=np.float64), a.dtype) for v, a in arrays.items()}
    return {n: totals[v] for n, v in zip(nodes, leaving, strict=True)}


def to_float16(array: np.ndarray) -> np.ndarray:
    """Return [chunks, …] in float16, or unchanged if float16 would lose too much."""
    if array.dtype != np.float32:
        return array
    halves, error, norm = np.empty(array.shape, np.float16), 0.0, 0.0
    for half, chunk in zip(halves, array, strict=True):
        with np.errstate(over="ignore"):
            half[...] = chunk
        error += float(np.square(half - chunk, dtype=np.float64).sum())
        norm += float(np.square(chunk, dtype=np.float64).sum())
    return halves if error <= HALF_LOSS**2 * norm else array


@dataclass
class _ScanBody:
    """The body of a Scan under construction; the Scan's inputs are `initials` and `operands`."""

    nodes: list[ir.Node]
    constants: list[ir.Value] = field(default_factory=list)
    operands: list[ir.Value] = field(default_factory=list)
    slices: list[ir.Value] = field(default_factory=list)
    initials: list[ir.Value] = field(default_factory=list)
    before: list[ir.Value] = field(default_factory=list)
    after: list[ir.Value] = field(default_factory=list)
    totals: list[ir.Value | None] = field(default_factory=list)  # value that the last state replaces

    def add(self, op_type: str, *values: ir.Value, **attributes: Any) -> ir.Value:
        name = f"{values[0].name}/{op_type}_{len(self.nodes)}"
        node = ir.node(op_type, values, attributes, name=name)
        node.outputs[0].name, node.outputs[0].type = name, values[0].type
        self.nodes.append(node)
        return node.outputs[0]

    def number(self, like: ir.Value, number: float) -> ir.Value:
        assert like.dtype is not None
        array = np.asarray(number, like.dtype.numpy())
        self.constants.append(_constant(f"{like.name}/number_{len(self.constants)}", array))
        return self.constants[-1]

    def state(self, initial: ir.Value, like: ir.Value, total: ir.Value | None) -> ir.Value:
        """Return a new state variable; the caller appends its next value to `after`."""
        self.before.append(ir.Value(name=f"{like.name}/state_{len(self.before)}", type=like.type))
        self.initials.append(initial)
        self.totals.append(total)
        return self.before[-1]


def emit_scan(model: ir.Model, region: Region, arrays: Mapping[ir.Value, np.ndarray]) -> None:
    """Replace the nodes of a region by one Scan, in place.

    Args:
        arrays: the body's inputs for each chunk, [chunks, …]: precomputed values and chunks.
    """
    graph = model.graph
    read = [v for n in (*region.body, *region.sums) for v in n.inputs if v is not None]
    recomputed = nodes_behind([n for n in region.precomputed if not is_pseudo(n)], read, arrays)
    inside = [*recomputed, *region.body]
    graph.remove(inside)
    body = _ScanBody([])
    _add_chunk_inputs(graph, body, [*inside, *region.sums], arrays)
    body.nodes += inside
    for node in region.sums:
        _ACCUMULATE[node.op_type](body, node)
    _copy_constants_into(body)
    _append_scan(graph, body, region.axis)
    graph.remove(region.sums, safe=True)


def _add_chunk_inputs(
    graph: ir.Graph, body: _ScanBody, nodes: Sequence[ir.Node], arrays: Mapping[ir.Value, np.ndarray]
) -> None:
    """Make values of `arrays` that the nodes read inputs of the body; float16 is cast back inside it."""
    read = {v for n in nodes for v in n.inputs}
    inner = {}
    for value, array in arrays.items():
        if value not in read:
            continue
        body.operands.append(new_constant(graph, f"{value.name}/chunks", array))
        chunk_type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        chunk_value = ir.Value(name=f"{value.name}/chunk", type=chunk_type, shape=ir.Shape(array.shape[1:]))
        body.slices.append(chunk_value)
        assert value.dtype is not None
        inner[value] = (
            chunk_value
            if value.dtype == chunk_value.dtype
            else body.add("Cast", chunk_value, to=int(value.dtype))
        )
        inner[value].type = value.type
    for node in nodes:
        for i, operand in enumerate(node.inputs):
            if operand in inner:
                node.replace_input_with(i, inner[operand])


def _accumulate_sum(body: _ScanBody, node: ir.Node) -> None:
    partial, zeros = _operands(node)
    body.after.append(body.add("Add", body.state(zeros, partial, node.outputs[0]), partial))


def _accumulate_moments(body: _ScanBody, node: ir.Node) -> None:
    """Merge moments: δ = mean_c − mean; W + w_c; mean + δ·w_c/W; squares + squares_c + δ²·W₋·w_c/W.

    W₋ is the weight before, W the weight after.
    """
    squares, average, weight, *zeros = _operands(node)
    total = body.state(zeros[0], squares, node.outputs[0])
    mean, before = body.state(zeros[1], average, None), body.state(zeros[2], weight, None)
    after = body.add("Add", before, weight)
    share = body.add("Div", weight, body.add("Max", after, body.number(weight, TINY)))
    delta = body.add("Sub", average, mean)
    between = body.add("Mul", body.add("Mul", delta, delta), body.add("Mul", before, share))
    body.after.append(body.add("Add", body.add("Add", total, squares), between))
    body.after.append(body.add("Add", mean, body.add("Mul", delta, share)))
    body.after.append(after)


def _operands(node: ir.Node) -> list[ir.Value]:
    return [v for v in node.inputs if v is not None]


_ACCUMULATE = {"Sum": _accumulate_sum, "Moments": _accumulate_moments}


def _copy_constants_into(body: _ScanBody) -> None:
    """Copy the constants that the body reads: ONNX Runtime rearranges a graph's own constants."""
    copies: dict[ir.Value, ir.Value] = {}
    for node in body.nodes:
        for i, value in enumerate(node.inputs):
            if value is None or not value.is_initializer():
                continue
            if value not in copies:
                assert value.const_value is not None
                copies[value] = _constant(f"{value.name}/inside", value.const_value.numpy())
            node.replace_input_with(i, copies[value])
    body.constants += copies.values()


def _constant(name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.Tensor(array, name=name)
    return ir.Value(
        name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape)
    )


def _append_scan(graph: ir.Graph, body: _ScanBody, axis: str) -> None:
    inner = ir.Graph(
        [*body.before, *body.slices],
        body.after,
        nodes=body.nodes,
        initializers=body.constants,
        opset_imports=graph.opset_imports,
        name=f"chunk_of_{axis}",
    )
    name, operands = f"chunks/{axis}", [*body.initials, *body.operands]
    attributes: dict[str, Any] = {"body": inner, "num_scan_inputs": len(body.slices)}
    scan = ir.node("Scan", operands, attributes, num_outputs=len(body.after), name=name)
    graph.append(scan)
    for i, (value, total) in enumerate(zip(scan.outputs, body.totals, strict=True)):
        value.name, value.type = f"{name}.{i}", body.before[i].type
        if total is not None:  # it may be an output of the graph
            value.name, value.shape = total.name, total.shape
            ir.convenience.replace_all_uses_with(total, value, replace_graph_outputs=True)
