"""What shape an operator's outputs have for one row, and whether its rows stay apart."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from compiler.errors import UnsupportedModelError
from compiler.tensor import Tensor

Spec = tuple[tuple[int, ...], ir.DataType]


def infer_outputs(
    op_type: str,
    domain: str,
    opset: int,
    attributes: Mapping[str, Any],
    tensors: Sequence[Tensor | None],
    outputs: int,
) -> list[Spec]:
    """Row shape and dtype of each output, by ONNX's own inference for one row and for two.

    Raises:
        UnsupportedModelError: axis 0 does not grow with the rows, or another axis does: rows mix.
    """
    one = _infer(op_type, domain, opset, attributes, tensors, outputs, rows=1)
    if any(t is not None and t.rows for t in tensors):
        two = _infer(op_type, domain, opset, attributes, tensors, outputs, rows=2)
        for (a, _), (b, _) in zip(one, two, strict=True):
            if (2 * a[0] if a else None, *a[1:]) != b:
                raise UnsupportedModelError(
                    f"{op_type}: rows of a batch mix, or the batch leaves axis 0 ({list(a)} for one row, "
                    f"{list(b)} for two)"
                )
    return one


def _infer(
    op_type: str,
    domain: str,
    opset: int,
    attributes: Mapping[str, Any],
    tensors: Sequence[Tensor | None],
    outputs: int,
    rows: int,
) -> list[Spec]:
    names = ["" if t is None else f"i{i}" for i, t in enumerate(tensors)]
    results = [f"o{i}" for i in range(outputs)]
    used = {k: v for k, v in attributes.items() if v is not None}
    proto = ir.to_proto(ir.node(op_type, [None] * len(names), used, domain=domain, num_outputs=outputs))
    proto.ClearField("input")
    proto.ClearField("output")
    proto.input.extend(names)
    proto.output.extend(results)
    types, data = {}, {}
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            continue
        shape = (tensor.shape[0] * rows, *tensor.shape[1:]) if tensor.rows else tensor.shape
        types[name] = onnx.helper.make_tensor_type_proto(int(tensor.dtype), shape)
        constant = tensor.constant if tensor.dtype == ir.DataType.INT64 else None
        if constant is not None and constant.size <= 1024:
            data[name] = onnx.numpy_helper.from_array(np.asarray(constant), name)
    version = opset if not domain else max(onnx.defs.onnx_ml_opset_version(), 1)
    schema = onnx.defs.get_schema(op_type, version, domain)
    imports = [onnx.helper.make_opsetid(domain, version)]
    inferred = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    return [_spec(inferred.get(name), op_type) for name in results]


def _spec(proto: onnx.TypeProto | None, op_type: str) -> Spec:
    if proto is None or not proto.tensor_type.HasField("shape"):
        raise UnsupportedModelError(f"{op_type}: the shape of its output depends on values")
    dims = proto.tensor_type.shape.dim
    if not all(d.HasField("dim_value") for d in dims):
        raise UnsupportedModelError(f"{op_type}: the shape of its output depends on values")
    return tuple(d.dim_value for d in dims), ir.DataType(proto.tensor_type.elem_type)
