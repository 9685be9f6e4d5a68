"""What is refused, and what the refusal says: a row for each that no other test provokes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from rationale import DeepShap, Gradient, Lrp, OpenReferences, compile_model
from rationale.errors import InvalidModelError, InvalidOptionError, UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.lowering.sizes import MOST_AXES
from rationale.rules import rule
from tests.compiler.models import changed, parsed

X = "float[N, 3, 4] x"
REFERENCES = np.zeros((2, 3, 4), np.float32)
WEIGHTS = {
    "ones": np.ones(4, np.float32),
    "five": np.int64(5),
    "off_on": np.float32([0, 1]),
    "kernel": np.ones((2, 3, 1, 1), np.float32),
    "regions": np.float32([[0, 0, 2, 3]]),
    "which": np.zeros(1, np.int64),
    "w": np.ones((1, 2, 4), np.float32),
    "r": np.ones((1, 2, 2), np.float32),
    "none": np.zeros((0, 3), np.float32),
    "first": np.int64([0]),
    "flag": np.bool_(True),
    "zero": np.int64(0),
    "many": np.int64(10**6),
    "minus": np.int64([-1]),
    "zeros": np.int64([0]),
    "axes1": np.int64([1]),
    "many_exponents": np.linspace(0.5, 4, 12, dtype=np.float32).reshape(3, 4),
}

# `h` is of a rank that nobody knows before the model runs.
UNKNOWN = "h = Reshape (x, n)"
MORE = "int64[M] n"


def graph(body: str, more: str = "", opset: int = 21) -> onnx.ModelProto:
    inputs = ", ".join(v for v in (X, more) if v)
    text = f"g ({inputs}) => (float[N, A, B] y) {{ {body} }}"
    held = {name: array for name, array in WEIGHTS.items() if name in body}
    return parsed(text, held, opsets=f'"" : {opset}, "com.acme" : 1, "ai.onnx.ml" : 3')


# By name: the graph's body, its other inputs, and what the message says.
LOWERING: dict[str, tuple[str, str, str]] = {
    "pool of unknown rank": (f"{UNKNOWN} y = GlobalMaxPool (h)", MORE, "rank of 'h' is not known"),
    "norm of unknown rank": (
        f"{UNKNOWN} s = ReduceSum (x) y, m = LayerNormalization (h, s)",
        MORE,
        "rank of 'h' is not known",
    ),
    "windows of unknown size": (
        f"{UNKNOWN} y = LpPool <kernel_shape = [2]> (h)",
        MORE,
        "of 'h' has no fixed size",
    ),
    "a type that is not known": (
        "like = com.acme.Warp (x) y = CastLike (x, like)",
        "",
        "type of 'like' is not known",
    ),
    "some elements of unknown rank": (
        f"{UNKNOWN} y = ai.onnx.ml.ArrayFeatureExtractor (h, first)",
        MORE,
        "rank of 'h' is not known",
    ),
    "a depth that is computed": (
        "i = Cast <to = 7> (x) y = OneHot (i, depth, off_on)",
        "int64 depth",
        "export with static feature",
    ),
    "a cache of unknown rank": (f"{UNKNOWN} y = TensorScatter (h, x)", MORE, "of 'h' has no fixed size"),
    "places of no known size": (
        'i = Reshape (p, n) y = ScatterElements <reduction = "mul"> (x, i, i2)',
        f"{MORE}, int64[N, 3, 4] p, float[N, 3, 4] i2",
        "of 'i' has no fixed size",
    ),
    "places of no known number": (
        'i = Reshape (p, n) y = ScatterND <reduction = "max"> (x, i, i2)',
        f"{MORE}, int64[N, 3, 3] p, float[N, 3] i2",
        "rank of 'i' is not known",
    ),
    "a step that is computed": (
        "y = STFT (x, step, ones)",
        "int64 step",
        "STFT with a computed step",
    ),
    "no window": ("y = STFT (x, five)", "", "STFT needs a window or a frame length"),
    "a region's own number of samples": (
        "u = Unsqueeze (x, first) y = RoiAlign (u, regions, which)",
        "",
        "export with a fixed sampling_ratio",
    ),
    "regions of a plane of unknown size": (
        f"{UNKNOWN} y = RoiAlign <sampling_ratio = 2> (h, regions, which)",
        MORE,
        "of 'h' has no fixed size",
    ),
    "a sequence of unknown length": (
        f"{UNKNOWN} y, a = RNN <hidden_size = 2> (h, w, r)",
        MORE,
        "Export with a fixed",
    ),
    "a cache of unknown length": (
        "p = Slice (x, zeros, ends, axes1) y = TensorScatter <axis = 1> (x, p)",
        "int64[1] ends",
        "of 'p' has no fixed size",
    ),
    "no element there": (
        "s = SequenceConstruct (x, x) y = SequenceAt (s, five)",
        "",
        "no element 5 in a sequence of 2",
    ),
}


@pytest.mark.parametrize("name", LOWERING)
def test_what_cannot_be_lowered(name: str) -> None:
    body, more, words = LOWERING[name]
    opset = 24 if "TensorScatter" in body else 21
    with pytest.raises(UnsupportedModelError, match=words):
        compile_model(graph(body, more, opset), Gradient(), inputs=["x"])


def test_a_sequence_too_long_to_be_unrolled() -> None:
    held = {"w": np.ones((1, 2, 3), np.float32), "r": np.ones((1, 2, 2), np.float32)}
    node = "y, a = RNN <hidden_size = 2, layout = 1> (x, w, r)"
    text = f"g (float[N, 5000, 3] x) => (float[N, A, 1, 2] y) {{ {node} }}"
    with pytest.raises(UnsupportedModelError, match=r"has 5000 steps; .* Explain shorter"):
        compile_model(parsed(text, held), Gradient())


def test_a_sequence_of_no_steps() -> None:
    held = {"w": np.ones((1, 2, 4), np.float32), "r": np.ones((1, 2, 2), np.float32)}
    held |= {"zero": np.int64([0]), "one": np.int64([1])}
    body = "s = Slice (x, zero, zero, one) y, a = RNN <hidden_size = 2, layout = 1> (s, w, r)"
    text = f"g ({X}) => (float[N, A, 1, 2] y, float[N, 1, 2] a) {{ {body} }}"
    with pytest.raises(UnsupportedModelError, match="has 0 steps; 1 to"):
        compile_model(parsed(text, held), Gradient(), output="a")


# -- control flow that stays, with the reason ------------------------------------------------------------

STEP = "float[N, 3, 4] n = Tanh (h)"


def loop(inputs: str, body: str = "n = Tanh (h)", more: str = "") -> onnx.ModelProto:
    inner = f"b (int64 i, bool go, float[N, 3, 4] h) => (bool go, float[N, 3, 4] n) {{ {body} }}"
    return graph(f"y = Loop ({inputs}) <body = {inner}>", more)


def scan() -> onnx.ModelProto:
    inner = "b (float[N, 3, 4] h, float[3] s) => (float[N, 3, 4] k) { k = Add (h, h) }"
    return graph(f"y = Scan <num_scan_inputs = 1, body = {inner}> (x, none)")


STAYS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "an endless loop": (lambda: loop("many, flag, x"), "more than .* nodes. Explain fewer steps"),
    "a scan over nothing": (scan, "it runs over 'none', which is empty"),
    "a list that nobody knows": (
        lambda: graph(
            "s = If (c) <then_branch = t () => (seq(float[N, 3, 4]) p) { p = SequenceConstruct (x, x) }, "
            "else_branch = e () => (seq(float[N, 3, 4]) q) { q = SequenceConstruct (x) }> "
            "l = SequenceInsert (s, x) y = SequenceAt (l, zero)",
            "bool c",
        ),
        r"3 nodes on the way to 'y' have no rule:.*chooses between sequences.*SequenceInsert .* node 'l'",
    ),
    "shapes that are not said": (
        lambda: graph(
            "y = If (c) <then_branch = t () => (p) { p = Identity (x) }, "
            "else_branch = e () => (q) { q = Concat <axis = 1> (x, x) }>",
            "bool c",
        ),
        r"node .y.: .*chooses between the shapes",
    ),
    "two shapes": (
        lambda: graph(
            "y = If (c) <then_branch = t () => (float[N, 3, 4] p) { p = Relu (x) }, "
            "else_branch = e () => (float[N, 3, 1] q) { q = ReduceSum <keepdims = 1> (x, minus) }>",
            "bool c",
        ),
        r"chooses between the shapes",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_control_flow_that_stays_says_why(name: str) -> None:
    model, words = STAYS[name]
    with pytest.raises(UnsupportedModelError, match=f"(?s){words}"):
        compile_model(model(), Gradient(), inputs=["x"])


# -- what is explained ------------------------------------------------------------------------------

PLAIN = """a = Relu (x) i = Cast <to = 7> (a) f = Cast <to = 1> (i) s = Transpose <perm = [1, 0, 2]> (a)
    t = Transpose <perm = [1, 0, 2]> (s) v = Add (f, t) y = Tanh (v)"""
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "inputs as a text": ({"inputs": "x"}, r"give a list of different names out of \['x'"),
    "an input twice": ({"inputs": ["x", "x"]}, "give a list of different names"),
    "no inputs": ({"inputs": []}, "give a list of different names"),
    "an input that is not there": ({"inputs": ["nil"]}, r"no input \['nil'\]; the model has"),
    "an inner tensor of whole numbers": ({"inputs": ["i"]}, "'i' holds no floats"),
    "an inner tensor without rows": ({"inputs": ["s"]}, "one row of floats, of a known size"),
    "one number for the batch": ({"inputs": ["p"]}, "one number for the whole batch"),
    "whole numbers that no table looks up": (
        {"inputs": ["k"], "output": "d"},
        "not an index into an embedding table",
    ),
    "targets as another text": (
        {"targets": "best"},
        r"give a list of indices \(or contrasts such as '1-0'\), 'all' or 'predicted'",
    ),
    "targets as a number": (
        {"targets": 3},
        r"give a list of indices \(or contrasts such as '1-0'\), 'all' or 'predicted'",
    ),
    "no targets": ({"targets": []}, "has indices 0 to 11"),
    "a target that is not there": ({"targets": [12]}, "has indices 0 to 11"),
    "a negative target": ({"targets": [-1]}, "has indices 0 to 11"),
    "names of features that repeat": (
        {"inputs": ["x"], "feature_names": ["same"] * 12},
        r"must be unique; \['same'\] are not",
    ),
    "names of features of which input": (
        {"inputs": ["x", "z"], "feature_names": ["a"], "output": "d"},
        r"name the features of each input: \['x', 'z'\]",
    ),
    "two open lengths": ({"sizes": {"A": (1, 8), "B": (1, 8)}}, "only one length"),
    "an open length of two": ({"sizes": {"A": (1, 2)}}, r"\(1, 128\)"),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_cannot_be_asked_for(name: str) -> None:
    given, words = ASKED[name]
    body = f"{PLAIN} kk = Add (k, k) ks = Cast <to = 1> (kk) b = Add (a, p) c = Add (b, z) d = Add (c, ks)"
    inputs, outputs = (
        f"{X}, float p, int64[N, 3, 4] k, float[N, 3, 4] z",
        "float[N, 3, 4] y, float[N, 3, 4] d",
    )
    text = f"g ({inputs}) => ({outputs}) {{ {body} }}"
    with pytest.raises(InvalidOptionError, match=words):
        compile_model(parsed(text), Gradient(), **{"output": "y", **given})


@pytest.mark.parametrize("count", [0, -1, 2.5, True, 10**9])
def test_a_number_of_open_references_that_is_none(count: Any) -> None:
    with pytest.raises(InvalidOptionError, match="K must be a whole number, 1 to"):
        OpenReferences(count)


# -- sizes --------------------------------------------------------------------------------------------


def with_dims(*dims: int) -> onnx.ModelProto:
    def change(model: onnx.ModelProto) -> None:
        shape = model.graph.input[0].type.tensor_type.shape
        del shape.dim[1:]
        for n in dims:
            shape.dim.add().dim_value = n

    return changed(change)


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ((-3,), r"input 'x' has an axis of negative length \[-3\]. Export it again"),
        ((10**7, 10**7), r"input 'x' has 3 axes and 10+ elements; the limits are 32 axes"),
        ((1,) * 70, r"input 'x' has 71 axes and 1 elements; the limits are 32 axes"),
    ],
    ids=["negative", "large", "deep"],
)
def test_an_input_that_no_row_can_have(dims: tuple[int, ...], words: str) -> None:
    with pytest.raises(InvalidModelError, match=words):
        compile_model(with_dims(*dims), Gradient())


def test_as_many_axes_as_there_may_be() -> None:
    """The limit itself is met; with one more axis it is refused."""
    for extra in (0, 1):
        row = ", ".join(["1"] * (MOST_AXES - 2 + extra))
        model = parsed(f"g (float[N, 3, {row}] x) => (float[N, A] y) {{ y = Flatten (x) }}")
        if not extra:
            assert compile_model(model, Gradient(), targets=[0]).manifest.explained_shape == (3,)
            continue
        with pytest.raises(InvalidModelError, match=rf"has {MOST_AXES + 1} axes and 3 elements; the limits"):
            compile_model(model, Gradient())


def test_a_value_that_is_too_large_for_one_row() -> None:
    sizes = {"sizes": np.int64([1, 10**5, 3, 4]), "more": np.int64([1, 10**5, 10**5, 1, 1])}
    text = f"g ({X}) => (float[N, A, B, C, D] y) {{ e = Expand (x, sizes) [grown] y = Expand (e, more) }}"
    with pytest.raises(UnsupportedModelError, match=r"Expand node 'grown': 'y' takes .* for one row"):
        compile_model(parsed(text, sizes), Gradient())


def test_an_attribute_of_a_function_outside_of_one() -> None:
    model = graph("[leak] y = LeakyRelu <alpha = 0.3> (x)")
    model.graph.node[0].attribute[0].ref_attr_name = "slope"
    with pytest.raises(
        InvalidModelError, match=r"LeakyRelu node 'leak' takes its alpha from a function's attribute 'slope'"
    ):
        compile_model(model, Gradient())


def test_a_scan_of_opset_8_that_cannot_be_converted() -> None:
    inner = "b (float[3] h, float[3] s) => (float[3] n, float[3] k) { n = Add (h, s) k = Identity (n) }"
    scan = f"last, y = Scan <num_scan_inputs = 1, body = {inner}> (lengths, start, x)"
    text = f"g (float[N, 4, 3] x, float[N, 3] start, int64[N] lengths) => (float[N, 4, 3] y) {{ {scan} }}"
    with pytest.raises(UnsupportedModelError, match="of opset 8 has lengths"):
        compile_model(parsed(text, opsets='"" : 8'), Gradient())
    norm = "z = BatchNormalization (y, w, w, w, w)"
    text = f"g (float[N, 4, 3] x, float[N, 3] start) => (float[N, 4, 3] z) {{ {scan} {norm} }}".replace(
        "lengths", ""
    )
    with pytest.raises(
        UnsupportedModelError, match=r"of opset 8 .* combines it with \['BatchNormalization', 'Ups"
    ):
        compile_model(parsed(text, {"w": np.ones(4, np.float32)}, opsets='"" : 8'), Gradient())


# -- rules --------------------------------------------------------------------------------------------

COMPUTED: dict[str, tuple[str, str, str]] = {
    "axes": (
        "y = ReduceSum (x, axes)",
        "int64[1] axes",
        "ReduceSum: the shape of its output depends on values",
    ),
    "an axis": ("y = CumSum (x, axis)", "int64 axis", "computed"),
    "a diagonal": ("y = Trilu (x, k)", "int64 k", "computed"),
    "many exponents": ("y = Pow (x, many_exponents)", "", "needs one to .* different constant exponents"),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_parameters_that_a_rule_does_not_take(name: str) -> None:
    body, more, words = COMPUTED[name]
    with pytest.raises(UnsupportedModelError, match=words):
        compile_model(graph(body, more), Gradient(), inputs=["x"])


def product(op: Ops, a: Tensor, b: Tensor) -> rule.Evaluation:
    return op.Mul(a, b), (lambda m: op.Mul(m, b), None)


def total(op: Ops, x: Tensor) -> rule.Evaluation:
    return op.ReduceSum(x, [2], keepdims=1), lambda m: m


def plain(op: Ops, x: Tensor) -> rule.Evaluation:
    return op.Tanh(x), lambda m: m


POINTWISE, LOCAL, BILINEAR = rule.Kind.POINTWISE, rule.Kind.LOCAL, rule.Kind.BILINEAR
# A user's own rules, which promise less than what is asked of them.
OWN: dict[str, tuple[str, Any, rule.Kind, Any, str]] = {
    "a parameter that varies": (
        "Mul",
        product,
        POINTWISE,
        DeepShap(REFERENCES),
        "Mul node 'own': .*parameter",
    ),
    "an input without a pullback": (
        "Mul",
        product,
        BILINEAR,
        Gradient(),
        r"Mul node 'own': .*\b1 \('b'\)",
    ),
    "no rule that is complete": (
        "Tanh",
        plain,
        LOCAL,
        DeepShap(REFERENCES),
        "Tanh node 'own': it has a gradient, but no rule that keeps summ",
    ),
    "no relevance": ("Tanh", plain, LOCAL, Lrp(), r"LRP has no rule for 1 node.*Tanh node 'own'"),
    "an attribute it does not know": (
        "Elu",
        plain,
        POINTWISE,
        Gradient(),
        "Elu node 'own': its rule does not support",
    ),
    "another shape": (
        "Tanh",
        total,
        BILINEAR,
        Gradient(),
        r"Tanh node 'own': one row of 'y' has the shape \[1, 3, 4\].*by itself",
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_a_rule_that_promises_less(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op_type, function, kind, method, words = OWN[name]
    node = {
        "Mul": "[own] y = Mul (a, b)",
        "Tanh": "[own] y = Tanh (a)",
        "Elu": "[own] y = Elu <alpha = 0.3> (a)",
    }
    monkeypatch.setitem(rule._RULES, ("", op_type), rule.Rule(op_type, "", kind, function))
    with pytest.raises(UnsupportedModelError, match=f"(?s){words}"):
        compile_model(graph(f"a = Relu (x) b = Sigmoid (x) {node[op_type]}"), method, targets=[0])


def test_a_rule_of_one_input_refuses_a_parameter_that_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "_RULES", dict(rule._RULES))
    rule.local("Mul")(lambda op, m, *points: op.Mul(m, points[-1]))
    model = graph("a = Relu (x) b = Sigmoid (x) [own] y = Mul (a, b)")
    with pytest.raises(UnsupportedModelError, match=r"Mul node 'own': .*parameter"):
        compile_model(model, DeepShap(REFERENCES), targets=[0])
