"""References as an input of the graph: the answers are those of a graph that has the same ones baked in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale import (
    Compiled,
    DeepShap,
    Deployment,
    ExpectedGradients,
    IntegratedGradients,
    Manifest,
    OpenReferences,
    compile_model,
)
from rationale.artifact.recheck import check_entry
from rationale.errors import InvalidOptionError, InvalidReferencesError
from rationale.methods.methods import method_of
from rationale.references.request_time import WEIGHTS, repeat_references
from rationale.schema.methods import METHODS as ROWS
from rationale.schema.methods import OPTIONS, takes_request_references
from rationale.schema.request import CompileRequest
from rationale_service.cli.main import app
from tests.compiler.models import cnn, mlp, parsed, rows, two_inputs
from tests.references.trees import random_trees, regressor
from tests.tolerances import COMPLETE_32, OPEN_32

K, INPUTS, N = 7, 5, 3  # K rows are taken, fewer are given
FLAGS = [name for name, option in OPTIONS.items() if option.kind is bool]
Model = Callable[[], onnx.ModelProto]

MODELS: dict[str, tuple[Model, dict[str, tuple[int, ...]]]] = {
    "perceptron": (lambda: mlp((5, 8, 6, 3)), {"x": (5,)}),
    "two inputs": (two_inputs, {"a": (3,), "b": (4,)}),
    "images": (cnn, {"x": (2, 6, 8)}),
}
METHODS: dict[str, Callable[[Any], Any]] = {
    "deepshap": DeepShap,
    "integrated gradients": lambda references: IntegratedGradients(references, steps=4),
}


def some(shapes: dict[str, tuple[int, ...]], count: int, seed: int) -> dict[str, np.ndarray]:
    return {name: rows(count, *shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}


def explained(created: Compiled, x: dict[str, np.ndarray], r: dict[str, np.ndarray], w: Any = None) -> Any:
    opened = created.manifest.open_references
    assert opened is not None
    return created.explain({**x, **repeat_references(opened, r, w, len(next(iter(x.values()))))})


def assert_alike(open_answer: Any, baked: Any, names: set[str]) -> None:
    for name in names - {"completeness_gap"}:  # roundings
        scale = np.abs(baked[name]).max()
        np.testing.assert_allclose(open_answer[name], baked[name], rtol=0, atol=OPEN_32 * scale, err_msg=name)


@pytest.mark.parametrize("targets", ["all", "predicted"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_it_answers_as_the_baked_graph_does(model: str, method: str, targets: str) -> None:
    make, shapes = MODELS[model]
    x, r = some(shapes, N, seed=1), some(shapes, INPUTS, seed=2)
    baked = compile_model(make(), METHODS[method](r), targets=targets).explain(x)
    compiled = compile_model(make(), METHODS[method](OpenReferences(K)), targets=targets)
    assert_alike(explained(compiled, x, r), baked, set(baked))


def test_weights_are_those_of_the_baked_graph() -> None:
    x, r, w = rows(N, 5, seed=1), rows(INPUTS, 5, seed=2), np.asarray([3.0, 0, 1, 2, 0.5])
    baked = compile_model(mlp(), DeepShap(r, w), targets="all").explain(x)
    compiled = compile_model(mlp(), DeepShap(OpenReferences(K)), targets="all")
    assert_alike(explained(compiled, {"x": x}, {"x": r}, w), baked, set(baked))


def test_each_row_has_references_of_its_own() -> None:
    compiled = compile_model(mlp(), DeepShap(OpenReferences(K)), targets="all")
    x, r = rows(N, 5, seed=1), rows(N, K, 5, seed=2)
    weights = np.random.default_rng(0).random((N, K)).astype(np.float32) + 0.1
    together = compiled.explain({"x": x, "x_references": r, WEIGHTS: weights})
    for i in range(N):
        baked = compile_model(mlp(), DeepShap(r[i], weights[i]), targets="all").explain(x[i : i + 1])
        assert_alike({name: a[i : i + 1] for name, a in together.items()}, baked, set(baked))


def test_what_fills_up_changes_nothing() -> None:
    compiled = compile_model(mlp(), DeepShap(OpenReferences(K)))
    x, r = rows(N, 5, seed=1), rows(INPUTS, 5, seed=2)
    opened = compiled.manifest.open_references
    assert opened is not None
    fed = {name: array.copy() for name, array in repeat_references(opened, {"x": r}, None, N).items()}
    before = compiled.explain({"x": x, **fed})
    fed["x_references"][:, INPUTS:] = 1e3
    after = compiled.explain({"x": x, **fed})
    np.testing.assert_array_equal(before["x_attributions"], after["x_attributions"])


def test_it_adds_up_for_references_unlike_those_it_was_checked_on() -> None:
    compiled = compile_model(mlp(), DeepShap(OpenReferences(K)), targets="all")
    answer = explained(compiled, {"x": rows(N, 5, seed=1)}, {"x": 20 + 10 * rows(INPUTS, 5, seed=2)})
    moved = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * moved


def test_the_graph_and_the_manifest_hold_no_row_of_the_examples() -> None:
    examples = rows(4, 5, seed=2) + 100
    compiled = compile_model(mlp(), DeepShap(OpenReferences(K, examples)))
    held = [onnx.numpy_helper.to_array(t) for t in compiled.model.graph.initializer]
    assert not any(np.isin(examples, array).any() for array in held)
    assert compiled.manifest.references is None
    assert compiled.manifest.digests.references is None
    assert not any(np.isin(examples, array).any() for array in compiled.sample.values())


def test_the_manifest_tells_the_inputs_apart() -> None:
    manifest = compile_model(two_inputs(), DeepShap(OpenReferences(K))).manifest
    assert [spec.name for spec in manifest.inputs] == ["a", "b"]
    opened = manifest.open_references
    assert opened is not None
    assert opened.count == K
    assert {name: (spec.name, spec.shape) for name, spec in opened.inputs.items()} == {
        "a": ("a_references", (K, 3)),
        "b": ("b_references", (K, 4)),
    }
    assert (opened.weights.name, opened.weights.shape) == (WEIGHTS, (K,))


def test_k_and_nothing_else_makes_another_digest() -> None:
    few, same, many = (
        compile_model(mlp(), DeepShap(OpenReferences(k, examples))).manifest.digests.explanation
        for k, examples in ((3, None), (3, rows(4, 5)), (4, None))
    )
    assert few == same != many


def test_a_model_in_half_precision() -> None:
    model = parsed(
        "half (float16[N, 5] x) => (float16[N, 3] y) { h = MatMul (x, w)  y = Tanh (h) }",
        {"w": rows(5, 3).astype(np.float16)},
    )
    x = {"x": rows(N, 5, seed=1).astype(np.float16)}
    r = rows(INPUTS, 5, seed=2).astype(np.float16)
    baked = compile_model(model, DeepShap(r), targets="all").explain(x)
    compiled = compile_model(model, DeepShap(OpenReferences(K)), targets="all")
    assert_alike(explained(compiled, x, {"x": r}), baked, set(baked))


@pytest.mark.parametrize(
    ("method", "deployment", "message"),
    [
        (lambda o: ExpectedGradients(o), Deployment(), "draws from the references"),
        (lambda o: DeepShap(o, standard_error=True), Deployment(), "standard error"),
        (lambda o: DeepShap(o), Deployment(one_shot=True), "--one-shot"),
        (lambda o: DeepShap(o), Deployment(storage="float16"), "float16"),
        (lambda o: DeepShap(o, weights=[1.0] * K), Deployment(), "requests bring weights"),
    ],
)
def test_what_needs_the_references_beforehand_is_refused(
    method: Callable[[OpenReferences], Any], deployment: Deployment, message: str
) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        compile_model(mlp(), method(OpenReferences(K)), deployment=deployment)


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name, row in ROWS.items() for option in ("", *filter(row.knows, FLAGS))]
    + [("treeshap", "path_dependent")],
)
def test_the_row_of_a_method_says_whether_requests_may_bring_its_references(name: str, option: str) -> None:
    options = {option: True} if option else {}
    model = regressor(random_trees(1, ["LEQ"])) if name == "treeshap" else mlp()
    asked = CompileRequest(method=name, options=options | ({"sigma": 1} if name == "smoothgrad" else {}))
    if takes_request_references(name, options):
        compile_model(model, method_of(asked, OpenReferences(K)))
    elif name != "auto":  # which may choose a method that takes them
        with pytest.raises(InvalidOptionError):
            compile_model(model, method_of(asked, OpenReferences(K)))


@pytest.mark.parametrize("count", [0, -1, 1.5, True, 10**6, rows(2, 5)])
def test_k_is_a_sensible_number(count: Any) -> None:
    with pytest.raises(InvalidOptionError, match="1 to 10000"):
        OpenReferences(count)


def test_inner_tensors_are_refused() -> None:
    with pytest.raises(InvalidReferencesError, match="h1"):
        compile_model(mlp(), DeepShap(OpenReferences(K)), inputs=["h1"])


def test_names_that_the_model_has_are_refused() -> None:
    model = parsed(
        "taken (float[N, 5] x, float[N, 5] x_references) => (float[N, 5] y) { y = Mul (x, x_references) }"
    )
    with pytest.raises(InvalidOptionError, match="x_references"):
        compile_model(model, DeepShap(OpenReferences(K)), inputs=["x"], targets=[0])


def test_the_entry_stands_beside_the_baked_one(tmp_path: Path) -> None:
    compile_model(mlp(), DeepShap(rows(INPUTS, 5)), targets="all").write(tmp_path, "m")
    compiled = compile_model(mlp(), DeepShap(OpenReferences(K)), targets="all")
    assert compiled.write(tmp_path, "m") == tmp_path / "m_explain_open"
    assert {p.name for p in tmp_path.iterdir()} == {"m", "m_explain", "m_explain_open"}
    assert check_entry(tmp_path, "m_explain_open").measured.completeness_gap < COMPLETE_32


def test_another_model_takes_the_place_of_all(tmp_path: Path) -> None:
    compile_model(mlp(), DeepShap(OpenReferences(K))).write(tmp_path, "m")
    compile_model(mlp(seed=1), DeepShap(rows(INPUTS, 5))).write(tmp_path, "m")
    assert {p.name for p in tmp_path.iterdir()} == {"m", "m_explain"}


def test_the_command(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    np.save(tmp_path / "r.npy", rows(INPUTS, 5))
    model, repository = str(tmp_path / "m.onnx"), str(tmp_path / "repository")
    common = ["compile", model, "--name", "m", "--repository", repository, "--open-references"]
    for more in (["6"], ["7", "--references", str(tmp_path / "r.npy")]):
        result = CliRunner().invoke(app, [*common, *more])
        assert result.exit_code == 0, result.output
        assert f"come with a request, {more[0]} at most" in result.output
    manifest = Manifest.read(tmp_path / "repository" / "m_explain_open" / "explanation.json")
    assert manifest.open_references is not None
    assert manifest.open_references.count == 7
    refused = CliRunner().invoke(app, [*common, "0"])
    assert refused.exit_code == 2
    assert "1 to 10000" in refused.stderr
