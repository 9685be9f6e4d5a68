"""Shapes by ONNX's own inference, asked of an outline: no copy of the model, and none of its weights."""

from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from compiler.errors import RationaleError
from compiler.graph.shapes.inference import Spec, may_be_sizes, spec_of
from compiler.graph.shapes.own_shapes import own_opsets

BATCH = "N"


def infer(model: ir.Model, rows: int) -> dict[str, Spec]:
    """Infer static shapes with the batch set to `rows`; values whose shape stays unknown are left out."""
    return infer_each(model, [rows])[0]


def infer_each(model: ir.Model, batches: Sequence[int]) -> list[dict[str, Spec]]:
    """Infer static shapes for several batches, ignoring what the model notes of shapes between its nodes."""
    outline = _outline(model, noted=False)
    inputs = outline.graph.input[: len(model.graph.inputs)]
    dims = [d for v in inputs for d in v.type.tensor_type.shape.dim if d.dim_param == BATCH]
    found = []
    for rows in batches:
        for dim in dims:
            dim.dim_value = rows
        # Not strict: a batch of 2 may be impossible in places.
        found.append(_specs(model, _inferred(outline, strict_mode=False, data_prop=True)))
    return found


def known_specs(model: ir.Model) -> dict[str, Spec]:
    """Return static shapes that the model notes, and what follows from them without computing any size."""
    outline = _outline(model, noted=True)
    return _specs(model, outline) | _specs(model, _inferred(outline, strict_mode=True, data_prop=False))


def note_shapes(model: ir.Model) -> None:
    """Note, in place, what is known of the types and shapes of what nodes make."""
    made = {v.name: v for v in _made(model)}
    inferred = _inferred(_outline(model, noted=True), strict_mode=True, data_prop=True)
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        if info.name in made:
            ir.serde.deserialize_value_info_proto(info, made[info.name])


def _inferred(outline: onnx.ModelProto, *, strict_mode: bool, data_prop: bool) -> onnx.ModelProto:
    """Infer shapes; return the outline as it is where that fails: in C, with errors of several kinds."""
    try:
        return onnx.shape_inference.infer_shapes(
            outline, check_type=True, strict_mode=strict_mode, data_prop=data_prop
        )
    except RationaleError:  # a rule's own shape form
        raise
    except Exception:
        return outline


def _outline(model: ir.Model, *, noted: bool) -> onnx.ModelProto:
    """Return the model with its large constants as inputs.

    Args:
        noted: whether shapes that are noted for what nodes make are taken along.
    """
    graph = model.graph
    constants = list(graph.initializers.values())
    proto = onnx.ModelProto(
        ir_version=model.ir_version,
        opset_import=own_opsets(model.opset_imports),
        functions=[
            ir.serde.serialize_function(f, create_value_info=model.ir_version >= 10)
            for f in model.functions.values()
        ],
    )
    proto.graph.name = graph.name or "graph"
    proto.graph.input.extend(_info(v) for v in graph.inputs)
    proto.graph.input.extend(_info(v) for v in constants if not v.is_graph_input())
    proto.graph.initializer.extend(_told(constants))
    for node in graph:
        ir.serde.serialize_node_into(proto.graph.node.add(), node)
    made = [v for v in _made(model) if not v.is_graph_output()]
    proto.graph.value_info.extend(_info(v, noted=noted) for v in made)
    proto.graph.output.extend(_info(v, noted=noted or v.producer() is None) for v in graph.outputs)
    return proto


def _told(constants: Sequence[ir.Value]) -> Iterator[onnx.TensorProto]:
    """Those that may say shapes: weights would be serialised with every question."""
    for value in constants:
        held = value.const_value
        if held is not None and may_be_sizes(held.dtype, held.size):
            tensor = ir.serde.serialize_tensor(held)
            tensor.name = str(value.name)
            yield tensor


def _info(value: ir.Value, *, noted: bool = True) -> onnx.ValueInfoProto:
    """Name, type and, where `noted`, shape; those of a constant are its tensor's."""
    tensor = value.const_value
    kind = ir.TensorType(tensor.dtype) if value.type is None and tensor is not None else value.type
    shape = tensor.shape if value.shape is None and tensor is not None else value.shape
    info = onnx.ValueInfoProto(name=value.name)
    if kind is not None:
        ir.serde.serialize_type_into(info.type, kind)
        if noted and shape is not None:
            ir.serde.serialize_shape_into(info.type, shape)
    return info


def _made(model: ir.Model) -> Iterator[ir.Value]:
    return (v for node in model.graph for v in node.outputs if v.name)


def _specs(model: ir.Model, proto: onnx.ModelProto) -> dict[str, Spec]:
    """In the model's order."""
    told = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    known = {v.name: spec for v in told if (spec := spec_of(v.type)) is not None}
    values = (*model.graph.inputs, *model.graph.initializers.values(), *_made(model))
    return {str(v.name): known[str(v.name)] for v in values if v.name in known}
