"""Where relevance itself is carried, and what choices, bounds and outputs LRP takes or refuses."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale import AttnLrp, Gradient, Lrp, RationaleError, compile_model
from rationale.artifact.entry import open_entry
from rationale.cli.compile import app
from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.methods.propagation.lrp import rules as lrp
from rationale.methods.propagation.lrp.rules import RULES, RelevanceRule
from rationale.methods.propagation.lrp.texts import parse_choice, parse_rule
from tests.compiler.methods.lrp.models import network
from tests.compiler.models import mlp, parsed
from tests.references import lrp as reference
from tests.references.interpreter import run64
from tests.tolerances import RELEVANCE_64

engine = pytest.mark.usefixtures("float64_engine")

N = 3
RANDOM = np.random.default_rng(8)
W1, B1 = RANDOM.standard_normal((8, 6)), RANDOM.standard_normal(8)
W2, B2 = RANDOM.standard_normal((4, 8)), RANDOM.standard_normal(4)
WEIGHTS = {"w1": W1, "b1": B1, "w2": W2, "b2": B2, "mean": RANDOM.standard_normal(6)}
WEIGHTS |= {"deviation": RANDOM.uniform(0.5, 2.0, 6), "turned": np.asarray([5, 0, 3, 1, 2, 4])}
X = RANDOM.standard_normal((N, 6))
X[0, :3] = 0.0  # relevance where x vanishes


def model_of(text: str) -> onnx.ModelProto:
    used = {k: v for k, v in WEIGHTS.items() if k in text}
    return parsed(f"g (double[N, 6] x) => (double[N, a] y) {{ {text} }}", used)


def relevance(model: onnx.ModelProto, method: Lrp, x: np.ndarray = X, **options: Any) -> np.ndarray:
    compiled = compile_model(model, method, targets=[1, 3], **options)
    return run64(compiled.model, {"x": x}, ["x_attributions"])["x_attributions"]


def one_hot(y: np.ndarray, target: int) -> np.ndarray:
    return np.where(np.arange(len(y)) == target, y, 0.0)


def assert_equal(got: np.ndarray, want: np.ndarray) -> None:
    assert np.abs(want).max() > 1e-6
    np.testing.assert_allclose(got, want, rtol=0, atol=RELEVANCE_64 * np.abs(want).max())


@engine
@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid", "Softplus"])
def test_through_activations_and_a_normalisation(activation: str) -> None:
    """z⁺ above, flat below; the normalisation hands relevance on as it is, where x is 0 too."""
    model = model_of(
        f"""s = Sub (x, mean)  d = Div (s, deviation)  t = Gather <axis = 1> (d, turned)
            [first] c = Gemm <transB = 1> (t, w1, b1)  a = {activation} (c)
            [second] y = Gemm <transB = 1> (a, w2, b2)"""
    )
    got = relevance(model, Lrp("EpsilonPlusFlat", rules=[("name:second", lrp.ZPlus())]))
    want = np.zeros_like(got)
    f = {
        "Relu": lambda c: np.maximum(c, 0),
        "Tanh": np.tanh,
        "Sigmoid": lambda c: 1 / (1 + np.exp(-c)),
        "Softplus": lambda c: np.log1p(np.exp(c)),
    }[activation]
    turned = WEIGHTS["turned"]
    for n, x in enumerate(X):
        d = ((x - WEIGHTS["mean"]) / WEIGHTS["deviation"])[turned]
        a = f(W1 @ d + B1)
        for t, target in enumerate([1, 3]):
            R = reference.z_plus(W2, B2, a, one_hot(W2 @ a + B2, target))
            want[n, t, turned] = reference.flat(W1, B1, d, R)
    assert_equal(got, want)
    assert np.abs(got[0]).max(axis=0)[:3].min() > 1e-4


@engine
def test_multipliers_and_relevance_meet_at_a_fan_in() -> None:
    """x is read by a flat layer, which hands back R, and by an ε-layer, which hands back m: R + m·x."""
    model = model_of("[f] c = MatMul (x, v1)  [e] d = MatMul (x, v2)  y = Add (c, d)")
    V1, V2 = RANDOM.standard_normal((6, 4)), RANDOM.standard_normal((6, 4))
    for name, array in (("v1", V1), ("v2", V2)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    got = relevance(model, Lrp(rules=[("name:f", lrp.Flat()), ("Add", lrp.Zero())]))
    want = np.zeros_like(got)
    for n, x in enumerate(X):
        for t, target in enumerate([1, 3]):
            parts = [one_hot(v.T @ x, target) for v in (V1, V2)]
            want[n, t] = reference.flat(V1.T, np.zeros(4), x, parts[0])
            want[n, t] += reference.epsilon_rule(V2.T, np.zeros(4), x, parts[1])
    assert_equal(got, want)


@engine
@pytest.mark.parametrize(
    ("product", "f"),
    [
        ("a = Sigmoid (c) b = Mul (c, a)", lambda c: c / (1 + np.exp(-c))),
        ("b = HardSwish (c)", lambda c: c * np.clip(c / 6 + 0.5, 0, 1)),
        ("b = Split <axis = 1, num_outputs = 2> (c)", None),
    ],
    ids=["silu", "hardswish", "split"],
)
def test_products_hand_each_factor_half(product: str, f: Any) -> None:
    """For x·g(x) both halves come back to x: R unchanged. A gate's halves go to both its parts."""
    if f is None:
        product = "p, q = Split <axis = 1, num_outputs = 2> (c)  s = Tanh (q)  b = Mul (p, s)"
    model = model_of(f"[first] c = Gemm <transB = 1> (x, w1, b1)  {product}  y = Identity (b)")
    got = relevance(model, Lrp(rules=[("name:first", lrp.ZPlus(1e-9))]))
    want = np.zeros_like(got)
    for n, x in enumerate(X):
        c = W1 @ x + B1
        for t, target in enumerate([1, 3]):
            if f is None:
                half = c[target] * np.tanh(c[4 + target]) / 2
                R = np.where(np.isin(np.arange(8), [target, 4 + target]), half, 0.0)
            else:
                R = one_hot(f(c), target)
            want[n, t] = reference.z_plus(W1, B1, x, R, epsilon=1e-9)
    assert_equal(got, want)


