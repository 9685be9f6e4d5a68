"""Models that take floats of one type and answer in another."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from compiler import DeepShap, compile_model
from tests.tolerances import COMPLETE_32


def test_the_parts_of_an_answer_add_up_in_its_type() -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("Cast", ["t"], ["y"], to=TensorProto.DOUBLE),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    answer = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["N", 3])
    graph = helper.make_graph(nodes, "two types", [given], [answer])
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    random = np.random.default_rng(0)
    compiled = compile_model(model, DeepShap(random.normal(size=(4, 3)).astype(np.float32)), targets="all")
    got = compiled.explain(random.normal(size=(2, 3)).astype(np.float32))
    assert got["explained_value"].dtype == np.float64
    assert got["x_attributions"].dtype == np.float32
    assert np.abs(got["completeness_gap"]).max() <= COMPLETE_32
