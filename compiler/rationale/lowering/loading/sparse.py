"""The conversion of sparse initializers and constants to dense ones, the only ones the compiler reads."""

import math
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rationale.errors import UnsupportedModelError
from rationale.lowering.bodies import all_node_lists
from rationale.lowering.sizes import LARGEST
from rationale.schema.machine import format_bytes


def without_sparse(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which sparse tensors are dense.

    Raises:
        UnsupportedModelError: if a tensor is too large as a dense one, or lies in a file of its own.
        ValueError: if indices are outside of a tensor.
    """
    graphs, constants = _sparse_in(proto)
    _demand_room(
        [*(t for g in graphs for t in g.sparse_initializer), *(a.sparse_tensor for _, a in constants)]
    )
    dense = deepcopy(proto)
    graphs, constants = _sparse_in(dense)
    for graph in graphs:
        graph.initializer.extend(_dense(t, t.values.name) for t in graph.sparse_initializer)
        del graph.sparse_initializer[:]
    for node, attribute in constants:
        tensor = _dense(attribute.sparse_tensor, node.output[0])
        attribute.CopyFrom(helper.make_attribute("value", tensor))
    return dense


def _sparse_in(
    proto: onnx.ModelProto,
) -> tuple[list[onnx.GraphProto], list[tuple[onnx.NodeProto, onnx.AttributeProto]]]:
    """Return the graphs with sparse initializers, and the nodes with a sparse constant, also in bodies."""
    pairs = [(node, a) for nodes in all_node_lists(proto) for node in nodes for a in node.attribute]
    graphs = [proto.graph, *(graph for _, a in pairs for graph in (a.g, *a.graphs))]
    return [g for g in graphs if g.sparse_initializer], [(n, a) for n, a in pairs if a.name == "sparse_value"]


def _demand_room(tensors: Sequence[onnx.SparseTensorProto]) -> None:
    for tensor in tensors:
        if onnx.TensorProto.EXTERNAL in (tensor.values.data_location, tensor.indices.data_location):
            raise UnsupportedModelError(
                f"sparse tensor {tensor.values.name!r} is in a separate file. Save the model with its "
                "sparse tensors inside, or dense."
            )
    kinds = (helper.tensor_dtype_to_np_dtype(t.values.data_type) for t in tensors)
    size = sum(math.prod(t.dims) * kind.itemsize for t, kind in zip(tensors, kinds, strict=True))
    if size > LARGEST:
        names = ", ".join(t.values.name for t in tensors)
        raise UnsupportedModelError(
            f"the sparse tensors ({names}) take {format_bytes(size)} as dense ones, and "
            f"{format_bytes(LARGEST)} is the limit. Export the model with smaller ones."
        )


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    array = np.zeros(math.prod(sparse.dims), values.dtype)
    axes, shape = ([indices], array.shape) if indices.ndim == 1 else (indices.T, tuple(sparse.dims))
    array[np.ravel_multi_index(tuple(axes), shape)] = values
    return numpy_helper.from_array(array.reshape(sparse.dims), name)
