"""LRP in float64: each rule against its matrix form, conservation, layers as they are joined, positions."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest

from rationale import Gradient, Lrp, compile_model
from rationale.errors import InvalidOptionError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.propagation.lrp import rules as lrp
from rationale.methods.propagation.lrp.composites import COMPOSITES, Choice
from rationale.methods.propagation.lrp.rules import RelevanceRule, itself, negative, positive
from rationale.methods.propagation.lrp.texts import parse_rule
from tests.compiler.methods.lrp.models import averages, network, spellings
from tests.compiler.models import parsed
from tests.grid import grid
from tests.references import lrp as reference
from tests.references.interpreter import run64
from tests.tolerances import RELEVANCE_64

pytestmark = pytest.mark.usefixtures("float64_engine")

N = 3
EXACT = 1e-30  # as a stabiliser: adds nothing to any number but 0

RULES: dict[str, tuple[RelevanceRule, Callable[..., np.ndarray]]] = {
    "zero": (lrp.Zero(), partial(reference.epsilon_rule, epsilon=0.0)),
    "epsilon": (lrp.Epsilon(0.1), partial(reference.epsilon_rule, epsilon=0.1)),
    "gamma": (lrp.Gamma(0.4), partial(reference.gamma, gamma=0.4)),
    "generalized gamma": (lrp.GeneralizedGamma(0.4), partial(reference.generalized_gamma, gamma=0.4)),
    "zplus": (lrp.ZPlus(), reference.z_plus),
    "alphabeta": (lrp.AlphaBeta(3, 2), partial(reference.alpha_beta, alpha=3.0, beta=2.0)),
    "alpha one": (lrp.AlphaBeta(1, 0), reference.z_plus),
    "wsquare": (lrp.WSquare(), reference.w_square),
    "flat": (lrp.Flat(), reference.flat),
    "zbox": (lrp.ZBox(-2.5, 3.0), partial(reference.z_box, low=-2.5, high=3.0)),
}


OF_LAYERS = [lrp.ZBox(-4, 4) if r is lrp.ZBox else r() for r in lrp.RULES.values() if r().groups()]


def test_every_rule_of_layers_has_a_matrix_form() -> None:
    assert {type(rule) for rule in OF_LAYERS} == {type(rule) for rule, _ in RULES.values()}


def rows(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((N, *shape))


def relevance(
    model: onnx.ModelProto, rules: tuple[Choice, ...], x: np.ndarray, targets: list[int], **options: Any
) -> np.ndarray:
    """[N, T, *shape of x]."""
    compiled = compile_model(model, Lrp(rules=rules, **options), targets=targets)
    return run64(compiled.model, {"x": x}, ["x_attributions"])["x_attributions"]


def expected(
    model: onnx.ModelProto, by_matrix: Callable[..., np.ndarray], x: np.ndarray, targets: list[int]
) -> np.ndarray:
    """The same from the matrix of the model's one affine map."""
    W, b = reference.matrix_of(lambda v: run64(model, {"x": v})["y"], x.shape[1:])
    result = np.zeros((len(x), len(targets), *x.shape[1:]))
    for n, row in enumerate(x.reshape(len(x), -1)):
        y = W @ row + b
        for t, target in enumerate(targets):
            R = np.zeros(len(y))
            R[target] = y[target]
            result[n, t] = by_matrix(W, b, row, R).reshape(x.shape[1:])
    return result


def assert_equal(got: np.ndarray, want: np.ndarray) -> None:
    assert np.abs(want).max() > 1e-6
    np.testing.assert_allclose(got, want, rtol=0, atol=RELEVANCE_64 * np.abs(want).max())


EVERY_RULE = ["conv", "norm, conv, norm", "conv, scale, offset", "gemm", "gemm, scaled", "matmul, add"]
SOME_RULES = ["generalized gamma", "zplus", "wsquare"]
LAYERS = [(layer, rule) for layer in spellings() for rule in (RULES if layer in EVERY_RULE else SOME_RULES)]


