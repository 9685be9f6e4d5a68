"""AttnLRP and CP-LRP on transformers, against explicit relevance arithmetic in float64."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from rationale import AttnLrp, CpLrp, DeepShap, Gradient, Lrp, Pass, Taylor, compile_model
from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.methods.methods import make_method
from tests.compiler.models import parsed, rows
from tests.grid import grid
from tests.models.transformers import BERT, LLAMA, BertLike, LlamaLike, Size, drawn, exported
from tests.references.attnlrp import (
    bert_relevance,
    layer_norm_relevance,
    llama_relevance,
    product_relevance,
    softmax_relevance,
    standardised_relevance,
)
from tests.references.interpreter import run64
from tests.tolerances import ATTENTION_64

N, K = 3, 2
BLOCKS = 2
TARGETS = [2, 0]

pytestmark = pytest.mark.usefixtures("float64_engine")


@dataclass(frozen=True)
class Case:
    module: Callable[[], nn.Module]
    size: Size
    relevance: Callable[..., np.ndarray]


CASES = {
    "bert": Case(lambda: BertLike(blocks=BLOCKS), BERT, bert_relevance),
    "bert without biases": Case(lambda: BertLike(blocks=BLOCKS, bias=False), BERT, bert_relevance),
    "llama": Case(lambda: LlamaLike(blocks=BLOCKS), LLAMA, llama_relevance),
}
each_case = pytest.mark.parametrize("name", CASES)
each_exporter = pytest.mark.parametrize(
    "dynamo",
    [pytest.param(False, marks=pytest.mark.full, id="TorchScript"), pytest.param(True, id="torch.export")],
)


@cache
def module_of(name: str) -> nn.Module:
    return drawn(CASES[name].module()).double()


@cache
def model_of(name: str, dynamo: bool) -> onnx.ModelProto:
    return exported(module_of(name), CASES[name].size, dynamo=dynamo, dtype=torch.float64)


def drawn_rows(name: str, count: int, seed: int) -> np.ndarray:
    size = CASES[name].size
    return np.random.default_rng(seed).standard_normal((count, size.sequence, size.embedding))


def explain(
    model: onnx.ModelProto, method: Any, x: np.ndarray, targets: Any = "all"
) -> dict[str, np.ndarray]:
    return run64(compile_model(model, method, targets=targets).model, {"x": x})


def assert_close(value: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(value, want, atol=ATTENTION_64 * np.abs(want).max(), rtol=0)


@grid("name, dynamo, method", CASES, [True, False], [AttnLrp, CpLrp])
def test_relevance_is_the_papers(name: str, dynamo: bool, method: type[AttnLrp]) -> None:
    case, x = CASES[name], drawn_rows(name, N, 1)
    weights = {k: v.numpy() for k, v in module_of(name).state_dict().items()}
    for epsilon in (1e-6, 1e-2):
        answer = explain(model_of(name, dynamo), method(epsilon), x, TARGETS)
        for i, target in enumerate(TARGETS):
            conservative = method is CpLrp
            want = case.relevance(weights, BLOCKS, case.size.head, x, target, epsilon, conservative)
            assert np.abs(want).max() > 1e-2, "a test network must have a signal"
            assert_close(answer["x_attributions"][:, i], want)


@pytest.mark.parametrize("name", ["bert without biases", "llama"])
def test_without_biases_nothing_is_lost_but_by_the_softmax(name: str) -> None:
    x = drawn_rows(name, N, 2)
    answer = explain(model_of(name, True), CpLrp(0.0), x)
    total = answer["x_attributions"].sum((2, 3))
    assert_close(total, answer["y"])
    assert np.abs(answer["completeness_gap"]).max() <= ATTENTION_64 * np.abs(answer["y"]).max()
    through_softmax = explain(model_of(name, True), AttnLrp(0.0), x)
    assert np.abs(through_softmax["completeness_gap"]).max() > 1e-3 * np.abs(answer["y"]).max()


@each_case
@each_exporter
def test_deepshap_adds_up(name: str, dynamo: bool) -> None:
    x, references = drawn_rows(name, N, 3), drawn_rows(name, K, 4)
    model = model_of(name, dynamo)
    answer = explain(model, DeepShap(references), x)
    base = run64(model, {"x": references})["y"].mean(0)
    total = answer["x_attributions"].sum((2, 3))
    assert_close(total, run64(model, {"x": x})["y"] - base)


@each_case
@each_exporter
def test_the_gradient_is_torchs(name: str, dynamo: bool) -> None:
    x = drawn_rows(name, N, 5)
    answer = explain(model_of(name, dynamo), Gradient(), x)
    leaf = torch.tensor(x, requires_grad=True)
    y = module_of(name)(leaf)
    for target in range(y.shape[1]):
        (want,) = torch.autograd.grad(y[:, target].sum(), leaf, retain_graph=True)
        assert_close(answer["x_attributions"][:, target], want.numpy())


NORMALISED = """written (double[N, 4, 5] x) => (double[N, 4, 5] y) {
    mean = ReduceMean <keepdims = 1> (x, axes)
    d = Sub (x, mean)
    square = Pow (d, two)
    variance = ReduceMean <keepdims = 1> (square, axes)
    more = Add (variance, small)
    deviation = Sqrt (more)
    unit = Div (d, deviation)
    scaled = Mul (unit, scale)
    y = Add (scaled, bias)
}"""
OPERATOR = """operator (double[N, 4, 5] x) => (double[N, 4, 5] y) {
    y = LayerNormalization <epsilon = 0.25> (x, scale, bias)
}"""


def test_a_normalisation_that_is_written_out_is_found() -> None:
    scale, bias = rows(5, seed=1).astype(np.float64), rows(5, seed=2).astype(np.float64)
    numbers = {"axes": np.asarray([-1]), "two": np.asarray(2.0), "small": np.asarray(0.25)}
    written = parsed(NORMALISED, {**numbers, "scale": scale, "bias": bias})
    operator = parsed(OPERATOR, {"scale": scale, "bias": bias})
    x = rows(N, 4, 5, seed=3).astype(np.float64)
    want = explain(operator, AttnLrp(0.0), x, [3, 11])["x_attributions"]
    assert_close(explain(written, AttnLrp(0.0), x, [3, 11])["x_attributions"], want)
    centred = x - x.mean(-1, keepdims=True)
    factor = scale[3] / np.sqrt((centred**2).mean(-1) + 0.25)[:, 0]
    by_hand = x[:, 0] * factor[:, None] * (np.eye(5)[3] - 1 / 5)
    assert_close(want[:, 0, 0], by_hand)


LENGTHS = {
    "a norm": "n = ReduceL2 <keepdims = 1> (x, axis) u = Div (x, n)",
    "a norm that is clipped and expanded": "n = ReduceL2 <keepdims = 1> (x, axis) c = Clip (n, small)"
    " s = Shape (x) e = Expand (c, s) u = Div (x, e)",
    "written out": "q = Mul (x, x) n = ReduceSum (q, axis) r = Sqrt (n) u = Div (x, r)",
    "a reciprocal": "n = ReduceL2 <keepdims = 1> (x, axis) r = Reciprocal (n) u = Mul (x, r)",
    "an operator": "u = LpNormalization <axis = 1> (x)",
}


@pytest.mark.parametrize("method", [AttnLrp(0.0), CpLrp(0.0)], ids=lambda m: m.name)
@pytest.mark.parametrize("formula", LENGTHS.values(), ids=LENGTHS)
def test_a_length_is_a_constant_as_a_deviation_is(formula: str, method: AttnLrp) -> None:
    w, x = (rows(n, 5, seed=21 + n).astype(np.float64) for n in (4, N))
    text = f"n (double[N, 5] x) => (double[N, 4] y) {{ {formula} y = MatMul (u, w) }}"
    numbers = {"w": w.T, "axis": np.asarray([1]), "small": np.asarray(1e-8)}
    answer = explain(parsed(text, {k: v for k, v in numbers.items() if k in formula or k == "w"}), method, x)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert_close(answer["x_attributions"], unit[:, None] * w)


COSINES = {
    "of units": "m = ReduceL2 <keepdims = 1> (a, axis) n = ReduceL2 <keepdims = 1> (b, axis)"
    " u = Div (a, m) v = Div (b, n) p = Mul (u, v) y = ReduceSum (p, axis)",
    "over a product of lengths": "p = Mul (a, b) s = ReduceSum (p, axis) aa = Mul (a, a) bb = Mul (b, b)"
    " m = ReduceSum (aa, axis) n = ReduceSum (bb, axis) mn = Mul (m, n) r = Sqrt (mn) c = Max (r, small)"
    " y = Div (s, c)",
}


@pytest.mark.parametrize("formula", COSINES.values(), ids=COSINES)
def test_a_cosine_is_shared_by_its_towers(formula: str) -> None:
    """As torch's exporters write a cosine similarity: one half of each product to either side."""
    v, w = (rows(5, 6, seed=seed).astype(np.float64) for seed in (31, 32))
    x = rows(N, 10, seed=33).astype(np.float64)
    text = f"""c (double[N, 10] x) => (double[N, 1] y) {{
        left, right = Split <axis = 1, num_outputs = 2> (x)
        a = MatMul (left, wa)  b = MatMul (right, wb)  {formula} }}"""
    numbers = {"wa": v, "wb": w, "axis": np.asarray([1]), "small": np.asarray(1e-8)}
    answer = explain(parsed(text, {k: n for k, n in numbers.items() if k in text}), AttnLrp(0.0), x)
    a, b = x[:, :5] @ v, x[:, 5:] @ w
    size = 2 * np.linalg.norm(a, axis=1, keepdims=True) * np.linalg.norm(b, axis=1, keepdims=True)
    want = x * np.concatenate([b @ v.T, a @ w.T], axis=1) / size
    assert_close(answer["x_attributions"][:, 0], want)


