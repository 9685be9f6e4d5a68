"""A compile as plain values: what the command line and the gateway share."""

from pathlib import Path
from typing import Any

import pytest

from compiler import IntegratedGradients
from compiler.artefact.entry import check_entry
from compiler.errors import InvalidOptionError, RepositoryError
from compiler.manifest import Manifest
from compiler.request import CompileRequest, parse_features, read_model

CREDIT = Path(__file__).parents[2] / "examples" / "credit"


@pytest.mark.parametrize(
    ("given", "referenced", "fault"),
    [
        ({"method": "magic"}, False, "--method 'magic'"),
        ({}, False, "needs --references"),
        ({"method": "gradient"}, True, "takes no --references"),
        ({"options": {"sigma": 1.0}}, True, "takes no --sigma"),
        ({"method": "smoothgrad"}, False, "needs --sigma"),
        ({"method": "lrp", "options": {"composite": "None"}}, False, "None"),
        ({"method": "integrated-gradients", "options": {"steps": 0}}, False, "steps"),
    ],
)
def test_options_are_checked_without_a_model(given: dict[str, Any], referenced: bool, fault: str) -> None:
    with pytest.raises(InvalidOptionError, match=fault):
        CompileRequest(**given).check(referenced=referenced)


def test_sound_options_pass() -> None:
    CompileRequest().check(referenced=True)
    asked = CompileRequest("integrated-gradients", {"steps": 8, "sigma": None})
    asked.check(referenced=False)
    method, table = asked._method(None, read_model(Path("m.onnx")))
    assert isinstance(method, IntegratedGradients)
    assert (method.steps, method.references, table) == (8, 0, None)


@pytest.mark.parametrize(
    ("given", "features"),
    [
        ([], None),
        ([" a, b "], ["a", "b"]),
        (["a,x=b"], ["a", "x=b"]),
        (["x=a, b"], {"x": ["a", "b"]}),
        (["x=c=1,b", "y=d"], {"x": ["c=1", "b"], "y": ["d"]}),
    ],
)
def test_features(given: list[str], features: object) -> None:
    assert parse_features(given) == features


def test_an_explainer_is_written_alone(tmp_path: Path) -> None:
    """A second explainer beside the first, of another method, under a name of its own."""
    asked = CompileRequest("integrated-gradients", {"steps": 3}, features=None)
    compiled = asked.compile(CREDIT / "credit.onnx", CREDIT / "references.csv")
    compiled.write(tmp_path, "credit")
    compiled.write_explainer(tmp_path / "credit_explain_0123", "credit")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["credit", "credit_explain", "credit_explain_0123"]
    manifest = Manifest.read(tmp_path / "credit_explain_0123" / "explanation.json")
    assert manifest == Manifest.read(tmp_path / "credit_explain" / "explanation.json")
    assert 'name: "credit_explain_0123"' in (tmp_path / "credit_explain_0123" / "config.pbtxt").read_text()
    with pytest.raises(RepositoryError, match="cannot be written"):
        compiled.write_explainer(tmp_path / "credit_explain_0123", "credit")
    error = check_entry(tmp_path, "credit").measured.rows_error
    assert error is not None
    assert error < 1e-5
