"""Trees whose references come with each row: against every coalition, tables of the same rows, and shap."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from typer.testing import CliRunner

from rationale import (
    Compiled,
    InvalidOptionError,
    OpenReferences,
    TreeShap,
    UnsupportedModelError,
    compile_model,
)
from rationale.references.request_time import WEIGHTS, pair_references, repeat_references
from rationale.trees import pairs
from rationale_service.cli.main import app
from tests.compiler.trees.test_by_leaf import DEEP, PLAIN, chain
from tests.compiler.trees.test_pipelines import NEAR, PIPELINES, REFERENCES, TABLE, X, exported
from tests.references import trees as forest
from tests.tolerances import COMPLETE_64, OPEN_32, PARITY_32

K, INPUTS, N = 7, 5, 9  # K rows are taken, fewer are given
TREES = forest.random_trees(3, PLAIN, columns=3)
RAW = {c: np.float32 if TABLE[c].dtype.kind == "f" else object for c in TABLE.columns}


def asked(compiled: Compiled, x: np.ndarray, r: np.ndarray, weights: Any = None) -> Any:
    opened = compiled.manifest.open_references
    assert opened is not None
    return compiled.explain({"x": x, **repeat_references(opened, {"x": r}, weights, len(x))})


@pytest.mark.parametrize("at_once", [1, pairs._AT_ONCE], ids=["a leaf at a time", "all leaves"])
@pytest.mark.parametrize("weights", [None, [3.0, 0, 1, 2, 0.5]], ids=["equal", "weighted"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "modes",
    [*(pytest.param((mode,), marks=pytest.mark.full) for mode in PLAIN), PLAIN, ("MEMBER",)],
    ids="-".join,
)
def test_exact(
    modes: Sequence[str], dtype: Any, weights: Any, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_AT_ONCE", at_once)
    grid = forest.MEMBERS if "MEMBER" in modes else forest.GRID
    trees = forest.random_trees(len(modes[0]), modes, grid=grid)
    x, r = (forest.rows(seed, count, grid=grid).astype(dtype) for seed, count in ((2, N), (1, INPUTS)))
    compiled = compile_model(forest.ensemble(trees, dtype=dtype), TreeShap(OpenReferences(K)))
    answer = asked(compiled, x, r, weights)
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, r, weights)
    near = PARITY_32 if dtype == np.float32 else COMPLETE_64
    assert answer["x_attributions"].dtype == dtype
    assert np.abs(answer["x_attributions"] - expected).max() <= near * np.abs(expected).max()
    moved = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert np.abs(answer["completeness_gap"]).max() <= max(near, COMPLETE_64) * moved


@pytest.mark.parametrize("targets", ["all", [2], ["2-0"], "predicted"], ids=str)
def test_as_tables_of_the_same_rows(targets: Any) -> None:
    model, x, r = (
        forest.regressor(TREES, base_values=[0.1, 0.2, 0.3]),
        forest.rows(2, N),
        forest.rows(1, INPUTS),
    )
    tables = compile_model(model, TreeShap(r), targets=targets).explain(x)
    answer = asked(compile_model(model, TreeShap(OpenReferences(K)), targets=targets), x, r)
    for name in ("x_attributions", "base_value", "explained_value", "y"):
        np.testing.assert_allclose(
            answer[name], tables[name], rtol=0, atol=OPEN_32 * np.abs(tables[name]).max()
        )


@pytest.mark.parametrize("targets", [None, "all", ["1-0", 1], "predicted"], ids=str)
def test_probabilities_are_rescaled_by_the_slope_to_each_reference(targets: Any) -> None:
    trees = forest.random_trees(9, ("LEQ", "GT"), trees=8)
    model = forest.classifier(trees, 2, only=0, post_transform="LOGISTIC", base_values=[0.25])
    x, r, weights = forest.rows(2, N), forest.rows(1, INPUTS), np.arange(1.0, INPUTS + 1)
    tables = compile_model(model, TreeShap(r, weights=weights, space="probability"), targets=targets)
    compiled = compile_model(model, TreeShap(OpenReferences(K), space="probability"), targets=targets)
    answer, expected = asked(compiled, x, r, weights), tables.explain(x)
    for name in ("x_attributions", "base_value", "explained_value"):
        np.testing.assert_allclose(answer[name], expected[name], rtol=0, atol=OPEN_32)
    assert np.abs(answer["completeness_gap"]).max() < OPEN_32


@pytest.mark.parametrize("name", PIPELINES)
def test_categories_and_missing_values_at_the_raw_inputs(name: str) -> None:
    model = exported(PIPELINES[name][0]())
    tables = compile_model(model, TreeShap(REFERENCES)).explain(X)
    compiled = compile_model(model, TreeShap(OpenReferences(len(REFERENCES), TABLE)))
    opened = compiled.manifest.open_references
    assert opened is not None
    raw = {c: REFERENCES[c].to_numpy(kind)[:, None] for c, kind in RAW.items()}
    x = {c: X[c].to_numpy(kind)[:, None] for c, kind in RAW.items()}
    answer = compiled.explain({**x, **repeat_references(opened, raw, None, len(X))})
    for column in TABLE.columns:
        attributions = f"{column}_attributions"
        np.testing.assert_allclose(answer[attributions], tables[attributions], atol=NEAR)
    assert np.abs(answer["completeness_gap"]).max() < NEAR
    by_pair = compiled.explain(X, compare_with=X.iloc[::-1])
    scores = by_pair["explained_value"][:, 0]
    np.testing.assert_allclose(by_pair["base_value"][:, 0], scores[::-1], atol=1e-6)
    sums = sum(by_pair[f"{column}_attributions"][:, 0, 0] for column in TABLE.columns)
    np.testing.assert_allclose(sums, scores - scores[::-1], atol=NEAR)


def test_pairs_add_up_and_only_features_that_differ_count() -> None:
    compiled = compile_model(forest.regressor(TREES), TreeShap(OpenReferences(1)), targets="all")
    x = forest.rows(2, N)
    other = x.copy()
    other[:, :2] = forest.rows(5, N)[:, :2]
    answer = compiled.explain(x, compare_with=other)
    scores = forest.scores(TREES, x) - forest.scores(TREES, other)
    np.testing.assert_allclose(answer["x_attributions"].sum(axis=2), scores, atol=1e-5)
    assert not answer["x_attributions"][:, :, 2:].any()
    expected = [forest.shapley(lambda z: forest.scores(TREES, z), x[[i]], other[[i]])[0] for i in range(N)]
    np.testing.assert_allclose(answer["x_attributions"], expected, atol=1e-5)


def test_one_row_is_every_rows_partner() -> None:
    compiled = compile_model(forest.regressor(TREES), TreeShap(OpenReferences(3)), targets="all")
    x = forest.rows(2, N)
    one, each = (compiled.explain(x, compare_with=rows) for rows in (x[:1], np.repeat(x[:1], N, axis=0)))
    np.testing.assert_array_equal(one["x_attributions"], each["x_attributions"])
    assert not one["x_attributions"][0].any()
    with pytest.raises(
        InvalidOptionError, match="2 rows, but 9 rows are explained: give one for each, or one"
    ):
        compiled.explain(x, compare_with=x[:2])
    with pytest.raises(InvalidOptionError, match=r"OpenReferences\(1\)"):
        compile_model(forest.regressor(TREES), TreeShap(x)).explain(x, compare_with=x)


def test_no_answer_depends_on_its_neighbours_or_on_what_fills_up() -> None:
    compiled = compile_model(forest.regressor(TREES), TreeShap(OpenReferences(K)), targets="all")
    opened = compiled.manifest.open_references
    assert opened is not None
    x, r = forest.rows(2, N), forest.rows(1, N)
    fed = {name: array.copy() for name, array in pair_references(opened, {"x": r}).items()}
    together = compiled.explain({"x": x, **fed})
    fed["x_references"][:, 1:] = np.nan
    alone = [compiled.explain({"x": x[[i]], **{n: a[[i]] for n, a in fed.items()}}) for i in range(N)]
    for i, answer in enumerate(alone):
        np.testing.assert_array_equal(answer["x_attributions"][0], together["x_attributions"][i])


def test_references_of_each_row() -> None:
    compiled = compile_model(forest.regressor(TREES), TreeShap(OpenReferences(K)), targets="all")
    x, r = forest.rows(1, N), np.stack([forest.rows(10 + i, K) for i in range(N)])
    weights = np.random.default_rng(0).random((N, K)).astype(np.float32) + 0.1
    answer = compiled.explain({"x": x, "x_references": r, WEIGHTS: weights})
    for i in range(N):
        expected = forest.shapley(lambda z: forest.scores(TREES, z), x[[i]], r[i], weights[i])
        np.testing.assert_allclose(answer["x_attributions"][[i]], expected, atol=1e-5)
        alone = compiled.explain({"x": x[[i]], "x_references": r[[i]], WEIGHTS: weights[[i]]})
        np.testing.assert_array_equal(answer["x_attributions"][[i]], alone["x_attributions"])


def test_trees_too_deep_for_tables() -> None:
    trees = [chain(np.arange(1.0, DEEP + 2))] * 3
    x, r = (np.random.default_rng(seed).normal(size=(4, DEEP)).astype(np.float32) for seed in (1, 2))
    tables = compile_model(forest.regressor(trees, DEEP), TreeShap(r)).explain(x)
    answer = asked(compile_model(forest.regressor(trees, DEEP), TreeShap(OpenReferences(4))), x, r)
    np.testing.assert_allclose(answer["x_attributions"], tables["x_attributions"], atol=1e-5)


def test_too_much_memory_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "MOST_BYTES", 1 << 20)
    with pytest.raises(
        UnsupportedModelError, match=r"2000 references .* about .*MB of memory.*--open-references 1"
    ):
        compile_model(forest.regressor(TREES), TreeShap(OpenReferences(2000)))


def test_interactions_need_their_references_beforehand() -> None:
    with pytest.raises(InvalidOptionError, match="open references do not go with: interactions"):
        compile_model(forest.regressor(TREES), TreeShap(OpenReferences(3), interactions=True))


def test_it_is_checked_among_the_trees_own_split_points() -> None:
    """A graph without examples is checked where the trees answer differently."""
    grid = tuple(1e6 * n for n in forest.GRID)
    trees = forest.random_trees(3, ("LEQ",), grid=grid)
    measured = compile_model(forest.regressor(trees), TreeShap(OpenReferences(K))).manifest.measured
    assert measured.gap_of_a_row is not None or measured.completeness_gap == 0.0
    assert not compile_model(forest.regressor(trees), TreeShap(OpenReferences(K))).manifest.warnings


def test_the_graph_holds_no_row_of_the_examples() -> None:
    examples = forest.rows(1, K) + 100.125
    compiled = compile_model(forest.regressor(TREES), TreeShap(OpenReferences(K, examples)))
    held = [onnx.numpy_helper.to_array(t) for t in compiled.model.graph.initializer]
    finite = examples[np.isfinite(examples)]
    assert not any(np.isin(finite, array).any() for array in held)
    assert compiled.manifest.references is None


def test_the_command(tmp_path: Path) -> None:
    def run(*arguments: Any) -> Any:
        return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})

    names, repository = list("abcde"), tmp_path / "repository"
    onnx.save(forest.regressor(TREES), tmp_path / "m.onnx")
    for name, seed, count in (("x", 2, 3), ("r", 1, 3), ("two", 3, 2)):
        pd.DataFrame(forest.rows(seed, count), columns=names).to_csv(tmp_path / f"{name}.csv", index=False)
    common = [tmp_path / "m.onnx", "--method", "treeshap", "--targets", "2", "--name", "m"]
    common += ["--repository", repository, "--references", tmp_path / "r.csv"]
    assert run("compile", *common).exit_code == 0
    pair = ["explain", "m", "--repository", repository, "--input", tmp_path / "x.csv"]
    refused = run(*pair, "--compare-with", tmp_path / "r.csv")
    assert refused.exit_code == 2
    assert "--open-references 1" in refused.stderr.replace("\n", " ")
    compiled = run("compile", *common, "--open-references", "1")
    assert compiled.exit_code == 0, compiled.output
    save = ["--save", tmp_path / "out.npz"]
    answer = run(*pair, "--compare-with", tmp_path / "r.csv", *save)
    assert answer.exit_code == 0, answer.output
    x, r = forest.rows(2, 3), forest.rows(1, 3)
    expected = [forest.shapley(lambda z: forest.scores(TREES, z), x[[i]], r[[i]])[0, [2]] for i in range(3)]
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["x_attributions"], expected, atol=1e-5)
    for other, message in (("two", "2 rows, but 3 rows are explained"), ("x", None)):
        answer = run(*pair, "--compare-with", tmp_path / f"{other}.csv")
        assert (answer.exit_code == 0) is (message is None), answer.output
        assert message is None or message in answer.stderr.replace("\n", " ")
    drawn = run(*pair, "--compare-with", tmp_path / "r.csv", "--html", tmp_path / "out.html")
    assert drawn.exit_code == 2
    assert "--compare-with works for the rows of one file" in drawn.stderr.replace("\n", " ")
