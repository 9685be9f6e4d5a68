"""Relevance through quantised layers is that of the float layers: zero points neither make nor lose any."""

from typing import Any

import numpy as np
import onnx
import pytest

from rationale import AttnLrp, CpLrp, Lrp, compile_model
from rationale.errors import UnsupportedModelError
from tests.compiler.models import parsed, rows

METHODS = {
    "lrp": Lrp(),
    "lrp of positive weights": Lrp("ExcitationBackprop"),
    "attnlrp": AttnLrp(),
    "cplrp": CpLrp(),
}
SCALE, ZERO = np.float32(0.03), np.int8(5)  # of weights
V = np.round(rows(6, 4, seed=1) * 40).astype(np.int8)
K = np.round(rows(3, 2, 3, 3, seed=2) * 40).astype(np.int8)
WEIGHTS: dict[str, Any] = {
    "s": np.float32(1 / 30),
    "z": np.uint8(100),
    "s2": np.float32(1 / 25),
    "z2": np.uint8(140),
    "t": np.float32(0.2),
    "o": np.uint8(130),
    "fine": np.float32(1 / 61),
    "finer": np.float32(1 / 200),
    "v": V,
    "vs": SCALE,
    "vz": ZERO,
    "columns": np.full(4, SCALE, np.float32),
    "zeros": np.full(4, ZERO, np.int8),
    "w": (V - np.float32(ZERO)) * SCALE,
    "k": K,
    "ks": np.full(3, SCALE, np.float32),
    "kz": np.full(3, ZERO, np.int8),
    "f": (K - np.float32(ZERO)) * SCALE,
    "most": np.float32(127),
}
IN, OUT = "q = QuantizeLinear (x, s, z)", "y = DequantizeLinear (c, t, o)"
OTHER = f"{IN} p = QuantizeLinear (x, s2, z2)"
DYNAMIC = "q, qs, qz = DynamicQuantizeLinear (x)"
ROW, IMAGE = "N, 6", "N, 2, 5, 5"
PAIRS = {  # the quantised graph, the graph of floats that it stands for, and the shape of x
    "QLinearConv": (f"{IN} c = QLinearConv (q, s, z, k, ks, kz, t, o) {OUT}", "y = Conv (x, f)", IMAGE),
    "QLinearMatMul": (
        f"{IN} c = QLinearMatMul (q, s, z, v, columns, zeros, t, o) {OUT}",
        "y = MatMul (x, w)",
        ROW,
    ),
    "QGemm": (
        f"{IN} c = com.microsoft.QGemm (q, s, z, v, vs, vz, , t, o) {OUT}",
        "y = MatMul (x, w)",
        ROW,
    ),
    "QGemm to floats": (f"{IN} y = com.microsoft.QGemm (q, s, z, v, vs, vz)", "y = MatMul (x, w)", ROW),
    "QLinearAdd": (
        f"{OTHER} c = com.microsoft.QLinearAdd (q, s, z, p, s2, z2, t, o) {OUT}",
        "y = Add (x, x)",
        ROW,
    ),
    "QLinearConcat": (
        f"{OTHER} c = com.microsoft.QLinearConcat <axis = 1> (t, o, q, s, z, p, s2, z2) {OUT}",
        "y = Concat <axis = 1> (x, x)",
        ROW,
    ),
    "QLinearLeakyRelu": (
        f"{IN} c = com.microsoft.QLinearLeakyRelu <alpha = 0.1> (q, s, z, t, o) {OUT}",
        "y = LeakyRelu <alpha = 0.1> (x)",
        ROW,
    ),
    "QLinearAveragePool": (
        f"{IN} c = com.microsoft.QLinearAveragePool <kernel_shape = [2, 2]> (q, s, z, fine, o) "
        "y = DequantizeLinear (c, fine, o)",
        "y = AveragePool <kernel_shape = [2, 2]> (x)",
        IMAGE,
    ),
    "QLinearGlobalAveragePool": (
        f"{IN} c = com.microsoft.QLinearGlobalAveragePool (q, s, z, finer, o) "
        "y = DequantizeLinear (c, finer, o)",
        "y = GlobalAveragePool (x)",
        IMAGE,
    ),
    "MaxPool of codes": (
        f"{IN} c = MaxPool <kernel_shape = [2, 2]> (q) y = DequantizeLinear (c, s, z)",
        "y = MaxPool <kernel_shape = [2, 2]> (x)",
        IMAGE,
    ),
    "MatMulInteger": (
        f"{IN} i = MatMulInteger (q, v, z, zeros) c = Cast <to = 1> (i) u = Mul (vs, s) y = Mul (c, u)",
        "y = MatMul (x, w)",
        ROW,
    ),
    "MatMulIntegerToFloat": (
        f"{IN} y = com.microsoft.MatMulIntegerToFloat (q, v, s, vs, z, vz)",
        "y = MatMul (x, w)",
        ROW,
    ),
    "ConvInteger": (
        f"{IN} i = ConvInteger (q, k, z, vz) c = Cast <to = 1> (i) u = Mul (vs, s) y = Mul (c, u)",
        "y = Conv (x, f)",
        IMAGE,
    ),
    "dynamic MatMulInteger": (
        f"{DYNAMIC} i = MatMulInteger (q, v, qz, zeros) c = Cast <to = 1> (i) "
        "u = Mul (qs, vs) y = Mul (c, u)",
        "y = MatMul (x, w)",
        ROW.replace("N", "1"),
    ),
    "dynamic ConvInteger": (
        f"{DYNAMIC} i = ConvInteger (q, k, qz, vz) c = Cast <to = 1> (i) u = Mul (qs, vs) y = Mul (c, u)",
        "y = Conv (x, f)",
        IMAGE.replace("N", "1"),
    ),
    "DynamicQuantizeMatMul": (
        "y = com.microsoft.DynamicQuantizeMatMul (x, v, vs, vz)",
        "y = MatMul (x, w)",
        ROW.replace("N", "1"),
    ),
    "dynamic and back": (
        f"{DYNAMIC} d = DequantizeLinear (q, qs, qz) y = MatMul (d, w)",
        "y = MatMul (x, w)",
        ROW.replace("N", "1"),
    ),
    "a scale that the graph computes": (
        "a = Abs (x) e = ReduceMax <keepdims = 0> (a) u = Div (e, most) "
        "c = QuantizeLinear <output_dtype = 3> (x, u) d = DequantizeLinear (c, u) y = MatMul (d, w)",
        "y = MatMul (x, w)",
        ROW.replace("N", "1"),
    ),
    "two layers and a residual": (
        f"{IN} c = QLinearConv <pads = [1, 1, 1, 1]> (q, s, z, k, ks, kz, t, o) "
        "e = MaxPool <kernel_shape = [2, 2]> (c) g = com.microsoft.QLinearAdd (e, t, o, e, t, o, t, o) "
        "h = com.microsoft.QLinearGlobalAveragePool (g, t, o, t, o) y = DequantizeLinear (h, t, o)",
        "c = Conv <pads = [1, 1, 1, 1]> (x, f) e = MaxPool <kernel_shape = [2, 2]> (c) g = Add (e, e) "
        "y = GlobalAveragePool (g)",
        IMAGE,
    ),
}


