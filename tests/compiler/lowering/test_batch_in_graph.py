"""Where exporters leave the batch in a graph: in sizes and places that are computed, on other axes."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rationale import DeepShap, Gradient, compile_model
from rationale.errors import UnsupportedModelError
from rationale.graph.runtime.session import Runner
from rationale.lowering import lower
from rationale.lowering.batch import free_batch, how_rows_mix
from tests.compiler.models import parsed, rows

X, Z, REFERENCES = rows(3, 4, 6, seed=1), rows(3, 4, 6, seed=7), rows(5, 4, 6, seed=2)
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
    "four": np.array([4]),
    "five": np.array([5]),
    "heads": np.array([2, 2, 2]),
    "twice": np.array([2, 1, 1]),
    "axes": np.array([1, 2]),
    "start": np.int64(0),
    "back": np.int64(-3),
    "step": np.int64(1),
    "row": np.int64(24),
    "places": np.arange(24).reshape(1, 4, 6),
    "some": np.arange(24).reshape(1, 4, 6)[:, ::-1].copy(),
}
_BATCH = "n = Shape <start = 0, end = 1> (x)"
_END = "t = Tanh (h) r = Reshape (t, all) y = MatMul (r, head)"
_OVER = "m = Transpose <perm = [1, 0, 2]> (x)"
_BACK = "h = Transpose <perm = [1, 0, 2]> (u)"
_ATTENTION = """k = Transpose <perm = [0, 2, 1]> (q)
        s = MatMul (q, k)
        p = Softmax <axis = -1> (s)
        a = MatMul (p, q)"""


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
        inner = Concat <axis = 0> (n, two, c, two, two)
        u = Reshape (z, inner)
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
    "heads in front of the batch": f"""
        w1, w2, w3 = Split <axis = 2> (x, heads)
        q = Concat <axis = 0> (w1, w2, w3)
        {_ATTENTION}
        a1, a2, a3 = Split <axis = 0, num_outputs = 3> (a)
        h = Concat <axis = 2> (a1, a2, a3)
        {_END}""",
    "each row twice, in front of the batch": f"""{_BATCH}
        q = Tile (x, twice)
        {_ATTENTION}
        target = Concat <axis = 0> (two, n, four, six)
        u = Reshape (a, target)
        v = Exp (u)
        h = ReduceSum <keepdims = 0> (v, zero)
        {_END}""",
    "halves of what the batch is inside": f"""{_BATCH} {_OVER}
        f = Reshape (m, tall)
        g = MatMul (f, w)
        first, second = Split <axis = 0, num_outputs = 2> (g)
        c = Mul (first, second)
        target = Concat <axis = 0> (two, n, six)
        d = Reshape (c, target)
        e = Transpose <perm = [1, 0, 2]> (d)
        h = Concat <axis = 1> (e, e)
        {_END}""",
    "an axis in front, computed": f"""{_BATCH}
        target = Concat <axis = 0> (one, n, four, six)
        u = Reshape (x, target)
        v = Exp (u)
        c = Concat <axis = 0> (u, v)
        h = ReduceMax <keepdims = 0> (c, zero)
        {_END}""",
    "sizes beside the batch's, computed": f"""{_BATCH}
        d = Div (four, two)
        target = Concat <axis = 0> (n, d, flat, six)
        u = Reshape (x, target)
        w1, w2 = Split <axis = 1, num_outputs = 2> (u)
        h = Concat <axis = 1> (w2, w1)
        {_END}""",
    "TorchScript's expand": f"""{_BATCH}
        target = Concat <axis = 0> (n, flat, flat)
        rank = Shape (target)
        ones = ConstantOfShape <value = int64[1] {{1}}> (rank)
        minus = Mul (ones, flat)
        kept = Equal (target, minus)
        sizes = Where (kept, ones, target)
        k = Expand (token, sizes)
        c = Concat <axis = 1> (k, x)
        m = MatMul (c, w)
        h = Slice (m, one, five, one)
        {_END}""",
    "the batch last": f"""
        u = Transpose <perm = [2, 1, 0]> (x)
        v = Softmax <axis = 0> (u)
        h = Transpose <perm = [2, 1, 0]> (v)
        {_END}""",
    "the batch in a middle letter": f"""
        u = Einsum <equation = "nle,ef->lnf"> (x, w)
        v = Sigmoid (u)
        h = Einsum <equation = "lnf->nlf"> (v)
        {_END}""",
}


def _model(graph: str, inputs: str = "float[N, 4, 6] x", outputs: str = "float[N, 2] y") -> onnx.ModelProto:
    return parsed(f"g ({inputs}) => ({outputs}) {{ {graph} }}", WEIGHTS)


@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_explained_row_by_row(name: str) -> None:
    model = _model(GRAPHS[name])
    compiled = compile_model(model, DeepShap(REFERENCES), targets="all")
    assert "Scan" not in {n.op_type for n in compiled.model.graph.node}, "a row by itself is slow"
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


def test_a_step_that_one_row_alone_can_take_hides_nothing_of_the_others() -> None:
    """Of two rows no axis 0 can be squeezed; that the batch is on axis 1 for a while is seen all the same."""
    body = f"""{_OVER} a = Unsqueeze (m, zero) t = Tanh (a) u = Squeeze (t, zero) {_BACK}
        s = Squeeze (h, zero) e = Exp (s) y = Unsqueeze (e, zero)"""
    model = _model(body, "float[1, 4, 6] x", "float[1, 4, 6] y")
    assert not lower(model).single_row_only
    t = np.tanh(X.astype(np.float64))
    want = (np.exp(t) * (1 - t**2)).reshape(3, 1, 24) * np.eye(24)[[5, 23]]
    got = compile_model(model, Gradient(), targets=[5, 23]).explain(X)["x_attributions"].reshape(3, 2, 24)
    np.testing.assert_allclose(got, want, atol=1e-6)


BESIDE = {
    "inside another axis": """
        mz = Transpose <perm = [1, 0, 2]> (z)
        fz = Reshape (mz, tall)
        gz = MatMul (fz, w)
        f = Reshape (m, tall)
        c = Mul (f, gz)
        target = Concat <axis = 0> (four, n, six)
        u = Reshape (c, target)""",
    "on another axis": "mz = Transpose <perm = [1, 0, 2]> (z) gz = Softmax <axis = 0> (mz) u = Mul (m, gz)",
}


@pytest.mark.parametrize("name", BESIDE)
def test_an_input_that_is_not_explained_moves_its_batch_too(name: str) -> None:
    model = _model(f"{_BATCH} {_OVER} {BESIDE[name]} {_BACK} {_END}", "float[N, 4, 6] x, float[N, 4, 6] z")
    compiled = compile_model(model, DeepShap(REFERENCES), targets="all", inputs=["x"])
    answer = compiled.explain({"x": X, "z": Z})
    np.testing.assert_allclose(answer["y"], Runner(model)({"x": X, "z": Z})["y"], atol=1e-5)
    assert np.abs(answer["completeness_gap"]).max() <= 1e-5
    alone = compiled.explain({"x": X[1:2], "z": Z[1:2]})["x_attributions"]
    np.testing.assert_allclose(alone[0], answer["x_attributions"][1], atol=1e-6)


OUTPUTS = {
    "on another axis": ("float[1, N, 6] s", "u = Exp (m) s = Slice (u, zero, one, zero)"),
    "inside another axis": (
        "float[M, 6] s",
        "f = Reshape (m, tall) s = MatMul (f, w) "
        "target = Concat <axis = 0> (four, n, six) u = Reshape (s, target)",
    ),
    "nowhere": ("float s", "u = Exp (m) s = ReduceMean <keepdims = 0> (u)"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_is_not_explained_keeps_its_batch_where_it_is(name: str) -> None:
    output, graph = OUTPUTS[name]
    model = _model(f"{_BATCH} {_OVER} {graph} {_BACK} {_END}", outputs=f"float[N, 2] y, {output}")
    answer = compile_model(model, DeepShap(REFERENCES), targets="all").explain(X)
    for key, value in Runner(model)({"x": X}).items():
        np.testing.assert_allclose(answer[key], value, atol=1e-5)


MIXING = {
    "attention over the batch": f"{_OVER} q = Identity (m) k = Transpose <perm = [0, 2, 1]> (q) "
    "s = MatMul (q, k) p = Softmax <axis = -1> (s) u = MatMul (p, q)",
    "a softmax over tokens and batch": f"{_BATCH} {_OVER} f = Reshape (m, tall) g = Softmax <axis = 0> (f) "
    "target = Concat <axis = 0> (four, n, six) u = Reshape (g, target)",
    "less the first row": f"{_OVER} g = Gather <axis = 1> (m, zero) u = Sub (m, g)",
}


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_mix_on_another_axis_are_refused(name: str) -> None:
    model = _model(f"{MIXING[name]} {_BACK} {_END}")
    with pytest.raises(UnsupportedModelError, match=r"(Softmax|Gather) node '[pg]': .*\bmixes\b"):
        compile_model(model, DeepShap(REFERENCES))


def test_shapes_are_noted_where_the_batch_is_on_axis_0() -> None:
    model = ir.from_proto(_model(f"{_OVER} u = Tanh (m) {_BACK} {_END}"))
    free_batch(model, fixed=False)
    shapes = {v.name: v.shape for node in model.graph for v in node.outputs}
    assert shapes["m"] is shapes["u"] is None
    assert shapes["t"] == ir.Shape(["N", 4, 6])


@pytest.mark.parametrize(
    "node",
    [
        *("Softmax <axis = 0> (x)", "Softmax <axis = -3> (x)"),
        *("CumSum (x, start)", "CumSum (x, back)"),  # of three axes the last but two
    ],
)
def test_a_node_that_mixes_rows_on_axis_0_is_named(node: str) -> None:
    words = rf"{node.split()[0]} node 'h': it works along the batch axis and mixes the rows of a batch"
    with pytest.raises(UnsupportedModelError, match=words):
        compile_model(_model(f"h = {node} {_END}"), DeepShap(REFERENCES))


BEHIND = "off = Sub (x, most) on = Relu (off)"  # 0 for all rows that are tried near 0
HIDDEN = {
    "ReduceMax": f"{BEHIND} a = ReduceMax (on, zero) h = Add (x, a)",
    "ReduceMean": f"{BEHIND} a = ReduceMean (on, zero) h = Add (x, a)",
    "CumSum": f"{BEHIND} a = CumSum (on, start) h = Add (x, a)",
    "Softmax": f"{BEHIND} s = Softmax <axis = 0> (on) a = Mul (s, on) h = Add (x, a)",
    "Gather": f"{BEHIND} a = Gather <axis = 0> (on, start) h = Add (x, a)",
    "Slice": f"{BEHIND} a = Slice (on, minus, ends, zero, minus) h = Add (x, a)",
    "ReduceMax of a condition": """m = ReduceMax <keepdims = 0> (x) c = Greater (m, most)
        h = If (c) <then_branch = t () => (float[N, 4, 6] u) { u = Neg (x) },
                    else_branch = e () => (float[N, 4, 6] v) { v = Identity (x) }>""",
}


def _hidden(name: str) -> onnx.ModelProto:
    model = _model(f"{HIDDEN[name]} {_END}")
    more = {"most": np.float32(5), "minus": np.array([-1]), "ends": np.array([-1000])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in more.items())
    return model


@pytest.mark.parametrize("name", HIDDEN)
def test_rows_that_mix_in_some_ranges_alone_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{name.split()[0]} node .*mixes"):
        compile_model(_hidden(name), DeepShap(REFERENCES))


@pytest.mark.parametrize("name", HIDDEN)
def test_rows_that_would_mix_are_answered_one_by_one_where_the_batch_was_1(name: str) -> None:
    model = _hidden(name)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    far = X * 8
    answer = compile_model(model, DeepShap(REFERENCES), targets="all").explain(far)
    runner = Runner(_hidden(name))
    alone = np.concatenate([runner({"x": row[None]})["y"] for row in far])
    np.testing.assert_allclose(answer["y"], alone, rtol=1e-5, atol=1e-4)


def test_a_model_for_batches_of_another_size_alone_is_not_said_to_mix_rows() -> None:
    model = _model(f"{_OVER} f = Reshape (m, five_rows) u = Tanh (f) {_BACK} {_END}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([4, 5, 6]), "five_rows"))
    with pytest.raises(UnsupportedModelError, match=r"batches of two .*\bone\b"):
        compile_model(model, DeepShap(REFERENCES))


UNROWED = {r"axis 0\b": ("m", "float[4, N, 6]"), r"\[4, 6\]": ("f", "float[M, 6]")}


@pytest.mark.parametrize("why", UNROWED)
def test_an_output_without_a_row_for_each_of_the_batch_is_refused(why: str) -> None:
    name, kind = UNROWED[why]
    model = _model(f"{_OVER} f = Reshape (x, tall)", outputs=f"{kind} {name}")
    with pytest.raises(UnsupportedModelError, match=f"'{name}' .*{why}"):
        compile_model(model, DeepShap(REFERENCES))


def test_a_number_of_each_row_beside_another_is_each_rows_own() -> None:
    """[N] and [N] one behind the other, [2·N], are no rows [N, 2]."""
    body = """
        a = Cast <to = 1> (i)  b = Cast <to = 1> (j)
        both = Concat <axis = 0> (a, b)
        pair = Reshape (both, halves)
        p, q = Split <axis = 0, num_outputs = 2> (pair)
        first = Unsqueeze (p, two)  second = Unsqueeze (q, two)
        c = Squeeze (first, zero)  d = Squeeze (second, zero)
        s = Mul (x, c)  t = Mul (s, d)  y = Add (t, c)
    """
    text = f"g (float[N, 4] x, int32[N] i, int32[N] j) => (float[N, 4] y) {{ {body} }}"
    model = parsed(text, {"halves": np.array([2, -1]), "two": np.array([2]), "zero": np.array([0])})
    x, i, j = rows(3, 4), np.int32([1, 2, 3]), np.int32([5, 7, 9])
    answer = compile_model(model, DeepShap({"x": rows(2, 4)}), targets=[0]).explain({"x": x, "i": i, "j": j})
    np.testing.assert_allclose(answer["y"], x * (i * j)[:, None] + i[:, None], rtol=1e-6)
    assert np.abs(answer["completeness_gap"]).max() <= 1e-4


def test_a_row_that_a_mask_hides_whole_has_no_number_and_mixes_with_none() -> None:
    """Where a mask of zeros is tried, the Softmax of it is NaN."""
    text = """g (float[N, 3] x, bool[N, 3] mask) => (float[N, 3] y) {
        s = Where (mask, x, hidden) y = Softmax (s) }"""
    model = parsed(text, {"hidden": np.float32(-np.inf)})
    assert how_rows_mix(ir.from_proto(model)) is None
