"""Rules at the edges of what their operators take: the last step of integers, and masked values."""

import numpy as np
import onnx
import pytest

from rationale import DeepShap, Gradient, compile_model
from tests.compiler.models import parsed, rows


@pytest.mark.parametrize(
    ("zero", "low", "high"),
    [("uint8 z = {10}", -10, 245), ("int8 z = {-3}", -125, 130), ("int8 z = {0}", -128, 127)],
)
def test_the_gradient_of_rounding_goes_as_far_as_what_rounds_to_the_last_step(
    zero: str, low: int, high: int
) -> None:
    """Half a step beyond it, the number is cut off."""
    levels = [low - 0.6, low - 0.4, low, 0.3, high, high + 0.4, high + 0.6]
    text = f"""g (float[N, {len(levels)}] x) => (float[N, {len(levels)}] y) <float s = {{0.5}}, {zero}> {{
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = Mul (d, d) }}"""
    x = np.array([levels], np.float32) * 0.5
    compiled = compile_model(parsed(text), Gradient(), targets="all")
    gradient = np.diagonal(compiled.explain(x)["x_attributions"][0])
    due = 2 * np.clip(np.round(levels), low, high) * 0.5
    assert gradient.tolist() == pytest.approx([0.0, *due[1:-1], 0.0])


def test_what_is_masked_everywhere_has_no_attribution() -> None:
    text = """g (float[N, 4] x) => (float[N, 1] y)
        <float[1, 4] mask = {0, 0, 0, 0}, int64[1] last = {1}>
        { m = Add (x, mask) y = ReduceLogSumExp (m, last) }"""
    model = parsed(text)
    (mask,) = (tensor for tensor in model.graph.initializer if tensor.name == "mask")
    mask.CopyFrom(onnx.numpy_helper.from_array(np.array([[0, 0, -np.inf, 0]], np.float32), "mask"))
    x, references = rows(3, 4), rows(2, 4, seed=1)
    answer = compile_model(model, DeepShap(references)).explain(x)
    shown = answer["x_attributions"][:, 0]
    assert np.isfinite(shown).all()
    assert (shown[:, 2] == 0).all()
    expected = answer["explained_value"][:, 0] - answer["base_value"][:, 0]
    np.testing.assert_allclose(shown.sum(axis=1), expected, atol=1e-5)
