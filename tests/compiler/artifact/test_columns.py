"""Models whose inputs are the columns of a table, [N, 1] or [N] each, as of additive models."""

from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from typer.testing import CliRunner

from rationale import DeepShap, ExactShap, Manifest, compile_model
from rationale.cli.compile import app
from tests.compiler.models import parsed

TABLE = pd.DataFrame({"debt": [1.0, 4, 2, 0], "age": [30.0, 25, 61, 44], "unread": 1.0})
PRODUCT = "s = Constant <value_ints = [-1, 1]> () a = Reshape (age, s) d = Reshape (debt, s) y = Mul (a, d)"


def product(row: str) -> onnx.ModelProto:
    return parsed(f"g (float[N{row}] age, float[N{row}] debt) => (float[N, 1] y) {{ {PRODUCT} }}", {})


@pytest.mark.parametrize("row", ["", ", 1"], ids=["[N]", "[N, 1]"])
def test_from_python(row: str) -> None:
    for method in (DeepShap, ExactShap):
        compiled = compile_model(product(row), method(TABLE[["age", "debt"]]))
        answer = compiled.explain(TABLE[["debt", "age"]])
        np.testing.assert_allclose(answer["explained_value"][:, 0], TABLE["age"] * TABLE["debt"])
        sums = answer["age_attributions"].reshape(-1) + answer["debt_attributions"].reshape(-1)
        np.testing.assert_allclose(sums, (answer["explained_value"] - answer["base_value"])[:, 0], atol=1e-4)
        assert [e.feature_names for e in compiled.manifest.explained] == [("age",), ("debt",)]


@pytest.mark.parametrize("row", ["", ", 1"], ids=["[N]", "[N, 1]"])
def test_from_files(row: str, tmp_path: Path) -> None:
    onnx.save(product(row), tmp_path / "m.onnx")
    TABLE.to_csv(tmp_path / "r.csv", index=False)
    repository = ("--repository", str(tmp_path / "repository"))
    options = ["compile", "m.onnx", "--name", "m", "--method", "exactshap", "--references", "r.csv"]
    options = [str(tmp_path / a) if a.endswith((".onnx", ".csv")) else a for a in options]
    result = CliRunner().invoke(app, [*options, *repository])
    assert result.exit_code == 0, result.output
    manifest = Manifest.read(tmp_path / "repository" / "m_explain" / "explanation.json")
    assert [e.feature_names for e in manifest.explained] == [("age",), ("debt",)]
    result = CliRunner().invoke(app, ["explain", "m", "--input", str(tmp_path / "r.csv"), *repository])
    assert result.exit_code == 0, result.output
    assert " age\n" in result.output