@pytest.mark.parametrize(("layer", "rule"), LAYERS)
def test_rule_against_its_matrix_form(layer: str, rule: str) -> None:
    """Whatever a layer is written as: its map is affine, and has one matrix."""
    model, shape = spellings()[layer]
    ours, by_matrix = RULES[rule]
    x = rows(shape)
    targets = some_targets(model, x)
    assert_equal(relevance(model, (("first", ours),), x, targets), expected(model, by_matrix, x, targets))


class Earlier(RelevanceRule):
    """What a notebook declared before it was changed."""


def test_a_rule_of_ones_own_is_one_dataclass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here |W|·|x| + |b|."""
    monkeypatch.setitem(lrp.RULES, "absolute", Earlier)  # which the class puts itself in place of

    def size(op: Ops, v: Tensor) -> Tensor:
        return op.Abs(v)

    @dataclass(frozen=True)
    class Absolute(RelevanceRule):
        epsilon: float = 0.1
        name: ClassVar[str] = "absolute"

        def groups(self) -> tuple[lrp.Group, ...]:
            return (lrp.Group((lrp.Term(size, size, size),)),)

    def by_matrix(W: np.ndarray, b: np.ndarray, x: np.ndarray, R: np.ndarray) -> np.ndarray:
        return reference.shared(np.abs(W * x), np.abs(b), R, 0.2)

    model, shape = spellings()["gemm"]
    x = rows(shape)
    targets = some_targets(model, x)
    got = relevance(model, (("first", parse_rule("absolute:0.2")),), x, targets)
    assert_equal(got, expected(model, by_matrix, x, targets))
    with pytest.raises(InvalidOptionError, match=r"Absolute: epsilon\b.*-1\.0"):
        Absolute(epsilon=-1.0)


def doubled(base: type[RelevanceRule]) -> RelevanceRule:
    """W·x + b over 2z + 0.3·sign z."""

    @dataclass(frozen=True)
    class Doubled(base):  # type: ignore[valid-type]  # a base that is a parameter
        name: ClassVar[str] = "doubled"

        def groups(self) -> tuple[lrp.Group, ...]:
            return lrp.Zero().groups()

        def modify_denominator(self, op: Ops, z: Tensor) -> Tensor:
            return op.Add(op.Mul(z, 2.0), op.Where(op.Less(z, 0.0), -0.3, 0.3))

    return Doubled()


def by_doubled(W: np.ndarray, b: np.ndarray, x: np.ndarray, R: np.ndarray) -> np.ndarray:
    z = W @ x + b
    return (W * x / (2 * z + np.where(z < 0, -0.3, 0.3))[:, None] * R[:, None]).sum(axis=0)


@pytest.mark.parametrize("base", [RelevanceRule, lrp.Zero, lrp.Epsilon])
@pytest.mark.parametrize("layer", ["conv, norm", "gemm"])
def test_a_rule_of_ones_own_may_change_the_denominator(
    layer: str, base: type[RelevanceRule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subclass of a rule that divides by nothing may, too."""
    monkeypatch.setitem(lrp.RULES, "doubled", Earlier)
    model, shape = spellings()[layer]
    x = rows(shape)
    targets = some_targets(model, x)
    got = relevance(model, (("first", doubled(base)),), x, targets)
    assert_equal(got, expected(model, by_doubled, x, targets))


def test_a_sum_takes_a_denominator_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lrp.RULES, "doubled", Earlier)
    model = parsed(
        "g (double[N, 2, 3] x) => (double[N, 2] y) { [sum] y = ReduceSum <keepdims = 0> (x, axes) }",
        {"axes": np.asarray([2])},
    )
    x = rows((2, 3))
    got = relevance(model, (("ReduceSum", doubled(lrp.Zero)),), x, [0, 1])
    assert_equal(got, expected(model, by_doubled, x, [0, 1]))


