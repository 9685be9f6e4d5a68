"""The models under load: a network of 24 features with its explanation, made here, and the credit example."""

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from compiler import DeepShap, compile_model
from compiler.manifest import EXPLAIN_SUFFIX

FEATURES = 24
NETWORK = "network"
SEED = 24


@dataclass(frozen=True)
class Load:
    """A model in a repository, and one small request for it: `inputs` [1, …] by name."""

    model: str
    inputs: dict[str, np.ndarray]


def network(width: int) -> ModelProto:
    """A classifier of 24 features with two hidden layers: credit scoring, as banks do it with networks."""
    generator = np.random.default_rng(SEED)
    sizes = [FEATURES, width, width, 1]
    nodes, constants, value = [], [], "x"
    for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weights = (generator.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)
        constants += [
            numpy_helper.from_array(weights, f"w{i}"),
            numpy_helper.from_array(np.full(columns, 0.1, np.float32), f"b{i}"),
        ]
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [f"z{i}"]))
        last = i == len(sizes) - 2
        nodes.append(helper.make_node("Sigmoid" if last else "Relu", [f"z{i}"], ["p" if last else f"a{i}"]))
        value = f"a{i}"
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", FEATURES])],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["N", 1])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def write_network(repository: Path, *, width: int, references: int, name: str = NETWORK) -> Load:
    """Writes `name` and its DeepSHAP explanation: about 5 ms a row at width 512 and 100 references."""
    generator = np.random.default_rng(SEED)
    rows = generator.normal(size=(references, FEATURES)).astype(np.float32)
    compile_model(network(width), DeepShap(rows)).write(repository, name)
    return Load(name, {"x": generator.normal(size=(1, FEATURES)).astype(np.float32)})


@functools.cache
def credit() -> Load:
    """The example in `model_repository`."""
    row = np.random.default_rng(SEED).uniform(size=(1, 10)).astype(np.float32)
    return Load("credit", {"applicant": row})


def explain_entry(load: Load) -> str:
    return load.model + EXPLAIN_SUFFIX
