"""Columns of text in files: references and rows of a model with an input for each column."""

from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from rationale import Manifest, TreeShap, compile_model
from rationale.artifact.entry import open_entry
from rationale.artifact.rows import read_inputs
from rationale.evaluate.evaluate import EvaluationSettings, evaluate
from rationale.evaluate.shapley import ReasonAgreement, ShapleyComparison
from rationale_service.cli.main import app
from tests.compiler.models import parsed
from tests.references import trees as forest

KINDS = ["own", "rent", "free"]
SPLIT = forest.random_trees(5, ("LEQ", "LT"), features=4)
RANDOM = np.random.default_rng(4)
AGE = RANDOM.normal(size=9).astype(np.float32)
HOUSING = np.array([*KINDS, "a, b", *RANDOM.choice(KINDS, 5)])
CODE = RANDOM.choice(["1", "2", "03"], 9)  # digits, which are text all the same


def model() -> onnx.ModelProto:
    """Trees of age, three one-hot columns of housing, whose codes are not read."""
    text = """g (float[N, 1] age, string[N, 1] housing, string[N, 1] code) => (float[N, 4] z) {
        ones = ai.onnx.ml.OneHotEncoder <cats_strings = ["own", "rent", "free"], zeros = 1> (housing)
        flat = Reshape (ones, shape)
        z = Concat <axis = 1> (age, flat)
    }"""
    proto = parsed(text, {"shape": np.array([-1, 3])}, opsets='"" : 21, "ai.onnx.ml" : 3')
    trees = forest.regressor(SPLIT, 4)
    (node,) = trees.graph.node
    node.input[0] = "z"
    proto.graph.node.append(node)
    proto.graph.output[0].CopyFrom(trees.graph.output[0])
    return proto


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(model(), "m.onnx")
    columns = {"code": CODE, "age": AGE, "housing": HOUSING}  # in another order than the inputs
    lines = [f'{c},{float(a)!r},"{h}"' for c, a, h in zip(CODE, AGE, HOUSING, strict=True)]
    Path("r.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    parquet.write_table(pa.table(columns), "r.parquet")
    pd.DataFrame(columns).to_excel("r.xlsx", index=False)
    np.savez("r.npz", **{name: column[:, None] for name, column in columns.items()})
    return tmp_path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def compiled_with(file: str, place: Path) -> Result:
    options = ("--method", "treeshap", "--references", file, "--name", "m")
    return call("compile", "m.onnx", *options, "--repository", place)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "xlsx"])
def test_from_file_to_answer(kind: str, place: Path) -> None:
    result = compiled_with(f"r.{kind}", place)
    assert result.exit_code == 0, result.output
    entry = open_entry(place, "m")
    rows = read_inputs(entry, place / f"r.{kind}")
    assert rows["housing"].tolist() == HOUSING[:, None].tolist()
    assert rows["code"].tolist() == CODE[:, None].tolist()
    references = {"age": AGE[:, None], "housing": HOUSING[:, None], "code": CODE[:, None]}
    expected = compile_model(model(), TreeShap(references)).explain(references)
    answer = entry.explain(rows)
    np.testing.assert_array_equal(answer["housing_attributions"], expected["housing_attributions"])
    assert np.abs(expected["housing_attributions"]).max() > 0.1
    assert not answer["code_attributions"].any()
    result = call("explain", "m", "--input", f"r.{kind}", "--repository", place, "--save", "a.csv")
    assert result.exit_code == 0, result.output


def test_what_their_columns_are_called(place: Path) -> None:
    compiled_with("r.csv", place)
    explained = Manifest.read(place / "m_explain" / "explanation.json").explained
    assert [e.feature_names for e in explained] == [("age",), ("housing",), ("code",)]


def test_measures_replace_texts_too(place: Path) -> None:
    """TreeSHAP is exact: also where references have a word that no row of the file has."""
    assert compiled_with("r.csv", place).exit_code == 0
    compiled = open_entry(place, "m")
    rows = {name: array[HOUSING != "own"] for name, array in read_inputs(compiled, place / "r.csv").items()}
    rows = {name: array.astype(str) if array.dtype == object else array for name, array in rows.items()}
    np.savez("x.npz", **rows)
    settings = EvaluationSettings(shapley=True)
    (report,) = evaluate(place, ["m"], place / "x.npz", [place / "r.csv"], settings)
    assert isinstance(report.shapley, ShapleyComparison)
    assert max(report.shapley.distances) < 1e-5
    assert (report.features, report.shapley.players, report.shapley.rounds) == (3, 3, 0)
    scores = compiled.explain(rows)["explained_value"]
    assert report.deletion.values[0] == pytest.approx(scores.mean(), abs=1e-6)
    replaced = compiled.explain({name: compiled.sample[name][:1] for name in rows})["explained_value"]
    assert report.deletion.values[-1] == pytest.approx(replaced.item(), abs=1e-6)
    result = call(
        "evaluate", "m", "--input", "x.npz", "--references", "r.csv", "--repository", ".", "--out", "o"
    )
    assert result.exit_code == 0, result.output


def test_reasons_of_texts_are_compared(place: Path) -> None:
    references = {"age": AGE[:, None], "housing": HOUSING[:, None], "code": CODE[:, None]}
    expected = compile_model(model(), TreeShap(references)).explain(references)["explained_value"]
    profile = {"output": "y[0]", "threshold": float(np.median(expected)), "adverse": "above"}
    compile_model(model(), TreeShap(references), decision=profile).write(place, "decides")
    (report,) = evaluate(
        place, ["decides"], place / "r.npz", [place / "r.npz"], EvaluationSettings(shapley=True)
    )
    assert isinstance(report.shapley, ShapleyComparison)
    assert report.shapley.reasons == ReasonAgreement(int((expected > np.median(expected)).sum()), 1, 1)


def test_a_column_of_numbers_that_holds_text(place: Path) -> None:
    Path("r.csv").write_text("age,housing,code\nold,own,1\n")
    result = compiled_with("r.csv", place)
    assert result.exit_code == 2
    assert "column 'age': 'old' is not a number" in " ".join(result.output.split())
