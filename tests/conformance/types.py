"""A model with every float in one type: float64 for exactness, float32 where an engine takes no other."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.conformance.cases import FLOATS

_TYPES = frozenset({"to", "dtype", "stash_type", "softmax_precision"})


def retyped(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """A copy: inputs, constants and the types that attributes name, in branches and bodies too."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _graph(copy.graph, kind)
    for function in copy.functions:
        _nodes(function.node, kind)
    return copy


def _graph(graph: onnx.GraphProto, kind: int) -> None:
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in FLOATS:
            value.type.tensor_type.elem_type = kind
    del graph.value_info[:]
    for tensor in graph.initializer:
        _retype(tensor, kind)
    _nodes(graph.node, kind)


def _nodes(nodes: Sequence[onnx.NodeProto], kind: int) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i in FLOATS:
                attribute.i = kind
            if attribute.HasField("t"):
                _retype(attribute.t, kind)
            if attribute.name in ("value_float", "value_floats"):
                number = attribute.f if attribute.name == "value_float" else attribute.floats
                value = numpy_helper.from_array(np.asarray(number, dtype))
                attribute.CopyFrom(helper.make_attribute("value", value))
            if attribute.HasField("g"):  # to look at one that is not there makes one
                _graph(attribute.g, kind)
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = numpy_helper.from_array(np.zeros(1, dtype))
            node.attribute.append(helper.make_attribute("value", zero))


def _retype(tensor: onnx.TensorProto, kind: int) -> None:
    if tensor.data_type in FLOATS:
        array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