@engine
def test_relevance_that_reaches_a_gate_is_halved_where_the_product_is_zero_too() -> None:
    """Behind an activation comes R, which no multiplier could say there: R = ln 2 where a = 0."""
    body = "s = Tanh (v) b = Mul (a, s) y = Softplus (b)"
    text = f"g (double[N, 4] a, double[N, 4] v) => (double[N, 4] y) {{ {body} }}"
    a, v = RANDOM.standard_normal((2, N, 4))
    a[0], a[1, 2] = 0.0, 0.0
    answer = run64(compile_model(parsed(text), AttnLrp(), targets=[1, 2]).model, {"a": a, "v": v})
    y = np.log1p(np.exp(a * np.tanh(v)))
    want = y[:, None] / 2 * np.eye(4)[[1, 2]]
    for name in "av":
        np.testing.assert_allclose(answer[f"{name}_attributions"], want, atol=RELEVANCE_64)


@engine
@pytest.mark.parametrize("activation", ["Relu", "Tanh"])
def test_an_offset_keeps_its_share(activation: str) -> None:
    """Whether a multiplier (Relu) or relevance (Tanh) arrives: R·a/(a + o)."""
    model = model_of(
        f"[first] c = Gemm <transB = 1> (x, w1, b1)  a = Relu (c)  d = Add (a, b1)  y = {activation} (d)"
    )
    got = relevance(model, Lrp(rules=[("first", lrp.ZPlus()), ("Add", lrp.Epsilon(0.1))]))
    want = np.zeros_like(got)
    f = {"Relu": lambda d: np.maximum(d, 0), "Tanh": np.tanh}[activation]
    for n, x in enumerate(X):
        a = np.maximum(W1 @ x + B1, 0)
        for t, target in enumerate([1, 3]):
            R = a * one_hot(f(a + B1), target) / reference.stabilised(a + B1, 0.1)
            want[n, t] = reference.z_plus(W1, B1, x, R)
    assert_equal(got, want)


@engine
def test_parts_of_a_split_carry_what_they_carry() -> None:
    """One part comes back as relevance (Tanh), the other as a multiplier; together they are relevance."""
    model = model_of(
        """[first] c = Gemm <transB = 1> (x, w1, b1)  p, q = Split <axis = 1, num_outputs = 2> (c)
           r = Tanh (p)  y = Concat <axis = 1> (r, q)"""
    )
    compiled = compile_model(model, Lrp(rules=[("first", lrp.Flat())]), targets=[1, 6])
    got = run64(compiled.model, {"x": X}, ["x_attributions"])["x_attributions"]
    for n, x in enumerate(X):
        c = W1 @ x + B1
        for t, R in enumerate([one_hot(np.tanh(c), 1), one_hot(c, 6)]):
            np.testing.assert_allclose(got[n, t], reference.flat(W1, B1, x, R), atol=1e-12)


@engine
@pytest.mark.parametrize("text", ["b = Max (c, d)", "b = LRN <size = 3, alpha = 0.9> (e)"])
def test_operators_with_a_form_of_their_own_conserve(text: str) -> None:
    model = model_of(
        f"""c = MatMul (x, v1)  d = MatMul (x, v2)  shape = Constant <value_ints = [-1, 4, 1, 1]> ()
            e = Reshape (c, shape)  {text}  y = Flatten (b)"""
    )
    for name in ("v1", "v2"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(RANDOM.standard_normal((6, 4)), name))
    answer = run64(compile_model(model, Lrp(rules=[("MatMul", lrp.Zero())]), targets="all").model, {"x": X})
    assert np.abs(answer["explained_value"]).max() > 0.1
    assert np.abs(answer["completeness_gap"]).max() <= RELEVANCE_64


@engine
def test_bounds_are_carried_through_the_normalisation() -> None:
    """`low` and `high` bound the model's input; ZBox's own bound what its layer reads."""
    text = """s = Sub (mean, x)  d = Div (s, deviation)
              [first] c = Gemm <transB = 1> (d, w1, b1)  a = Relu (c)
              [second] y = Gemm <transB = 1> (a, w2, b2)"""
    low, high = -3.0, np.linspace(3, 4, 6)
    carried = relevance(model_of(text), Lrp(rules=[("first", lrp.ZBox())], low=low, high=high))
    ends = [(WEIGHTS["mean"] - bound) / WEIGHTS["deviation"] for bound in (high, low)]
    by_rule = relevance(model_of(text), Lrp(rules=[("first", lrp.ZBox(*ends))]))
    assert_equal(carried, by_rule)
    other = relevance(model_of(text), Lrp(rules=[("first", lrp.ZBox(low, high))]))
    assert np.abs(other - by_rule).max() > 1e-3 * np.abs(by_rule).max()


# -- selectors ------------------------------------------------------------------------------------

SAME_CHOICE = [
    ("first", "name:layer1"),
    ("last", "name:layer4$"),
    ("first 2", "name:layer[12]"),
    ("last 3", "name:layer[^1]"),
    ("2-3", "name:^layer(2|3)$"),
    ("4", "name:4"),
    ("Gemm:2", "name:layer2"),
    ("Gemm:last 2", "name:layer[34]"),
    ("Gemm", "name:layer"),
]


@engine
@pytest.mark.parametrize(("place", "name"), SAME_CHOICE)
def test_places_and_names_choose_the_same_layers(place: str, name: str) -> None:
    model, shape = network("mlp", biases=0.2)
    x = RANDOM.standard_normal((2, *shape))
    got, want = (relevance(model, Lrp(rules=[(selector, lrp.Gamma(1.5))]), x) for selector in (place, name))
    np.testing.assert_array_equal(got, want)
    assert np.abs(got - relevance(model, Lrp(), x)).max() > 1e-3 * np.abs(got).max()


@engine
def test_the_last_match_wins() -> None:
    model, shape = network("mlp", biases=0.2)
    x = RANDOM.standard_normal((2, *shape))
    several = [("Gemm", lrp.ZPlus()), ("2-4", lrp.Gamma(1.0)), ("name:layer3", lrp.Zero())]
    alone = [("name:layer1", lrp.ZPlus()), ("name:layer[24]", lrp.Gamma(1.0)), ("3", lrp.Zero())]
    np.testing.assert_array_equal(
        relevance(model, Lrp(rules=several), x), relevance(model, Lrp(rules=alone), x)
    )


WRITTEN = [
    *(rule_class() for rule_class in RULES.values()),
    *(lrp.Epsilon(0.5), lrp.Gamma(0.5, 1e-3), lrp.Gamma(0.25, 1e-3), lrp.Flat(0.1), lrp.AlphaBeta(1, 0)),
]