@pytest.mark.parametrize(
    ("denominator", "says"),
    [(lambda op, z: op.ReduceSum(z, [1], keepdims=1), "of shape [1, 1]"), (lambda *_: 1.0, "1.0")],
)
def test_a_denominator_has_the_shape_of_what_it_divides(
    denominator: Callable[[Ops, Tensor], Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lrp.RULES, "odd", Earlier)

    @dataclass(frozen=True)
    class WrongDenominator(RelevanceRule):
        name: ClassVar[str] = "odd"

        def groups(self) -> tuple[lrp.Group, ...]:
            return lrp.Zero().groups()

        def modify_denominator(self, op: Ops, z: Tensor) -> Tensor:
            return denominator(op, z)

    message = f"rule odd: modify_denominator(op, z) must return a tensor of z's shape [1, 6], not {says}."
    with pytest.raises(InvalidOptionError, match=re.escape(message)):
        compile_model(spellings()["gemm"][0], Lrp(rules=[("first", WrongDenominator())]))


@grid("average, rule", averages(), RULES)
def test_rule_of_an_average(average: str, rule: str) -> None:
    """The stabiliser is left out: beside ΣW, ΣW² and Σ1 the same ε would not weigh the same."""
    model, shape = averages()[average]
    ours, by_matrix = RULES[rule]
    x = rows(shape)
    targets = some_targets(model, x)
    model.graph.node[0].name = "average"
    choices = exact((("name:average", ours),))
    want = expected(model, partial(by_matrix, epsilon=EXACT), x, targets)
    assert_equal(relevance(model, choices, x, targets), want)


def some_targets(model: onnx.ModelProto, x: np.ndarray) -> list[int]:
    size = run64(model, {"x": x[:1]})["y"].size
    return sorted({0, size // 2, size - 1})


def exact(choices: Any) -> tuple[Choice, ...]:
    """The same rules without stabilisers, which keep relevance back."""
    return tuple(
        (s, replace(r, epsilon=EXACT) if any(f.name == "epsilon" for f in fields(r)) else r)
        for s, r in choices
    )


def reads_x(rule: RelevanceRule) -> bool:
    """Whether relevance stays a multiplier of x."""
    return {t.operand for group in rule.groups() for t in group.terms} <= {itself, positive, negative}


MIDDLE = [rule for rule in OF_LAYERS if reads_x(rule)]
FIRST = [rule for rule in OF_LAYERS if not reads_x(rule)]
PRESETS = [name for name, composite in COMPOSITES.items() if not composite.is_gradient]


def conserved(model: onnx.ModelProto, shape: tuple[int, ...], method: Lrp) -> None:
    compiled = compile_model(model, method, targets="all")
    answer = run64(compiled.model, {"x": rows(shape, seed=4)})
    total = answer["x_attributions"].reshape(N, 5, -1).sum(-1)
    scale = np.abs(answer["explained_value"]).max()
    assert scale > 0.01
    assert np.abs(total - answer["explained_value"]).max() <= RELEVANCE_64 * scale
    assert np.abs(answer["completeness_gap"]).max() <= RELEVANCE_64 * scale


@grid("net, rule", ["mlp", "vgg", "resnet"], MIDDLE)
def test_every_rule_conserves_relevance(net: str, rule: RelevanceRule) -> None:
    """Without biases and stabilisers. AlphaBeta where a neuron has contributions of both signs: all have."""
    conserved(*network(net), Lrp(rules=exact((("first 99", rule), *sums(net)))))


@grid("net, rule", ["mlp", "vgg", "resnet"], FIRST)
def test_first_layers_conserve_relevance(net: str, rule: RelevanceRule) -> None:
    conserved(*network(net), Lrp(rules=exact((("first 99", lrp.ZPlus()), *sums(net), ("first", rule)))))


@grid("net, preset", ["mlp", "vgg", "resnet"], PRESETS)
def test_composites_conserve_relevance(net: str, preset: str) -> None:
    composite = COMPOSITES[preset]
    types = {"mlp": {"Gemm"}, "vgg": {"Conv"}, "resnet": {"Conv"}}
    present = tuple(c for c in composite.choices if c[0].split(":")[0] in types[net] | {"first"})
    rules = exact((("first 99", composite.default), *present, *sums(net)))
    conserved(*network(net), Lrp(preset, rules, low=-5, high=5))


def sums(net: str) -> tuple[Choice, ...]:
    chosen = {"mlp": (), "vgg": ("AveragePool",), "resnet": ("Add", "GlobalAveragePool")}[net]
    return tuple((op_type, lrp.Zero()) for op_type in chosen)


def test_biases_absorb_relevance() -> None:
    model, shape = network("mlp", biases=0.5)
    answer = run64(compile_model(model, Lrp(), targets=[1]).model, {"x": rows(shape)})
    total = answer["x_attributions"].sum(-1)
    np.testing.assert_allclose(answer["completeness_gap"], answer["explained_value"] - total, atol=1e-12)
    assert np.abs(answer["completeness_gap"]).max() > 0.01
    assert "base_value" not in answer


@pytest.mark.parametrize("net", ["mlp", "vgg", "resnet"])
def test_lrp_zero_is_input_times_gradient(net: str) -> None:
    """Where every activation is homogeneous; with biases too."""
    model, shape = network(net, biases=0.3)
    x = rows(shape, seed=2)
    rules = (("first 99", lrp.Zero()), *sums(net))
    product = compile_model(model, Gradient(times_input=True), targets=[0, 3])
    want = run64(product.model, {"x": x}, ["x_attributions"])["x_attributions"]
    assert_equal(relevance(model, rules, x, [0, 3]), want)


@pytest.mark.parametrize("turned", [0, 1])
def test_a_normalisation_behind_a_gemm_is_part_of_it(turned: int) -> None:
    random = np.random.default_rng(5)
    w, held = random.standard_normal((4, 6)), {k: random.standard_normal(6) for k in "stm"}
    text = f"c = Gemm <transB = {turned}> (x, w)  y = BatchNormalization <epsilon = 0.0> (c, s, t, m, v)"
    weights = {"w": w.T.copy() if turned else w, **held, "v": np.full(6, 0.7)}
    model = parsed(f"g (double[N, 4] x) => (double[N, 6] y) {{ {text} }}", weights)
    x = rows((4,))
    want = x[:, None] * (w * held["s"] / np.sqrt(0.7)).T[[0, 5]]
    assert_equal(relevance(model, (("Gemm", lrp.Zero()),), x, [0, 5]), want)


def test_a_normalisation_read_beside_its_layer_stays_apart() -> None:
    """c is read twice: the normalisation cannot be part of the Gemm. With LRP-0 that is the gradient."""
    random = np.random.default_rng(5)
    weights = {"w": random.standard_normal((4, 6)), **{k: random.standard_normal(6) for k in "stm"}}
    text = """g (double[N, 4] x) => (double[N, 6] y) {
        c = MatMul (x, w)  n = BatchNormalization (c, s, t, m, v)  r = Relu (n)  y = Add (r, c)
    }"""
    model = parsed(text, {**weights, "v": np.full(6, 0.7)})
    x = rows((4,))
    product = compile_model(model, Gradient(times_input=True), targets=[0, 5])
    want = run64(product.model, {"x": x}, ["x_attributions"])["x_attributions"]
    rules = (("MatMul", lrp.Zero()), ("BatchNormalization", lrp.Zero()), ("Add", lrp.Zero()))
    assert_equal(relevance(model, rules, x, [0, 5]), want)
    passed = relevance(model, (rules[0], rules[2]), x, [0, 5])
    assert_equal(passed.sum(-1), run64(model, {"x": x})["y"][:, [0, 5]])
    damped = relevance(model, (*rules, ("Add", lrp.Epsilon(5.0))), x, [0, 5])
    assert np.abs(damped).max() < 0.9 * np.abs(want).max()


def test_a_sum_has_the_epsilon_rule_and_a_product_hands_relevance_on() -> None:
    """Behind the flat rule, which gives relevance to a neuron that is 0; sums of the stabiliser's size."""
    random = np.random.default_rng(5)
    held = {"w": random.standard_normal((4, 6)), "c": np.full(6, 3.0), "v": random.standard_normal((6, 3))}
    text = "s = ReduceSum <keepdims = 0> (x, two) h = MatMul (s, w)"
    text += " r = Relu (h) p = Mul (r, c) y = MatMul (p, v)"
    model = parsed(f"g (double[N, 4, 2] x) => (double[N, 3] y) {{ {text} }}", {**held, "two": np.array([2])})
    x = rows((4, 2))
    x[:, 0, 1] = lrp.STABILISER - x[:, 0, 0]
    got = relevance(model, (("last", lrp.Flat()),), x, [1])[:, 0]
    want = np.zeros_like(x)
    for n, row in enumerate(x):
        s = row.sum(-1)
        p = np.maximum(s @ held["w"], 0) * 3
        assert (p == 0).any()
        R = reference.flat(held["v"].T, np.zeros(3), p, (p @ held["v"]) * (np.arange(3) == 1))
        R = reference.epsilon_rule(held["w"].T, np.zeros(6), s, R)
        want[n] = row * (R / (s + lrp.STABILISER * np.sign(s)))[:, None]
    assert_equal(got, want)


def test_guided_backprop_and_deconvnet() -> None:
    """Gradients through other ReLUs, walked by hand; no promise of a sum."""
    model, _ = network("mlp", biases=0.3)
    model.graph.node[3].op_type = "Relu"
    del model.graph.node[3].attribute[:]
    x = rows((7,), seed=6)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    values = run64(model, {"x": x}, ["c", "e", "g"])
    for preset, gate in (("GuidedBackprop", lambda z: z > 0), ("Deconvnet", lambda z: np.ones_like(z))):
        compiled = compile_model(model, Lrp(preset), targets=[2])
        assert compiled.manifest.completeness_gap is None
        m = np.tile(weights["w4"][2], (N, 1))
        for z, w in (("g", "w3"), ("e", "w2"), ("c", "w1")):
            m = (np.maximum(m, 0) * gate(values[z])) @ weights[w]
        got = run64(compiled.model, {"x": x}, ["x_attributions"])["x_attributions"]
        assert_equal(got[:, 0], m)


@pytest.mark.parametrize("preset", ["GuidedBackprop", "Deconvnet"])
def test_gradients_behind_a_normalisation_of_the_inputs(preset: str) -> None:
    """(x − mean)/deviation has its derivative, where relevance would be handed on as it is."""
    model = parsed(
        """g (double[N, 4] x) => (double[N, 6] y) {
            c = Sub (x, mean)  n = Div (c, deviation)  h = MatMul (n, w)  r = Relu (h)  y = MatMul (r, w2)
        }""",
        {
            "w": rows((4, 6), seed=1)[0],
            "w2": rows((6, 6), seed=2)[0],
            "mean": np.array([1.0, -1, 2, 0]),
            "deviation": np.array([0.5, 2, 4, 0.25]),
        },
    )
    x = rows((4,), seed=6)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    got = run64(compile_model(model, Lrp(preset), targets=[2]).model, {"x": x}, ["x_attributions"])
    gate = (run64(model, {"x": x}, ["h"])["h"] > 0) | (preset == "Deconvnet")
    expected = (np.maximum(held["w2"][:, 2], 0) * gate) @ held["w"].T / held["deviation"]
    assert_equal(got["x_attributions"][:, 0], expected)


def test_inputs_that_cannot_be_negative_are_not_taken_apart() -> None:
    """z⁺ behind a ReLU needs one half of its terms; only the first layer reads values of both signs."""
    compiled = compile_model(network("vgg")[0], Lrp(), targets=[0])
    parts = [node.op_type for node in compiled.model.graph.node if node.op_type in ("Max", "Min")]
    assert sorted(parts) == ["Max", "Min"]


# What stands between two layers, and whether the second one's values are known not to be negative.
SIGNS = {
    "Relu": ("b = Relu (a)", True),
    "Relu, moved": ("r = Relu (a) b = Transpose <perm = [0, 2, 1, 3]> (r)", True),
    "Relu, cut": ("r = Relu (a) b = Slice (r, zero, three, one)", True),
    "Relu, averaged": ("r = Relu (a) b = AveragePool <kernel_shape = [1, 1]> (r)", True),
    "the larger of two": ("r = Relu (a) b = MaxPool <kernel_shape = [1, 1]> (r)", True),
    "padded by a negative number": ("r = Relu (a) b = Pad (r, pads, minus)", False),
    "LeakyRelu": ("b = LeakyRelu (a)", False),
    "nothing": ("b = Identity (a)", False),
    "MaxPool alone": ("b = MaxPool <kernel_shape = [1, 1]> (a)", False),
    "a layer behind a Relu": ("r = Relu (a) b = Conv (r, k)", False),
}


@pytest.mark.parametrize("name", SIGNS)
def test_values_are_taken_apart_by_sign_unless_they_have_one(name: str) -> None:
    between, signed = SIGNS[name]
    random = np.random.default_rng(7)
    held = {"k": random.standard_normal((3, 3, 1, 1)), "minus": np.asarray(-1.0)}
    held |= {"zero": np.asarray([0]), "one": np.asarray([1]), "three": np.asarray([3])}
    held |= {"pads": np.asarray([0, 0, 0, 0, 0, 0, 0, 1])}
    used = {k: v for k, v in held.items() if k in between or k == "k"}
    text = f"a = Conv (x, k) {between} [last] y = Conv (b, k)"
    model = parsed(f"g (double[N, 3, 3, 2] x) => (double[N, a, b, c] y) {{ {text} }}", used)
    rules = (("Conv", lrp.Zero()), ("last", lrp.ZPlus()))
    compiled = compile_model(model, Lrp(rules=rules), targets=[4])
    parts = [node.op_type for node in compiled.model.graph.node if node.op_type in ("Max", "Min")]
    assert sorted(parts) == ([] if signed else ["Max", "Min"])


def test_z_plus_reads_both_signs_behind_a_layer_without_activation() -> None:
    """Σ of the positive contributions of one neuron, by hand."""
    random = np.random.default_rng(17)
    W, V = random.standard_normal((4, 5)), random.standard_normal((5, 3))
    text = "r = Relu (x) a = MatMul (r, w) m = Neg (a) [last] y = MatMul (m, v)"
    model = parsed(f"g (double[N, 4] x) => (double[N, 3] y) {{ {text} }}", {"w": W, "v": V})
    x = rows((4,), seed=18)
    got = relevance(model, (("MatMul", lrp.Zero()), ("last", lrp.ZPlus())), x, [1])[:, 0]
    want = np.zeros_like(x)
    for n, row in enumerate(np.maximum(x, 0)):
        m = -row @ W
        R = reference.z_plus(V.T, np.zeros(3), m, (m @ V) * (np.arange(3) == 1))
        want[n] = reference.epsilon_rule(W.T, np.zeros(5), row, R, epsilon=0.0)
    assert_equal(got, want)


def test_a_normalisation_before_a_grouped_convolution_stays_apart() -> None:
    """A factor for each channel of x has no place in such weights."""
    random = np.random.default_rng(15)
    held = {"k": random.standard_normal((6, 2, 3, 3)), "v": np.full(4, 0.7)}
    held |= {name: random.standard_normal(4) for name in "stm"}
    text = "n = BatchNormalization (x, s, t, m, v) r = Relu (n) c = BatchNormalization (r, s, t, m, v)"
    text += " y = Conv <group = 2> (c, k)"
    model = parsed(f"g (double[N, 4, 5, 6] x) => (double[N, a, b, c] y) {{ {text} }}", held)
    x = rows((4, 5, 6), seed=16)
    rules = (("BatchNormalization", lrp.Zero()), ("Conv", lrp.Zero()))
    product = compile_model(model, Gradient(times_input=True), targets=[0, 40])
    want = run64(product.model, {"x": x}, ["x_attributions"])["x_attributions"]
    assert_equal(relevance(model, rules, x, [0, 40]), want)


@pytest.mark.parametrize("choice", [("Conv",), ("Conv", lrp.Zero(), 1), "Co", 3])
def test_a_choice_is_a_selector_and_a_rule(choice: Any) -> None:
    with pytest.raises(InvalidOptionError, match=f"pairs.*{re.escape(repr(choice))}"):
        Lrp(rules=[choice])


@pytest.mark.parametrize("rules", [None, (("Conv", lrp.Zero()) for _ in range(1))])
def test_rules_are_a_list(rules: Any) -> None:
    """Not what can be read once: the checks would leave nothing of it."""
    with pytest.raises(InvalidOptionError, match=r"rules\b.*\blist\b"):
        Lrp(rules=rules)
