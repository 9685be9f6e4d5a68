"""How much memory the values of a graph take, at one row."""

import math
from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir

from compiler.chunks import Chunks
from compiler.worlds import is_pseudo, reads

SMALL = 1024  # elements: larger constants are no shapes
_VIEWS = frozenset("Reshape Squeeze Unsqueeze Flatten Identity".split())

Sizes = Mapping[ir.Value, int]


def sizes(model: ir.Model, chunks: Chunks) -> dict[ir.Value, int]:
    """Bytes of each tensor of a batch of one row, as ONNX's shape inference finds them.

    What has no static shape counts as nothing: it is an index or a condition.
    """
    skeleton = _skeleton(model, chunks)
    inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=True).graph
    known = {v.name: _bytes(v.type) for v in (*inferred.value_info, *inferred.input, *inferred.output)}
    return {v: known.get(str(v.name), 0) for n in model.graph for v in n.outputs}


def _skeleton(model: ir.Model, chunks: Chunks) -> onnx.ModelProto:
    """The graph at batch 1, with the names and shapes of its large constants alone."""
    graph = onnx.GraphProto(name="skeleton")
    for value in model.graph.inputs:
        assert value.dtype is not None
        assert value.shape is not None
        shape = [d if isinstance(d, int) else 1 for d in value.shape]
        graph.input.append(onnx.helper.make_tensor_value_info(str(value.name), int(value.dtype), shape))
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        if value.const_value.size <= SMALL:
            graph.initializer.append(ir.serde.serialize_tensor(value.const_value))
            graph.initializer[-1].name = str(value.name)
        else:
            shape, dtype = list(value.const_value.shape.numpy()), int(value.const_value.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(str(value.name), dtype, shape))
    for node in model.graph:
        if is_pseudo(node, "Chunk"):
            _, parts = chunks.parts[node.attributes["part"].as_int()]
            dtype = onnx.helper.np_dtype_to_tensor_dtype(parts.dtype)
            graph.input.append(
                onnx.helper.make_tensor_value_info(str(node.outputs[0].name), dtype, parts.shape[1:])
            )
        elif is_pseudo(node):
            passed, (value,) = node.inputs[0], node.outputs
            assert passed is not None
            graph.node.append(onnx.helper.make_node("Identity", [str(passed.name)], [str(value.name)]))
        else:
            graph.node.append(ir.serde.serialize_node(node))
    graph.output.extend(onnx.ValueInfoProto(name=v.name) for v in model.graph.outputs)
    imports = [onnx.helper.make_opsetid(d, v) for d, v in model.graph.opset_imports.items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=model.ir_version)


def _bytes(kind: onnx.TypeProto) -> int:
    tensor = kind.tensor_type
    if not tensor.elem_type or not tensor.HasField("shape"):
        return 0
    if not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return 0
    width = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
    return math.prod(d.dim_value for d in tensor.shape.dim) * width


def constant_bytes(values: Iterable[ir.Value]) -> int:
    return sum(v.const_value.nbytes for v in set(values) if v.const_value is not None)


def peak(nodes: Sequence[ir.Node], size: Sizes, counted: Iterable[ir.Value] | None = None) -> int:
    """The most bytes that are alive at once when nodes run in this order, each value until its last reader.

    Args:
        counted: the values that count; all that the nodes make where None.
    """
    made = {v for n in nodes for v in n.outputs}
    counts = made if counted is None else made & set(counted)
    owner = _owners(nodes)
    last = {owner.get(v, v): i for i, n in enumerate(nodes) for v in (*reads(n), *n.outputs)}
    ending: dict[int, list[ir.Value]] = {}
    for value, i in last.items():
        ending.setdefault(i, []).append(value)
    now = most = 0
    for i, node in enumerate(nodes):
        now += sum(size.get(v, 0) for v in node.outputs if v in counts and v not in owner)
        most = max(most, now)
        now -= sum(size.get(v, 0) for v in ending.get(i, ()) if v in counts)
    return most


def _owners(nodes: Sequence[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Whose memory a value is a view of."""
    owner: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        if node.op_type in _VIEWS and node.inputs[0] is not None:
            source = node.inputs[0]
            owner[node.outputs[0]] = owner.get(source, source)
    return owner
