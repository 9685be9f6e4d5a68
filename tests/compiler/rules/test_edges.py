"""Rules at the edges of what their operators take: the last step of integers, and masked values."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from rationale import DeepShap, Gradient, compile_model
from tests.compiler.models import parsed, rows

SECANT_32 = 1e-5  # of the difference


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


GENERAL, POSITIVE = (-2.0, 0.7, 3.0), (0.5, 20.0, 1000.0)
POW = {"half": np.float32(0.5), "real": np.float32(1.7), "five": np.float32(5), "minus": np.float32(-1.5)}
SECANTS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray], tuple[float, ...]]] = {
    "Exp": ("Exp (x)", np.exp, GENERAL),
    "Tanh": ("Tanh (x)", np.tanh, (-1.0, 0.7, 1.5)),
    "Sigmoid": ("Sigmoid (x)", lambda x: 1 / (1 + np.exp(-x)), GENERAL),
    "Softsign": ("Softsign (x)", lambda x: x / (1 + np.abs(x)), GENERAL),
    "Log": ("Log (x)", np.log, POSITIVE),
    "Sqrt": ("Sqrt (x)", np.sqrt, POSITIVE),
    "Reciprocal": ("Reciprocal (x)", lambda x: 1 / x, POSITIVE),
    **{
        f"Pow {name}": (f"Pow (x, {name})", lambda x, n=float(n): x**n, (0.5, 2.0, 20.0))
        for name, n in POW.items()
    },
}
APART = [0.5, 0.1, 0.01, 1e-3, 1e-4]


@pytest.mark.parametrize("name", SECANTS)
def test_a_secant_keeps_its_digits_as_its_ends_come_near(name: str) -> None:
    """Compare with (f(x) − f(r))/(x − r) in float64; in float32 this difference has few digits."""
    body, function, places = SECANTS[name]
    r = np.repeat(np.float32(places), 2 * len(APART))[None]
    x = (r * (1 + np.tile([*APART, *(-a for a in APART)], len(places)))).astype(np.float32)
    graph = f"g (float[N, {r.size}] x) => (float[N, {r.size}] y) {{ y = {body} }}"
    held = {each: number for each, number in POW.items() if each in body}
    compiled = compile_model(parsed(graph, held), DeepShap(r), targets="all")
    ours = np.diagonal(compiled.explain(x)["x_attributions"][0])
    a, b = x[0].astype(np.float64), r[0].astype(np.float64)
    np.testing.assert_allclose(ours, function(a) - function(b), rtol=SECANT_32)


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [(1, 3, 6), (2, 3, 7), (2, 3, 8), (3, 2, 8), (2, 4, 5)]
)
@pytest.mark.parametrize("pad", [0, 1])
def test_no_window_of_an_lp_pool_begins_behind_the_last_value(
    pad: int, kernel: int, stride: int, size: int
) -> None:
    """ONNX Runtime drops such a window with ceil_mode, although ONNX's shape inference counts it."""
    pads = [min(pad, kernel - 1), 0]
    how = f"kernel_shape = [{kernel}], strides = [{stride}], pads = {pads}, ceil_mode = 1"
    text = f"g (float[N, 1, {size}] x) => (float[N, 1, A] y) {{ y = LpPool <{how}> (x) }}"
    x = rows(2, 1, size)
    answer = compile_model(parsed(text), Gradient(times_input=True), targets=[0]).explain(x)
    starts = range(-pads[0], size, stride)
    last = next((i for i in starts if i + kernel >= size), starts[-1])
    windows = [x[:, 0, max(i, 0) : i + kernel] for i in starts if i <= last]
    y = np.stack([np.linalg.norm(window, axis=1) for window in windows], axis=1)
    np.testing.assert_allclose(answer["y"][:, 0], y, rtol=1e-6)
    np.testing.assert_allclose(answer["x_attributions"].sum(axis=(1, 2, 3)), y[:, 0], rtol=1e-6)
