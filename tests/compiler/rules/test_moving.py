"""Operators that move values to places which another input says, or which are computed."""

import numpy as np
import onnx
import pytest

from rationale import DeepShap, Gradient, compile_model
from rationale.errors import UnsupportedModelError
from tests.compiler.models import parsed
from tests.tolerances import COMPLETE_32

N, K = 3, 4
RANDOM = np.random.default_rng(3)


def _rows(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def _model(body: str, result: str, x: str = "float[N, 5, 3] x", more: str = "") -> onnx.ModelProto:
    inputs = ", ".join(v for v in (x, more) if v)
    return parsed(f"g ({inputs}) => (float[{result}] y) {{ {body} }}")


def test_places_of_another_input_are_each_rows_own() -> None:
    places = RANDOM.integers(-5, 5, (N, 2, 3))
    x, references = _rows(N, 5, 3), _rows(K, 5, 3)
    model = _model("y = GatherElements<axis = 1>(x, i)", "N, 2, 3", more="int64[N, 2, 3] i")
    answer = compile_model(model, DeepShap(references), targets="all").explain({"x": x, "i": places})
    want = np.zeros((N, 6, 5, 3), np.float32)
    for n, t in np.ndindex(N, 6):
        j, k = np.unravel_index(t, (2, 3))
        place = places[n, j, k] % 5, k
        want[n, t][place] = x[n][place] - references[:, *place].mean()
    np.testing.assert_allclose(answer["x_attributions"], want, atol=1e-6)


def test_values_picked_where_the_model_looks_share_what_they_differ_by() -> None:
    """x's largest value is taken at another place than r's: half by each, the rest in proportion."""
    body = """
        far = ArgMax<axis = 1, keepdims = 1>(x)
        y = GatherElements<axis = 1>(x, far)
    """
    model = _model(body, "N, 1, 3")
    x, references = _rows(N, 5, 3), _rows(K, 5, 3)
    answer = compile_model(model, DeepShap(references), targets="all").explain({"x": x})
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32
    total = answer["x_attributions"].sum(axis=(2, 3))
    want = x.max(axis=1) - references.max(axis=1).mean(axis=0)
    np.testing.assert_allclose(total, want, atol=1e-5)
    gradient = compile_model(model, Gradient(), targets="all").explain({"x": x})["x_attributions"]
    for n, t in np.ndindex(N, 3):
        one_hot = np.zeros((5, 3), np.float32)
        one_hot[x[n, :, t].argmax(), t] = 1
        np.testing.assert_array_equal(gradient[n, t], one_hot)


def test_a_tensor_of_which_only_the_shape_counts_carries_nothing() -> None:
    body = """
        zero = Constant<value = int64[1] {0}>()
        table = Squeeze(x, zero)
        eye = EyeLike<k = 1>(table)
        trace = Mul(table, eye)
        y = Unsqueeze(trace, zero)
    """
    model = _model(body, "1, 2, 3", x="float[1, 2, 3] x")
    answer = compile_model(model, Gradient(), targets=[1, 3]).explain({"x": _rows(N, 2, 3)})
    want = np.zeros((N, 2, 2, 3), np.float32)
    want[:, 0, 0, 1] = 1
    np.testing.assert_array_equal(answer["x_attributions"], want)


def test_a_part_whose_size_is_computed_is_refused() -> None:
    body = "v = Constant<value = float[5] {1, 2, 3, 4, 5}>() c = Greater(v, p) y = Compress<axis = 1>(x, c)"
    model = _model(body, "N, M, 3", more="float p")
    with pytest.raises(UnsupportedModelError, match=r"\bCompress\b"):
        compile_model(model, Gradient(), inputs=["x"])


@pytest.mark.parametrize(
    ("pads", "h", "w"), [("", 4, 6), (", pads = [1, 0, 0, 1]", 3, 5)], ids=["whole", "padded"]
)
def test_a_max_pool_undone_moves_values_to_where_they_were(pads: str, h: int, w: int) -> None:
    body = f"""
        top, places = MaxPool<kernel_shape = [2, 2], strides = [2, 2]{pads}>(x)
        scaled = Mul(top, w)
        y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]{pads}>(scaled, places)
    """
    model = _model(body, f"N, 2, {h}, {w}", x=f"float[N, 2, {h}, {w}] x, float[N, 2, 2, 3] w")
    x = {"x": _rows(N, 2, h, w), "w": _rows(N, 2, 2, 3)}
    references = {"x": _rows(K, 2, h, w), "w": _rows(K, 2, 2, 3)}
    compiled = compile_model(model, DeepShap(references), targets="all")
    answer = compiled.explain(x)
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32
    one_by_one = [compiled.explain({k: v[i : i + 1] for k, v in x.items()}) for i in range(N)]
    for name in ("x_attributions", "w_attributions"):
        together = np.concatenate([a[name] for a in one_by_one])
        np.testing.assert_allclose(answer[name], together, atol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "parts", "frequencies"),
    [
        ("", 1, 10),
        ("", 2, 10),
        ("inverse = 1", 2, 10),
        ("onesided = 1", 1, 6),
        ("onesided = 1, inverse = 1", 2, 18),
    ],
)
def test_long_transforms_are_sent_back_by_transforms(
    attributes: str, parts: int, frequencies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = 1 if "inverse" in attributes and "onesided" in attributes else 2
    body = f"axis = Constant<value = int64 {{1}}>() y = DFT{attributes and f'<{attributes}>'}(x, , axis)"
    model = _model(body, f"N, {frequencies}, 3, {last}", x=f"float[N, 10, 3, {parts}] x")
    x = {"x": _rows(N, 10, 3, parts)}
    by_matrix = compile_model(model, Gradient(), targets="all").explain(x)["x_attributions"]
    monkeypatch.setattr("rationale.rules.linear.spectrum.LONGEST_MATRIX", 0)
    by_transform = compile_model(model, Gradient(), targets="all").explain(x)["x_attributions"]
    np.testing.assert_allclose(by_transform, by_matrix, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_places_close_to_each_other_on_two_sides_of_a_border_add_up(mode: str) -> None:
    """A step of the slope, or of the value, lies between a place and the reference's, which are close."""
    model = parsed(
        "g (float[N, 1, 2, 4] plane, float[N, 1, 3, 2] x) => (float[N, 1, 1, 3] y) {"
        f'y = GridSample<mode = "{mode}", align_corners = 1>(plane, x) }}'
    )
    border = {"linear": -1 / 3, "nearest": 0.0}[mode]
    r, x = np.full((2, 1, 1, 3, 2), 0.25, np.float32)
    r[..., 0] = border - np.float32([1e-4, 1e-6, 0.2])
    x[..., 0] = border + np.float32([1e-4, 1e-6, 0.1])
    compiled = compile_model(model, DeepShap({"x": r}), inputs=["x"], targets="all")
    answer = compiled.explain({"x": x, "plane": _rows(1, 1, 2, 4)})
    difference = np.abs(answer["explained_value"] - answer["base_value"])
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference.max()
    each = answer["x_attributions"].sum(axis=(2, 3, 4)) - (answer["explained_value"] - answer["base_value"])
    assert np.abs(each).max() <= 1e-5  # 32 roundings of values about 1, at both places
