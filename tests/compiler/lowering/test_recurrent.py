"""RNN, GRU and LSTM: unrolled, they compute what ONNX Runtime's kernels do, and methods walk them."""

from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from rationale import DeepShap, Gradient, compile_model
from rationale.errors import UnsupportedModelError
from rationale.graph.runtime.session import Runner
from rationale.lowering.loading.load import load, standardise
from rationale.lowering.rewrites.engine import rewrite
from tests.tolerances import COMPLETE_32, OUTPUTS_32, PARITY_32

STEPS, ROWS, WIDTH, SIZE, K = 5, 3, 2, 4, 3
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ACTIVATIONS = {
    "RNN": ["LeakyRelu", "ThresholdedRelu"],
    "GRU": ["HardSigmoid", "Softsign", "Sigmoid", "ScaledTanh"],
    "LSTM": ["HardSigmoid", "Affine", "ScaledTanh", "Sigmoid", "Elu", "Softplus"],
}


def uniform(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def a_model(
    kind: str, *, lengths: bool = False, states: bool = False, peepholes: bool = False, **attributes: Any
) -> onnx.ModelProto:
    """One node with its outputs Y, Y_h and (LSTM) Y_c; x is [S, N, I], or [N, S, I] with layout 1."""
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    first = bool(attributes.get("layout"))
    gates = GATES[kind] * SIZE
    weights = {"w": uniform(ways, gates, WIDTH, seed=1), "r": uniform(ways, gates, SIZE, seed=2)}
    weights["b"] = uniform(ways, 2 * gates, seed=3)
    floats: dict[str, list[Any]] = {"x": ["N", STEPS, WIDTH] if first else [STEPS, "N", WIDTH]}
    names = ["x", "w", "r", "b", "lengths" if lengths else ""]
    for state in ("h", "c") if kind == "LSTM" else ("h",):
        names.append(state if states else "")
        if states:
            floats[state] = ["N", ways, SIZE] if first else [ways, "N", SIZE]
    if peepholes:
        names.append("p")
        weights["p"] = uniform(ways, 3 * SIZE, seed=4)
    inputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in floats.items()]
    if lengths:
        inputs.append(helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, ["N"]))
    outputs = ["y", "y_h", "y_c"] if kind == "LSTM" else ["y", "y_h"]
    shapes = [[STEPS, ways, "N", SIZE], *[[ways, "N", SIZE]] * 2]
    if first:
        shapes = [["N", STEPS, ways, SIZE], *[["N", ways, SIZE]] * 2]
    graph = helper.make_graph(
        [helper.make_node(kind, names, outputs, "recurrent", hidden_size=SIZE, **attributes)],
        "g",
        inputs,
        [
            helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
            for n, s in zip(outputs, shapes, strict=False)
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def feeds(model: onnx.ModelProto, seed: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    weights = {}
    for i, value in enumerate(model.graph.input):
        shape = [d.dim_value or rows for d in value.type.tensor_type.shape.dim]
        if value.name == "lengths":
            weights["lengths"] = np.resize(np.asarray([2, 0, STEPS], np.int32), rows)
        else:
            weights[value.name] = 2 * uniform(*shape, seed=seed + i)
    return weights


def cases() -> list[Any]:
    variants = []
    ways = ["forward", "reverse", "bidirectional"]
    for kind, way, lengths, states in product(GATES, ways, [False, True], [False, True]):
        count = len(ACTIVATIONS[kind]) // (1 if way == "bidirectional" else 2)
        extras: list[dict[str, Any]] = [
            {},
            {"clip": 0.4},
            {
                "activations": ACTIVATIONS[kind][:count],
                "activation_alpha": [0.3, 0.7, 0.9, 0.6],
                "activation_beta": [0.4, 0.8],
            },
        ]
        if kind == "GRU":
            extras += [{"linear_before_reset": 1}, {"linear_before_reset": 1, "clip": 0.4}]
        if kind == "LSTM":
            extras += [{"input_forget": 1}, {"peepholes": True}, {"peepholes": True, "clip": 0.4}]
        for i, other in enumerate(extras):
            options = {"direction": way, "lengths": lengths, "states": states, **other}
            name = f"{kind}-{way}-{lengths:d}{states:d}-{list(other)}"
            in_every_run = lengths is states is (i % 2 == 0)  # every other with and without both of them
            variants.append(
                pytest.param(kind, options, id=name, marks=() if in_every_run else pytest.mark.full)
            )
    return variants


@pytest.mark.parametrize(("kind", "options"), cases())
def test_unrolled_is_the_operator(kind: str, options: dict[str, Any]) -> None:
    model = a_model(kind, **options)
    lowered = standardise(ir.from_proto(model))
    rewrite(lowered)
    assert all(node.op_type not in GATES for node in lowered.graph)
    x = feeds(model, 5)
    want, got = Runner(model)(x), Runner(ir.to_proto(lowered))(x)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, atol=OUTPUTS_32 * max(1.0, np.abs(value).max()), rtol=0)


@pytest.mark.parametrize("kind", GATES)
def test_layout_1_is_served_between_transposes(kind: str) -> None:
    options: dict[str, Any] = {"direction": "bidirectional", "states": True}
    model, plain = a_model(kind, layout=1, **options), a_model(kind, **options)
    x = feeds(plain, 6)
    loaded = load(model)
    assert "layout = 1" in loaded.warnings[0]
    want = Runner(plain)(x)
    turned = {name: np.swapaxes(value, 0, 1) for name, value in x.items()}
    got = Runner(loaded.proto)(turned)
    np.testing.assert_array_equal(got["y"], want["y"].transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(got["y_h"], want["y_h"].transpose(1, 0, 2))


@pytest.mark.parametrize("kind", GATES)
def test_padded_rows_of_other_lengths_are_explained_alone(kind: str) -> None:
    """Complete; what lies beyond a row's length has no attribution; a row alone has the same answer."""
    model = a_model(kind, layout=1, lengths=True, direction="bidirectional")
    x = feeds(model, 7)
    references = {"x": feeds(model, 8, K)["x"]}
    compiled = compile_model(model, DeepShap(references), targets=[0, 9, 2 * STEPS * SIZE - 1])
    answer = compiled.explain(x)
    size = np.abs(answer["explained_value"]).max()
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * size
    for row, length in enumerate(x["lengths"]):
        assert not answer["x_attributions"][row, :, length:].any()
        assert answer["x_attributions"][row].any() == (length > 0)
        alone = compiled.explain({name: value[row : row + 1] for name, value in x.items()})
        np.testing.assert_allclose(
            alone["x_attributions"][0], answer["x_attributions"][row], atol=PARITY_32 * size, rtol=0
        )


def test_each_step_costs_few_nodes() -> None:
    lowered = standardise(ir.from_proto(a_model("LSTM")))
    rewrite(lowered)
    assert len(lowered.graph) <= 11 * STEPS + 20
    assert sum(node.op_type == "MatMul" for node in lowered.graph) == STEPS  # x's once, h's but for h_0 = 0
    model = a_model("LSTM", layout=1)
    references = {"x": feeds(model, 1, K)["x"]}
    explained = compile_model(model, DeepShap(references), output="y_h", targets=[0, 1]).model
    assert len(explained.graph.node) <= 100 * STEPS + 50


def test_a_sequence_of_unknown_length_is_refused() -> None:
    model = a_model("LSTM", layout=1)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "S"
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "S"
    with pytest.raises(UnsupportedModelError, match="fixed length"):
        compile_model(model, Gradient())


def test_a_sequence_that_is_too_long_is_refused() -> None:
    model = a_model("RNN", layout=1)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2_001
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2_001
    with pytest.raises(UnsupportedModelError, match=r"\b2001\b.*\b2000\b"):
        compile_model(model, Gradient())
