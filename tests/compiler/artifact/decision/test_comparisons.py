"""Other references compiled beside a decision: what they are, and which folders stand there afterwards."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx.reference import ReferenceEvaluator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner, Result

from rationale import (
    Auto,
    Comparisons,
    DeepShap,
    ExactShap,
    ExpectedGradients,
    Gradient,
    InvalidOptionError,
    OpenReferences,
    TreeShap,
    compile_model,
)
from rationale.artifact.compiled import Compiled
from rationale.artifact.names import entry_name, is_entry_name
from rationale.errors import RepositoryError
from rationale.graph.runtime.session import Runner
from rationale.methods.engine import Method
from rationale.references.draws import bootstrap_samples
from rationale.schema.machine import Deployment
from rationale.schema.manifest import FILE_NAME, Manifest
from rationale_service.cli.main import app
from tests.compiler.models import FEATURES, NAMES, contents, mlp, rows
from tests.references import trees as of

K, DRAWS = 6, 4
GROUPS = {"money": {"members": NAMES[1:3]}}
PROFILE = {"output": "y[1]", "threshold": 0.4, "adverse": "above", "groups": GROUPS}
NEAR, EVERYBODY = rows(K, FEATURES), rows(9, FEATURES, seed=1)


def compiled(comparisons: Comparisons | None, model: Any = None, **options: Any) -> Compiled:
    method: Method = options.pop("method", DeepShap(NEAR))
    options = {"decision": PROFILE, "feature_names": NAMES} | options
    return compile_model(model or mlp(), method, comparisons=comparisons, **options)


COMPARISONS = Comparisons({"all_applicants": DeepShap(EVERYBODY)}, DRAWS, seed=3)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        (entry_name("m", "0123456789abcdef"), True),
        ("m_explain", False),
        ("m_explain_0123456789a", False),
        ("m_explain_0123456789abc", False),  # others' names begin so: they stay
        ("m_explain_0123456789ab_old", False),
        ("m_explain_0123456789AB", False),
        ("m2_explain_0123456789ab", False),
        ("m_explain_m_explain_0123456789ab", False),
        ("0123456789ab", False),
    ],
)
def test_names_of_entries_beside(name: str, is_one: bool) -> None:
    assert is_entry_name(name, "m") is is_one


def test_an_entry_beside_answers_as_one_compiled_of_those_references(tmp_path: Path) -> None:
    compiled(COMPARISONS).write(tmp_path, "m")
    manifest = Manifest.read(tmp_path / "m_explain" / FILE_NAME)
    assert manifest.decision is not None
    beside = manifest.decision.comparisons
    assert [(comparison.name, comparison.kind) for comparison in beside] == [
        ("all_applicants", "baseline"),
        *((f"draw {i}", "draw") for i in range(1, DRAWS + 1)),
    ]
    entries = [f"m_explain_{comparison.explanation[:12]}" for comparison in beside]
    assert [comparison.entry for comparison in beside] == entries
    assert {path.name for path in tmp_path.iterdir()} == {"m", "m_explain", *entries}
    x = rows(7, FEATURES, seed=2)
    expected = compile_model(
        mlp(),
        DeepShap(EVERYBODY),
        targets=[1],
        feature_names=NAMES,
        groups={"money": NAMES[1:3]},
    ).explain(x)
    actual = answers(tmp_path, entries[0], x)
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)
    of_entry = Manifest.read(tmp_path / entries[0] / FILE_NAME)
    assert (of_entry.model, of_entry.decision) == ("m", None)  # by which nobody decides
    for name in ("m_explain", *entries):  # rows of several callers share no run
        assert "dynamic_batching" not in (tmp_path / name / "config.pbtxt").read_text()


def answers(repository: Path, entry: str, x: np.ndarray) -> Mapping[str, np.ndarray]:
    return Runner(onnx.load(repository / entry / "1" / "model.onnx"))({"x": x})


def test_a_draw_is_of_as_many_rows_of_the_same_references(tmp_path: Path) -> None:
    """The base value is the mean output over them: held against the model itself."""
    entry = compiled(Comparisons(draws=DRAWS, seed=3))
    (outputs,) = ReferenceEvaluator(mlp()).run(None, {"x": NEAR})
    expected = [
        outputs[[np.flatnonzero((row == NEAR).all(1))[0] for row in draw], 1].mean()
        for draw in bootstrap_samples(NEAR, None, DRAWS, 3)
    ]
    entry.write(tmp_path, "m")
    manifest = Manifest.read(tmp_path / "m_explain" / FILE_NAME)
    assert manifest.decision is not None
    actual = [
        answers(tmp_path, comparison.entry, rows(2, FEATURES))["base_value"]
        for comparison in manifest.decision.comparisons
    ]
    np.testing.assert_allclose(np.concatenate(actual)[:, 0], np.repeat(expected, 2), rtol=1e-5)
    assert len({comparison.manifest.digests.references for comparison in entry.comparisons}) == DRAWS
    repeated = compiled(Comparisons(draws=DRAWS, seed=3)).comparisons
    assert [each.manifest.digests for each in repeated] == [one.manifest.digests for one in entry.comparisons]


def test_a_draw_stands_in_the_order_of_the_rows() -> None:
    """So that two draws of the same rows are equal, whatever order chance had."""
    order = np.arange(6)[:, None].astype(np.float32)
    kinds = {"array": order, "table": pd.DataFrame(order, columns=["a"]), "inputs": {"x": order, "y": -order}}
    actual = {kind: bootstrap_samples(table, [1, 1, 1, 1, 1, 3], 9, 5) for kind, table in kinds.items()}
    assert len({tuple(draw[:, 0]) for draw in actual["array"]}) > 1
    for array, table, inputs in zip(*actual.values(), strict=True):
        assert (np.diff(array[:, 0]) >= 0).all()
        np.testing.assert_array_equal(table["a"], array[:, 0])
        np.testing.assert_array_equal(inputs["x"], array)
        np.testing.assert_array_equal(inputs["y"], -array)


def test_columns_that_a_fitted_model_does_not_read_are_passed_over() -> None:
    """As in its own references: whatever their order."""
    table = pd.DataFrame(EVERYBODY, columns=list("abcde")[:FEATURES])
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, table["a"] > 0)
    profile = {"output": "probabilities[1]", "threshold": 0.4, "adverse": "above"}
    bases = []
    for frame in (table, table.assign(id="x").iloc[:, ::-1]):
        beside = Comparisons({"all_applicants": ExactShap(frame)})
        compiled = compile_model(model, ExactShap(table[:K]), comparisons=beside, decision=profile)
        (other,) = compiled.comparisons
        assert other.manifest.references is not None
        bases.append(other.manifest.references.base_value)
    assert bases[0] == bases[1] == pytest.approx([model.predict_proba(table)[:, 1].mean()])


def test_draws_are_in_the_order_of_the_rows() -> None:
    for drawn in bootstrap_samples(np.arange(20.0)[:, None], None, 5, seed=1):
        assert (np.diff(drawn[:, 0]) >= 0).all()


def test_draws_follow_the_weights() -> None:
    weights = np.array([0.0, 1, 2, 3, 2, 1])
    drawn = np.concatenate(bootstrap_samples(np.arange(K)[:, None], weights, 2000, 0))
    share = np.bincount(drawn[:, 0], minlength=K) / len(drawn)
    np.testing.assert_allclose(share, weights / weights.sum(), atol=0.015)  # four standard errors
    assert share[0] == 0


def test_draws_of_several_inputs_keep_rows_together() -> None:
    a = np.arange(K)[:, None]
    for draw in bootstrap_samples({"a": a, "b": a * 10}, None, 3, 0):
        assert draw["a"].shape == (K, 1)
        np.testing.assert_array_equal(draw["a"] * 10, draw["b"])


WEIGHTED = np.arange(1.0, K + 1)


@pytest.mark.parametrize(
    "method", [DeepShap(NEAR, WEIGHTED), ExactShap(NEAR), Auto(NEAR, WEIGHTED), ExpectedGradients(NEAR)]
)
def test_draws_are_explained_by_the_same_method(method: Method) -> None:
    entry = compiled(Comparisons(draws=2), method=method)
    assert [comparison.manifest.method for comparison in entry.comparisons] == [entry.manifest.method] * 2
    assert len({comparison.manifest.digests.references for comparison in entry.comparisons}) == 2


@pytest.mark.parametrize(
    "method",
    [
        DeepShap(NEAR, WEIGHTED),
        ExactShap(NEAR, WEIGHTED),
        Auto(NEAR, WEIGHTED),
        TreeShap(NEAR, weights=WEIGHTED),
        TreeShap(covers=NEAR, weights=WEIGHTED),
        ExactShap(NEAR),
    ],
    ids=repr,
)
def test_rows_that_were_drawn_by_weights_count_alike(method: Method) -> None:
    """Else a row of much weight would count twice: it is drawn more often, and has its weight again."""
    drawn = list(Comparisons(draws=3, seed=2).methods(method))
    assert [(name, kind) for name, kind, _ in drawn] == [(f"draw {i}", "draw") for i in (1, 2, 3)]
    for (_, _, one), rows_due in zip(
        drawn, bootstrap_samples(NEAR, method.reference_weights, 3, 2), strict=True
    ):
        assert one.reference_weights is None
        assert type(one) is type(method)
        np.testing.assert_array_equal(one.reference_set, rows_due)


def test_draws_of_covers() -> None:
    """Path-dependent: the base value is the mean by the rows that were drawn."""
    table = of.rows(1, 3000)
    trees = of.regressor(of.random_trees(1, ("LEQ",)))
    profile = {"output": "y[0]", "threshold": -4, "adverse": "above"}
    compiled = compile_model(
        trees, TreeShap(covers=table), decision=profile, comparisons=Comparisons(draws=2, seed=1)
    )
    assert [comparison.manifest.method for comparison in compiled.comparisons] == [
        compiled.manifest.method
    ] * 2
    for comparison, rows_of in zip(compiled.comparisons, bootstrap_samples(table, None, 2, 1), strict=True):
        expected = compile_model(trees, TreeShap(covers=rows_of), targets=[0])
        assert comparison.manifest.digests.references == expected.manifest.digests.references
        assert comparison.manifest.references == expected.manifest.references


# -- folders -------------------------------------------------------------------------------------------


def entries(repository: Path) -> set[str]:
    return {path.name for path in repository.iterdir()}


def test_an_earlier_compiles_comparisons_go_and_others_stay(tmp_path: Path) -> None:
    compiled(COMPARISONS).write(tmp_path, "m")
    compiled(Comparisons(draws=2)).write(tmp_path, "m_explain_not")
    of_other = {name for name in entries(tmp_path) if name.startswith("m_explain_not")}
    other_entries = {
        "m_explain_0123456789abcdef",
        "m_explain_0123456789ab",
    }  # of the API; a model of that name
    for name in other_entries:
        (tmp_path / name).mkdir()
    compiled(Comparisons(draws=1, seed=8)).write(tmp_path, "m")
    new = entries(tmp_path) - other_entries - of_other - {"m", "m_explain"}
    assert len(of_other) == 4
    assert len(new) == 1
    compile_model(mlp(), OPEN).write(tmp_path, "m")  # beside what is there
    assert new < entries(tmp_path)
    compiled(None).write(tmp_path, "m")
    assert entries(tmp_path) == {"m", "m_explain", "m_explain_open"} | other_entries | of_other


OPEN = DeepShap(OpenReferences(3))


def test_all_is_written_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(COMPARISONS).write(tmp_path, "m")
    before = contents(tmp_path)
    real = Path.rename

    def full(path: Path, target: Path) -> Path:
        if path.name == "m_explain" and target.parent == tmp_path and ".rationale-" in str(path):
            raise OSError(28, "No space left on device")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(RepositoryError, match=os.strerror(errno.ENOSPC)):
        compiled(Comparisons(draws=2, seed=9)).write(tmp_path, "m")
    assert contents(tmp_path) == before


# -- refusals ------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Comparisons, dict[str, Any], str]] = {
    "no profile": (COMPARISONS, {"decision": None}, r"need a decision profile.*--decision"),
    "one-shot": (COMPARISONS, {"deployment": Deployment(one_shot=True)}, "compile without --one-shot"),
    "a name with a path": (Comparisons({"../x": DeepShap(NEAR)}), {}, r"'\.\./x' is not a valid name"),
    "a taken name": (Comparisons({"draws": DeepShap(NEAR)}), {}, "and not 'draws'"),
    "no references": (Comparisons({"all": Gradient()}), {}, "'all' needs references: --compare all=FILE"),
    "one reference": (Comparisons(draws=2), {"method": DeepShap(NEAR[:1])}, "--draws needs at least two"),
    "open references": (Comparisons(draws=2), {"method": OPEN}, "compile without .* --open-references"),
    "fewer than no draws": (Comparisons(draws=-1), {}, "draws -1, seed 0: give numbers of 0 or more"),
    "other options": (
        Comparisons({"all": DeepShap(EVERYBODY, standard_error=True)}),
        {},
        "all uses deepshap .* give the same method and options",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    comparisons, options, words = REFUSED[name]
    with pytest.raises(InvalidOptionError, match=words):
        compiled(comparisons, **options)


# -- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(mlp().SerializeToString())
    header = ",".join(NAMES)
    np.savetxt("near.csv", NEAR, delimiter=",", header=header, comments="")
    np.savetxt("all.csv", EVERYBODY[:, ::-1], delimiter=",", header=",".join(NAMES[::-1]), comments="")
    Path("decision.json").write_text(json.dumps(PROFILE))
    return tmp_path


def call(*arguments: str) -> Result:
    base = ["compile", "m.onnx", "--name", "m", "--references", "near.csv", "--decision", "decision.json"]
    return CliRunner().invoke(app, [*base, *arguments])


def test_the_command(place: Path) -> None:
    result = call("--compare", "all_applicants=all.csv", "--draws", "2", "--seed", "5")
    assert result.exit_code == 0, result.output
    assert all(text in result.stdout for text in ("3 comparisons", "all_applicants", "2 draws"))
    manifest = Manifest.read(place / "model_repository" / "m_explain" / FILE_NAME)
    assert manifest.decision is not None
    compiled_here = compiled(Comparisons({"all_applicants": DeepShap(EVERYBODY)}, 2, seed=5))
    expected = [comparison.manifest.digests.references for comparison in compiled_here.comparisons]
    actual = [
        Manifest.read(place / "model_repository" / comparison.entry / FILE_NAME).digests.references
        for comparison in manifest.decision.comparisons
    ]
    assert actual[0] == expected[0]  # columns are found by name
    assert len(set(actual)) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--compare", "all.csv"), "--compare 'all.csv': give a name and a file"),
        (("--compare", "a=all.csv", "--compare", "a=near.csv"), "each name once"),
        (("--compare", "a=no.csv"), "no.csv: cannot be read"),
        (("--draws", "-1"), "--draws"),
    ],
)
def test_the_command_refuses(place: Path, arguments: tuple[str, ...], words: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert not (place / "model_repository").exists()
