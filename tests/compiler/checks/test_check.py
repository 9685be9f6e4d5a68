"""What every compile refuses to write."""

import contextlib
import math
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from sklearn.gaussian_process import GaussianProcessRegressor

from rationale import DeepShap, Gradient, compile_model
from rationale.artifact.checks.check import GAP_WARNING, adds_up, demand
from rationale.errors import CheckFailedError, UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.runtime.session import Runner
from rationale.graph.tensor import Tensor
from rationale.methods.engine import Gap
from rationale.rules import rule
from rationale.terminal import _measured_lines
from tests.compiler.models import mlp, parsed, rows

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside what it imports
    from skl2onnx import to_onnx

REFERENCES = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)


def test_weights_that_are_not_numbers_are_refused() -> None:
    model = mlp()
    weight = next(t for t in model.graph.initializer if len(t.dims) == 2)
    array = numpy_helper.to_array(weight).copy()
    array[0, 0] = np.nan
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    features = weight.dims[0]
    with pytest.raises(CheckFailedError, match="NaN"):
        compile_model(model, DeepShap(np.ones((3, features), np.float32)))


@pytest.mark.parametrize(
    ("gap", "size", "expected"),
    [
        (Gap.ROUNDING, 0.0, True),
        (Gap.ROUNDING, GAP_WARNING, True),
        (Gap.ROUNDING, math.nextafter(GAP_WARNING, 1), False),  # of which a compile warns
        (Gap.ROUNDING, math.nan, False),
        (Gap.ROUNDING, None, False),  # not measured
        *((gap, 0.0, False) for gap in (None, Gap.QUADRATURE, Gap.SAMPLING, Gap.ABSORBED)),
    ],
)
def test_what_adds_up_is_what_a_compile_does_not_warn_of(
    gap: Gap | None, size: float | None, expected: bool
) -> None:
    measured: Any = SimpleNamespace(completeness_gap=size)
    assert adds_up(measured, gap) is expected


@pytest.mark.parametrize("method", [DeepShap(REFERENCES), Gradient()], ids=["deepshap", "gradient"])
def test_rows_that_mix_through_their_values_are_refused(method: DeepShap | Gradient) -> None:
    """Shapes are innocent here: each row has the batch's first row taken from it."""
    model = parsed(
        "g (float[N, 5] x) => (float[N, 1] y)"
        " { z = Constant <value_ints = [0]> () o = Constant <value_ints = [1]> ()"
        "   first = Slice (x, z, o, z) d = Sub (x, first) s = Tanh (d) y = ReduceSum <keepdims = 1> (s, o) }"
    )
    with pytest.raises(UnsupportedModelError, match="mix"):
        compile_model(model, method)


def test_an_output_without_axes_stays_what_it_is() -> None:
    model = parsed(
        "g (float[N, 5] x) => (float[N, 5] y, float level)"
        " { y = Tanh (x) level = ReduceMax <keepdims = 0> (y) }"
    )
    answer = compile_model(model, DeepShap(REFERENCES), targets=[3]).explain(REFERENCES + 1)
    assert answer["level"] == answer["y"].max()


def test_names_like_ours_are_the_models_to_keep() -> None:
    model = parsed("g (float[N, 5] x) => (float[N, 5] y) { reference = Tanh (x) y = Sigmoid (reference) }")
    for node in model.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = "reference/x" if name == "reference" else name
    compiled = compile_model(model, DeepShap(REFERENCES), targets=[3])
    gap = compiled.explain(REFERENCES + 1)["completeness_gap"]
    assert np.abs(gap).max() <= 1e-6


@pytest.mark.parametrize("bias", np.linspace(0.1, 2, 25))
def test_a_network_that_is_constant_near_its_references_compiles(bias: float) -> None:
    """Its largest difference is a rounding of the mean, so the gap has nothing to be compared with."""
    model = parsed(
        "g (float[N, 3] x) => (float[N, 1] p)"
        " { h = Gemm (x, w, b) a = Relu (h) z = Gemm (a, v, c) p = Sigmoid (z) }"
    )
    weights = {"w": np.full((3, 2), 0.01), "b": [-100, -90], "v": [[1], [2]], "c": [bias]}
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    compiled = compile_model(model, DeepShap(REFERENCES[:, :3]))
    assert np.array_equal(
        compiled.explain(REFERENCES[:, :3])["x_attributions"], np.zeros((7, 1, 3), np.float32)
    )


