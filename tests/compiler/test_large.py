"""Models over 2 GB, which protobuf cannot hold in one piece."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler import DeepShap, Deployment, compile_model
from compiler.local import open_entry
from tests.compiler.models import rows
from tests.tolerances import COMPLETE_32

WIDTH, FEATURES, CLASSES = 17_000, 6, 3  # two matrices of 1.16 GB each


def _save(path: Path) -> None:
    rng = np.random.default_rng(0)
    square = rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(np.sqrt(WIDTH))
    weights = {
        "first": rng.standard_normal((FEATURES, WIDTH), dtype=np.float32),
        "second": square,
        "third": square[:, ::-1],
        "last": rng.standard_normal((WIDTH, CLASSES), dtype=np.float32) / np.float32(np.sqrt(WIDTH)),
    }
    nodes, value = [], "x"
    for name in weights:
        after = "y" if name == "last" else f"{name}_activation"
        nodes.append(helper.make_node("MatMul", [value, name], [f"{name}_product"], f"{name}_layer"))
        nodes.append(helper.make_node("Tanh" if name == "third" else "Relu", [f"{name}_product"], [after]))
        value = after
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=1024)


@pytest.mark.slow
def test_a_model_over_two_gigabytes(tmp_path: Path) -> None:
    """Compiled, written and read back: takes about two minutes and 12 GB of memory."""
    _save(tmp_path / "model.onnx")
    assert (tmp_path / "weights").stat().st_size > 2**31
    compiled = compile_model(
        tmp_path / "model.onnx",
        DeepShap(rows(3, FEATURES)),
        targets=[0],
        deployment=Deployment(memory_budget=16_000_000_000),
    )
    compiled.write(tmp_path / "repository", "large")
    answer = open_entry(tmp_path / "repository", "large").explain(rows(2, FEATURES, seed=1))
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert difference > 0
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference
