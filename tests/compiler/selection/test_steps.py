"""Steps and conditions inside a model: attributions add up through them, and it is said where they end."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from rationale import AttnLrp, DeepShap, Gradient, Lrp, compile_model
from rationale.errors import UnsupportedModelError
from rationale.methods.target import AMONG_CARRIERS
from tests.compiler.models import parsed, rows
from tests.references.interpreter import run64
from tests.tolerances import PARITY_32

FEATURES, ROWS, K = 5, 4, 3
W = rows(FEATURES, 4, seed=1)
REFERENCES, X = rows(K, FEATURES, seed=2) * 2, rows(ROWS, FEATURES, seed=3) * 2


def model(body: str, **weights: np.ndarray) -> onnx.ModelProto:
    return parsed(f"g (float[N, {FEATURES}] x) => (float[N, 4] y) {{ {body} }}", {"w": W, **weights})


def row(body: str, **weights: np.ndarray) -> onnx.ModelProto:
    """For a single row, whose operators may mix what would be rows."""
    return parsed(f"g (float[1, {FEATURES}] x) => (float[1, 4] y) {{ {body} }}", {"w": W, **weights})


S, Z = np.float32(0.05), np.int8(3)
B = np.float32(0.02)

DYNAMIC = (
    "q, qs, qz = DynamicQuantizeLinear (x) i = MatMulInteger (q, v, qz) f = Cast <to = 1> (i) "
    "u = Mul (qs, vs) y = Mul (f, u)"
)
INTEGERS = {"v": np.clip(np.round(W / B), -127, 127).astype(np.int8), "vs": B}

MODELS = {
    "a condition that flips": model("z = MatMul (x, w) h = Tanh (z) c = Less (z, h) y = Where (c, z, h)"),
    "a branch that is far away": model(
        "z = MatMul (x, w) c = Greater (z, b) e = Where (c, z, low) y = Softmax (e)",
        b=np.float32(-3),
        low=np.float32(-1e9),
    ),
    "a branch that is infinite where no condition flips": model(
        "z = MatMul (x, w) c = Greater (z, b) e = Where (c, z, low) y = Softmax (e)",
        b=np.float32([100, -0.5, 0.3, 0]),
        low=np.float32([-np.inf, -3, -3, -3]),
    ),
    "logic": model(
        "z = MatMul (x, w) a = Greater (z, b) c = LessOrEqual (z, u) d = And (a, c) e = Not (d) "
        "f = Xor (e, a) g = Cast <to = 1> (f) h = Sigmoid (z) y = Mul (g, h)",
        b=np.float32(-0.4),
        u=np.float32(0.9),
    ),
    "whole numbers": model(
        "z = MatMul (x, w) i = Cast <to = 7> (z) j = Mul (i, i) k = Div (j, two) "
        "l = Cast <to = 1> (k) y = Add (l, z)",
        two=np.int64(2),
    ),
    "a quantised layer": model(
        "q = QuantizeLinear (x, s, o) d = DequantizeLinear (q, s, o) z = MatMul (d, w) r = Relu (z) "
        "p = QuantizeLinear (r, s, o) y = DequantizeLinear (p, s, o)",
        s=S,
        o=Z,
    ),
    "a dynamically quantised row": row(DYNAMIC, **INTEGERS),
    "a layer of integers": model(
        "q = QuantizeLinear (x, s, o) i = QLinearMatMul (q, s, o, v, vs, vo, t, o) "
        "y = DequantizeLinear (i, t, o)",
        s=S,
        o=Z,
        t=np.float32(0.1),
        v=np.clip(np.round(W / B), -127, 127).astype(np.int8),
        vs=B,
        vo=np.int8(0),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_attributions_add_up_through_steps(name: str) -> None:
    """The emitted nodes in float64."""
    compiled = compile_model(MODELS[name], DeepShap(REFERENCES), targets="all")
    assert compiled.manifest.stopped == ()
    answer = run64(compiled.model, {"x": X})
    difference = answer["explained_value"] - answer["base_value"]
    assert np.abs(difference).max() > 0.1
    tolerance = PARITY_32 * max(1.0, np.abs(difference).max())  # what the references' float32 leaves
    np.testing.assert_allclose(answer["x_attributions"].sum(-1), difference, atol=tolerance, rtol=0)


def test_a_dynamically_quantised_row_of_zeros_is_answered() -> None:
    """A black image, or a layer that is off, spans nothing."""
    compiled = compile_model(row(DYNAMIC, **INTEGERS), DeepShap(np.zeros((1, FEATURES), np.float32)))
    answer = compiled.explain(np.concatenate([X, np.zeros((1, FEATURES), np.float32)]))
    difference = answer["explained_value"] - answer["base_value"]
    np.testing.assert_allclose(answer["x_attributions"].sum(-1), difference, atol=1e-5)
    assert not difference[-1].any()
    assert np.abs(difference[:-1]).min() > 0.01


def test_a_dynamically_quantised_row_whose_answers_hardly_differ_keeps_its_own_scale() -> None:
    """A batch of 1 in the file is enough: no run on two rows has to show that their scale is one."""
    far = row(DYNAMIC.replace("y =", "z =") + " y = Add (z, far)", far=np.float32(2000), **INTEGERS)
    near = MODELS["a dynamically quantised row"]
    got, want = (compile_model(m, DeepShap(REFERENCES)).explain(X) for m in (far, near))
    np.testing.assert_allclose(got["x_attributions"], want["x_attributions"], atol=1e-3)


def test_rows_of_one_scale_are_refused_with_what_to_do() -> None:
    with pytest.raises(UnsupportedModelError, match=r"node 'q': .*\bscale\b.*batch of 1\b"):
        compile_model(model(DYNAMIC, **INTEGERS), DeepShap(REFERENCES))


def test_the_gradient_of_a_quantised_layer_is_that_of_the_layer_inside_its_range() -> None:
    plain = model("z = MatMul (x, w) y = Relu (z)")
    got, want = (
        compile_model(m, Gradient(), targets="all").explain(X) for m in (MODELS["a quantised layer"], plain)
    )
    away = (np.abs(want["explained_value"]) > 0.2) & (np.abs(want["explained_value"]) < 5)
    assert away.sum() >= 4
    np.testing.assert_allclose(got["x_attributions"][away], want["x_attributions"][away], atol=1e-5)


@pytest.mark.parametrize("name", ["a dynamically quantised row", "a layer of integers"])
def test_the_gradient_of_a_product_of_whole_numbers_is_that_of_its_layer(name: str) -> None:
    """But at the least and the largest of a row, which a dynamic scale follows, and beyond a type's range."""
    got = compile_model(MODELS[name], Gradient(), targets="all").explain(X)["x_attributions"]
    low, high = X.min(1, keepdims=True), X.max(1, keepdims=True)
    between = (low < X) & (high > X) & (np.abs(X) < 6)
    assert between.sum() >= 10
    expected = np.broadcast_to(INTEGERS["v"].T * B, got.shape)
    np.testing.assert_allclose(got.swapaxes(1, 2)[between], expected.swapaxes(1, 2)[between], atol=1e-5)