def test_float16_is_complete_to_the_precision_of_float32() -> None:
    model = parsed("g (float16[N, 5] x) => (float16[N, 5] y) { a = Sigmoid (x) b = Relu (a) y = Tanh (b) }")
    references = REFERENCES.astype(np.float16)
    compiled = compile_model(model, DeepShap(references), targets=[1])
    answer = compiled.explain(references[::-1].copy())
    assert np.abs(answer["completeness_gap"]).max() <= 4 * np.finfo(np.float32).eps
    assert np.abs(answer["explained_value"] - answer["base_value"]).max() > 0.01


def test_a_second_output_without_a_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parsed(
        "g (float[N, 6] x) => (float[N, 3] z) { a, b = Split <axis = 1> (x, s) z = Mul (a, b) }",
        {"s": [3, 3]},
    )

    def first_part(op: Ops, x: Tensor, _: Tensor, *, axis: int) -> rule.Evaluation:
        return op.Slice(x, [0], [3], [axis]), (lambda m: op.Pad(m, [0, 3], None, [axis]), None)

    monkeypatch.setitem(rule._RULES, ("", "Split"), rule.Rule("Split", "", rule.Kind.BILINEAR, first_part))
    with pytest.raises(UnsupportedModelError, match=r"Split.*'b'"):
        compile_model(model, Gradient(), targets=[0])


@pytest.mark.parametrize(
    ("rounding", "error", "fine"), [(0.0, 9e-5, True), (0.0, 2e-4, False), (3e-5, 2e-4, True)]
)
@pytest.mark.parametrize("which", ["rounding", "own_rounding"])
def test_outputs_may_differ_by_what_another_order_changes(
    which: str, rounding: float, error: float, fine: bool
) -> None:
    """A deep network that cancels loses more than float32's rounding, with or without our graph."""
    measured = compile_model(mlp(), Gradient()).manifest.measured
    update = {which: rounding, "outputs_error": error, "completeness_gap": 0.0}
    measured = measured.model_copy(update=update)
    with contextlib.nullcontext() if fine else pytest.raises(CheckFailedError, match="outputs differ"):
        warnings = demand(measured, Gap.ROUNDING)
        assert len(warnings) == (which == "own_rounding" and rounding > 0)


