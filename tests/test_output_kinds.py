"""A kind of output that a method brings: its row in the registry is enough for all that writes answers."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import pyarrow as pa
import pytest

from rationale import compile_model
from rationale.artifact.compiled import Compiled
from rationale.errors import RepositoryError
from rationale.graph.tensor import Tensor
from rationale.methods.coalitions.shapley import ExactShap
from rationale.methods.engine import Method, Results
from rationale.methods.propagation.gradients import Gradient
from rationale.methods.trees.treeshap import TreeShap
from rationale.portfolios.arrow import explain_batches
from rationale.portfolios.files import write_explanations
from rationale.schema.manifest import GROUPS, Manifest
from rationale.schema.outputs import OUTPUT_KINDS, WHOLE, OutputKind
from rationale_service.protocols.rest.features import _other_outputs
from rationale_service.protocols.rest.v1 import explanations
from tests.compiler.models import parsed
from tests.references import trees

MODEL = "network (float[N, 3] x) => (float[N, 1] y) <float[3, 1] w = {0.4, -0.7, 1.1}> { y = MatMul (x, w) }"
X = np.array([[1, 2, 3], [-1, 0, 4]], np.float32)
EFFECTS = X * np.array([0.4, -0.7, 1.1])
SQUARES = EFFECTS**2
KINDS = (
    OutputKind("square", "NTF", "the square of each attribution", "squares", "_square"),
    OutputKind("product", "NTFF", "the product of each two attributions", in_tables=False),
    OutputKind("largest", "NT", "the largest attribution"),
)


class Squared(Method):
    """A method with one output of each shape besides its attributions."""

    @property
    def further_outputs(self) -> Sequence[str]:
        return [kind.name for kind in KINDS]

    def emit_output(self, kind: str, results: Results) -> Mapping[str, Tensor]:
        op, attributions = results.op, results.attributions
        if kind == "square":
            return {name: op.Mul(value, value) for name, value in attributions.items()}
        if kind == "largest":
            ((_, value),) = attributions.items()
            return {WHOLE: op.ReduceMax(value, [1], keepdims=0)}
        return {
            name: op.Mul(op.reshape(value, (*value.shape, 1)), op.reshape(value, (1, *value.shape)))
            for name, value in attributions.items()
            if name != GROUPS
        }


@dataclass(frozen=True)
class Squares(Squared, Gradient):
    """x · gradient."""

    times_input: bool = True


@dataclass(frozen=True, eq=False)
class SquaredGame(Squared, ExactShap):
    """A game between the features."""


@dataclass(frozen=True, eq=False)
class SquaredTrees(Squared, TreeShap):
    """The tables of a tree ensemble."""


@pytest.fixture
def squares(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    for kind in KINDS:
        monkeypatch.setitem(OUTPUT_KINDS, kind.name, kind)
    return compile_model(parsed(MODEL), Squares())


def test_what_is_told_of_it_is_what_answers_have(squares: Compiled) -> None:
    """Of each two features nothing is answered over v1: the product of a kind is too large for JSON."""
    answer = squares.explain(X)
    (one, _) = explanations(squares.manifest, answer)
    told = _other_outputs(squares.manifest)
    assert told == {"squares": KINDS[0].meaning, "largest": KINDS[2].meaning}
    assert told.keys() <= one.keys()


def test_the_graph_answers_it_and_the_manifest_names_it(squares: Compiled) -> None:
    answer = squares.explain(X)
    np.testing.assert_allclose(answer["x_square"][:, 0], SQUARES, rtol=1e-5)
    np.testing.assert_allclose(answer["largest"][:, 0], EFFECTS.max(axis=1), rtol=1e-5)
    assert answer["x_product"].shape == (2, 1, 3, 3)
    manifest = Manifest.model_validate_json(squares.manifest.to_json())
    assert manifest == squares.manifest
    assert manifest.values["largest"] == "largest"
    shapes = {name: manifest.explanation_outputs[name] for name in ("largest", "x_square", "x_product")}
    assert shapes == {"largest": (1,), "x_square": (1, 3), "x_product": (1, 3, 3)}


def test_tables_and_apis_have_it(squares: Compiled, tmp_path) -> None:
    answer = squares.explain(X)
    write_explanations(tmp_path / "rows.csv", [answer])
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["x[2]_square"]) for row in rows] == pytest.approx(SQUARES[:, 2])
    write_explanations(tmp_path / "rows.json", [answer])
    record = json.loads((tmp_path / "rows.json").read_text())[0]
    assert record["squares"]["x[1]"] == pytest.approx(SQUARES[0, 1])
    assert record["largest"] == pytest.approx(3.3)
    columns = {f"x[{i}]": X[:, i] for i in range(3)}
    (batch,) = explain_batches(squares, pa.record_batch(columns))
    assert batch["x[2]_square"].to_pylist() == pytest.approx(list(SQUARES[:, 2]))
    assert batch["largest"].to_pylist() == pytest.approx([3.3, 4.4])
    (first, _) = explanations(squares.manifest, dict(answer))
    assert first["squares"] == pytest.approx(record["squares"])
    assert first["largest"] == pytest.approx(3.3)


@pytest.mark.usefixtures("squares")
@pytest.mark.parametrize(
    ("model", "method"),
    [
        (parsed(MODEL), SquaredGame(np.zeros((1, 3), np.float32))),
        (trees.regressor(trees.random_trees(1, ["LEQ"])), SquaredTrees(trees.rows(1, 3))),
    ],
    ids=["coalitions", "trees"],
)
def test_engines_without_a_walk_answer_it_too(model: onnx.ModelProto, method: Method) -> None:
    width = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    rows = np.random.default_rng(0).standard_normal((2, width)).astype(np.float32)
    answer = compile_model(model, method, targets=[0]).explain(rows)
    np.testing.assert_allclose(answer["x_square"], answer["x_attributions"] ** 2, rtol=1e-5, atol=1e-7)
    assert answer["x_product"].shape == (2, 1, width, width)
    largest = answer["x_attributions"].max(axis=2)
    np.testing.assert_allclose(answer["largest"], largest, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("squares")
def test_groups_have_theirs_together() -> None:
    grouped = compile_model(parsed(MODEL), Squares(), groups={"ab": ["x[0]", "x[1]"]})
    answer = grouped.explain(X)
    expected = EFFECTS[:, :2].sum(axis=1) ** 2
    np.testing.assert_allclose(answer["group_square"][:, 0, 0], expected, rtol=1e-5)


def test_a_manifest_of_unknown_kinds_is_refused(squares: Compiled, tmp_path, monkeypatch) -> None:
    file = tmp_path / "explanation.json"
    file.write_text(squares.manifest.to_json())
    monkeypatch.delitem(OUTPUT_KINDS, "square")
    with pytest.raises(RepositoryError, match="square"):
        Manifest.read(file)


def test_a_manifest_without_any_says_nothing_of_them() -> None:
    compiled = compile_model(parsed(MODEL), Gradient())
    assert "other_outputs" not in compiled.manifest.to_json()
