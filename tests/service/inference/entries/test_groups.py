"""Groups of features through the gateway: v1 by their names, the open protocol as one tensor."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from rationale import DeepShap, Deployment, compile_model
from rationale.artifact.entry import open_entry
from rationale.errors import RepositoryError
from rationale_service.repository.registry import read_repository
from rationale_service.settings import Settings
from tests.compiler.models import FEATURES, NAMES, mlp, rows, two_inputs
from tests.service.conftest import gateway
from tests.service.grpc_end import SECONDS, grpc_end

X = rows(3, FEATURES, seed=1)
PAIR = {"a": rows(2, 3, seed=5), "b": rows(2, 4, seed=6)}
GROUPS = {"money": ["debt", "income"], "time": ["age", "years"]}
PLAYERS = ["money", "time", "cards"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    method = DeepShap(rows(4, FEATURES, seed=2), standard_error=True)
    compiled = compile_model(mlp(), method, targets=[2, 0], feature_names=NAMES, groups=GROUPS)
    compiled.write(folder, "net")
    references = {"a": rows(4, 3, seed=3), "b": rows(4, 4, seed=4)}
    deployment_ = Deployment(one_shot=True)
    groups = {"ends": ["b[0]", "b[3]"]}
    compile_model(
        two_inputs(), DeepShap(references), targets=[1], groups=groups, deployment=deployment_
    ).write(folder, "two")
    return folder


async def test_answers_by_name(repository: Path) -> None:
    instances = [dict(zip(NAMES, row.tolist(), strict=True)) for row in X]
    async with gateway(Settings(repository=repository)) as client:
        answer = await client.post("/v1/models/net:explain", json={"instances": instances})
        status = await client.get("/v1/models/net")
    assert answer.status_code == 200, answer.text
    assert status.json()["features"] == {"x": NAMES}  # what a row is made of, whatever explains it
    want = open_entry(repository, "net").explain(X)
    for i, row in enumerate(answer.json()["explanations"]):
        for t, target in enumerate(row["targets"]):
            assert list(target["attributions"]) == list(target["standard_errors"]) == PLAYERS
            actual, errors = (list(target[member].values()) for member in ("attributions", "standard_errors"))
            np.testing.assert_allclose(actual, want["group_attributions"][i, t], rtol=1e-5)
            np.testing.assert_allclose(errors, want["group_standard_error"][i, t], rtol=1e-5)
            total = target["base_value"] + sum(target["attributions"].values()) + target["completeness_gap"]
            assert total == pytest.approx(target["explained_value"], rel=1e-5)


async def test_players_beside_an_input_of_its_own(repository: Path) -> None:
    instances = [{"a": a.tolist(), "b": b.tolist()} for a, b in zip(PAIR["a"], PAIR["b"], strict=True)]
    async with gateway(Settings(repository=repository)) as client:
        answer = await client.post("/v1/models/two:explain", json={"instances": instances})
    want = open_entry(repository, "two").explain(PAIR)
    for i, explanation in enumerate(answer.json()["explanations"]):
        assert list(explanation["attributions"]) == ["a[0]", "a[1]", "a[2]", "ends", "b[1]", "b[2]"]
        actual = np.concatenate([want["a_attributions"][i, 0], want["group_attributions"][i, 0]])
        np.testing.assert_allclose(list(explanation["attributions"].values()), actual, rtol=1e-5, atol=1e-7)


async def test_the_open_protocol(repository: Path) -> None:
    want = open_entry(repository, "net").explain(X)["group_attributions"]
    tensor = {"name": "x", "datatype": "FP32", "shape": list(X.shape), "data": X.ravel().tolist()}
    async with gateway(Settings(repository=repository)) as client:
        answer = (await client.post("/v2/models/net/explain", json={"inputs": [tensor]})).json()
    outputs = {t["name"]: t for t in answer["outputs"]}
    assert outputs["group_attributions"]["shape"] == [3, 2, 3]
    np.testing.assert_allclose(outputs["group_attributions"]["data"], want.ravel(), rtol=1e-5)
    assert "x_attributions" not in outputs
    request = pb.ModelInferRequest(
        model_name="net_explain",
        inputs=[pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=X.shape)],
        outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="group_attributions")],
        raw_input_contents=[X.tobytes()],
    )
    async with grpc_end(Settings(repository=repository)) as end:
        actual = await end.stub.ModelInfer(request, timeout=SECONDS)
    assert [(t.name, list(t.shape)) for t in actual.outputs] == [("group_attributions", [3, 2, 3])]
    np.testing.assert_allclose(
        np.frombuffer(actual.raw_output_contents[0], np.float32), want.ravel(), rtol=1e-5
    )


DAMAGED = {
    "a player less": (lambda m: m["players"].pop(), r"'group_attributions' has shape \[2, 2\]"),
    "two of one name": (
        lambda m: m["players"][1].update(name="money"),
        "names of its players are not distinct",
    ),
    "no output": (lambda m: m.update(group_attributions="lost"), "lists output 'lost'"),
    "another kind": (
        lambda m: m["players"][0].update(kind="mean"),
        "not a manifest",
    ),
    "no members": (lambda m: m["players"][0].update(features=[]), "not a manifest"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_manifest(tmp_path: Path, repository: Path, name: str) -> None:
    change, words = DAMAGED[name]
    for entry in ("net", "net_explain"):
        shutil.copytree(repository / entry, tmp_path / entry)
    path = tmp_path / "net_explain" / "explanation.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(RepositoryError, match=words):
        read_repository(tmp_path)
