"""Layers: what arrives at tensors on the way, from the walk that also reaches the inputs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale import AttnLrp, Compiled, DeepShap, Deployment, ExpectedGradients, Gradient, Lrp, compile_model
from rationale.cli.compile import app
from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.methods.propagation.attributions import layers_walked
from rationale.rules.rule import _RULES
from rationale.schema.manifest import Manifest
from tests.compiler.models import cnn, mlp, parsed, rows
from tests.grid import grid
from tests.tolerances import COMPLETE_32, PARITY_32

IMAGE = (2, 6, 8)
R, X = rows(4, *IMAGE), rows(3, *IMAGE, seed=1)
METHODS: dict[str, Callable[[], Any]] = {
    "deepshap": lambda: DeepShap(R),
    "gradient": Gradient,
    "input x gradient": lambda: Gradient(times_input=True),
    "lrp": Lrp,
    "attnlrp": AttnLrp,
}


def branched() -> onnx.ModelProto:
    """y [N, 3] of an image: Conv, BatchNormalization, SiLU, a way round, a mean, Gemm."""
    text = """g (float[N, 2, 6, 8] x) => (float[N, 3] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, k, kb)
        n = BatchNormalization (c, scale, offset, mean, variance)
        s = Sigmoid (n)
        a = Mul (n, s)
        d = Conv <pads = [1, 1, 1, 1]> (a, k2)
        j = Add (a, d)
        r = Relu (j)
        p = GlobalAveragePool (r)
        f = Flatten (p)
        y = Gemm (f, w, wb)
    }"""
    norm = {name: rows(4, seed=i) / 3 for i, name in enumerate(("scale", "offset", "mean"))}
    weights = {"k": rows(4, 2, 3, 3, seed=3), "kb": rows(4, seed=4), "k2": rows(4, 4, 3, 3, seed=5)}
    return parsed(
        text,
        {
            **norm,
            "variance": np.ones(4, np.float32),
            **weights,
            "w": rows(4, 3, seed=6),
            "wb": rows(3, seed=7),
        },
    )


def answers(compiled: Compiled) -> dict[str, np.ndarray]:
    answer = compiled.explain(X)
    return {layer.tensor.name: answer[layer.attributions] for layer in compiled.manifest.layers}


@grid("name, method", ["d", "r", "p", "y"], METHODS)
def test_a_layer_is_what_an_explanation_by_that_tensor_alone_says(name: str, method: str) -> None:
    """Which is another graph: it ends there, its references are the tensor's own rows."""
    among = compile_model(branched(), METHODS[method](), layers=["d", "r", "p", "y"], targets="all")
    got = answers(among)[name]
    if name == "y":
        want = among.explain(X)["y"][:, :, None] * np.eye(3)
        if method == "gradient":
            want = np.broadcast_to(np.eye(3), got.shape)
        if method == "deepshap":
            base = compile_model(branched(), DeepShap(R), targets="all").explain(X)["base_value"]
            want = want - base[:, :, None] * np.eye(3)
    else:
        cut = ["a", "d"] if name == "d" else [name]
        chosen = METHODS[method]()
        if method == "deepshap" and name == "d":
            chosen = DeepShap({"x": R})
        alone = compile_model(branched(), chosen, inputs=cut, targets="all")
        want = alone.explain(X)[f"{name}_attributions"]
    assert got.shape == (3, 3, *among.manifest.layers[["d", "r", "p", "y"].index(name)].tensor.shape)
    np.testing.assert_allclose(got, want, atol=PARITY_32 * np.abs(want).max())


@pytest.mark.parametrize("method", METHODS)
def test_the_inputs_attributions_stay(method: str) -> None:
    """Although nothing is joined across a layer that is asked for."""
    whole = compile_model(branched(), METHODS[method](), targets=[0])
    among = compile_model(branched(), METHODS[method](), targets=[0], layers="all")
    got, want = (c.explain(X)["x_attributions"] for c in (among, whole))
    np.testing.assert_allclose(got, want, atol=PARITY_32 * np.abs(want).max())


def test_every_layer_of_the_walk() -> None:
    """Relevance joins the convolution with its BatchNormalization; DeepSHAP takes each by itself."""
    layer_outputs = {
        name: [x.tensor.name for x in compile_model(branched(), make(), layers="all").manifest.layers]
        for name, make in METHODS.items()
    }
    assert layer_outputs["deepshap"] == layer_outputs["gradient"] == ["c", "d", "y"]
    assert layer_outputs["lrp"] == layer_outputs["attnlrp"] == ["n", "d", "y"]


def test_completeness_is_told_where_it_must_hold() -> None:
    """At what every way leads through: not at one of two branches."""
    manifest = compile_model(branched(), DeepShap(R), layers=["n", "d", "r", "p", "y"]).manifest
    gaps = {layer.tensor.name: layer.completeness_gap for layer in manifest.layers}
    assert gaps.pop("d") is None
    assert all(gap is not None and gap <= COMPLETE_32 for gap in gaps.values()), gaps
    assert Manifest.model_validate_json(manifest.to_json()) == manifest


