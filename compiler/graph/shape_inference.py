"""What shape an operator's outputs have for one row."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from compiler.errors import UnsupportedModelError
from compiler.graph.tensor import Tensor
from compiler.runtime.session import MOST_SIZES

Spec = tuple[tuple[int, ...], ir.DataType]

MOST_SCALES = 256  # elements of a constant of another type than integers: a Resize's


def may_be_sizes(dtype: ir.DataType, elements: int) -> bool:
    """Whether a constant may decide a shape; larger ones are weights and tables."""
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
    schema = onnx.defs.get_schema(op_type, version, domain)
    imports = [onnx.helper.make_opsetid(domain, version)]
    try:
        inferred = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    except onnx.shape_inference.InferenceError as error:
        raise UnsupportedModelError(f"{op_type}: {error}. Export it again.") from error
    return [_spec(inferred.get(name), op_type) for name in results]


def _spec(proto: onnx.TypeProto | None, op_type: str) -> Spec:
    if proto is None or not proto.tensor_type.HasField("shape"):
        raise UnsupportedModelError(f"{op_type}: the shape of its output depends on values")
    dims = proto.tensor_type.shape.dim
    if not all(d.HasField("dim_value") for d in dims):
        raise UnsupportedModelError(f"{op_type}: the shape of its output depends on values")
    return tuple(d.dim_value for d in dims), ir.DataType(proto.tensor_type.elem_type)
