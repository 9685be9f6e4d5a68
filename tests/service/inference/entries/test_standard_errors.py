"""Answers that are means carry their standard errors through the gateway, by both protocols."""

from pathlib import Path

import httpx
import numpy as np
import pytest

from rationale import DeepShap, ExpectedGradients, SmoothGrad, compile_model
from rationale.artifact.entry import open_entry
from rationale.errors import RepositoryError
from rationale_service.repository.registry import read_repository
from rationale_service.settings import Settings
from tests.compiler.models import FEATURES, NAMES, cnn, mlp, rows, two_inputs
from tests.service.conftest import gateway

X = rows(3, FEATURES, seed=1)
REFERENCES = rows(4, FEATURES, seed=2)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    deepshap = DeepShap(REFERENCES, standard_error=True)
    compile_model(mlp(), deepshap, targets=[2, 0], feature_names=NAMES).write(folder, "shap")
    references = {"a": rows(4, 3, seed=3), "b": rows(4, 4, seed=4)}
    expected = ExpectedGradients(references, samples=30, standard_error=True)
    compile_model(two_inputs(), expected, targets=[1]).write(folder, "two")
    noisy = SmoothGrad(5, 0.1, standard_error=True)
    compile_model(cnn(), noisy, targets=[1]).write(folder, "image")
    compile_model(mlp(), ExpectedGradients(REFERENCES, samples=30)).write(folder, "plain")
    return folder


async def ask(folder: Path, path: str, body: object) -> dict:
    async with gateway(Settings(repository=folder)) as client:
        answer: httpx.Response = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_named_features_of_two_targets(repository: Path) -> None:
    answer = await ask(repository, "/v1/models/shap:explain", {"instances": X.tolist()})
    want = open_entry(repository, "shap").explain(X)
    for i, row in enumerate(answer["explanations"]):
        assert [target["target"] for target in row["targets"]] == [2, 0]
        for t, target in enumerate(row["targets"]):
            assert list(target["standard_errors"]) == list(target["attributions"]) == NAMES
            errors = np.array(list(target["standard_errors"].values()))
            np.testing.assert_allclose(errors, want["x_standard_error"][i, t], rtol=1e-5)
            assert errors.max() > 0.01
            assert "completeness_gap_standard_error" not in target


async def test_several_inputs_and_the_gap(repository: Path) -> None:
    x = {"a": rows(2, 3, seed=5), "b": rows(2, 4, seed=6)}
    instances = [{"a": a.tolist(), "b": b.tolist()} for a, b in zip(x["a"], x["b"], strict=True)]
    answer = await ask(repository, "/v1/models/two:explain", {"instances": instances})
    want = open_entry(repository, "two").explain(x)
    for i, explanation in enumerate(answer["explanations"]):
        errors = list(explanation["standard_errors"].values())
        expected = np.concatenate([want["a_standard_error"][i, 0], want["b_standard_error"][i, 0]])
        np.testing.assert_allclose(errors, expected, rtol=1e-5)
        gap = want["completeness_gap_standard_error"][i, 0]
        assert explanation["completeness_gap_standard_error"] == pytest.approx(gap, rel=1e-5)
        assert gap > 1e-3


async def test_features_without_names(repository: Path) -> None:
    x = rows(1, 2, 6, 8, seed=7)
    answer = await ask(repository, "/v1/models/image:explain", {"instances": x.tolist()})
    explanation = answer["explanations"][0]
    want = open_entry(repository, "image").explain(x)["x_standard_error"][0, 0]
    np.testing.assert_allclose(explanation["standard_errors"]["x"], want, atol=1e-6)
    assert "base_value" not in explanation


async def test_the_open_protocol(repository: Path) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(X.shape), "data": X.ravel().tolist()}
    answer = await ask(repository, "/v2/models/shap/explain", {"inputs": [tensor]})
    (errors,) = [t for t in answer["outputs"] if t["name"] == "x_standard_error"]
    assert errors["shape"] == [3, 2, 5]
    want = open_entry(repository, "shap").explain(X)["x_standard_error"]
    np.testing.assert_allclose(errors["data"], want.ravel(), rtol=1e-5)


async def test_without_the_option_only_the_gap_has_one(repository: Path) -> None:
    answer = await ask(repository, "/v1/models/plain:explain", {"instances": X.tolist()})
    for explanation in answer["explanations"]:
        assert explanation["completeness_gap_standard_error"] > 0
        assert "standard_errors" not in explanation


def test_an_entry_that_lacks_what_it_promises_is_refused(tmp_path: Path) -> None:
    compile_model(mlp(), DeepShap(REFERENCES, standard_error=True)).write(tmp_path, "shap")
    config = tmp_path / "shap_explain" / "config.pbtxt"
    config.write_text(config.read_text().replace("x_standard_error", "something_else"))
    with pytest.raises(RepositoryError, match="lists output 'x_standard_error'"):
        read_repository(tmp_path)
    manifest = tmp_path / "shap_explain" / "explanation.json"
    manifest.write_text(manifest.read_text().replace("x_standard_error", "lost"))
    with pytest.raises(RepositoryError, match=r"lacks \['lost'\]"):
        open_entry(tmp_path, "shap")