def test_what_is_kept_is_warned_of_where_it_is_more_than_the_output() -> None:
    """The bias keeps 2, beside which the output is small."""
    numbers = {"w": np.ones((4, 1)), "b": np.asarray([-2.0])}
    text = "b (double[N, 4] x) => (double[N, 1] y) { h = Sigmoid (x) z = MatMul (h, w) y = Add (z, b) }"
    (warning,) = compile_model(parsed(text, numbers), AttnLrp()).manifest.warnings
    assert re.search(r"\d times\b", warning)


MASKED = """m (double[N, 4, 5] q, double[N, 5, 4] k) => (double[N, 4, 4] y) {
    z = MatMul (q, k)
    hidden = MASK
    y = Softmax (hidden)
}"""


@pytest.mark.parametrize("method", [AttnLrp(), Gradient(), DeepShap])
def test_a_mask_chosen_by_where_is_the_mask_that_is_added(method: Any) -> None:
    q, k = rows(N, 4, 5, seed=11).astype(np.float64), rows(N, 5, 4, seed=12).astype(np.float64)
    if method is DeepShap:
        method = DeepShap({"q": q[:2] + 1.0, "k": k[:2] - 1.0})
    seen = np.tri(4, dtype=bool)
    added = parsed(MASKED.replace("MASK", "Add (z, mask)"), {"mask": np.where(seen, 0.0, -np.inf)})
    chosen = parsed(
        MASKED.replace("MASK", "Where (seen, z, never)"), {"seen": seen, "never": np.asarray(-np.inf)}
    )
    answers = [
        run64(compile_model(model, method, targets=[4, 9]).model, {"q": q, "k": k})
        for model in (added, chosen)
    ]
    for name in ("q_attributions", "k_attributions"):
        assert np.abs(answers[0][name]).max() > 1e-3
        assert_close(answers[1][name], answers[0][name])
    assert not answers[0]["k_attributions"][:, 0, :, 2:].any(), "what is hidden has no relevance"


