"""Entries that each show one thing about the server or its `onnxruntime` backend."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests.triton.entries import DATA_TYPES, make_config, make_model, tensor, write_entry

QUEUE_DELAY_US = 100_000  # long enough that requests sent together meet in one batch


def rows() -> onnx.ModelProto:
    """y = sum over a row of any length: rows of different lengths cannot be one batch."""
    node = helper.make_node("ReduceSum", ["x", "one"], ["y"], keepdims=1)
    weights = {"one": np.array([1], np.int64)}
    return make_model([node], [tensor("x", "N", "L")], [tensor("y", "N", 1)], weights)


def fails() -> onnx.ModelProto:
    """y = x reshaped to three columns; ONNX Runtime fails where the row is no multiple of three."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    weights = {"shape": np.array([0, 3], np.int64)}
    return make_model([node], [tensor("x", "N", "L")], [tensor("y", "N", 3)], weights)


def words() -> onnx.ModelProto:
    """joined = first + second, of strings."""
    dtype = onnx.TensorProto.STRING
    node = helper.make_node("StringConcat", ["first", "second"], ["joined"])
    inputs = [tensor(name, "N", 2, dtype=dtype) for name in ("first", "second")]
    return make_model([node], inputs, [tensor("joined", "N", 2, dtype=dtype)])


def dtypes() -> onnx.ModelProto:
    """out_D = in_D for every data type D."""
    names = {dtype: onnx.TensorProto.DataType.Name(dtype).lower() for dtype in DATA_TYPES}
    nodes = [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in names.values()]
    inputs = [tensor(f"in_{name}", "N", 2, dtype=dtype) for dtype, name in names.items()]
    outputs = [tensor(f"out_{name}", "N", 2, dtype=dtype) for dtype, name in names.items()]
    return make_model(nodes, inputs, outputs)


def write_all(repository: Path) -> None:
    for make in (rows, fails, words, dtypes):
        model = make()
        write_entry(repository, model, make_config(make.__name__, model, queue_delay_us=QUEUE_DELAY_US))
    for count in (1, 3):
        model = rows()
        parameters = {"intra_op_thread_count": str(count)}
        write_entry(repository, model, make_config(f"threads_{count}", model, parameters=parameters))
