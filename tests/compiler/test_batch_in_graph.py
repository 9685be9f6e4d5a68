"""Where exporters leave the batch in a graph: in sizes and places that are computed, inside another axis."""

import numpy as np
import onnx
import pytest

from compiler import DeepShap, compile_model
from compiler.runtime import Runner
from tests.compiler.models import parsed, rows

X, REFERENCES = rows(3, 4, 6, seed=1), rows(5, 4, 6, seed=2)
WEIGHTS = {
    "w": rows(6, 6, seed=3) / 2,
    "b": rows(6, seed=4),
    "head": rows(24, 2, seed=5),
    "token": rows(1, 1, 6, seed=6),
    "flat": np.array([-1]),
    "all": np.array([-1, 24]),
    "six": np.array([6]),
    "three": np.array([3]),
    "tall": np.array([-1, 6]),
    "one": np.array([1]),
    "zero": np.array([0]),
    "two": np.array([2]),
    "axes": np.array([1, 2]),
    "start": np.int64(0),
    "step": np.int64(1),
    "row": np.int64(24),
    "places": np.arange(24).reshape(1, 4, 6),
    "some": np.arange(24).reshape(1, 4, 6)[:, ::-1].copy(),
}
_BATCH = "n = Shape <start = 0, end = 1> (x)"
_END = "t = Tanh (h) r = Reshape (t, all) y = MatMul (r, head)"


def _strided(places: str) -> str:
    """torch.export's as_strided: places of all rows at once in what lies flat."""
    return f"""{_BATCH}
        count = Squeeze (n, zero)
        numbers = Range (start, count, step)
        starts = Mul (numbers, row)
        wide = Unsqueeze (starts, axes)
        index = Add (wide, {places})
        a = MatMul (x, w)
        f = Reshape (a, flat)
        h = Gather (f, index)
        {_END}"""


GRAPHS = {
    "all places of each row": _strided("places"),
    "places in another order": _strided("some"),
    "windows, their number computed": f"""{_BATCH}
        windows = Mul (n, two)
        d = Div (six, two)
        c = Cast <to = 7> (d)
        target = Concat <axis = 0> (n, two, two, c, two)
        v = Reshape (x, target)
        p = Transpose <perm = [0, 1, 3, 2, 4]> (v)
        into = Concat <axis = 0> (windows, c, two, two)
        q = Reshape (p, into)
        e = Exp (q)
        s = ReduceSum <keepdims = 1> (e, one)
        z = Div (e, s)
        back = Concat <axis = 0> (n, two, c, two, two)
        u = Reshape (z, back)
        h = Transpose <perm = [0, 1, 3, 2, 4]> (u)
        {_END}""",
    "the batch inside axis 0": f"""
        m = Transpose <perm = [1, 0, 2]> (x)
        f = Reshape (m, tall)
        g = Gemm (f, w, b)
        {_BATCH}
        target = Concat <axis = 0> (four, n, six)
        u = Reshape (g, target)
        h = Transpose <perm = [1, 0, 2]> (u)
        {_END}""",
    "a token for each row": f"""{_BATCH}
        shape = Concat <axis = 0> (n, one, one)
        k = Expand (token, shape)
        c = Concat <axis = 1> (k, x)
        l = LayerNormalization <axis = -1> (c, b)
        m = MatMul (l, w)
        h = Slice (m, one, five, one)
        {_END}""",
}


def _model(name: str) -> onnx.ModelProto:
    text = f"g (float[N, 4, 6] x) => (float[N, 2] y) {{ {GRAPHS[name]} }}"
    return parsed(text, {**WEIGHTS, "four": np.array([4]), "five": np.array([5])})


@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_explained_row_by_row(name: str) -> None:
    model = _model(name)
    compiled = compile_model(model, DeepShap(REFERENCES), targets="all")
    answer = compiled.explain(X)
    np.testing.assert_allclose(answer["y"], Runner(model)({"x": X})["y"], atol=1e-5)
    base = Runner(model)({"x": REFERENCES})["y"].mean(axis=0)
    np.testing.assert_allclose(answer["base_value"], np.tile(base, (3, 1)), atol=1e-5)
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert difference > 0.1
    assert np.abs(answer["completeness_gap"]).max() <= 1e-5 * difference
    for i in range(len(X)):
        alone = compiled.explain(X[i : i + 1])["x_attributions"]
        np.testing.assert_allclose(alone[0], answer["x_attributions"][i], atol=1e-6)