def test_the_gradient_of_a_condition_is_zero() -> None:
    answer = compile_model(MODELS["logic"], Gradient(), targets="all").explain(X)
    z = X @ W
    inside = (z > -0.4) & (z <= 0.9)
    chosen = ~inside ^ (z > -0.4)
    slope = chosen / (1 + np.exp(-z)) / (1 + np.exp(z))
    np.testing.assert_allclose(answer["x_attributions"], slope[:, :, None] * W.T, atol=1e-5)


@pytest.mark.parametrize("method", [Lrp(), AttnLrp()], ids=lambda m: m.name)
def test_relevance_goes_to_what_a_condition_chose(method: Any) -> None:
    flipped = model("z = MatMul (x, w) h = Relu (z) c = Less (z, b) y = Where (c, z, h)", b=np.float32(0.3))
    answer = compile_model(flipped, method, output="y", targets="all").explain(X)
    z = X @ W
    want = np.where((z < 0.3) | (z > 0), 1.0, 0.0)[:, :, None] * (X[:, None, :] * W.T)
    np.testing.assert_allclose(answer["x_attributions"], want, atol=1e-4)


def test_relevance_says_that_conditions_have_none() -> None:
    alone = model("z = MatMul (x, w) c = Less (z, b) y = Where (c, b, u)", b=np.float32(0.3), u=np.float32(1))
    with pytest.raises(UnsupportedModelError, match=r"'x' .*DeepSHAP"):
        compile_model(alone, Lrp(), targets="all")