@pytest.mark.parametrize("rule", WRITTEN, ids=str)
def test_rules_are_written_as_they_are_read(rule: RelevanceRule) -> None:
    read = parse_rule(str(rule))
    assert type(read) is type(rule)
    assert str(read) == str(rule)
    assert isinstance(rule, lrp.ZBox) or read == rule


def test_text_forms() -> None:
    assert parse_choice("Conv=gamma:0.25") == ("Conv", lrp.Gamma(0.25))
    assert parse_choice("name:a=b=epsilon:0.1") == ("name:a=b", lrp.Epsilon(0.1))
    assert parse_choice("last 2=alphabeta:3:2") == ("last 2", lrp.AlphaBeta(3, 2))
    box: Any
    selector, box = parse_choice("first=zbox:-2:2.5")
    assert (selector, box.low, box.high) == ("first", -2.0, 2.5)
    assert str(lrp.ZBox(-2, 2.5)) == "zbox:-2:2.5"
    assert str(lrp.Gamma(0.3)) == "gamma:0.3"
    assert str(lrp.ZPlus()) == "zplus"


BAD_TEXTS = [
    ("Conv", "SELECTOR=RULE"),
    ("=zero", "SELECTOR=RULE"),
    ("Conv=gama", "there are zero, epsilon, gamma"),
    ("Conv=gamma:much", "numbers for gamma, epsilon"),
    ("Conv=gamma:-1", "at least 0"),
    ("Conv=gamma:nan", "at least 0"),
    ("Conv=gamma:1:2:3", "gamma:GAMMA:EPSILON"),
    ("Conv=alphabeta:2:2", "α − β must be 1"),
    ("Conv=zbox:3:1", "low ≤ high"),
    ("Conv=zbox:3", "low and high must be given together"),
    ("conv=zero", "operator type"),
    ("first 0=zero", "a place among the layers"),
    ("3-2=zero", "a place among the layers"),
    ("name:(=zero", "no regular expression"),
]


@pytest.mark.parametrize(("text", "says"), BAD_TEXTS)
def test_bad_texts_are_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        parse_choice(text)
    assert says in str(caught.value)


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"composite": "EpsilonMinus"}, "there are EpsilonPlus"),
    ({"rules": ["Gemm=zero"]}, "pairs of a selector and a rule"),
    ({"rules": [("Gemm", "zero")]}, "is not a rule"),
    ({"rules": [(7, lrp.Zero())]}, "a selector is a text"),
    ({"low": 0.0}, "low and high must be given together"),
    ({"low": 1.0, "high": [0.5, 2.0]}, "low ≤ high"),
    ({"low": "a", "high": "b"}, "finite numbers"),
    ({"low": 0.0, "high": np.inf}, "finite numbers"),
    ({"composite": "GuidedBackprop", "rules": [("Gemm", lrp.Zero())]}, "takes no rules"),
]


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        Lrp(**options)
    assert says in str(caught.value)


BAD_FOR_THE_MODEL: list[tuple[dict[str, Any], str]] = [
    ({"rules": [("Conv", lrp.Zero())]}, "matches nothing. The layers are, in order: Gemm 'layer1'"),
    ({"rules": [("5", lrp.Zero())]}, "matches nothing"),
    ({"rules": [("name:layer9", lrp.Zero())]}, "matches nothing"),
    ({"rules": [("Relu", lrp.Gamma())]}, "do not support it"),
    ({"rules": [("Gemm", lrp.Pass())]}, "do not support it"),
    ({"rules": [("Gemm", lrp.Own())]}, "do not support it"),
    ({"rules": [("first", lrp.ZBox())]}, "needs the smallest and largest value"),
    ({"rules": [("first", lrp.ZBox(np.zeros(3), np.ones(3)))]}, "does not broadcast to its input [1, 5]"),
    ({"rules": [("last", lrp.ZBox())], "low": -1, "high": 1}, "Relu '"),
]


