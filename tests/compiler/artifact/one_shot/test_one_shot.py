"""One entry with a gate: the same answers as two entries, rows that did not ask, weights."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

import rationale
from rationale import Compiled, DeepShap, Deployment, Gradient, compile_model
from rationale.artifact.checks.gate import check_gate
from rationale.artifact.finishing.one_shot import (
    _share_weights,
    keep_outputs,
    open_gate,
    plain_model,
    put_behind_gate,
)
from rationale.errors import CheckFailedError, InvalidOptionError
from rationale.graph.runtime.session import Runner, with_gate
from rationale.lowering import lower
from tests.compiler.models import FEATURES, cnn, mlp, parsed, rows, two_inputs
from tests.grid import grid

ONE_SHOT = Deployment(one_shot=True)
IMAGE = (2, 6, 8)
R = rows(4, FEATURES)
X = rows(5, FEATURES, seed=1)
REQUESTED = np.array([False, True, True, False, True])
AGREE = 1e-6  # of the largest value: a batch is cut otherwise, the arithmetic is the same

METHODS: dict[str, Callable[[np.ndarray], Any]] = {
    "deepshap": DeepShap,
    "gradient": lambda _: Gradient(),
    "integrated gradients": lambda r: rationale.IntegratedGradients(r[:2], steps=3),
    "expected gradients": lambda r: rationale.ExpectedGradients(r, samples=6, standard_error=True),
    "smoothgrad": lambda _: rationale.SmoothGrad(samples=3, sigma=0.1),
    "lrp": lambda _: rationale.Lrp(),
    "attnlrp": lambda _: rationale.AttnLrp(),
    "cplrp": lambda _: rationale.CpLrp(),
}
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[int, ...]]] = {
    "perceptron": (mlp, (FEATURES,)),
    "image": (cnn, IMAGE),
}


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(mlp(), DeepShap(R), targets="all", deployment=ONE_SHOT)


def assert_equal(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> None:
    """A gap is roundings of the values that it is the difference of."""
    for name, value in want.items():
        whole = want["explained_value"] if name.startswith("completeness_gap") else value
        scale = max(float(np.abs(whole).max()), 1e-3)
        assert got[name].shape == value.shape
        assert got[name].dtype == value.dtype
        assert np.abs(got[name].astype(float) - value).max() <= AGREE * scale, name


# -- answers -------------------------------------------------------------------------------------------


@grid("model, method, targets", MODELS, METHODS, ["all", "predicted", [2]])
def test_rows_that_ask_get_what_two_entries_give(model: str, method: str, targets: Any) -> None:
    make, shape = MODELS[model]
    references, x = rows(4, *shape), rows(5, *shape, seed=1)
    two = compile_model(make(), METHODS[method](references), targets=targets)
    single_entry = compile_model(make(), METHODS[method](references), targets=targets, deployment=ONE_SHOT)
    want = two.explain(x)
    assert set(single_entry.explain(x)) == {*want, "explained"}
    assert single_entry.explain(x)["explained"].all()
    assert_equal(single_entry.explain(x), want)
    mixed = Runner(single_entry.model)(with_gate({"x": x}, REQUESTED))
    assert np.array_equal(mixed["explained"][:, 0], REQUESTED)
    assert np.array_equal(mixed["y"], Runner(single_entry.source)({"x": x})["y"])
    for name in want.keys() - {"y"}:
        assert not mixed[name][~REQUESTED].any(), name
    assert_equal(
        {n: mixed[n][REQUESTED] for n in want},
        {n: v[REQUESTED] for n, v in two.explain(x).items()} | {"y": want["y"][REQUESTED]},
    )


def test_nobody_asks(compiled: Compiled) -> None:
    answer = Runner(compiled.model)(with_gate({"x": X}, False))
    plain = Runner(compiled.source)({"x": X})
    assert np.array_equal(answer.pop("y"), plain["y"])
    assert {name: value.shape for name, value in answer.items()} == {
        "x_attributions": (5, 3, FEATURES),
        **dict.fromkeys(("base_value", "explained_value", "completeness_gap"), (5, 3)),
        "explained": (5, 1),
    }
    assert not any(value.any() for value in answer.values())


def test_an_answer_does_not_depend_on_who_else_asks(compiled: Compiled) -> None:
    """Every choice of rows, each against the row alone."""
    run = Runner(compiled.model)
    alone = [run(with_gate({"x": X[i : i + 1]}))["x_attributions"][0] for i in range(len(X))]
    for choice in range(1, 2 ** len(X)):
        gate = np.array([choice >> i & 1 for i in range(len(X))], bool)
        got = run(with_gate({"x": X}, gate))["x_attributions"]
        for i in range(len(X)):
            want = alone[i] if gate[i] else np.zeros_like(alone[i])
            assert np.abs(got[i] - want).max() <= AGREE * np.abs(alone[i]).max()


def test_several_inputs_of_which_one_is_explained() -> None:
    a, b = rows(3, 3), rows(3, 4, seed=1)
    x = {"a": rows(5, 3, seed=2), "b": rows(5, 4, seed=3)}
    for inputs, references in ((None, {"a": a, "b": b}), (["a"], {"a": a})):
        two = compile_model(two_inputs(), DeepShap(references), inputs=inputs)
        single_entry = compile_model(two_inputs(), DeepShap(references), inputs=inputs, deployment=ONE_SHOT)
        assert_equal(single_entry.explain(x), two.explain(x))


def test_an_input_that_is_one_number_for_the_whole_batch() -> None:
    text = """scaled (float[N, 4] x, float factor) => (float[N, 2] y) {
        s = Mul (x, factor)
        r = Relu (s)
        y = MatMul (r, w)
    }"""
    model = parsed(text, {"w": rows(4, 2)})
    single_entry = compile_model(model, Gradient(), targets=[1], deployment=ONE_SHOT)
    x, factor = rows(5, 4, seed=1), np.array(3, np.float32)
    answer = Runner(single_entry.model)(with_gate({"x": x, "factor": factor}, REQUESTED))
    want = 3 * rows(4, 2)[:, 1] * (x > 0) * REQUESTED[:, None]
    assert np.allclose(answer["x_attributions"][:, 0], want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions(dtype: type) -> None:
    letter = {np.float16: "float16", np.float64: "double"}[dtype]
    text = f"""half ({letter}[N, 4] x) => ({letter}[N, 2] y) {{
        z = MatMul (x, w)
        y = Relu (z)
    }}"""
    model = parsed(text, {"w": rows(4, 2).astype(dtype)})
    single_entry = compile_model(model, DeepShap(rows(3, 4)), targets="all", deployment=ONE_SHOT)
    two = compile_model(model, DeepShap(rows(3, 4)), targets="all")
    x = rows(5, 4, seed=1).astype(dtype)
    assert_equal(single_entry.explain(x), two.explain(x))


def test_bfloat16_within() -> None:
    """ONNX Runtime has no CPU kernels for it: both sides compute in float32, as two entries do."""
    text = f"""narrow (float[N, 4] x) => (float[N, 2] y) {{
        xb = Cast <to = {TensorProto.BFLOAT16}> (x)
        wb = Cast <to = {TensorProto.BFLOAT16}> (w)
        z = MatMul (xb, wb)
        r = Relu (z)
        y = Cast <to = {TensorProto.FLOAT}> (r)
    }}"""
    model = parsed(text, {"w": rows(4, 2)})
    single_entry = compile_model(model, DeepShap(rows(3, 4)), targets="all", deployment=ONE_SHOT)
    two = compile_model(model, DeepShap(rows(3, 4)), targets="all")
    x = rows(5, 4, seed=1)
    assert_equal(single_entry.explain(x), two.explain(x) | Runner(two.source)({"x": x}))


def test_a_model_with_an_opset_of_its_own_and_a_fixed_batch() -> None:
    model = mlp()
    model.opset_import[0].version = 13
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    single_entry = compile_model(model, DeepShap(R), targets="all", deployment=ONE_SHOT)
    assert_equal(single_entry.explain(X), compile_model(mlp(), DeepShap(R), targets="all").explain(X))


def test_a_model_with_a_subgraph_whose_names_return() -> None:
    """The branch may not shadow a name of the outer graph, nor of a subgraph in it."""
    text = """nested (float[N, 3] x, bool on) => (float[N, 3] y, float[N, 3] z) {
        y = Relu (x)
        z = If <then_branch = g () => (float[N, 3] a) { a = Neg (y) },
                else_branch = h () => (float[N, 3] b) { b = Abs (y) }> (on)
    }"""
    single_entry = compile_model(parsed(text), Gradient(), output="y", targets=[1], deployment=ONE_SHOT)
    x = rows(5, 3)
    answer = Runner(single_entry.model)(with_gate({"x": x, "on": np.array(True)}, REQUESTED))
    assert np.array_equal(answer["z"], -np.maximum(x, 0))
    want = np.eye(3, dtype=np.float32)[1] * (x > 0) * REQUESTED[:, None]
    assert np.array_equal(answer["x_attributions"][:, 0], want)


def test_a_walk_in_a_scan() -> None:
    """Its body reads x and a weight from outside, and calls its values as the plain model does."""
    plain = """plain (float[N, 4] x) => (float[N, 4] y) {
        z = MatMul (x, w)
        y = Relu (z)
    }"""
    walk = """walk (float[N, 4] x) => (float[N, 4] y, float[N, 1, 4] x_attributions) {
        z = MatMul (x, w)
        y = Relu (z)
        start = Sub (x, x)
        total = Scan <num_scan_inputs = 1, body = chunk (float[N, 4] sum, float[4] r) => (float[N, 4] s) {
            z_in = Sub (x, r)
            y_in = MatMul (z_in, w)
            s = Add (sum, y_in)
        }> (start, references)
        x_attributions = Unsqueeze (total, axis)
    }"""
    w, references = rows(4, 4), rows(3, 4, seed=2)
    lowered = lower(parsed(plain, {"w": w}))
    combined = parsed(walk, {"w": w, "references": references, "axis": np.array([1])})
    for node in combined.graph.node:
        for attribute in node.attribute:
            for inner in attribute.g.node:  # the parser refuses what a file may hold
                inner.input[:] = [i.removesuffix("_in") for i in inner.input]
                inner.output[:] = [o.removesuffix("_in") for o in inner.output]
    model = put_behind_gate(lowered, ir.from_proto(combined))
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    x = rows(5, 4, seed=1)
    answer = Runner(model)(with_gate({"x": x}, REQUESTED))
    want = sum((x - r) @ w for r in references) * REQUESTED[:, None]
    assert np.allclose(answer["x_attributions"][:, 0], want, atol=1e-5)
    assert np.allclose(answer["y"], np.maximum(x @ w, 0), atol=1e-6)


# -- the graph -----------------------------------------------------------------------------------------


def weights_of(graph: onnx.GraphProto) -> list[bytes]:
    inner = (g for node in graph.node for a in node.attribute for g in (a.g, *a.graphs))
    arrays = [numpy_helper.to_array(t) for t in graph.initializer]
    held = [a.tobytes() for a in arrays if a.dtype.kind == "f" and a.size > 1]
    return held + [w for g in inner for w in weights_of(g)]


@pytest.mark.parametrize("make", [mlp, cnn, two_inputs])
def test_weights_are_held_once(make: Callable[[], onnx.ModelProto]) -> None:
    single_entry = compile_model(make(), Gradient(), deployment=ONE_SHOT)
    held = weights_of(single_entry.model.graph)
    assert [held.count(weight) for weight in weights_of(make().graph)] == [1] * len(make().graph.initializer)


def test_large_constants_are_the_outer_graphs_but_for_kernels() -> None:
    """ONNX Runtime holds a branch's initializers twice, and lays out kernels only where they stand."""
    wide = mlp((FEATURES, 300, 3))
    image = cnn()
    kernel, head = rows(130, 16, 12, 12, seed=3) / 25, rows(130 * 9, 3, seed=5) / 30
    for tensor, array in zip(image.graph.initializer, (kernel, rows(130), head, rows(3)), strict=True):
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    image.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 16
    image.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 15
    image.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 15
    for model, shape, kernels in ((wide, (90, FEATURES), 0), (image, (9, 16, 15, 15), 1)):
        references = rows(*shape)
        single_entry = compile_model(model, DeepShap(references), targets=[1], deployment=ONE_SHOT)
        branch = next(_branch(node) for node in single_entry.model.graph.node if node.op_type == "If")
        large = [t for t in branch.initializer if len(t.raw_data) >= 1 << 16]
        assert len(large) == kernels
        lifted = [
            t
            for t in single_entry.model.graph.initializer
            if t.name not in {i.name for i in model.graph.initializer}
        ]
        assert lifted
        assert all(len(t.raw_data) >= 1 << 16 for t in lifted)
        two = compile_model(model, DeepShap(references), targets=[1])
        x = rows(3, *shape[1:], seed=1)
        assert_equal(single_entry.explain(x), two.explain(x))


