"""The explanation of float16 and bfloat16 models in float32: `widen` on the way in, `narrow` on the way out.

The explained function is the one that the model's rounded weights define. Attributions subtract values
at the references from values at x, so roundings of 2^-11 (float16) or 2^-8 (bfloat16) at each layer
would be as large as these differences: see docs/adr/0011-precision.md.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from rationale.lowering.inference import note_shapes

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


@dataclass(frozen=True)
class Narrow:
    """The parts of a model in half precision.

    Attributes:
        edges: the dtype of each input and output of the model that is narrower than float32, by name.
        dtypes: every such dtype anywhere in the model.
    """

    edges: dict[str, ir.DataType] = field(default_factory=dict)
    dtypes: frozenset[ir.DataType] = frozenset()

    @property
    def rounding(self) -> float:
        """The spacing of numbers at 1 in the coarsest dtype; 0 if nothing is in half precision."""
        return max((2.0 ** -(_MANTISSA[dtype]) for dtype in self.dtypes), default=0.0)


_MANTISSA = {ir.DataType.FLOAT16: 10, ir.DataType.BFLOAT16: 7}  # bits after the point


def widen(model: ir.Model) -> Narrow:
    """Turn float16 and bfloat16 into float32 throughout, in place; return the parts that were narrow."""
    edges = [*model.graph.inputs, *model.graph.outputs]
    narrow = {str(v.name): v.dtype for v in edges if v.dtype in HALVES}
    dtypes = {v.dtype for v in _values(model)} & HALVES | set(narrow.values())
    for node in model.graph.all_nodes():
        dtypes |= _widen_attributes(node)
    for value in _values(model):
        if value.dtype in HALVES:
            value.type = copy.deepcopy(value.type)  # clones of a model share it
            value.dtype = ir.DataType.FLOAT
        if value.const_value is not None and value.const_value.dtype in HALVES:
            dtypes.add(value.const_value.dtype)
            array = value.const_value.numpy().astype(np.float32)
            value.const_value, value.dtype = ir.Tensor(array, name=value.name), ir.DataType.FLOAT
    if dtypes:
        _drop_casts(model)
    return Narrow({k: v for k, v in narrow.items() if v is not None}, frozenset(d for d in dtypes if d))


def on_cpu(model: ir.Model) -> tuple[ir.Model, Narrow]:
    """Return the model in a form for which ONNX Runtime has CPU kernels, and its half-precision parts.

    Without bfloat16, that is the model itself; otherwise one in float32 between the same inputs and outputs.
    """
    opsets = model.graph.opset_imports
    inline = passes.InlinePass(
        lambda function: all(opsets.get(d) == v for d, v in function.opset_imports.items())
    )
    twin = inline(model.clone()).model  # a function of another opset is not inlined
    halves = widen(twin)
    return (narrow(twin, halves) if ir.DataType.BFLOAT16 in halves.dtypes else model), halves


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield every value, including those of branches and bodies."""
    for graph in model.graphs():
        yield from (*graph.inputs, *graph.initializers.values(), *graph.outputs)
        yield from (v for node in graph for v in node.outputs)


def _widen_attributes(node: ir.Node) -> set[ir.DataType]:
    """Widen dtypes and tensors in the attributes of a node; return the dtypes that were narrow."""
    dtypes = set()
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.INT and name in _DTYPE_ATTRIBUTES:
            dtype = ir.DataType(attribute.as_int())
            if dtype in HALVES:
                dtypes.add(dtype)
                node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in HALVES:
            dtypes.add(attribute.as_tensor().dtype)
            array = attribute.as_tensor().numpy().astype(np.float32)
            node.attributes[name] = ir.AttrTensor(name, ir.Tensor(array))
    return dtypes


def _drop_casts(model: ir.Model) -> None:
    """Remove each Cast from float32 to float32; the model's own casts have become such casts."""
    note_shapes(model)
    for node in list(model.graph):
        x = node.inputs[0] if node.op_type == "Cast" and not node.domain else None
        if x is None or x.dtype != ir.DataType.FLOAT or node.outputs[0].dtype != ir.DataType.FLOAT:
            continue
        if node.outputs[0].is_graph_output():
            node.op_type = "Identity"
            node.attributes.clear()
            continue
        ir.convenience.replace_all_uses_with(node.outputs[0], x)
        model.graph.remove(node, safe=True)


def narrow(model: ir.Model, to: Narrow) -> ir.Model:
    """Cast a widened model's inputs and outputs back to their original types, in place; return it."""
    graph = model.graph
    names = {v.name for v in _values(model)}
    for i, inside in enumerate(graph.outputs):
        name = str(inside.name)
        if name in to.edges and not inside.is_graph_input():
            cast = _cast(inside, to.edges[name])
            graph.append(cast)
            graph.outputs[i] = cast.outputs[0]
            inside.name = _float32_name(name, names)
            cast.outputs[0].name = name
    for i, inside in enumerate(graph.inputs):
        name = str(inside.name)
        if name in to.edges:
            value = ir.Value(type=ir.TensorType(to.edges[name]), shape=inside.shape)
            cast = _cast(value, ir.DataType.FLOAT)
            graph.inputs[i] = value
            graph.insert_before(graph[0], cast)
            graph.outputs[:] = [value if v is inside else v for v in graph.outputs]
            ir.convenience.replace_all_uses_with(inside, cast.outputs[0])
            inside.name, value.name = None, name
            cast.outputs[0].name = _float32_name(name, names)
    return model


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    node = ir.node("Cast", [value], {"to": int(dtype)})
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(dtype), value.shape
    return node


def _float32_name(name: str, names: set[str | None]) -> str:
    inner = name
    while inner in names:
        inner += "/float32"
    names.add(inner)
    return inner