@pytest.mark.parametrize(("options", "says"), BAD_FOR_THE_MODEL)
def test_options_that_do_not_fit_the_model(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(RationaleError) as caught:
        compile_model(mlp(), Lrp(**options)).write(tmp_path, "m")
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is what Python compiles with the same options; a bad rule is one line and writes nothing."""
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(), "m.onnx")
    command = ["compile", "m.onnx", "--name", "m", "--method", "lrp", "--targets", "0,2"]
    chosen = ["--composite", "EpsilonAlpha2Beta1", "--rule", "Gemm=gamma:0.5", "--rule", "first=zbox"]
    result = CliRunner().invoke(app, [*command, *chosen, "--low", "-3", "--high", "3"])
    assert result.exit_code == 0, result.output
    assert re.search(r"^warning: .*'z2'", result.stderr, re.MULTILINE)
    entry = open_entry(Path("model_repository"), "m")
    method = Lrp("EpsilonAlpha2Beta1", [("Gemm", lrp.Gamma(0.5)), ("first", lrp.ZBox())], low=-3, high=3)
    x = RANDOM.standard_normal((2, 5)).astype(np.float32)
    want = compile_model(mlp(), method, targets=[0, 2]).explain(x)["x_attributions"]
    np.testing.assert_array_equal(entry.explain(x)["x_attributions"], want)
    refused = CliRunner().invoke(app, [*command, "--name", "other", "--rule", "Gemm=gama"])
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert "rule 'gama'" in refused.stderr
    assert sorted(p.name for p in Path("model_repository").iterdir()) == ["m", "m_explain"]


# -- probabilities ----------------------------------------------------------------------------------


def test_scores_are_explained_where_nothing_else_is_asked_for() -> None:
    compiled = compile_model(mlp(), Lrp(), targets=[0, 2])
    assert compiled.manifest.explained_output == "z2"
    (warning,) = compiled.manifest.warnings
    assert re.search(r"scores 'z2'.*probabilities 'y'", warning)
    named = compile_model(mlp(), Lrp(), output="z2", targets=[0, 2])
    assert named.manifest.warnings == ()
    x = RANDOM.standard_normal((2, 5)).astype(np.float32)
    np.testing.assert_array_equal(named.explain(x)["x_attributions"], compiled.explain(x)["x_attributions"])


def test_a_probability_that_is_asked_for_gets_a_warning() -> None:
    compiled = compile_model(mlp(last="Sigmoid"), Lrp(), output="y", targets=[1])
    assert compiled.manifest.explained_output == "y"
    (warning,) = compiled.manifest.warnings
    assert "Explain 'z2' instead" in warning


def test_a_softmax_is_refused_by_name_unless_a_rule_is_chosen() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        compile_model(mlp(), Lrp(), output="y")
    assert "Softmax node 'activation2': z2 -> y" in str(caught.value)
    assert "--output z2" in str(caught.value)
    x = RANDOM.standard_normal((2, 5)).astype(np.float32)
    rules = [("Gemm", lrp.Zero()), ("Softmax", lrp.Taylor())]
    chosen = compile_model(mlp(), Lrp(rules=rules), output="y", targets=[1])
    gradient = compile_model(mlp(), Gradient(times_input=True), output="y", targets=[1])
    want = gradient.explain(x)["x_attributions"]
    np.testing.assert_allclose(chosen.explain(x)["x_attributions"], want, atol=1e-6)
    passed = compile_model(mlp(), Lrp(rules=[("Softmax", lrp.Pass())]), output="y", targets=[1]).explain(x)
    scores = compile_model(mlp(), Lrp(), targets=[1]).explain(x)
    ratio = (passed["explained_value"] / scores["explained_value"])[:, :, None]
    np.testing.assert_allclose(passed["x_attributions"], scores["x_attributions"] * ratio, rtol=1e-4)


def test_the_manifest_records_every_option() -> None:
    rules = [("Gemm", lrp.Gamma(0.4)), ("first", lrp.ZBox())]
    compiled = compile_model(mlp(), Lrp("EpsilonPlusFlat", rules, low=-3, high=np.full(5, 3.0)))
    manifest = compiled.manifest
    assert manifest.method.name == "lrp"
    assert manifest.method.options == {
        "composite": "EpsilonPlusFlat",
        "rules": [["Gemm", "gamma:0.4"], ["first", "zbox"]],
        "low": -3,
        "high": [3.0] * 5,
    }
    assert manifest.base_value is None
    assert manifest.completeness_gap == "completeness_gap"
    other = compile_model(mlp(), Lrp("EpsilonPlusFlat", [rules[0], ("first", lrp.ZBox())], low=-3, high=2))
    assert other.manifest.digests.options != manifest.digests.options