ACTIVATIONS = {
    "silu": "s = Sigmoid (z) y = Mul (z, s)",
    "gelu": "h = Mul (z, half) u = Div (z, two) e = Erf (u) f = Add (e, one) y = Mul (h, f)",
    "softplus gate": "s = Softplus (z) t = Tanh (s) y = Mul (t, z)",
}


@pytest.mark.parametrize("formula", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_an_activation_that_is_written_out_hands_relevance_on_unchanged(formula: str) -> None:
    text = f"a (double[N, 4] x) => (double[N, 3] y) {{ z = MatMul (x, w) {formula} }}"
    w = rows(4, 3, seed=4).astype(np.float64)
    numbers = {"half": np.asarray(0.5), "two": np.asarray(2.0), "one": np.asarray(1.0)}
    model = parsed(text, {"w": w, **{k: v for k, v in numbers.items() if f" {k})" in formula}})
    x = rows(N, 4, seed=5).astype(np.float64)
    answer = explain(model, AttnLrp(0.0), x)
    want = (x @ w)[:, :, None]
    assert_close(answer["x_attributions"], x[:, None] * w.T / want * answer["y"][:, :, None])


def test_relevance_that_an_activation_hands_on_is_divided_once() -> None:
    """ε is large here: a second denominator would show."""
    text = """p (double[N, 4, 5] x, double[N, 5, 3] v) => (double[N, 4, 3] y) {
        z = MatMul (x, v)
        y = Softplus (z)
    }"""
    x, v = rows(N, 4, 5, seed=9).astype(np.float64), rows(N, 5, 3, seed=10).astype(np.float64)
    answer = run64(compile_model(parsed(text), AttnLrp(0.1), targets=[4]).model, {"x": x, "v": v})
    seed = answer["y"] * (np.arange(12) == 4).reshape(4, 3)
    to_x, to_v = product_relevance(x, v, seed, 0.1)
    assert_close(answer["x_attributions"][:, 0], to_x)
    assert_close(answer["v_attributions"][:, 0], to_v)

    text = """n (double[N, 4, 5] x) => (double[N, 4, 5] y) {
        z = LayerNormalization (x, scale, bias)
        y = Softplus (z)
    }"""
    scale, bias = rows(5, seed=1).astype(np.float64), rows(5, seed=2).astype(np.float64)
    answer = explain(parsed(text, {"scale": scale, "bias": bias}), AttnLrp(0.1), x, [7])
    seed = answer["y"] * (np.arange(20) == 7).reshape(4, 5)
    assert_close(answer["x_attributions"][:, 0], layer_norm_relevance(x, scale, bias, seed, 0.1))


SCALE, BIAS = (rows(4, seed=seed).astype(np.float64) for seed in (13, 14))
# One operator each: how x [N, 4, 3, 2] is read, and the relevance of x for R of y.
FORMS: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "Softmax": (
        "Softmax <axis = 1> (x)",
        lambda x, r: np.moveaxis(softmax_relevance(np.moveaxis(x, 1, -1), np.moveaxis(r, 1, -1)), -1, 1),
    ),
    "LayerNormalization": (
        "LayerNormalization <axis = -3> (x, wide_scale, wide_bias)",
        lambda x, r: standardised_relevance(x, (1, 2, 3), SCALE[:, None, None], BIAS[:, None, None], r, 0.1),
    ),
    "LayerNormalization, no bias": (
        "LayerNormalization <axis = 1> (x, wide_scale)",
        lambda x, r: standardised_relevance(x, (1, 2, 3), SCALE[:, None, None], 0.0, r, 0.1),
    ),
    "InstanceNormalization": (
        "InstanceNormalization (x, scale, bias)",
        lambda x, r: standardised_relevance(x, (2, 3), SCALE[:, None, None], BIAS[:, None, None], r, 0.1),
    ),
    "RMSNormalization": ("RMSNormalization <axis = 1> (x, wide_scale)", lambda _, r: r),
    "LRN": ("LRN <size = 4, alpha = 0.9, beta = 0.6, bias = 2.0> (x)", lambda _, r: r),
}


