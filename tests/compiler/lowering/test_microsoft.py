"""Operators of com.microsoft, by value: what takes their place answers as ONNX Runtime's own kernels do."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from rationale import DeepShap, Gradient, UnsupportedModelError, compile_model
from rationale.lowering import lower
from rationale.lowering.rewrites.engine import rewritten_operators
from rationale.lowering.rewrites.microsoft import DOMAIN, WITHOUT_CPU_KERNEL
from tests.compiler.models import parsed
from tests.tolerances import PARITY_32

N, S, H, D = 3, 5, 2, 4  # rows, queries, heads and their size
WIDTH = H * D
RANDOM = np.random.default_rng(19)


class BatchRows(np.ndarray):
    """An input of the model, with rows on axis 0; any other array is a constant of it."""


def rows(*shape: int, low: float = -2.0, high: float = 2.0) -> BatchRows:
    return RANDOM.uniform(low, high, (N, *shape)).astype(np.float32).view(BatchRows)


def fixed(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return RANDOM.uniform(low, high, shape).astype(np.float32)


def whole(values: Any) -> BatchRows:
    return np.asarray(values, np.int32).view(BatchRows)


def one_node(
    op_type: str,
    operands: Sequence[np.ndarray | None],
    outputs: int | Sequence[int] = 1,
    *,
    shaped: bool = True,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and rows for its inputs.

    Args:
        outputs: how many, or the positions of those that are there.
        shaped: whether ONNX Runtime is asked for their types and ranks.
    """
    names = ["" if a is None else f"v{i}" for i, a in enumerate(operands)]
    names_of_outputs = list(range(outputs)) if isinstance(outputs, int) else list(outputs)
    results = [f"y{i}" if i in names_of_outputs else "" for i in range(max(names_of_outputs) + 1)]
    domain = "" if op_type in ("SimplifiedLayerNormalization", "LayerNormalization") else "com.microsoft"
    node = helper.make_node(op_type, names, results, "node", domain=domain, **attributes)
    present = {n: a for n, a in zip(names, operands, strict=True) if a is not None}
    inputs = {n: np.asarray(a) for n, a in present.items() if isinstance(a, BatchRows)}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), ["batch", *a.shape[1:]])
        for n, a in inputs.items()
    ]
    floats = next(a.dtype for a in present.values() if a.dtype.kind == "f")
    kinds = dict.fromkeys(results, helper.np_dtype_to_tensor_dtype(floats))
    if op_type == "EmbedLayerNormalization":
        kinds["y1"] = onnx.TensorProto.INT32
    if op_type.startswith("QLinear") or (op_type in WHOLE and len(operands) == WHOLE[op_type]):
        kinds["y0"] = helper.np_dtype_to_tensor_dtype(np.asarray(operands[-1]).dtype)
    graph = helper.make_graph(
        [node],
        "one",
        infos,
        [helper.make_tensor_value_info(r, kinds[r], [None] * 3) for r in results if r],
        [numpy_helper.from_array(a, n) for n, a in present.items() if n not in inputs],
    )
    for value in graph.output if shaped else ():
        value.type.tensor_type.ClearField("shape")
    opset = 13 if op_type == "LayerNormalization" else 21  # ONNX has it since 17
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return (with_shapes(model, inputs) if shaped else model), inputs


WHOLE = {"QuantizeLinear": 3, "QGemm": 9}  # answer in the type of their last operand, where they have so many


def answers(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return list(onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs))