def test_where_attributions_end_is_in_the_manifest() -> None:
    chosen = model(
        "z = MatMul (x, w) [best] i = ArgMax <axis = 1, keepdims = 1> (z) "
        "p = Cast <to = 1> (i) y = Mul (z, p)"
    )
    compiled = compile_model(chosen, DeepShap(REFERENCES), targets=[0])
    assert [(s.node, s.operator, s.tensor) for s in compiled.manifest.stopped] == [("best", "ArgMax", "z")]
    assert any("ArgMax" in warning for warning in compiled.manifest.warnings)


# What a model computes of z = x·w beside z itself, and where attributions end on the way: node and tensor.
NO_RULE, BY_PLACE = "the operator has no rule, and gives no floats", "it chooses values by place"
ENDS: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "an index that is computed": (
        "[best] i = ArgMax <axis = 1, keepdims = 1> (z) p = Cast <to = 1> (i)",
        [("best", "z", NO_RULE)],
    ),
    "a place that is computed": (
        "t = Abs (z) u = Cast <to = 7> (t) v = Mod (u, four) [pick] p = GatherElements <axis = 1> (z, v)",
        [("pick", "v", BY_PLACE)],
    ),
    "a size": ("a = Shape <start = 1> (z) b = Cast <to = 1> (a) [sum] p = ReduceSum <keepdims = 0> (b)", []),
    "what is the same for all numbers": ("[odd] a = IsNaN (z) p = Cast <to = 1> (a)", []),
    "a part of the model that answers something else": (
        "p = Neg (z) [other] j = ArgMax <axis = 1, keepdims = 1> (z) k = Cast <to = 1> (j)",
        [],
    ),
    "steps with a rule": ("a = Greater (z, half) b = Not (a) p = Cast <to = 1> (b)", []),
    "two of them": (
        "[one] i = ArgMax <axis = 1, keepdims = 1> (z) [two] j = ArgMin <axis = 1, keepdims = 1> (z) "
        "k = Add (i, j) p = Cast <to = 1> (k)",
        [("one", "z", NO_RULE), ("two", "z", NO_RULE)],
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_where_attributions_end(name: str) -> None:
    """What is left is the gradient of the rest, the ends held constant."""
    body, ends = ENDS[name]
    held = {k: v for k, v in {"half": np.float32(0.5), "four": np.int64(4)}.items() if f" {k})" in body}
    compiled = compile_model(
        model(f"z = MatMul (x, w) {body} y = Add (z, p)", **held), Gradient(), targets="all", output="y"
    )
    stopped = [(s.node, s.tensor, s.reason) for s in compiled.manifest.stopped]
    assert [(n, t) for n, t, _ in stopped] == [(n, t) for n, t, _ in ends]
    assert all(reason.startswith(words) for (_, _, reason), (*_, words) in zip(stopped, ends, strict=True))
    warnings = [w for w in compiled.manifest.warnings if w.startswith("attributions end")]
    assert len(warnings) == bool(ends)
    assert all(f"{node!r} reads {tensor!r}" in warnings[0] for node, tensor, _ in ends)


def test_a_place_that_is_computed_is_another_at_the_references() -> None:
    body, _ = ENDS["a place that is computed"]
    moving = model(f"z = MatMul (x, w) {body} y = Add (z, p)", four=np.int64(4))
    answer = compile_model(moving, DeepShap(REFERENCES), targets="all").explain(X)
    z = X @ W
    want = z + np.take_along_axis(z, np.trunc(np.abs(z)).astype(int) % 4, 1)
    np.testing.assert_allclose(answer["y"], want, atol=1e-5)
    assert np.abs(answer["completeness_gap"]).max() < 1e-5


def test_of_many_ends_some_are_told_and_all_are_recorded() -> None:
    """The first five, and how many more there are."""
    for count in (5, 7):
        parts = "".join(
            f"[n{i}] a{i} = ArgMax <axis = 1, keepdims = 1> (z{i}) f{i} = Cast <to = 1> (a{i}) "
            f"z{i + 1} = Mul (z{i}, f{i}) "
            for i in range(count)
        )
        text = parts.replace(f"z{count} =", "y =")
        compiled = compile_model(model(f"z0 = MatMul (x, w) {text}"), Gradient(), targets=[0])
        assert [s.node for s in compiled.manifest.stopped] == [f"n{i}" for i in range(count)]
        (warning,) = [w for w in compiled.manifest.warnings if "attributions end" in w]
        assert [f"'n{i}'" in warning for i in range(count)] == [i < 5 for i in range(count)]
        assert warning.endswith("; and 2 more") == (count == 7)


WHOLE: dict[str, tuple[str, Any]] = {
    "divided": ("q = Div (i, three)", lambda i: np.trunc(i / 3)),
    "averaged": (
        "q = ReduceMean <keepdims = 1> (i, axes)",
        lambda i: np.trunc(i.mean(1, keepdims=True)),
    ),
    "added and moved": ("r = Add (i, three) q = Transpose <perm = [0, 1]> (r)", lambda i: i + 3),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_what_the_model_computes(name: str) -> None:
    """Towards zero on both sides, in the model's own type and for every row."""
    body, want = WHOLE[name]
    numbers = {"three": np.int64(3), "axes": np.int64([1]), "ten": np.float32(10)}
    held = {k: v for k, v in numbers.items() if f"{k})" in body or k == "ten"}
    start, end = (
        "z = MatMul (x, w) t = Mul (z, ten) i = Cast <to = 7> (t)",
        "f = Cast <to = 1> (q) y = Add (z, f)",
    )
    compiled = compile_model(model(f"{start} {body} {end}", **held), DeepShap(REFERENCES), targets="all")
    answer = compiled.explain(X)
    i = np.trunc((X @ W) * np.float32(10))
    assert (i < -3).any()
    np.testing.assert_allclose(answer["y"], X @ W + want(i), atol=1e-5)
    assert np.abs(answer["completeness_gap"]).max() < 1e-4


@pytest.mark.parametrize("axis", [1, -2])
def test_each_slice_is_quantised_by_a_scale_of_its_own_that_is_computed(axis: int) -> None:
    how = f"<axis = {axis}>"
    body = f"""a = Abs (x) m = ReduceMax <keepdims = 0> (a, axes) s = Div (m, most)
        q = QuantizeLinear {how} (x, s, zeros) y = DequantizeLinear {how} (q, s, zeros)"""
    held = {"axes": np.int64([0, 2]), "most": np.float32(100), "zeros": np.int8([1, -2, 3])}
    model = parsed(f"g (float[1, 3, 4] x) => (float[1, 3, 4] y) {{ {body} }}", held)
    x, references = rows(2, 3, 4, seed=7), rows(K, 3, 4, seed=8)
    answer = compile_model(model, DeepShap(references), targets="all").explain(x)
    scale = np.abs(x).max(axis=2, keepdims=True) / np.float32(100)
    np.testing.assert_allclose(answer["y"], np.round(x / scale) * scale, atol=1e-5)
    assert np.abs(answer["completeness_gap"]).max() < 1e-4


def test_weights_of_8_bits_beside_the_explained_path_are_not_rounded_again() -> None:
    """ONNX Runtime takes a DequantizeLinear, a Conv of floats and a QuantizeLinear for what has 8 bits."""
    random = np.random.default_rng(5)
    quantised = parsed(
        f"g (float[N, {FEATURES}] x, uint8[N, 2, 6, 6] image) => (float[N, 4] y) {{"
        "i = QLinearConv (image, s, z, v, vs, vz, t, z) j = DequantizeLinear (i, t, z)"
        "f = Flatten (j) m = MatMul (f, b) k = MatMul (x, w) y = Add (k, m) }",
        {
            "w": W,
            "s": np.float32(0.1),
            "z": np.uint8(3),
            "v": random.integers(-5, 6, (3, 2, 3, 3)).astype(np.int8),
            "vs": np.asarray([0.1, 0.2, 0.07], np.float32),
            "vz": np.zeros(3, np.int8),
            "t": np.float32(0.37),
            "b": random.standard_normal((48, 4)).astype(np.float32),
        },
    )
    images = random.integers(0, 256, (64, 2, 6, 6)).astype(np.uint8)
    x = rows(64, FEATURES, seed=6)
    compiled = compile_model(quantised, DeepShap({"x": REFERENCES}), inputs=["x"], targets="all")
    inputs = {"x": x, "image": images}
    (want,) = onnxruntime.InferenceSession(quantised.SerializeToString()).run(["y"], inputs)
    np.testing.assert_array_equal(
        compiled.explain(inputs)["y"], want
    )  # halves of a step on the same side too


@pytest.mark.parametrize("opset", [13, 21])
def test_a_quantised_layer_beside_the_path_may_be_reshaped(opset: int) -> None:
    """ONNX Runtime cannot load a DequantizeLinear of int8 before a Reshape, which a Flatten becomes."""
    beside = parsed(
        "g (float[N, 5] x, float[N, 3, 4] side) => (float[N, 4] y) { "
        "q = QuantizeLinear (side, s, o) k = Clip (q) d = DequantizeLinear (k, s, o) f = Flatten (d) "
        "a = MatMul (f, v) t = Tanh (a) z = MatMul (x, w) h = Tanh (z) y = Mul (t, h) }",
        {"w": W, "v": rows(12, 4, seed=4), "s": S, "o": Z},
        opsets=f'"" : {opset}',
    )
    compiled = compile_model(beside, DeepShap({"x": REFERENCES}), targets="all", inputs=["x"])
    inputs = {"x": X, "side": rows(ROWS, 3, 4, seed=5)}
    np.testing.assert_allclose(compiled.explain(inputs)["y"], run64(beside, inputs)["y"], atol=1e-5)


def test_a_place_that_nothing_is_missed_by_is_a_note() -> None:
    """The values that it chooses carry all attributions. Those of a constant table carry none."""
    body, _ = ENDS["a place that is computed"]
    moving = model(f"z = MatMul (x, w) {body} y = Add (z, p)", four=np.int64(4))
    manifest = compile_model(moving, DeepShap(REFERENCES), targets="all").manifest
    assert [(s.node, s.tensor) for s in manifest.stopped] == [("pick", "v")]
    assert manifest.warnings == ()
    (note,) = manifest.notes
    assert note.endswith(f": GatherElements 'pick' reads 'v': {AMONG_CARRIERS}")
    of_gradient = compile_model(moving, Gradient(), targets="all").manifest  # which promises no sum
    assert any(w.startswith("attributions end") for w in of_gradient.warnings)
    assert of_gradient.notes == ()
    table = moving.graph.node[-2]
    assert table.name == "pick"
    table.op_type, table.input[0] = "Gather", "column"
    del table.attribute[:]
    moving.graph.initializer.append(onnx.numpy_helper.from_array(rows(4, seed=7), "column"))
    manifest = compile_model(moving, DeepShap(REFERENCES), targets="all").manifest
    assert manifest.notes == ()
    assert manifest.warnings[0].startswith("attributions end, ")