def _branch(node: onnx.NodeProto) -> onnx.GraphProto:
    return next(a.g for a in node.attribute if a.name == "then_branch")


def test_the_outer_graph_is_the_plain_model(compiled: Compiled) -> None:
    plain = plain_model(compiled.model, ["y"])
    assert [n.op_type for n in plain.graph.node] == [n.op_type for n in mlp().graph.node]
    assert [v.name for v in plain.graph.input] == ["x"]
    assert {t.name for t in plain.graph.initializer} == {t.name for t in mlp().graph.initializer}


def test_an_inner_tensor_of_the_explained_side(compiled: Compiled) -> None:
    """Without its gate, the graph computes every tensor of both sides for every row."""

    def answer(model: ir.Model, name: str) -> np.ndarray:
        outputs = [v for node in model.graph for v in node.outputs if v.name == name]
        return Runner(keep_outputs(model, outputs))({"x": X})[name]

    for name, original in (("z1", "z1"), ("one_shot/z1_0", "z1"), ("one_shot/z2_0", "z2")):
        opened = ir.from_proto(compiled.model)
        open_gate(opened)
        assert np.array_equal(answer(opened, name), answer(ir.from_proto(mlp()), original))


@pytest.mark.parametrize("name", ["explain", "explained", "one_shot/x"])
@pytest.mark.parametrize("role", ["input", "inner", "output", "weight"])
def test_a_name_that_the_gate_needs(name: str, role: str) -> None:
    model = mlp()
    old = {"input": "x", "inner": "h1", "output": "y", "weight": "w1"}[role]
    for node in model.graph.node:
        node.input[:] = [name if i == old else i for i in node.input]
        node.output[:] = [name if o == old else o for o in node.output]
    named: tuple[Any, ...] = (*model.graph.input, *model.graph.output, *model.graph.initializer)
    for value in named:
        value.name = name if value.name == old else value.name
    two = compile_model(model, DeepShap(R))  # two entries take it
    if role in ("input", "output"):
        with pytest.raises(InvalidOptionError, match=f"{name}.*--one-shot"):
            compile_model(model, DeepShap(R), deployment=ONE_SHOT)
        return
    single_entry = compile_model(model, DeepShap(R), deployment=ONE_SHOT)
    want, got = two.explain(X), single_entry.explain(X)
    for key in ("y", "x_attributions", "base_value"):
        np.testing.assert_array_equal(got[key], want[key])