@pytest.mark.parametrize("name", FORMS)
def test_relevance_through_one_operator(name: str) -> None:
    """Over axes that are not the last alone, ε large."""
    node, expected = FORMS[name]
    wide = [np.broadcast_to(v[:, None, None], (4, 3, 2)).copy() for v in (SCALE, BIAS)]
    held = {"wide_scale": wide[0], "wide_bias": wide[1], "scale": SCALE, "bias": BIAS}
    used = {k: v for k, v in held.items() if f" {k}" in node.replace("(", "( ")}
    text = f"f (double[N, 4, 3, 2] x) => (double[N, 4, 3, 2] y) {{ y = {node} }}"
    x = rows(N, 4, 3, 2, seed=15).astype(np.float64)
    opsets = '"" : 23' if "RMS" in name else ""
    answer = explain(parsed(text, used, opsets=opsets), AttnLrp(0.1), x, [0, 11, 22])
    for i, target in enumerate([0, 11, 22]):
        seed = answer["y"] * (np.arange(24) == target).reshape(4, 3, 2)
        assert_close(answer["x_attributions"][:, i], expected(x, seed))


@pytest.mark.parametrize(
    ("node", "first"),
    [
        ("y = Max (a, b)", lambda a, b: a > b),
        ("y = Min (a, b)", lambda a, b: a < b),
        ("c = Greater (b, a) y = Where (c, a, b)", lambda a, b: b > a),
    ],
    ids=["Max", "Min", "Where"],
)
def test_relevance_goes_to_the_one_that_was_chosen(node: str, first: Callable[..., np.ndarray]) -> None:
    """All of it; of two equal ones to the second."""
    a, b = rows(N, 4, seed=16).astype(np.float64), rows(N, 4, seed=17).astype(np.float64)
    b[0] = a[0]
    model = parsed(f"c (double[N, 4] a, double[N, 4] b) => (double[N, 4] y) {{ {node} }}")
    answer = run64(compile_model(model, AttnLrp(), targets="all").model, {"a": a, "b": b})
    relevance = answer["y"][:, :, None] * np.eye(4)
    chosen = first(a, b)[:, None]
    assert chosen.any()
    assert_close(answer["a_attributions"], np.where(chosen, relevance, 0.0))
    assert_close(answer["b_attributions"], np.where(chosen, 0.0, relevance))