def with_shapes(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Outputs as exporters declare them: their ranks are known."""
    for value, answer in zip(model.graph.output, answers(model, inputs), strict=True):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(answer.dtype)
        value.type.tensor_type.shape.Clear()
        for _ in answer.shape:
            value.type.tensor_type.shape.dim.add()
    return model


def check(op_type: str, *operands: np.ndarray | None, outputs: Any = 1, **attributes: Any) -> list[str]:
    """Compares all outputs of the lowered model with the node's; returns the operators that are left."""
    model, inputs = one_node(op_type, operands, outputs, **attributes)
    want = answers(model, inputs)
    lowered = ir.serde.serialize_model(lower(model).model)
    assert {n.domain for n in lowered.graph.node} == {""}
    for value, right in zip(answers(lowered, inputs), want, strict=True):
        assert value.shape == right.shape
        assert np.isfinite(right).all()
        np.testing.assert_allclose(value, right, 0, PARITY_32 * max(1.0, np.abs(right).max()))
    return [n.op_type for n in lowered.graph.node]


ACTIVATIONS = [
    ("Gelu", (rows(S, WIDTH),), {}, "Mul Mul Erf Add Mul"),
    ("QuickGelu", (rows(S, WIDTH),), {}, "Mul Sigmoid Mul"),
    ("QuickGelu", (rows(S, WIDTH),), {"alpha": 1.0}, "Sigmoid Mul"),
    ("BiasGelu", (rows(S, WIDTH), fixed(WIDTH)), {}, "Add Mul Mul Erf Add Mul"),
    ("FastGelu", (rows(S, WIDTH),), {}, "Mul Mul Mul Add Mul Mul Tanh Add Mul"),
    ("FastGelu", (rows(S, WIDTH), fixed(WIDTH)), {}, "Add Mul Mul Mul Add Mul Mul Tanh Add Mul"),
]
NORMS = [
    ("LayerNormalization", (rows(S, WIDTH), fixed(WIDTH), fixed(WIDTH)), {"epsilon": 0.3, "axis": 2}, 1),
    ("SimplifiedLayerNormalization", (rows(S, WIDTH), fixed(WIDTH)), {}, 1),
    ("SimplifiedLayerNormalization", (rows(S, WIDTH), fixed(WIDTH)), {"epsilon": 0.3, "axis": 2}, 1),
    ("SkipLayerNormalization", (rows(S, WIDTH), rows(S, WIDTH), fixed(WIDTH)), {}, 1),
    (
        "SkipLayerNormalization",
        (rows(S, WIDTH), fixed(S, WIDTH), fixed(WIDTH), fixed(WIDTH), fixed(WIDTH)),
        {"epsilon": 0.2},
        (0, 3),
    ),
    (
        "SkipSimplifiedLayerNormalization",
        (rows(S, WIDTH), rows(S, WIDTH), fixed(WIDTH), fixed(WIDTH)),
        {"epsilon": 0.2},
        (0, 3),
    ),
    ("SkipSimplifiedLayerNormalization", (rows(S, WIDTH), rows(S, WIDTH), fixed(WIDTH)), {}, 1),
]
PRODUCTS = [
    ((rows(S, D), rows(D, 6)), {}),
    ((rows(S, D), rows(D, 6)), {"alpha": 0.3}),
    ((rows(D, S), rows(6, D)), {"transA": 1, "transB": 1, "alpha": -1.5}),
    ((rows(S, D), fixed(6, D)), {"transB": 1}),
    ((rows(2, D), fixed(2, D, 6)), {"transBatchA": 1}),
    ((fixed(2, D, S), rows(2, D)), {"transA": 1, "transB": 1, "transBatchB": 1}),
    ((fixed(2, S, D), rows(2, D)), {"transBatchB": 1, "transB": 1, "alpha": 2.0}),
]
CASES: list[tuple[str, tuple[np.ndarray | None, ...], dict[str, Any], Any]] = [
    *((name, operands, how, 1) for name, operands, how, _ in ACTIVATIONS),
    *NORMS,
    *(("FusedMatMul", operands, how, 1) for operands, how in PRODUCTS),
    ("TransposeMatMul", (rows(D, S), rows(D, 6)), {"transA": 1}, 1),
    ("FusedGemm", (rows(WIDTH), fixed(WIDTH, 3), fixed(3)), {"activation": "Relu"}, 1),
    *(
        (
            "FusedGemm",
            (rows(WIDTH), fixed(3, WIDTH)),
            {"transB": 1, "alpha": 0.7, "activation": name, **how},
            1,
        )
        for name, how in (
            ("Elu", {"activation_alpha": 0.4}),
            ("HardSigmoid", {"activation_alpha": 0.1, "activation_beta": 0.3}),
            ("LeakyRelu", {"activation_alpha": 0.2}),
            ("Selu", {"activation_alpha": 1.4, "activation_gamma": 0.8}),
            ("Sigmoid", {}),
            ("Softplus", {}),
            ("Softsign", {}),
            ("Tanh", {}),
            ("ThresholdedRelu", {"activation_alpha": 0.5}),
        )
    ),
    *(
        (
            "FusedConv",
            (rows(4, 6, 7), fixed(2, 4, 3, 2), fixed(2)),
            {"activation": name, "activation_params": parameters} if parameters else {"activation": name},
            1,
        )
        for name, parameters in (
            ("Relu", ()),
            ("Tanh", ()),
            ("Sigmoid", ()),
            ("LeakyRelu", (0.2,)),
            ("Clip", (-0.3, 0.9)),
            ("HardSigmoid", (0.2, 0.4)),
        )
    ),
    ("FusedConv", (rows(4, 6, 7), fixed(2, 2, 3, 2)), {"group": 2, "pads": [1, 0, 1, 1]}, 1),
    ("FusedConv", (rows(4, 6, 7), fixed(2, 4, 3, 2), None, rows(2, 4, 6)), {"activation": "Relu"}, 1),
]
IDS, MASK = whole(RANDOM.integers(0, 9, (N, S))), whole([[1] * 5, [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
LEFT_PADDED, LENGTHS = whole([[0, 0, 1, 1, 1], [1] * 5, [0, 1, 1, 1, 1]]), whole([5, 3, 2])
PER_QUERY = whole(RANDOM.integers(0, 2, (N, S, S)) | np.eye(S, dtype=np.int32))
MEGATRON = whole(RANDOM.integers(0, 2, (N, 1, 8, 8)) | np.eye(8, dtype=np.int32))
EMBEDDED = (IDS, whole(RANDOM.integers(0, 2, (N, S))), fixed(9, WIDTH), fixed(8, WIDTH), fixed(2, WIDTH))
CASES += [
    ("EmbedLayerNormalization", (*EMBEDDED, fixed(WIDTH), fixed(WIDTH), MASK), {"epsilon": 0.1}, 3),
    (
        "EmbedLayerNormalization",
        (
            IDS,
            None,
            *EMBEDDED[2:4],
            None,
            fixed(WIDTH),
            fixed(WIDTH),
            None,
            whole(np.arange(15).reshape(3, 5) % 8),
        ),
        {},
        (0, 2),
    ),
]
X, W, B = rows(S, 6), fixed(6, 3 * WIDTH), fixed(3 * WIDTH)
CASES += [
    ("Attention", (X, W, *more), {"num_heads": H, **how}, 1)
    for more, how in (
        ((), {}),
        ((B,), {"scale": 0.9}),
        ((B, MASK), {}),
        ((B, LEFT_PADDED), {"unidirectional": 1}),
        ((B, PER_QUERY), {"mask_filter_value": -3.0}),
        ((B, LENGTHS), {}),
        ((B, LENGTHS), {"unidirectional": 1}),
        ((B, None), {"unidirectional": 1}),
        ((B, None, None, rows(H, S, S)), {}),
        ((B, MASK, None, fixed(1, H, S, S)), {"unidirectional": 1}),
        ((B, whole(np.zeros((N, S)))), {}),
    )
]
CASES += [
    (
        "Attention",
        (X, fixed(6, 2 * WIDTH + 6), fixed(2 * WIDTH + 6), MASK),
        {"num_heads": H, "qkv_hidden_sizes": [WIDTH, WIDTH, 6]},
        1,
    ),
    ("Attention", (X, W, B, MASK), {"num_heads": H}, 2),
]
Q, K, V, T = rows(S, WIDTH), rows(7, WIDTH), rows(7, 6), whole(RANDOM.integers(0, 2, (N, 7)) | [1] + [0] * 6)
CASES += [
    ("MultiHeadAttention", operands, {"num_heads": H, **how}, 1)
    for operands, how in (
        ((Q, K, V), {}),
        ((Q, K, V, fixed(2 * WIDTH + 6)), {"scale": 0.3}),
        ((Q, K, V, None, T), {}),
        ((K, Q, Q), {"unidirectional": 1}),
        ((Q, K, V, None, whole([7, 2, 4])), {}),
        (
            (Q, K, V, None, whole(RANDOM.integers(0, 2, (N, S, 7)) | [1] + [0] * 6)),
            {"mask_filter_value": -4.0},
        ),
        ((Q, K, V, None, None, rows(1, S, 7)), {}),
        ((Q, Q, Q, B, MASK, fixed(1, 1, S, S)), {"unidirectional": 1}),
        ((Q, rows(H, 7, D), rows(H, 7, D)), {}),
        ((Q, rows(H, 7, D), rows(H, 7, D), None, T), {}),
    )
]
CASES.append(("MultiHeadAttention", (Q, K, V), {"num_heads": H}, 3))
GROUPED = (rows(S, 4 * 8), rows(S, 2 * 8), rows(S, 2 * 8), None, None)
FULL, SHORT, ALL = whole([S - 1] * N), whole([4, 2, 3]), np.asarray(S, np.int32)
CASES += [
    ("GroupQueryAttention", operands, {"num_heads": 4, "kv_num_heads": H, **how}, outputs)
    for operands, how, outputs in (
        ((*GROUPED, FULL, ALL), {}, 1),
        ((*GROUPED, SHORT, ALL), {"scale": 0.2}, 3),
        ((*GROUPED, FULL, ALL), {"softcap": 0.7, "local_window_size": 2}, 1),
        ((rows(S, 8 * 8), None, None, None, None, FULL, ALL), {}, 1),
        ((rows(S, 8 * 16), None, None, None, None, FULL, ALL, fixed(9, 8), fixed(9, 8)), {"do_rotary": 1}, 1),
        (
            (rows(S, 8 * 16), None, None, None, None, FULL, ALL, fixed(9, 8), fixed(9, 8)),
            {"do_rotary": 1, "rotary_interleaved": 1},
            1,
        ),
    )
]
COS, SIN = fixed(9, D // 2), fixed(9, D // 2)
PLACES = RANDOM.integers(0, 9, (N, S)).view(BatchRows)
CASES += [
    ("RotaryEmbedding", operands, how, 1)
    for operands, how in (
        ((Q, PLACES, COS, SIN), {}),
        ((Q, PLACES, COS, SIN), {"interleaved": 1}),
        ((Q, np.asarray([3]), COS, SIN), {}),
        ((rows(H, S, D), PLACES, COS, SIN), {}),
        ((rows(H, S, D), np.asarray([2]), COS, SIN), {"interleaved": 1}),
        ((Q, PLACES, fixed(9, 1), fixed(9, 1)), {"num_heads": H, "rotary_embedding_dim": 2}),
        ((rows(H, S, 6), PLACES, COS, SIN), {"num_heads": H, "rotary_embedding_dim": D, "interleaved": 1}),
    )
]


def steps(dtype: Any, *shape: int) -> np.ndarray:
    """Signed bytes have 7 bits, as with `reduce_range`: without VNNI, two larger products saturate."""
    limits = np.iinfo(dtype)
    least, most = (-64, 63) if dtype is np.int8 else (limits.min, limits.max)
    return RANDOM.integers(least, most, shape, endpoint=True).astype(dtype)


BYTES, SIGNED = steps(np.uint8, N, 8).view(BatchRows), steps(np.int8, N, 8).view(BatchRows)
# Scales below leave no number at a half, where kernels round to either side.
PICTURE = steps(np.uint8, N, 3, 4, 5).view(BatchRows)
SCALE, SCALES, U8 = np.float32(0.02), fixed(5, low=0.01, high=0.1), np.uint8(7)
ZEROS, LARGE = steps(np.int8, 5), np.float32(40)
PACKED = {"N": 5, "K": 40, "block_size": 16}
CASES += [
    ("QuantizeLinear", (rows(S, WIDTH), np.float32(2e-4), np.uint16(30000)), {}, 1),
    ("QuantizeLinear", (rows(5, 3), SCALES, ZEROS), {"axis": 1}, 1),
    ("DequantizeLinear", (steps(np.int16, N, 8).view(BatchRows), SCALE, np.int16(-5)), {}, 1),
    ("DequantizeLinear", (steps(np.int8, N, 5, 2).view(BatchRows), SCALES, ZEROS), {"axis": 1}, 1),
    *(
        ("QGemm", (BYTES, SCALE, U8, b, *how, *more), attributes, 1)
        for b, how, more, attributes in (
            (steps(np.int8, 8, 5), (SCALE, np.int8(3)), (), {}),
            (steps(np.int8, 5, 8), (SCALES, ZEROS), (steps(np.int16, 5).astype(np.int32),), {"transB": 1}),
            (steps(np.uint8, 8, 5), (SCALE, U8), (None, LARGE, U8), {"alpha": 0.5}),
        )
    ),
    *(
        (name, (x, SCALE, zero, y, np.float32(0.03), zero, np.float32(scale), zero), {}, 1)
        for name, scale in (("QLinearAdd", 0.041), ("QLinearMul", 0.037))
        for x, y, zero in (
            (BYTES, steps(np.uint8, 8), U8),
            (SIGNED, steps(np.int8, N, 8).view(BatchRows), np.int8(-3)),
        )
    ),
    ("QLinearConcat", (LARGE, U8, BYTES, SCALE, U8, BYTES, LARGE, np.uint8(0)), {"axis": 1}, 1),
    *(
        (name, (PICTURE, np.float32(0.031), U8, np.float32(scale), np.uint8(zero)), attributes, 1)
        for name, scale, zero, attributes in (
            ("QLinearSigmoid", 1 / 256, 0, {}),
            ("QLinearLeakyRelu", 0.029, 9, {"alpha": 0.2}),
            ("QLinearSoftmax", 1 / 256, 0, {"axis": -1, "opset": 13}),
            ("QLinearSoftmax", 1 / 256, 0, {"axis": 1, "opset": 13}),
            ("QLinearSoftmax", 1 / 256, 0, {"axis": 3, "opset": 11}),
            ("QLinearGlobalAveragePool", 0.017, 5, {}),
            ("QLinearAveragePool", 0.017, 5, {"kernel_shape": [2, 3], "strides": [1, 2]}),
            ("QLinearAveragePool", 0.0213, 5, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
            (
                "QLinearAveragePool",
                0.0213,
                5,
                {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
            ),
        )
    ),
    ("MatMulIntegerToFloat", (BYTES, steps(np.int8, 8, 5), SCALE, SCALES, U8, ZEROS, fixed(5)), {}, 1),
    ("MatMulIntegerToFloat", (SIGNED, steps(np.int8, 8, 5), SCALE, SCALE), {}, 1),
    *(
        (
            "MatMulNBits",
            (rows(S, 40), steps(np.uint8, 5, 3, 2 * bits), fixed(5, 3), *more),
            {**PACKED, "bits": bits},
            1,
        )
        for bits, more in (
            (4, ()),
            (8, ()),
            (2, ()),
            (4, (steps(np.uint8, 5, 2),)),
            (8, (steps(np.uint8, 5, 3), None, fixed(5))),
            (4, (fixed(5, 3, low=3, high=9),)),
        )
    ),
]


def label(case: tuple[str, tuple[np.ndarray | None, ...], dict[str, Any], Any]) -> str:
    shapes = ["-" if a is None else "×".join(map(str, a.shape)) for a in case[1]]
    return (
        " ".join([case[0], *shapes, *(f"{k}={v}" for k, v in case[2].items())])
        .replace("[", "(")
        .replace("]", ")")
    )


@pytest.mark.parametrize("case", CASES, ids=label)
def test_an_operator_answers_as_onnx_runtime_has_it(
    case: tuple[str, tuple[np.ndarray | None, ...], dict[str, Any], Any],
) -> None:
    name, operands, how, outputs = case
    check(name, *operands, outputs=outputs, **how)


def test_every_operator_is_held_to_onnx_runtime() -> None:
    operators = {op_type for domain, op_type in rewritten_operators() if domain == DOMAIN}
    alone = {"DynamicQuantizeMatMul"}  # row by row, below
    assert operators - {case[0] for case in CASES} - alone == WITHOUT_CPU_KERNEL  # by formulas below


def test_a_product_of_a_dynamically_quantised_row_answers_as_onnx_runtime_has_it() -> None:
    """A row alone: in a larger batch rows would share a scale."""
    operands = (rows(8), steps(np.int8, 8, 5), SCALES, ZEROS, fixed(5))
    model, inputs = one_node("DynamicQuantizeMatMul", operands)
    lowered = ir.serde.serialize_model(lower(model).model)
    for i in range(N):
        row = {name: a[i : i + 1] for name, a in inputs.items()}
        np.testing.assert_allclose(answers(lowered, row)[0], answers(model, row)[0], atol=1e-4)


def test_a_network_of_whole_numbers_is_explained() -> None:
    """As quantize_static (QOperator) and MatMulNBitsQuantizer write them."""
    constants = {
        "b": steps(np.int8, 8, 16),
        "s": SCALE,
        "t": np.float32(0.3),
        "o": U8,
        "p": np.int8(0),
        "c": np.zeros(16, np.int32),
        "w": steps(np.uint8, 5, 1, 8),
        "v": fixed(5, 1),
    }
    text = """g (float[N, 8] x) => (float[N, 5] y) {
        q = com.microsoft.QuantizeLinear (x, s, o)
        g = com.microsoft.QGemm (q, s, o, b, s, p, c, t, o)
        z = com.microsoft.DequantizeLinear (g, t, o)
        r = Tanh (z)
        y = com.microsoft.MatMulNBits <K = 16, N = 5, bits = 4, block_size = 16> (r, w, v) }"""
    model = parsed(text, constants, opsets='"" : 21, "com.microsoft" : 1')
    x, references = np.asarray(rows(8)), np.asarray(rows(8))
    answer = compile_model(model, DeepShap(references), targets="all").explain(x)
    difference = answer["explained_value"] - answer["base_value"]
    np.testing.assert_allclose(answer["x_attributions"].sum(-1), difference, atol=1e-4)
    assert np.abs(difference).max() > 1


def test_a_residual_block_of_whole_numbers_is_explained() -> None:
    """As quantize_static (QOperator) writes one."""
    scales = dict(
        zip(
            "sabcdefh",
            np.float32([0.0213, 0.0197, 0.0331, 0.0291, 0.0057, 0.0273, 0.0241, 0.0119]),
            strict=True,
        )
    )
    constants = {"w": steps(np.int8, 2, 2, 3, 3), "v": np.float32(2e-3), "o": np.uint8(128), "p": np.int8(0)}
    text = """g (float[N, 2, 5, 6] x) => (float[N, 4, 1, 1] y) {
        q = QuantizeLinear (x, s, o)
        conv = QLinearConv <pads = [1, 1, 1, 1]> (q, s, o, w, v, p, a, o)
        sum = com.microsoft.QLinearAdd (q, s, o, conv, a, o, b, o)
        leaky = com.microsoft.QLinearLeakyRelu <alpha = 0.1> (sum, b, o, c, o)
        gate = com.microsoft.QLinearSigmoid (leaky, c, o, d, o)
        product = com.microsoft.QLinearMul (leaky, c, o, gate, d, o, e, o)
        both = com.microsoft.QLinearConcat <axis = 1> (e, o, product, e, o, sum, b, o)
        pool = com.microsoft.QLinearAveragePool <kernel_shape = [2, 2], strides = [2, 2]> (both, e, o, f, o)
        mean = com.microsoft.QLinearGlobalAveragePool (pool, f, o, h, o)
        y = DequantizeLinear (mean, h, o) }"""
    model = parsed(text, constants | scales, opsets='"" : 21, "com.microsoft" : 1')
    x, references = np.asarray(rows(2, 5, 6)), np.asarray(rows(2, 5, 6)) + np.float32(0.5)
    answer = compile_model(model, DeepShap(references), targets="all").explain(x)
    difference = answer["explained_value"] - answer["base_value"]
    np.testing.assert_allclose(answer["x_attributions"].sum((2, 3, 4)), difference, atol=1e-4)
    assert np.abs(difference).max() > 0.1


def made_of(
    op_type: str, *operands: np.ndarray | None, like: Sequence[int], **how: Any
) -> tuple[np.ndarray, Any]:
    """What takes the place of a node that runs on GPUs alone answers, and what lowering says.

    Args:
        like: the shape of a row of its answer.
    """
    model, inputs = one_node(op_type, operands, shaped=False, **how)
    value = model.graph.output[0]
    value.CopyFrom(helper.make_tensor_value_info("y0", onnx.TensorProto.FLOAT, ["batch", *like]))
    lowered = lower(model)
    for plain in (lowered.source, ir.serde.serialize_model(lowered.model)):
        assert {n.domain for n in plain.graph.node} == {""}
        (y,) = answers(plain, inputs)
    return y, lowered.warnings


def test_what_has_kernels_for_gpus_alone_is_written_out_in_the_plain_entry_too() -> None:
    x, bias, skip = rows(S, WIDTH), fixed(WIDTH), rows(S, WIDTH)
    y, (note,) = made_of("BiasAdd", x, bias, skip, like=(S, WIDTH))
    np.testing.assert_allclose(y, x + bias + skip, atol=1e-6)
    assert note == "ONNX Runtime has no CPU kernel for this BiasAdd; the entries hold ONNX's operators"
    y, _ = made_of("BiasSplitGelu", x, bias, like=(S, WIDTH // 2))
    a, b = np.split(np.asarray(x + bias, np.float64), 2, axis=-1)
    np.testing.assert_allclose(y, a * b * (1 + np.vectorize(math.erf)(b / math.sqrt(2))) / 2, atol=1e-5)


@pytest.mark.parametrize("axis", [1, 2, 3, -1])
def test_a_softmax_with_a_bias_is_over_all_axes_from_one_on(axis: int) -> None:
    x, bias = rows(H, S, 6), fixed(1, S, 6)
    y, _ = made_of("BiasSoftmax", x, bias, like=(H, S, 6), axis=axis, is_inner_broadcast=0)
    scores = np.exp(np.asarray(x + bias, np.float64))
    want = scores / scores.sum(tuple(range(axis % 4, 4)), keepdims=True)
    np.testing.assert_allclose(y, want, atol=1e-6)


def test_packed_heads_answer_as_they_do_apart() -> None:
    packed = rows(S, H, 3, D)
    for bias in (None, B):
        apart = [packed[:, :, :, i].reshape(N, S, WIDTH) for i in range(3)]
        (want,) = answers(*one_node("MultiHeadAttention", (*apart, bias), num_heads=H))
        operands = [packed] if bias is None else [packed, None, None, bias]
        y, _ = made_of("MultiHeadAttention", *operands, like=(S, WIDTH), num_heads=H)
        np.testing.assert_allclose(y, want, atol=1e-6)
    pairs = rows(7, H, 2, D)
    apart = [pairs[:, :, :, i].reshape(N, 7, WIDTH) for i in range(2)]
    (want,) = answers(*one_node("MultiHeadAttention", (Q, *apart), num_heads=H))
    y, _ = made_of("MultiHeadAttention", Q, pairs, like=(S, WIDTH), num_heads=H)
    np.testing.assert_allclose(y, want, atol=1e-6)


def test_a_mask_of_more_places_than_a_row_has_is_cut() -> None:
    (want,) = answers(*one_node("Attention", (X, W, B, MEGATRON[:, 0, :S, :S]), num_heads=H))
    y, _ = made_of("Attention", X, W, B, MEGATRON, like=(S, WIDTH), num_heads=H)
    np.testing.assert_allclose(y, want, atol=1e-6)


def test_ends_and_begins_of_padded_rows_in_one_mask() -> None:
    model, inputs = one_node("Attention", (X, W, B, whole([5, 4, 2]), None), num_heads=H)
    model.graph.node[0].input[3] = "both"
    begins = helper.make_tensor_value_info("begins", onnx.TensorProto.INT32, ["batch"])
    model.graph.input.append(begins)
    model.graph.node.insert(0, helper.make_node("Concat", ["v3", "begins"], ["both"], axis=0))
    inputs["begins"] = np.asarray([1, 0, 1], np.int32)
    lowered = ir.serde.serialize_model(lower(model).model)
    (want,), (y,) = answers(model, inputs), answers(lowered, inputs)
    np.testing.assert_allclose(y, want, atol=1e-6)
    explained = compile_model(model, Gradient(), inputs=["v0"], targets=[0, 9]).explain(inputs)
    assert not explained["v0_attributions"][2, :, 2:].any()
    assert not explained["v0_attributions"][0, 1, 0].any()


@pytest.mark.parametrize("more", [{}, {"unidirectional": 1}], ids=str)
def test_attention_of_any_length(more: dict[str, int]) -> None:
    """Masks and scales hold no length."""
    model, inputs = one_node("Attention", (X, W, B, MASK), num_heads=H, **more)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "seq"
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = WIDTH
    first = {name: a[:, :3] for name, a in inputs.items()}
    wide = compile_model(model, Gradient(), inputs=["v0"], targets=[0, 9], sizes={"seq": (2, 7)})
    exact = compile_model(model, Gradient(), inputs=["v0"], targets=[0, 9], sizes={"seq": 3})
    got, want = (c.explain(first)["v0_attributions"] for c in (wide, exact))
    np.testing.assert_allclose(got, want, atol=1e-6)


CACHE = rows(H, 4, D)
REFUSED = [
    (("Attention", X, W, B, None, CACHE[None].repeat(2, 0)), {"num_heads": H}, "past state 'v4'"),
    (("Attention", X, W, B), {"num_heads": H, "do_rotary": 1}, "rotary positions"),
    (("MultiHeadAttention", Q, K, V), {"num_heads": H, "unidirectional": 1}, "more keys than there are"),
    (("MultiHeadAttention", Q, K, V, None, None, None, CACHE, CACHE), {"num_heads": H}, "use_cache=False"),
    (
        ("GroupQueryAttention", *GROUPED[:3], rows(2, 4, 8), rows(2, 4, 8), FULL, ALL),
        {"num_heads": 4, "kv_num_heads": 2},
        "past state 'v3', 'v4' cannot be explained. Export the model without a cache",
    ),
    (
        ("GroupQueryAttention", *GROUPED, FULL, ALL),
        {"num_heads": 4, "kv_num_heads": 2, "smooth_softmax": 1},
        "smooth_softmax cannot be explained. Compile the model before",
    ),
    (("RotaryEmbedding", Q, PLACES, COS, SIN), {"scale": 2.0}, "a scale cannot be explained"),
    (
        ("QLinearSoftmax", PICTURE, SCALE, U8, SCALE, U8),
        {"axis": 1, "opset": 11},
        "several axes at once cannot be explained. Export with opset 13",
    ),
    (
        ("QLinearGlobalAveragePool", PICTURE, SCALE, U8, SCALE, U8),
        {"channels_last": 1},
        "channels on the last axis cannot be explained. Export it with channels_last=0",
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: f"{c[0][0]} {c[2]}")
def test_what_is_not_covered_is_refused_with_advice(case: tuple[Any, dict[str, Any], str]) -> None:
    (name, *operands), how, words = case
    model, _ = one_node(name, operands, shaped=False, **how)
    with pytest.raises(UnsupportedModelError, match=re.escape(words)) as caught:
        lower(model)
    assert str(caught.value).startswith(f"{name} node 'node': ")


@pytest.mark.parametrize("case", ACTIVATIONS, ids=lambda c: f"{c[0]} {len(c[1])} {c[2]}")
def test_an_activation_has_the_form_that_methods_know(
    case: tuple[str, tuple[np.ndarray, ...], dict[str, Any], str],
) -> None:
    name, operands, how, remaining = case
    assert check(name, *operands, **how) == remaining.split()
