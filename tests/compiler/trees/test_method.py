"""`treeshap` from the command line to the entries, and what it refuses."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from typer.testing import CliRunner

from rationale import (
    DeepShap,
    Deployment,
    InvalidOptionError,
    InvalidReferencesError,
    Manifest,
    TreeShap,
    UnsupportedModelError,
    compile_model,
)
from rationale.cli.compile import app
from tests.references import trees as forest

TREES = forest.random_trees(1, ("LEQ", "LT"), columns=3)
REFERENCES, X = forest.rows(1, 7), forest.rows(2, 4)


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands(tmp_path: Path) -> None:
    onnx.save(forest.classifier(TREES, 3, post_transform="SOFTMAX"), tmp_path / "m.onnx")
    np.save(tmp_path / "r.npy", REFERENCES)
    np.save(tmp_path / "x.npy", X)
    repository = ("--repository", tmp_path / "repository")
    call(
        *("compile", tmp_path / "m.onnx", "--name", "m", "--method", "treeshap", "--targets", "all"),
        *("--references", tmp_path / "r.npy", *repository),
    )
    manifest = Manifest.read(tmp_path / "repository" / "m_explain" / "explanation.json")
    assert (manifest.method.name, manifest.explained_output) == ("treeshap", "p_margin")
    assert manifest.explained[0].takes_missing
    assert manifest.references is not None
    assert manifest.references.base_value is not None
    call("check", "m", *repository)
    saved = tmp_path / "answer.npz"
    call("explain", "m", "--input", tmp_path / "x.npy", *repository, "--save", saved)
    expected = forest.shapley(lambda z: forest.scores(TREES, z), X, REFERENCES)
    with np.load(saved) as answer:
        np.testing.assert_allclose(answer["x_attributions"], expected, atol=1e-5)
    call("evaluate", "m", "--input", tmp_path / "x.npy", *repository)


def test_the_margin_has_a_name_of_its_own() -> None:
    model = forest.classifier(TREES, 3, post_transform="SOFTMAX")
    compiled = compile_model(model, TreeShap(REFERENCES), targets="all")
    scores = onnx.helper.make_tensor_value_info("p_margin", onnx.TensorProto.FLOAT, ["N", 3])
    model.graph.node.append(onnx.helper.make_node("Exp", ["p"], ["p_margin"]))
    model.graph.output.append(scores)
    other = compile_model(model, TreeShap(REFERENCES), targets="all")
    assert (compiled.manifest.explained_output, other.manifest.explained_output) == ("p_margin", "p_margin_")
    want, got = (c.explain(X)["x_attributions"] for c in (compiled, other))
    np.testing.assert_array_equal(got, want)


def test_empty_cells_are_missing_values(tmp_path: Path) -> None:
    """Rows of a file have them; a model that takes no missing value says so."""
    rows = {"r.csv": forest.rows(1, 7), "x.csv": forest.rows(2, 4)}
    for name, array in rows.items():
        assert np.isnan(array).any()
        cells = (",".join("" if np.isnan(v) else repr(float(v)) for v in row) for row in array)
        (tmp_path / name).write_text("\n".join(["a,b,c,d,e", *cells]) + "\n")
    onnx.save(forest.regressor(TREES), tmp_path / "m.onnx")
    onnx.save(network(), tmp_path / "n.onnx")
    repository, targets = ("--repository", tmp_path / "repository"), ("--targets", "all")
    references = ("--references", tmp_path / "r.csv")
    call(
        *("compile", tmp_path / "m.onnx", "--name", "m", "--method", "treeshap"),
        *(*references, *repository, *targets),
    )
    saved = tmp_path / "answer.npz"
    call("explain", "m", "--input", tmp_path / "x.csv", *repository, "--save", saved)
    expected = forest.shapley(lambda z: forest.scores(TREES, z), rows["x.csv"], rows["r.csv"])
    with np.load(saved) as answer:
        np.testing.assert_allclose(answer["x_attributions"], expected, atol=1e-5)
    call("evaluate", "m", "--input", tmp_path / "x.csv", *references, *repository)
    compile_model(network(), DeepShap(np.zeros((1, 5)))).write(tmp_path / "repository", "n")
    for command in (
        ("compile", tmp_path / "n.onnx", "--name", "n", *references),
        ("explain", "n", "--input", tmp_path / "x.csv"),
    ):
        result = CliRunner().invoke(app, [str(a) for a in (*command, *repository)])
        assert result.exit_code == 2, result.output
        assert "a missing value" in result.output


def test_missing_values_of_tables_in_memory() -> None:
    """NaN in a DataFrame, in rows and in references."""
    table = pd.DataFrame(forest.rows(1, 7), columns=list("abcde"))
    answer = compile_model(forest.regressor(TREES), TreeShap(table), targets="all").explain(
        pd.DataFrame(X, columns=list("abcde"))[list("edcba")]
    )
    expected = forest.shapley(lambda z: forest.scores(TREES, z), X, forest.rows(1, 7))
    np.testing.assert_allclose(answer["x_attributions"], expected, atol=1e-5)
    with pytest.raises(InvalidReferencesError, match=r"row \d"):
        compile_model(network(), DeepShap(table))


@pytest.mark.parametrize("number", [np.inf, -np.inf])
def test_an_infinite_value_is_not_a_missing_one(number: float) -> None:
    compiled = compile_model(forest.regressor(TREES), TreeShap(REFERENCES))
    infinite = np.where(np.arange(5) == 3, number, X[:2])
    with pytest.raises(InvalidOptionError, match=r"holds \S+ at \[0, 3\]"):
        compiled.explain(infinite)
    with pytest.raises(InvalidReferencesError, match=r"hold \S+ at \[0, 3\]"):
        compile_model(forest.regressor(TREES), TreeShap(infinite))


def test_one_entry_for_both() -> None:
    model = forest.regressor(TREES)
    gated = compile_model(model, TreeShap(REFERENCES), targets=[1], deployment=Deployment(one_shot=True))
    apart = compile_model(model, TreeShap(REFERENCES), targets=[1])
    np.testing.assert_array_equal(gated.explain(X)["x_attributions"], apart.explain(X)["x_attributions"])


def test_the_same_bytes_each_time() -> None:
    first, second = (compile_model(forest.regressor(TREES), TreeShap(REFERENCES)) for _ in range(2))
    assert first.model.SerializeToString() == second.model.SerializeToString()
    assert first.manifest.digests == second.manifest.digests


def network() -> onnx.ModelProto:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    return forest.model_of(node, 5, {"y": 5})


def scaled() -> onnx.ModelProto:
    model = forest.regressor(TREES)
    model.graph.node[0].input[0] = "scaled"
    model.graph.node.insert(0, onnx.helper.make_node("Neg", ["x"], ["scaled"]))
    return model


REFUSED: dict[str, tuple[Any, ...]] = {
    "a network": (network(), {}, UnsupportedModelError, "is made by Relu node 'y'"),
    "layers": (forest.regressor(TREES), {"layers": "all"}, InvalidOptionError, "walks through no layers"),
    "logits": (forest.regressor(TREES), {"logits": True}, InvalidOptionError, "--logits"),
    "no such target": (forest.regressor(TREES), {"targets": [3]}, InvalidOptionError, "indices 0 to 2"),
    "a normal quantile": (
        forest.regressor(TREES, post_transform="PROBIT"),
        {},
        UnsupportedModelError,
        "node 'y': .*PROBIT",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_explain(name: str) -> None:
    model, options, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        compile_model(model, TreeShap(REFERENCES), **options)


def test_what_stands_behind_a_scaler_is_explained_by_name() -> None:
    references, x = np.nan_to_num(REFERENCES), np.nan_to_num(X)
    answer = compile_model(scaled(), TreeShap({"x": -references}), inputs=["scaled"], targets="all").explain(
        -x
    )
    expected = forest.shapley(lambda z: forest.scores(TREES, z), x, references)
    np.testing.assert_allclose(answer["scaled_attributions"], expected, atol=1e-5)


def test_infinite_references_and_rows_are_refused() -> None:
    references = REFERENCES.copy()
    references[2, 1] = np.inf
    with pytest.raises(InvalidReferencesError, match=re.escape("inf at [2, 1]")):
        compile_model(forest.regressor(TREES), TreeShap(references))
    with pytest.raises(InvalidOptionError, match="holds inf"):
        compile_model(forest.regressor(TREES), TreeShap(REFERENCES)).explain(references)


def test_other_methods_name_it() -> None:
    with pytest.raises(UnsupportedModelError, match=r"TreeEnsembleRegressor: .*--method treeshap"):
        compile_model(forest.regressor(TREES), DeepShap(np.zeros((2, 5))))


def test_the_warmup_row_has_no_holes() -> None:
    """It is the mean of what the references hold, by their weights."""
    references = np.array([[1, np.nan, 0, 0, 0], [3, np.nan, np.nan, 0, 4]], np.float32)
    compiled = compile_model(forest.regressor(TREES), TreeShap(references, weights=[1, 3]))
    np.testing.assert_allclose(compiled.sample["x"], [[2.5, 0, 0, 0, 3]])
