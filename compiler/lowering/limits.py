"""What a small file may ask for: found by counting, before anything of that size is made.

A model of a few bytes can name terabytes (an input, a ConstantOfShape, a Pad) or millions of nodes (functions
that call each other twice).
"""

import math
from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

from compiler.deployment import in_words
from compiler.errors import InvalidModelError, UnsupportedModelError
from compiler.graph.fold import constant_nodes, fold_constants, new_constant
from compiler.graph.shapes.inference import Spec
from compiler.lowering.inference import known_specs
from compiler.lowering.subgraphs import inner_protos
from compiler.runtime.session import model_bytes

MOST_NODES = 50_000  # of a graph with its functions inlined: five times those of large language models
MOST_AXES = 32  # of a value; numpy holds 64, and those of rows, targets, references and points come on top
LARGEST = 2 << 30  # bytes of one value for one row: more than protobuf, and many kernels, can hold
UNPACKING = 8  # what weights may grow to where a graph computes them from others: from 4 bits to float32


def check_nodes(proto: onnx.ModelProto, name: str) -> None:
    """Raise InvalidModelError where there are too many nodes once functions are inlined."""
    bodies = {(f.domain, f.name, f.overload): f.node for f in proto.functions}
    counts: dict[tuple[str, str, str], int] = {}

    def count(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(1 + size(node) + sum(count(g.node) for g in inner_protos(node)) for node in nodes)

    def size(node: onnx.NodeProto) -> int:
        key = node.domain, node.op_type, node.overload
        if key in bodies and key not in counts:
            counts[key] = 0  # of one that calls itself, which the checker refuses
            counts[key] = count(bodies[key])
        return counts.get(key, 0)

    try:
        nodes = count(proto.graph.node)
    except RecursionError:
        nodes = 0  # the checker refuses functions that call each other so deep
    if nodes > MOST_NODES:
        raise InvalidModelError(
            f"{name}: it has {nodes} nodes once its functions are inlined; {MOST_NODES} are the most that "
            "can be explained. Export a part of the model, or without functions that repeat."
        )


def check_inputs(proto: onnx.ModelProto, name: str) -> None:
    """Raise InvalidModelError for sizes that no input can have, or none that can be explained."""
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
                f"{name}: input {value.name!r} has {axes} axes and {math.prod(dims)} elements; at most "
                f"{MOST_AXES} and {LARGEST} can be explained. Look for a size that was meant otherwise."
            )


def check_sizes(model: ir.Model, specs: Mapping[str, Spec]) -> None:
    """Raise UnsupportedModelError where a value is too large for one row; name its node."""
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
        fault = f"takes {in_words(size)}" if size > LARGEST else f"has {len(shape)} axes"
        limit = in_words(LARGEST) if size > LARGEST else MOST_AXES
        raise UnsupportedModelError(
            f"{where} {value.name!r} {fault} for one row, and {limit} is the limit. Look for a size that was "
            "meant otherwise, or explain an output before it (--output)."
        )


def fold_weights(model: ir.Model) -> None:
    """`fold_constants` for a graph from outside: refuses what would compute more than weights unpack to.

    What is made in sizes that are computed themselves comes in a round of its own, when those are known.

    Raises:
        UnsupportedModelError: names the node with the largest of it.
    """
    while nodes := constant_nodes(model.graph):
        _bounds_as_scalars(model.graph)
        sizes = _sizes(model)
        ready = _known(nodes, sizes)
        made = {node: sum(sizes[str(v.name)] for v in node.outputs) for node in ready}
        if sum(made.values()) > LARGEST + UNPACKING * model_bytes(model):
            node = max(ready, key=made.__getitem__)
            raise UnsupportedModelError(
                f"{node.op_type} node {node.name or node.outputs[0].name!r} computes a constant of "
                f"{in_words(made[node])}, and all of them take {in_words(sum(made.values()))}. Look for a "
                "size that was meant otherwise."
            )
        fold_constants(model, ready or nodes, given=True)


def _bounds_as_scalars(graph: ir.Graph) -> None:
    """Range is written with bounds [1], too: ONNX Runtime takes them, but not as constants."""
    for node in graph:
        for i, value in enumerate(node.inputs if node.op_type == "Range" and not node.domain else ()):
            array = None if value is None or value.const_value is None else value.const_value.numpy()
            if value is None or array is None or not array.ndim or array.size != 1:
                continue
            name = f"{node.outputs[0].name}/bound_{i}"
            node.replace_input_with(i, new_constant(graph, name, array.reshape(())))


def _known(nodes: Iterable[ir.Node], sizes: Mapping[str, int]) -> list[ir.Node]:
    """Those whose results have known sizes, as do all before them."""
    ready: list[ir.Node] = []
    late: set[ir.Value | None] = set()
    for node in nodes:
        if late.isdisjoint(node.inputs) and all(str(v.name) in sizes for v in node.outputs):
            ready.append(node)
        else:
            late.update(node.outputs)
    return ready


def _sizes(model: ir.Model) -> dict[str, int]:
    """Bytes of each value whose shape is known; no sizes are computed on the way, which may take as much."""
    specs = known_specs(model)
    return {name: math.prod(shape) * _bits(dtype) // 8 for name, (shape, dtype) in specs.items()}


def _bits(dtype: ir.DataType) -> int:
    """Of one element; a pointer for a string."""
    return 64 if dtype == ir.DataType.STRING else int(dtype.bitwidth)