def test_a_gap_that_a_bias_makes_is_told() -> None:
    """What LRP's biases keep on the way: the sum falls short by it, and no more."""
    compiled = compile_model(cnn(), Lrp(), layers=["c", "f"], targets=[1])
    answer = compiled.explain(X)
    assert compiled.manifest.layers[0].completeness_gap is not None
    sums = {name: a.reshape(3, -1).sum(axis=1) for name, a in answers(compiled).items()}
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in cnn().graph.initializer}
    gap = answer["explained_value"][:, 0] - sums["f"]
    np.testing.assert_allclose(gap, np.full(3, weights["wb"][1]), rtol=1e-4)
    np.testing.assert_allclose(sums["c"], sums["f"], rtol=1e-5)  # Relu and MaxPool keep nothing


@pytest.mark.parametrize("method", [Lrp(), AttnLrp()], ids=lambda m: m.name)
def test_without_biases_every_layer_conserves(method: Any) -> None:
    model = cnn()
    for tensor in model.graph.initializer:
        if tensor.name in ("kb", "wb"):
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 0, tensor.name))
    manifest = compile_model(model, method, layers=["c", "r", "p", "f", "y"], targets="all").manifest
    gaps = [layer.completeness_gap for layer in manifest.layers]
    assert len(gaps) == 5
    assert all(gap is not None and gap <= 1e-5 for gap in gaps), gaps
    assert manifest.measured.completeness_gap is not None
    assert manifest.measured.completeness_gap <= 1e-5


@pytest.mark.parametrize("method", ["deepshap", "lrp", "gradient"])
def test_tokens_one_behind_the_other(method: str) -> None:
    """As PyTorch's exporters hand the tokens of all rows to one Gemm."""
    text = """g (float[N, 5, 4] x) => (float[N, 2] y) {
        flat = Reshape (x, rows)
        h = Gemm (flat, w, b)
        t = Reshape (h, back)
        r = Relu (t)
        m = ReduceMean <keepdims = 0> (r, one)
        y = MatMul (m, v)
    }"""
    weights = {"w": rows(4, 6), "b": rows(6, seed=1), "v": rows(6, 2, seed=2), "one": np.int64([1])}
    model = parsed(text, {**weights, "rows": np.int64([-1, 4]), "back": np.int64([-1, 5, 6])})
    make = {"deepshap": lambda: DeepShap(rows(3, 5, 4, seed=4)), "lrp": Lrp, "gradient": Gradient}[method]
    compiled = compile_model(model, make(), layers=["h", "t"], targets="all")
    assert [layer.tensor.shape for layer in compiled.manifest.layers] == [(5, 6), (5, 6)]
    answer = compiled.explain(rows(3, 5, 4, seed=3))
    assert answer["h_attributions"].shape == (3, 2, 5, 6)
    np.testing.assert_allclose(answer["h_attributions"], answer["t_attributions"], atol=1e-6)
    every = [x.tensor.name for x in compile_model(model, make(), layers="all").manifest.layers]
    assert every == ["h", "y"]


def test_a_layer_whose_relevance_the_walk_computes_itself() -> None:
    """R of the GELU's input is m·x, which the walk hands on: one value, two names."""
    text = """g (float[N, 5, 4] x) => (float[N, 2] y) {
        flat = Reshape (x, rows)
        h = Gemm (flat, w, b)
        t = Reshape (h, back)
        e = Erf (t)
        p = Add (e, one_)
        a = Mul (t, p)
        m = ReduceMean <keepdims = 0> (a, one)
        y = MatMul (m, v)
    }"""
    weights = {"w": rows(4, 6), "b": rows(6, seed=1), "v": rows(6, 2, seed=2), "one": np.int64([1])}
    weights |= {"rows": np.int64([-1, 4]), "back": np.int64([-1, 5, 6]), "one_": np.float32(1)}
    compiled = compile_model(parsed(text, weights), AttnLrp(), layers=["h", "t", "a"], targets=[0, 1])
    answer = compiled.explain(rows(3, 5, 4, seed=3))
    assert [layer.tensor.shape for layer in compiled.manifest.layers] == [(5, 6)] * 3
    for name in ("h", "t"):
        np.testing.assert_allclose(answer[f"{name}_attributions"], answer["a_attributions"], atol=1e-6)