@pytest.mark.parametrize(
    ("op_type", "fault"),
    [
        ("ScatterND", "is not zero for rows|depends on which rows"),
        ("Identity", "does not say which rows were explained"),
    ],
)
def test_a_faulty_gate_does_not_pass(compiled: Compiled, op_type: str, fault: str) -> None:
    """A graph whose rows are scattered elsewhere, and one that says of every row that it is explained."""
    broken = onnx.ModelProto()
    broken.CopyFrom(compiled.model)
    if op_type == "Identity":
        node = next(n for n in broken.graph.node if n.output[0] == "explained")
        node.op_type = "Not"
    else:
        gate = next(n for n in broken.graph.node if n.op_type == "If")
        branch = next(a.g for a in gate.attribute if a.name == "then_branch")
        zeros = next(n for n in branch.node if n.op_type == "ConstantOfShape")
        zeros.attribute[0].t.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32)))
    with pytest.raises(CheckFailedError, match=fault):
        check_gate(broken, {"x": X}, ["y"])


@pytest.mark.parametrize(
    ("own", "other", "shared"),
    [
        (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), True),
        (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), False),  # the same bytes
        (np.zeros((2, 3), np.float32), np.zeros(6, np.float32), False),
        (np.zeros((2, 3), np.float32), np.zeros(3, np.float64), False),
        (np.zeros((2, 3), np.float32), np.full((2, 3), -0.0, np.float32), False),
        (np.zeros((2, 3), np.int64), np.zeros((2, 3), np.int64), False),  # shapes stay where they are used
        (np.zeros(1, np.float32), np.zeros(1, np.float32), False),
    ],
)
def test_weights_are_shared_that_are_the_same(own: np.ndarray, other: np.ndarray, shared: bool) -> None:
    graphs = []
    for name, array in (("outer", own), ("branch", other)):
        value = ir.Value(name=f"{name}_w", const_value=ir.Tensor(array, name=f"{name}_w"))
        node = ir.node("Identity", [value])
        graphs.append(ir.Graph([], node.outputs, nodes=[node], initializers=[value], name=name))
    outer, branch = graphs
    _share_weights(outer, branch)
    (node,) = branch
    assert (node.inputs[0] is outer.initializers["outer_w"]) is shared
    assert len(branch.initializers) == (not shared)
