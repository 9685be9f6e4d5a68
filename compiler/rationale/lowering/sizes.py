"""Constant folding of sizes that exporters compute, and limits on sizes that a small file may request.

A model of a few bytes can name terabytes (an input, a ConstantOfShape, a Pad) or millions of nodes (functions
that call each other twice): counting finds them before anything of that size is made. Values computed from
sizes of tensors (Shape, Gather, Concat …) are constant, apart from the batch.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from rationale.errors import InvalidModelError, UnsupportedModelError
from rationale.graph.nodes import (
    NodeBuilder,
    constant_nodes,
    fold_constants,
    new_constant,
    replace_by_constant,
    take_place_of,
)
from rationale.graph.runtime.session import model_bytes
from rationale.graph.shapes import Spec
from rationale.lowering.bodies import inner_protos
from rationale.lowering.inference import infer, infer_each, known_specs
from rationale.schema.machine import format_bytes

MOST_NODES = 50_000  # of a graph with its functions inlined: five times those of large language models
MOST_AXES = 32  # of a value; numpy holds 64, and rows, targets, references and points add more
LARGEST = 2 << 30  # bytes of one value for one row: more than protobuf, and many kernels, can hold
UNPACKING = 8  # factor by which a graph may expand its weights: from 4 bits to float32


def check_nodes(proto: onnx.ModelProto, name: str) -> None:
    """Raise InvalidModelError if there are too many nodes after functions are inlined."""
    bodies = {(f.domain, f.name, f.overload): f.node for f in proto.functions}
    counts: dict[tuple[str, str, str], int] = {}

    def count(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(1 + size(node) + sum(count(g.node) for g in inner_protos(node)) for node in nodes)

    def size(node: onnx.NodeProto) -> int:
        key = node.domain, node.op_type, node.overload
        if key in bodies and key not in counts:
            counts[key] = 0  # ends the recursion of a function that calls itself, which the checker refuses
            counts[key] = count(bodies[key])
        return counts.get(key, 0)

    try:
        nodes = count(proto.graph.node)
    except RecursionError:
        nodes = 0  # the checker refuses functions that call each other so deep
    if nodes > MOST_NODES:
        raise InvalidModelError(
            f"{name}: it has {nodes} nodes after its functions are inlined; the limit is {MOST_NODES}. "
            "Export a part of the model, or without repeated functions."
        )


def check_inputs(proto: onnx.ModelProto, name: str) -> None:
    """Raise InvalidModelError for sizes that no input can have, or that cannot be explained."""
    for value in proto.graph.input:
        kind = value.type.tensor_type
        dims = [d.dim_value for d in kind.shape.dim if d.HasField("dim_value")]
        if any(d.dim_value < 0 for d in kind.shape.dim[1:]):
            raise InvalidModelError(
                f"{name}: input {value.name!r} has an axis of negative length {dims}. Export it again."
            )
        axes = len(kind.shape.dim)
        if axes > MOST_AXES or math.prod(dims) > LARGEST:
            raise InvalidModelError(
                f"{name}: input {value.name!r} has {axes} axes and {math.prod(dims)} elements; the limits "
                f"are {MOST_AXES} axes and {LARGEST} elements. Correct that size."
            )


def check_sizes(model: ir.Model, specs: Mapping[str, Spec]) -> None:
    """Raise UnsupportedModelError if a value is too large for one row; name its node."""
    for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
        if value.name not in specs:
            continue
        shape, dtype = specs[str(value.name)]
        size = math.prod(shape) * _bits(dtype) // 8
        if size <= LARGEST and len(shape) <= MOST_AXES and min(shape, default=0) >= 0:
            continue
        node = value.producer()
        where = "input" if node is None else f"{node.op_type} node {node.name or value.name!r}:"
        if min(shape, default=0) < 0:
            raise InvalidModelError(f"{where} {value.name!r} has an axis of negative length {list(shape)}.")
        fault = f"takes {format_bytes(size)}" if size > LARGEST else f"has {len(shape)} axes"
        limit = format_bytes(LARGEST) if size > LARGEST else MOST_AXES
        raise UnsupportedModelError(
            f"{where} {value.name!r} {fault} for one row, and the limit is {limit}. Correct that size, or "
            "explain an output before it (--output)."
        )


def fold_weights(model: ir.Model) -> None:
    """Call `fold_constants` on an untrusted graph, unless its constants exceed the size of unpacked weights.

    Values whose sizes are computed are folded in a later round, when the sizes are known.

    Raises:
        UnsupportedModelError: if they exceed it; the message names the node with the largest result.
    """
    while nodes := constant_nodes(model.graph):
        _bounds_as_scalars(model.graph)
        sizes = _sizes(model)
        ready = _with_known_sizes(nodes, sizes)
        result_bytes = {node: sum(sizes[str(v.name)] for v in node.outputs) for node in ready}
        total = sum(result_bytes.values())
        if total > LARGEST + UNPACKING * model_bytes(model):
            node = max(ready, key=result_bytes.__getitem__)
            raise UnsupportedModelError(
                f"{node.op_type} node {node.name or node.outputs[0].name!r} computes a constant of "
                f"{format_bytes(result_bytes[node])}, and all of them take {format_bytes(total)}. Correct "
                "the size."
            )
        fold_constants(model, ready or nodes, users_model=True)


def _bounds_as_scalars(graph: ir.Graph) -> None:
    """Convert bounds [1] of a Range to scalars: ONNX Runtime accepts them, but not as constants."""
    for node in graph:
        for i, value in enumerate(node.inputs if node.op_type == "Range" and not node.domain else ()):
            array = None if value is None or value.const_value is None else value.const_value.numpy()
            if value is None or array is None or not array.ndim or array.size != 1:
                continue
            name = f"{node.outputs[0].name}/bound_{i}"
            node.replace_input_with(i, new_constant(graph, name, array.reshape(())))


def _with_known_sizes(nodes: Iterable[ir.Node], sizes: Mapping[str, int]) -> list[ir.Node]:
    """Return the nodes whose results, and those of all nodes before them, have known sizes."""
    ready: list[ir.Node] = []
    unknown: set[ir.Value | None] = set()
    for node in nodes:
        if unknown.isdisjoint(node.inputs) and all(str(v.name) in sizes for v in node.outputs):
            ready.append(node)
        else:
            unknown.update(node.outputs)
    return ready


def _sizes(model: ir.Model) -> dict[str, int]:
    """Return the bytes of each value of known shape, without computing sizes, which may take as much."""
    specs = known_specs(model)
    return {name: math.prod(shape) * _bits(dtype) // 8 for name, (shape, dtype) in specs.items()}


def _bits(dtype: ir.DataType) -> int:
    """Return the bits of one element; for a string those of a pointer."""
    return 64 if dtype == ir.DataType.STRING else int(dtype.bitwidth)


Arrays = Mapping[str, np.ndarray]

_SIZE_READERS = frozenset({"Shape", "Size"})
_BATCHES = (2, 97)  # a value that is equal for both does not depend on N; 97 // 4 differs from 2 // 4


def fold_sizes(model: ir.Model) -> bool:
    """Fold, in place, values that depend on sizes other than the batch's; return True if there were any.

    This is one round: shapes behind folded values are known only afterwards. Requires: the batch is named N.
    """
    if not any(_reads_size(node) for node in model.graph):
        return False
    few, many = (_fold_at(model, specs) for specs in infer_each(model, _BATCHES))
    values = {str(v.name): v for node in model.graph for v in node.outputs}
    equal = [
        name
        for name, array in few.items()
        if name in values and name in many and np.array_equal(array, many[name])
    ]
    strided = [node for node in model.graph if _strides_over_rows(node, few, many)]
    for node in strided:
        _read_row_by_row(model, node, few[str(_value(node, 1).name)])
    targets = _free_targets(model, few, many)
    for name, target in {**{n: few[n] for n in equal}, **targets}.items():
        replace_by_constant(model.graph, values[name], target)
    passes.RemoveUnusedNodesPass()(model)
    return bool(equal or strided or targets)


def _free_targets(model: ir.Model, few: Arrays, many: Arrays) -> dict[str, np.ndarray]:
    """Return targets of Reshapes in which exactly one size depends on N, with −1 for it, by name."""
    targets = {}
    for node in model.graph:
        name = str(node.inputs[1].name) if node.op_type == "Reshape" and node.inputs[1] is not None else ""
        if name not in few or name not in many or few[name].shape != many[name].shape:
            continue
        differs = few[name] != many[name]
        other_uses = {(use.node.op_type, use.idx) for use in _value(node, 1).uses()} - {("Reshape", 1)}
        if differs.sum() == 1 and few[name].min() > 0 and not other_uses:
            targets[name] = np.where(differs, -1, few[name])
    return targets


def _strides_over_rows(node: ir.Node, few: Arrays, many: Arrays) -> bool:
    """Tell whether a Gather reads the same indices of every row of a flat operand: PyTorch's as_strided."""
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if node.op_type != "Gather" or node.domain or axis:
        return False
    flat = _value(node, 0).producer()
    if flat is None or flat.op_type != "Reshape" or _value(node, 1).name not in many:
        return False
    index, index_many = few[str(_value(node, 1).name)], many[str(_value(node, 1).name)]
    if index.ndim < 2 or (len(index), len(index_many)) != _BATCHES or index.shape[1:] != index_many.shape[1:]:
        return False
    stride = index[1] - index[0]
    steps = np.arange(len(index_many)).reshape(-1, *(1 for _ in index.shape[1:]))
    return (
        np.array_equal(index_many, index[0] + steps * stride)
        and stride.min() == stride.max() > index[0].max()
        and index.min() >= 0
        and _row_size(node) == stride.min()
    )


