"""How much memory the values of a graph take, at one row."""

import math
from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir

from compiler.graph.chunk_markers import Chunks
from compiler.graph.shapes.inference import Spec, infer_graph
from compiler.graph.traverse import reads
from compiler.memory.regions import is_pseudo

_VIEWS = frozenset("Reshape Squeeze Unsqueeze Flatten Identity".split())

Sizes = Mapping[ir.Value, int]


def sizes(model: ir.Model, chunks: Chunks) -> dict[ir.Value, int]:
    """Bytes of each tensor of a batch of one row, as ONNX's shape inference finds them.

    What has no static shape counts as nothing: it is an index or a condition.
    """
    nodes: list[onnx.NodeProto] = []
    given = {str(value.name): _of_one_row(value) for value in model.graph.inputs}
    for node in model.graph:
        made = str(node.outputs[0].name)
        if is_pseudo(node, "Chunk"):
            _, parts = chunks.parts[node.attributes["part"].as_int()]
            given[made] = parts.shape[1:], ir.DataType.from_numpy(parts.dtype)
        elif is_pseudo(node):
            assert node.inputs[0] is not None
            nodes.append(onnx.helper.make_node("Identity", [str(node.inputs[0].name)], [made]))
        else:
            nodes.append(ir.serde.serialize_node(node))
    known = infer_graph(nodes, given, model.graph.initializers.values(), model.graph.opset_imports)
    return {v: _bytes(known.get(str(v.name))) for n in model.graph for v in n.outputs}


def _of_one_row(value: ir.Value) -> Spec:
    assert value.dtype is not None
    assert value.shape is not None
    return tuple(d if isinstance(d, int) else 1 for d in value.shape), value.dtype


def _bytes(spec: Spec | None) -> int:
    return 0 if spec is None else math.prod(spec[0]) * spec[1].numpy().itemsize


def constant_bytes(values: Iterable[ir.Value]) -> int:
    return sum(v.const_value.nbytes for v in set(values) if v.const_value is not None)


def peak(nodes: Sequence[ir.Node], size: Sizes, counted: Iterable[ir.Value] | None = None) -> int:
    """Return the most bytes alive at once when nodes run in this order, each value until its last reader.

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