def process(dtype: type[np.floating[Any]]) -> tuple[onnx.ModelProto, np.ndarray]:
    """A gaussian process of 100 rows: 1000·Σ α·exp(−d²/2), whose α add up to almost nothing."""
    random = np.random.default_rng(3)
    x = random.standard_normal((100, 3))
    y = x @ random.standard_normal(3) + 0.3 * np.sin(3 * x[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a length scale at its bound
        fitted = GaussianProcessRegressor(alpha=0.1).fit(x, y)
        return to_onnx(fitted, x[:1].astype(dtype)), x[:7].astype(dtype)


def test_a_gaussian_process_in_float32_is_told_that_float64_holds_it() -> None:
    """Both graphs are as far from the model in float64 as from each other."""
    model, references = process(np.float32)
    compiled = compile_model(model, DeepShap(references))
    measured = compiled.manifest.measured
    assert 1e-4 < measured.outputs_error <= 8 * measured.own_rounding
    (warning,) = [w for w in compiled.manifest.warnings if "float64" in w]
    assert f"{measured.own_rounding:.1e}" in warning
    assert f"{measured.outputs_error:.1e}" in warning


def test_a_gaussian_process_in_float64_is_exact() -> None:
    model, references = process(np.float64)
    compiled = compile_model(model, DeepShap(references))
    assert compiled.manifest.warnings == ()
    assert compiled.manifest.measured.outputs_error <= 1e-9
    gap = compiled.manifest.measured.completeness_gap
    assert gap is not None
    assert gap <= 1e-9


def test_layers_on_whole_numbers_are_named_where_they_answer_otherwise() -> None:
    """A product of whole numbers ends in a half at every tenth, and takes another side by another factor."""
    model = parsed(
        """g (float[N, 200] x) => (float[N, 200] y) {
            q = QuantizeLinear (x, s, o)  d = DequantizeLinear (q, s, o)  m = Mul (d, d)
            p = QuantizeLinear (m, s, o)  y = DequantizeLinear (p, s, o)
        }""",
        {"s": np.float32(0.02), "o": np.uint8(128)},
    )
    compiled = compile_model(model, DeepShap(rows(5, 200)), targets=[0])
    measured, (warning,) = compiled.manifest.measured, compiled.manifest.warnings
    x = {"x": rows(50, 200, seed=1)}
    fused, apart = (Runner(model, fuse_integers=fuse)(x)["y"] for fuse in (True, False))
    assert np.abs(fused - apart).max() > 0.01
    assert measured.own_rounding == 0
    assert measured.fused_integers == pytest.approx(measured.outputs_error)
    assert "session.disable_quant_qdq=1" in warning
    assert f"{measured.fused_integers:.1e}" in warning
    np.testing.assert_array_equal(compiled.explain(x["x"])["y"], apart)


def test_outputs_that_are_wrong_are_refused_where_float32_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(op: Ops, x: Tensor) -> rule.Evaluation:
        return op.Mul(op.Relu(x), 1.001), lambda m: m

    monkeypatch.setitem(rule._RULES, ("", "Relu"), rule.Rule("Relu", "", rule.Kind.BILINEAR, too_large))
    with pytest.raises(CheckFailedError, match=r"outputs differ .* Please report"):
        compile_model(mlp(last="Identity"), Gradient())


@pytest.mark.parametrize(
    ("rounding", "gap", "fine"),
    [(0.0, 9e-3, True), (0.0, 2e-2, False), (3e-3, 2e-2, True), (2e-3, 2e-2, False)],
)
def test_a_gap_may_be_what_another_order_changes(rounding: float, gap: float, fine: bool) -> None:
    """Where float32 does not hold the model's own outputs, the user is told so."""
    measured = compile_model(mlp(), Gradient()).manifest.measured
    measured = measured.model_copy(update={"gap_rounding": rounding, "completeness_gap": gap})
    if not fine:
        with pytest.raises(CheckFailedError, match="please report"):
            demand(measured, Gap.ROUNDING)
        return
    (warning,) = demand(measured, Gap.ROUNDING)
    assert ("float64" in warning) == (gap > 1e-2)


def cancelling(bias: float) -> onnx.ModelProto:
    """A convolution with a bias that the mean of a normalisation takes away again."""
    model = """g (float[N, 2, 4, 4] x) => (float[N, 3] y) <int64[2] axes = {2, 3}> {
        c = Conv (x, k, b)  n = BatchNormalization (c, one, zero, b, one)
        t = Tanh (n)  m = Neg (t)  y = ReduceMean <keepdims = 0> (m, axes)
    }"""
    channels = {"b": np.full(3, bias), "one": np.ones(3), "zero": np.zeros(3)}
    return parsed(model, {"k": rows(3, 2, 3, 3), **{n: v.astype(np.float32) for n, v in channels.items()}})


def test_what_float32_does_not_hold_is_told_and_not_refused() -> None:
    """ONNX Runtime folds the normalisation into the convolution, or not, and answers otherwise by a tenth."""
    compiled = compile_model(cancelling(1e7), DeepShap(rows(3, 2, 4, 4)), targets=[0])
    assert any("float64" in w for w in compiled.manifest.warnings)
    assert compiled.manifest.measured.gap_rounding > 1e-2


def test_an_incomplete_rule_is_refused_where_float32_holds_the_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_much(op: Ops, x: Tensor) -> rule.Evaluation:
        return op.Neg(x), lambda m: op.Mul(m, -1.1)

    monkeypatch.setitem(rule._RULES, ("", "Neg"), rule.Rule("Neg", "", rule.Kind.BILINEAR, too_much))
    with pytest.raises(CheckFailedError, match="please report"):
        compile_model(cancelling(0), DeepShap(rows(3, 2, 4, 4)), targets=[0])


def test_a_quotient_whose_parts_do_not_cancel_in_float32_is_refused_by_that_name() -> None:
    """Shares of a/b at b = 1e-6 are of a size that leaves nothing of their sum."""
    text = "g (float[N, 2] x) => (float[N, 2] y) { a = Relu (x) b = Add (a, least) y = Div (a, b) }"
    model = parsed(text, {"least": np.float32(1e-7)})
    with pytest.raises(CheckFailedError, match=r"exactshap.*permutationshap"):
        compile_model(model, DeepShap(np.array([[-1, 2]], np.float32)), targets=[0])


def tanh_network() -> onnx.ModelProto:
    model = "g (float[N, 5] x) => (float[N, 3] y) { h = MatMul (x, w) a = Tanh (h) y = MatMul (a, v) }"
    return parsed(model, {"w": rows(5, 4), "v": rows(4, 3)})


@pytest.mark.parametrize("references", [np.zeros((1, 5)), np.zeros((3, 5)), 1e-3 * REFERENCES])
def test_a_gradient_in_place_of_a_secant_is_refused_where_the_references_are_zeros(
    references: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the references both are the same."""

    def with_its_gradient(op: Ops, x: Tensor) -> rule.Evaluation:
        y = op.Tanh(x)
        return y, lambda m: op.Mul(m, op.Sub(1.0, op.Mul(y, y)))

    wrong = rule.Rule("Tanh", "", rule.Kind.POINTWISE, with_its_gradient)
    wrong.secant(lambda op, *operands: op.Sub(1.0, op.Mul(operands[2], operands[2])))
    monkeypatch.setitem(rule._RULES, ("", "Tanh"), wrong)
    with pytest.raises(CheckFailedError, match=r"exactshap.*permutationshap"):
        compile_model(tanh_network(), DeepShap(references.astype(np.float32)), targets=[0])


@pytest.mark.parametrize("references", [np.zeros((1, 5)), 1e-3 * REFERENCES, REFERENCES, 1e4 * REFERENCES])
def test_a_complete_rule_passes_at_any_scale_of_the_references(references: np.ndarray) -> None:
    compiled = compile_model(tanh_network(), DeepShap(references.astype(np.float32)), targets=[0])
    gap = compiled.manifest.measured.completeness_gap
    assert gap is not None
    assert gap <= 1e-5
    assert compiled.manifest.warnings == ()


def test_an_output_that_does_not_move_says_that_nothing_was_measured() -> None:
    model = parsed(
        "g (float[N, 5] x) => (float[N, 3] y) { h = MatMul (x, w) y = Sign (h) }",
        {"w": np.ones((5, 3), np.float32)},
    )
    compiled = compile_model(model, DeepShap(REFERENCES[:1] + 100), targets=[0])
    assert compiled.manifest.measured.completeness_gap is None
    (warning,) = compiled.manifest.warnings
    assert "not measured" in warning
    assert ("completeness gap", "not measured: the output does not move on the rows of the check") in list(
        _measured_lines(compiled.manifest)
    )


def test_floats_that_number_the_rows_of_a_table_stay_in_it() -> None:
    """A unit away from the last of them there is none."""
    model = parsed(
        "g (float[N, 2] x) => (float[N, 2] y) { id = Slice (x, z, o, o) i = Cast <to = 7> (id)"
        " e = Gather (t, i) f = Squeeze (e, o) h = Mul (x, f) y = Tanh (h) }",
        {"z": [0], "o": [1], "t": rows(1, 2)},
    )
    references = np.float32([[0, 0.3]])
    assert compile_model(model, DeepShap(references), targets=[1]).explain(references)["y"].shape == (1, 2)