def _row_size(node: ir.Node) -> int | None:
    """Return the row size of a flat [N·size] operand if it holds all of a value with N on axis 0."""
    flat = _value(node, 0).producer()
    x = flat.inputs[0] if flat is not None else None
    target = flat.inputs[1].const_value if flat is not None and flat.inputs[1] is not None else None
    if x is None or x.shape is None or target is None or target.numpy().tolist() != [-1]:
        return None
    row = [d for d in x.shape[1:] if isinstance(d, int)]
    return math.prod(row) if len(row) == x.shape.rank() - 1 else None


def _read_row_by_row(model: ir.Model, node: ir.Node, index: np.ndarray) -> None:
    """Replace Gather(x as [N·size], indices) by x as [N, size] at the indices of one row."""
    size, indices = int(index[1].flat[0] - index[0].flat[0]), index[0].reshape(-1)
    op = NodeBuilder(model.graph, str(node.outputs[0].name), before=node)
    x = op.Reshape(node.inputs[0], [-1, size])
    if not np.array_equal(indices, np.arange(size)):
        x = op.Gather(x, indices, axis=1)
    take_place_of(node.outputs[0], op.Reshape(x, [-1, *index.shape[1:]]))
    model.graph.remove(node, safe=True)


def _value(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    assert value is not None
    return value


def specs_at_batch(model: ir.Model, rows: int) -> tuple[dict[str, Spec], dict[str, np.ndarray]]:
    """Return shape and dtype of every value at a batch size, and the values that depend only on sizes."""
    specs = infer(model, rows)
    constants: dict[str, np.ndarray] = {}
    if not any(_reads_size(node) for node in model.graph):
        return specs, constants
    probe = model.clone()
    while folded := _fold_at(probe, specs):
        constants.update(folded)
        for value in [v for node in probe.graph for v in node.outputs if v.name in folded]:
            replace_by_constant(probe.graph, value, folded[str(value.name)])
        passes.RemoveUnusedNodesPass()(probe)
        specs = {**specs, **infer(probe, rows)}
    return specs, constants


def _reads_size(node: ir.Node) -> bool:
    return node.op_type in _SIZE_READERS and not node.domain


def _fold_at(model: ir.Model, specs: dict[str, Spec]) -> dict[str, np.ndarray]:
    """Return the values that are constant at the shapes `specs` and that others read, by name."""
    probe = model.clone()
    for node in list(probe.graph):
        x = node.inputs[0] if _reads_size(node) else None
        if x is None or x.name not in specs:
            continue
        shape = np.asarray(specs[x.name][0], np.int64)
        if node.op_type == "Size":
            size = np.asarray(shape.prod())
        else:
            start, end = (
                node.attributes.get_int(name, default) for name, default in (("start", 0), ("end", None))
            )
            size = shape[start:end]
        replace_by_constant(probe.graph, node.outputs[0], size)
        probe.graph.remove(node, safe=True)
    fold_weights(probe)
    return {
        name: v.const_value.numpy()
        for name, v in probe.graph.initializers.items()
        if v.const_value is not None and name not in model.graph.initializers
    }