GATES = {
    "sigmoid": "s = Sigmoid (v) y = Mul (x, s)",
    "gelu, first": "h = Mul (v, half) e = Erf (v) f = Add (e, half) g = Mul (h, f) y = Mul (g, x)",
    "moved and scaled": "s = Tanh (v) w = Mul (s, half) i = Identity (w) y = Mul (x, i)",
}


@pytest.mark.parametrize("formula", GATES.values(), ids=GATES)
def test_a_gate_gets_one_half_or_in_cp_lrp_nothing(formula: str) -> None:
    text = f"g (double[N, 4] x, double[N, 4] v) => (double[N, 4] y) {{ {formula} }}"
    model = parsed(text, {"half": np.asarray(0.5)} if "half" in formula else {})
    x, v = rows(N, 4, seed=6).astype(np.float64), rows(N, 4, seed=7).astype(np.float64)
    answer = run64(compile_model(model, AttnLrp(), targets=[1]).model, {"x": x, "v": v})
    relevance = answer["y"][:, 1:2] * (np.arange(4) == 1)
    assert_close(answer["x_attributions"][:, 0], relevance / 2)
    assert_close(answer["v_attributions"][:, 0], relevance / 2)
    constant = compile_model(model, CpLrp(), targets=[1], inputs=["x"])
    assert_close(run64(constant.model, {"x": x, "v": v})["x_attributions"][:, 0], relevance)
    with pytest.raises(UnsupportedModelError, match=r"CP-LRP .*'v' .*--output"):
        compile_model(model, CpLrp(), targets=[1])


def test_of_two_activations_none_is_the_gate() -> None:
    formula = "s = Sigmoid (v) t = Tanh (x) y = Mul (t, s)"
    model = parsed(f"g (double[N, 4] x, double[N, 4] v) => (double[N, 4] y) {{ {formula} }}")
    x, v = rows(N, 4, seed=6).astype(np.float64), rows(N, 4, seed=7).astype(np.float64)
    answer = run64(compile_model(model, CpLrp(), targets=[1]).model, {"x": x, "v": v})
    half = answer["y"][:, 1:2] / 2 * (np.arange(4) == 1)
    assert_close(answer["x_attributions"][:, 0], half)
    assert_close(answer["v_attributions"][:, 0], half)


@pytest.mark.parametrize("squeezed", ["Mul (x, c)", "Add (x, x)"])
def test_a_gate_of_an_average_that_is_of_no_square_gets_one_half(squeezed: str) -> None:
    """x·σ(mean cx): as a squeeze and excitation, and no deviation that would be held constant."""
    text = f"""s (double[N, 4] x) => (double[N, 4] y) <int64[1] axis = {{1}}> {{
        z = {squeezed}
        m = ReduceMean (z, axis)
        s = Sigmoid (m)
        y = Mul (x, s)
    }}"""
    c = rows(4, seed=18).astype(np.float64) if "c" in squeezed else np.full(4, 2.0)
    x = rows(N, 4, seed=19).astype(np.float64)
    answer = explain(parsed(text, {"c": c} if "c" in squeezed else {}), AttnLrp(0.0), x)
    share = c * x / (c * x).sum(axis=1, keepdims=True)
    assert_close(answer["x_attributions"], answer["y"][:, :, None] * (np.eye(4) + share[:, None]) / 2)


