"""What shape an operator's outputs have for one row, and which dtype."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from compiler.errors import UnsupportedModelError
from compiler.graph.shapes.own_shapes import own_opsets
from compiler.graph.tensor import Tensor
from compiler.runtime.session import MOST_SIZES

Spec = tuple[tuple[int, ...], ir.DataType]

MOST_SCALES = 256  # elements of a constant of another type than integers: a Resize's


def may_be_sizes(dtype: ir.DataType, elements: int) -> bool:
    """Tell whether a constant may decide a shape; larger ones are weights and tables."""
    return elements <= (MOST_SIZES if dtype.is_integer() else MOST_SCALES)


def spec_of(kind: onnx.TypeProto) -> Spec | None:
    """None for what is no tensor, or has no static shape."""
    tensor = kind.tensor_type
    dims = tensor.shape.dim
    if not tensor.elem_type or not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in dims):
        return None
    return tuple(d.dim_value for d in dims), ir.DataType(tensor.elem_type)


def infer_outputs(
    op_type: str,
    domain: str,
    opset: int,
    attributes: Mapping[str, Any],
    tensors: Sequence[Tensor | None],
    outputs: int,
) -> list[Spec]:
    """Shape and dtype of each output for one row, by ONNX's own inference.

    Raises:
        UnsupportedModelError: a shape that depends on values, or attributes that do not fit.
    """
    names = ["" if t is None else f"i{i}" for i, t in enumerate(tensors)]
    results = [f"o{i}" for i in range(outputs)]
    used = {k: v for k, v in attributes.items() if v is not None}
    node = ir.node(op_type, [None] * len(names), used, domain=domain, num_outputs=outputs)
    proto = ir.serde.serialize_node(node)
    proto.ClearField("input")
    proto.ClearField("output")
    proto.input.extend(names)
    proto.output.extend(results)
    types, data = {}, {}
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            continue
        types[name] = onnx.helper.make_tensor_type_proto(int(tensor.dtype), tensor.shape)
        told = tensor.rank <= 1 and may_be_sizes(tensor.dtype, math.prod(tensor.shape))
        constant = tensor.constant if told else None
        if constant is not None:
            data[name] = onnx.numpy_helper.from_array(np.asarray(constant), name)
    version = opset if not domain else max(onnx.defs.onnx_ml_opset_version(), 1)
    imports = own_opsets({domain: version})
    try:
        schema = onnx.defs.get_schema(op_type, imports[0].version, domain)
    except onnx.defs.SchemaError as error:
        raise UnsupportedModelError(
            f"{domain}.{op_type}: the shape of its value is not known. Declare it beside its rule, by "
            "`@RULE.shape`."
        ) from error
    try:
        inferred = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    except onnx.shape_inference.InferenceError as error:
        raise UnsupportedModelError(f"{op_type}: {error}. Export it again.") from error
    return [_spec(inferred.get(name), op_type) for name in results]


def result_dtype(
    op_type: str, domain: str, opset: int, tensors: Sequence[Tensor | None], attributes: Mapping[str, Any]
) -> ir.DataType:
    """Return the dtype of an operator's first output by its schema.

    It is an operand's, the only one that the schema allows, or attribute `to`.
    """
    known = _dtype_in_schema(op_type, domain, opset)
    if isinstance(known, int):
        operand = tensors[known]
        assert operand is not None
        return operand.dtype
    return ir.DataType(attributes["to"] if known is None else onnx.TensorProto.DataType.Value(known))


@functools.cache
def _dtype_in_schema(op_type: str, domain: str, opset: int) -> int | str | None:
    """Return the position of the operand that decides, the name of a fixed dtype, or None."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:  # a user's own
        return 0
    output = schema.outputs[0]
    for position, operand in enumerate(schema.inputs):
        if operand.type_str == output.type_str:
            return position
    names = [str(kind).removeprefix("tensor(").removesuffix(")") for kind in output.types]
    return names[0].upper() if len(names) == 1 else None


def _spec(proto: onnx.TypeProto | None, op_type: str) -> Spec:
    if proto is None or not proto.tensor_type.HasField("shape"):
        raise UnsupportedModelError(f"{op_type}: the shape of its output depends on values")
    dims = proto.tensor_type.shape.dim
    if not all(d.HasField("dim_value") for d in dims):
        raise UnsupportedModelError(f"{op_type}: the shape of its output depends on values")
    return tuple(d.dim_value for d in dims), ir.DataType(proto.tensor_type.elem_type)


def infer_graph(
    nodes: Iterable[onnx.NodeProto],
    given: Mapping[str, Spec],
    constants: Iterable[ir.Value],
    opsets: Mapping[str, int],
) -> dict[str, Spec]:
    """Infer static shapes of all that nodes make or read, by name, without their large constants.

    Args:
        given: of what they read, but for constants.
    """
    skeleton = onnx.GraphProto(name="skeleton", node=nodes)
    told = dict(given)
    for value in constants:
        array, name = value.const_value, str(value.name)
        assert array is not None
        if may_be_sizes(array.dtype, array.size):
            skeleton.initializer.append(ir.serde.serialize_tensor(array))
            skeleton.initializer[-1].name = name
        else:
            told[name] = tuple(array.shape.numpy()), array.dtype
    for name, (shape, dtype) in told.items():
        skeleton.input.append(onnx.helper.make_tensor_value_info(name, int(dtype), shape))
    model = onnx.helper.make_model(skeleton, opset_imports=own_opsets(opsets))
    found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    kinds = (*found.value_info, *found.input, *found.output)
    return {v.name: spec for v in kinds if (spec := spec_of(v.type)) is not None}