def test_layers_without_attributions_of_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing before the first of them needs a rule."""
    model = parsed(
        """g (float[N, 4] x) => (float[N, 2] y) {
            s = Atan (x)
            h = MatMul (s, w)
            z = Tanh (h)
            y = MatMul (z, v)
        }""",
        {"w": rows(4, 5), "v": rows(5, 2, seed=2)},
    )
    with_rule = compile_model(model, Gradient(), targets=[0], layers=["z", "h"])
    monkeypatch.delitem(_RULES, ("", "Atan"))
    with pytest.raises(UnsupportedModelError, match="Atan"):
        compile_model(model, Gradient(), targets=[0], layers="all")
    with pytest.raises(UnsupportedModelError, match="Atan"):
        compile_model(model, Gradient(), targets=[0], inputs=["x"], layers=["h"])
    compiled = compile_model(model, Gradient(), targets=[0], layers=["z", "h"])
    assert [e.tensor.name for e in compiled.manifest.explained] == ["h"]
    assert [layer.tensor.name for layer in compiled.manifest.layers] == ["z"]
    assert any("['h']" in warning for warning in compiled.manifest.warnings)
    got, want = (c.explain(rows(3, 4, seed=3)) for c in (compiled, with_rule))
    for name in ("h_attributions", "z_attributions"):
        np.testing.assert_allclose(got[name], want[name], atol=1e-7)


BAD: dict[str, tuple[Any, Any, str]] = {
    "unknown": (
        Lrp,
        ["conv1"],
        r"layers \['conv1'\] are not on the path .* operators on it: 'c', 'n', 's'",
    ),
    "one word": (Lrp, "c", "give a list of names, or 'all'"),
    "joined": (Lrp, ["c"], "layer 'c' has no separate attribution.* name 'n' instead"),
    "a constant": (Lrp, ["k"], "are not on the path"),
    "a path": (
        lambda: ExpectedGradients(R, samples=4),
        ["d"],
        r"--input LAYER",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_layer(name: str) -> None:
    method, layers, words = BAD[name]
    with pytest.raises(InvalidOptionError, match=words):
        compile_model(branched(), method(), layers=layers, targets=[0])


def test_a_layer_inside_of_what_is_joined() -> None:
    """What is behind it stands for it where one value is; of two, neither does, and no name is dropped."""
    calls = [
        SimpleNamespace(sources=sources, outputs=(result,))
        for sources, result in ((("x",), "a"), (("a",), "b"), (("b",), "c"), (("b",), "d"), (("c", "d"), "e"))
    ]
    steps = [SimpleNamespace(sources=("x",), outputs=("e",))]

    def walked(*names: str, named: bool) -> tuple[str, ...]:
        return layers_walked(names, calls, steps, are_named=named)

    assert walked("c", "d", "e", named=False) == ("e",)
    assert walked("a", "b", named=False) == ()
    assert walked("e", named=True) == ("e",)
    for name, instead in (("c", ": name 'e' instead"), ("a", ""), ("b", "")):
        with pytest.raises(InvalidOptionError, match=f"layer '{name}' has no .* after it{instead}\\.$"):
            walked(name, named=True)


def test_a_name_that_is_taken() -> None:
    """An inner tensor gives way (tests/compiler/combine/test_names.py), an output does not."""
    model = branched()
    model.graph.node[-1].output[0] = model.graph.output[0].name = "a_attributions"
    with pytest.raises(InvalidOptionError, match=r"\['a_attributions'\], .*: rename"):
        compile_model(model, Lrp(), layers=["a"])


@pytest.mark.parametrize(
    "deployment",
    [Deployment(one_shot=True), Deployment(memory_budget=300_000), Deployment(storage="float16")],
    ids=["one shot", "in chunks", "float16"],
)
def test_other_graphs_answer_layers_too(deployment: Deployment) -> None:
    plain = compile_model(branched(), DeepShap(rows(40, *IMAGE)), layers=["d", "r"], targets=[0])
    other = compile_model(
        branched(), DeepShap(rows(40, *IMAGE)), layers=["d", "r"], targets=[0], deployment=deployment
    )
    assert (other.manifest.memory is not None and other.manifest.memory.chunks > 1) == (
        deployment.memory_budget == 300_000
    )
    for name, got in answers(other).items():
        want = answers(plain)[name]
        near = 1e-2 if deployment.storage == "float16" else PARITY_32
        np.testing.assert_allclose(got, want, atol=near * np.abs(want).max())


def test_an_open_length() -> None:
    text = """g (float[N, S, 4] x) => (float[N, 2] y) {
        z = MatMul (x, w)
        h = Relu (z)
        m = ReduceMean <keepdims = 0> (h, one)
        y = MatMul (m, v)
    }"""
    model = parsed(text, {"w": rows(4, 5), "v": rows(5, 2, seed=1), "one": np.int64([1])})
    compiled = compile_model(model, Lrp(), layers=["h"], sizes={"S": (2, 9)}, targets=[0])
    for length in (2, 5, 9):
        x = rows(3, length, 4)
        fixed = compile_model(model, Lrp(), layers=["h"], sizes={"S": length}, targets=[0])
        got, want = (c.explain(x)["h_attributions"] for c in (compiled, fixed))
        assert got.shape == (3, 1, length, 5)
        np.testing.assert_allclose(got, want, atol=PARITY_32 * np.abs(want).max())


def test_the_command(tmp_path: Any) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    arguments = ["compile", str(tmp_path / "m.onnx"), "--name", "m", "--method", "lrp", "--layers", "all"]
    result = CliRunner().invoke(app, [*arguments, "--repository", str(tmp_path / "r")])
    assert result.exit_code == 0, result.output
    manifest = Manifest.read(tmp_path / "r" / "m_explain" / "explanation.json")
    assert [layer.attributions for layer in manifest.layers] == ["z1_attributions", "z2_attributions"]