def model(body: str, shape: str) -> onnx.ModelProto:
    read = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    weights = {name: value for name, value in WEIGHTS.items() if name in read}
    last = body.rindex("y =")
    body = f"{body[:last]}last{body[last + 1 :]} y = Flatten (last)"
    text = f"g (float[{shape}] x) => (float[{shape[0]}, M] y) {{ {body} }}"
    return parsed(text, weights, opsets='"" : 21, "com.microsoft" : 1')


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pair", PAIRS)
def test_relevance_through_whole_numbers_is_that_of_floats(pair: str, method: str) -> None:
    quantised, floats, shape = PAIRS[pair]
    x = rows(5, *map(int, shape.split(", ")[1:]), seed=3)
    got, want = (
        compile_model(model(body, shape), METHODS[method], targets=[0, 1]).explain(x)
        for body in (quantised, floats)
    )
    assert np.abs(want["explained_value"]).max() > 0.1
    relevance, floats_relevance = (a["x_attributions"].reshape(5, 2, -1) for a in (got, want))
    absorbed = 5e-5 * np.abs(relevance).sum(-1).max()  # by ε
    np.testing.assert_allclose(relevance.sum(-1), got["explained_value"], rtol=0, atol=absorbed)
    assert np.corrcoef(relevance.reshape(-1), floats_relevance.reshape(-1))[0, 1] > 0.99


def test_relevance_and_a_multiplier_meet_at_a_whole_number() -> None:
    read_twice = model(
        "h = Mul (x, most) i = Cast <to = 7> (h) j = Cast <to = 1> (i) e = Sigmoid (j) g = Cast <to = 1> (i) "
        "y = Add (e, g)",
        ROW,
    )
    gap = compile_model(read_twice, AttnLrp(), targets="all").explain(rows(3, 6))["completeness_gap"]
    np.testing.assert_allclose(gap, 0, atol=1e-4)


def test_relevance_says_that_scales_have_none() -> None:
    text = f"g (float[1, 6] x) => (float[1, 4] y) {{ {DYNAMIC} y = Mul (c, qs) }}"
    alone = parsed(text, {"c": rows(1, 4)})
    with pytest.raises(UnsupportedModelError, match=r"'x' .*\bscales\b.*DeepSHAP"):
        compile_model(alone, AttnLrp(), targets=[0])