@pytest.mark.parametrize("method", [AttnLrp(0.0), Lrp()], ids=lambda m: m.name)
def test_a_length_hands_back_by_squares_and_a_choice_to_what_it_chose(method: Any) -> None:
    x = rows(N, 4, seed=20).astype(np.float64)
    constants = {"axis": np.array([1]), "k": np.array([2])}
    norm = "n (double[N, 4] x) => (double[N, 1] y) { y = ReduceL2 (x, axis) }"
    answer = compile_model(parsed(norm, constants), method, targets=[0]).explain(x)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    assert_close(answer["x_attributions"][:, 0], x**2 / length)
    top = "t (double[N, 4] x) => (double[N, 1] y) { v, i = TopK (x, k) y = ReduceSum (v, axis) }"
    answer = compile_model(parsed(top, constants), method, targets=[0]).explain(x)
    chosen = x >= np.sort(x)[:, 2:3]
    np.testing.assert_allclose(answer["x_attributions"][:, 0], x * chosen, rtol=1e-4)


NO_RELEVANCE = {
    "ReduceProd": ("p = ReduceProd (x, axis)", {"taylor"}),
    "Div": ("t = Gather <axis = 1> (x, turned) q = Softplus (t) p = Div (x, q)", {"taylor"}),
    "Softmax": ("p = Softmax (x)", {"taylor", "pass"}),
}


@pytest.mark.parametrize("name", NO_RELEVANCE)
def test_what_a_refusal_advises_can_be_done(name: str) -> None:
    """Before an operator that reads the input itself there is nothing to explain."""
    formula, advised = NO_RELEVANCE[name]
    constants = {"axis": np.array([1]), "turned": np.array([1, 2, 3, 0])}
    model = parsed(f"r (double[N, 4] x) => (double[N, 4] y) {{ {formula} y = Add (p, x) }}", constants)
    with pytest.raises(UnsupportedModelError) as caught:
        compile_model(model, Lrp(), targets=[0])
    assert "--output x" not in str(caught.value)
    assert set(re.findall(rf"--rule {name}=(\w+)", str(caught.value))) == advised
    for rule in advised:
        chosen = {"pass": Pass(), "taylor": Taylor()}[rule]
        compile_model(model, Lrp(rules=[(name, chosen)]), targets=[0])


REFUSED = {
    "a quotient": (
        "q = Softplus (x) r = Transpose (x) y = Div (r, q)",
        AttnLrp(),
        "AttnLRP has no rule for 1 node.*\n  Div node",
    ),
    "a softmax alone": (
        "y = Softmax (x)",
        CpLrp(),
        "CP-LRP .*'x'",
    ),
}


@pytest.mark.parametrize(("formula", "method", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_rule_is_refused_by_name(formula: str, method: Any, message: str) -> None:
    formula = formula.replace("Transpose (x)", "Transpose <perm = [0, 2, 1]> (x)")
    text = f"r (double[N, 4, 4] x) => (double[N, 4, 4] y) {{ {formula} }}"
    with pytest.raises(UnsupportedModelError, match=message):
        compile_model(parsed(text), method, targets=[0])


def test_the_gradient_goes_to_what_a_condition_chose() -> None:
    text = "c (double[N, 4] x) => (double[N, 4] y) { c = Greater (x, zero) a = Tanh (x) y = Where (c, a, x) }"
    x = rows(N, 4, seed=8).astype(np.float64)
    answer = explain(parsed(text, {"zero": np.asarray(0.0)}), Gradient(), x)
    slope = np.where(x > 0, 1 - np.tanh(x) ** 2, 1.0)
    assert_close(answer["x_attributions"], slope[:, None] * np.eye(4))


@pytest.mark.parametrize("epsilon", [-1.0, float("nan"), float("inf"), "small", True])
def test_an_epsilon_that_is_none_is_refused(epsilon: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"Epsilon: epsilon\b.*\b0\b"):
        AttnLrp(epsilon)


@pytest.mark.parametrize(("name", "method"), [("attnlrp", AttnLrp), ("cplrp", CpLrp)])
def test_the_command_line_knows_both_and_their_epsilon(name: str, method: type[AttnLrp]) -> None:
    created = make_method(name, None, {"epsilon": 0.25, "composite": None})
    assert type(created) is method
    assert created == method(0.25)
    with pytest.raises(InvalidOptionError, match=f"--method {name} .*--composite"):
        make_method(name, None, {"composite": "EpsilonPlus"})
