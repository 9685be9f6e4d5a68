"""Entries prove themselves at load: one that answers its probe rows wrongly is listed, and never served."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tritonclient.grpc import service_pb2 as pb

from rationale import DeepShap, Deployment, RepositoryError, compile_model
from rationale.schema.probes import Probes
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.engine.backends import onnxruntime as embedded
from rationale_service.settings import Settings
from tests.compiler.artifact.runtimes.test_proof import FAULTS, resigned, swap
from tests.compiler.models import NAMES, mlp, rows
from tests.service.conftest import gateway
from tests.service.decisions.decided import BANKRUPT, NETWORK
from tests.service.grpc_end import grpc_end

X = rows(2, 5, seed=7)
ROW = dict(zip(NAMES, X[0].tolist(), strict=True))
INPUT = {"name": "x", "shape": [2, 5], "datatype": "FP32", "data": X.reshape(-1).tolist()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, method = tmp_path_factory.mktemp("proof"), DeepShap(rows(5, 5))
    for i, name in enumerate(("net", "other")):
        compile_model(mlp(seed=i), method, feature_names=NAMES, targets=[1]).write(folder, name)
    compile_model(
        mlp(), method, feature_names=NAMES, targets=[1], deployment=Deployment(one_shot=True)
    ).write(folder, "once")
    compile_model(mlp((5, 4, 1), last="Sigmoid"), method, feature_names=NAMES, decision=NETWORK).write(
        folder, "decides"
    )
    return folder


@pytest.fixture
def models(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "models")


def settings(models: Path, **more: Any) -> Settings:
    return Settings(repository=models, audit=f"sqlite:///{models.parent}/audit.db", grpc_port=0, **more)


async def index(client: Any) -> dict[str, tuple[str, str]]:
    body = (await client.post("/v2/repository/index", json={})).json()
    return {item["name"]: (item["state"], item["reason"]) for item in body}


@pytest.mark.parametrize("fault", FAULTS)
async def test_other_files_are_listed_and_not_served(models: Path, fault: str) -> None:
    FAULTS[fault](models)
    async with gateway(settings(models)) as client:
        listed = await index(client)
        (broken,) = (name for name, (state, _) in listed.items() if state == "UNAVAILABLE")
        assert listed[broken][1].startswith(f"{broken}/1/")
        assert "is missing" in listed[broken][1] or "not the file that was compiled" in listed[broken][1]
        answer = await client.post(f"/v2/models/{broken}/infer", json={"inputs": [INPUT]})
        assert answer.status_code == 503


def otherwise(models: Path) -> None:
    """Another graph under the right digests: only its answers show it."""
    for name in ("net", "net_explain"):
        shutil.copyfile(
            models / name.replace("net", "other") / "1/model.onnx", models / name / "1/model.onnx"
        )
        resigned(models / name / "1")


async def test_other_answers_are_listed_with_the_figure_and_the_versions(models: Path) -> None:
    otherwise(models)
    async with gateway(settings(models)) as client:
        listed = await index(client)
    for name in ("net", "net_explain"):
        state, reason = listed[name]
        assert state == "UNAVAILABLE"
        assert f"{name}: ONNX Runtime {onnxruntime.__version__} on " in reason
        assert "of its range (0.001 is the most; compiled with ONNX Runtime " in reason
        assert "RATIONALE_ALLOW_DRIFT=true" in reason
    assert all(state == "READY" for name, (state, _) in listed.items() if not name.startswith("net"))


Shift = Callable[[float], None]


@pytest.fixture
def shift(monkeypatch: pytest.MonkeyPatch) -> Shift:
    """Have ONNX Runtime answer all rows a bit beside: a runtime that rounds otherwise."""
    run = embedded.run

    def shifted(by: float) -> None:
        def beside(entry: Any, session: Any, inputs: Any, outputs: Any) -> Any:
            probes = Probes.read(entry.model_path.parent)
            scales = {output.name: output.scale for output in probes.outputs}
            actual = run(entry, session, inputs, outputs)
            return {name: array + np.float32(by * scales.get(name, 0)) for name, array in actual.items()}

        monkeypatch.setattr(embedded, "run", beside)

    return shifted


@pytest.mark.parametrize(
    ("by", "state", "message"), [(0, "READY", 0), (1e-4, "READY", 7), (0.01, "UNAVAILABLE", 0)]
)
async def test_a_runtime_that_rounds_otherwise(
    models: Path, shift: Shift, by: float, state: str, message: int, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(models / "decides_explain")  # its plain model stays
    shift(by)
    with caplog.at_level(logging.WARNING):
        if state == "READY":
            async with gateway(settings(models)) as client:
                assert {actual for actual, _ in (await index(client)).values()} == {state}
        else:
            with pytest.raises(RepositoryError, match="probe rows"):
                async with gateway(settings(models)):
                    pass
    assert sum("otherwise than is due" in record.message for record in caplog.records) >= message


async def test_what_is_allowed_to_drift_says_so_in_every_answer(models: Path, shift: Shift) -> None:
    shift(0.01)
    drifting = settings(models, allow_drift=True)
    async with gateway(drifting) as client:
        for name in ("net", "once"):
            predicted = (await client.post(f"/v1/models/{name}:predict", json={"instances": [ROW]})).json()
            assert predicted["drift"] == pytest.approx(0.01, rel=0.01)
            explained = (await client.post(f"/v1/models/{name}:explain", json={"instances": [ROW]})).json()
            assert explained["drift"] == pytest.approx(0.01, rel=0.01)
            for verb in ("infer", "explain"):
                answer = await client.post(f"/v2/models/{name}/{verb}", json={"inputs": [INPUT]})
                assert answer.json()["parameters"]["drift"] == "0.01"
        for more in ({}, {"dry_run": True}):
            body = {"instances": BANKRUPT[:1], **more}
            (decision,) = (await client.post("/v1/models/decides:decide", json=body)).json()["decisions"]
            assert decision["drift"] == pytest.approx(0.01, rel=0.01)
        (recorded,) = (
            await client.post("/v1/models/decides:decide", json={"instances": BANKRUPT[:1]})
        ).json()["decisions"]
    store = open_ledger(drifting)
    assert store.read(recorded["id"]).answer["drift"] == recorded["drift"]
    store.close()


async def test_grpc_tells_it_too(models: Path, shift: Shift) -> None:
    shift(0.01)
    request = pb.ModelInferRequest(model_name="net_explain", raw_input_contents=[X.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=X.shape)
    async with grpc_end(settings(models, allow_drift=True)) as end:
        answer = await end.stub.ModelInfer(request)
    assert answer.parameters["drift"].string_param == "0.01"


async def test_a_sound_entry_says_nothing_of_it(models: Path) -> None:
    async with gateway(settings(models)) as client:
        assert {state for state, _ in (await index(client)).values()} == {"READY"}
        for path in ("v1/models/net:explain", "v1/models/net:predict"):
            assert "drift" not in (await client.post(path, json={"instances": [ROW]})).json()
        answer = (await client.post("/v2/models/net/explain", json={"inputs": [INPUT]})).json()
        assert "drift" not in answer["parameters"]


async def test_an_entry_that_turns_bad_is_not_taken_up_and_the_old_one_answers(models: Path) -> None:
    async with gateway(settings(models)) as client:
        swap(models / "net_explain" / "1")
        answer = await client.post("/v2/repository/models/net_explain/load", json={})
        assert answer.status_code == 409, answer.text
        assert "the file" in answer.text
        assert (await client.post("/v1/models/net:explain", json={"instances": [ROW]})).status_code == 200


def test_the_setting_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "RATIONALE_ALLOW_DRIFT" not in os.environ
    monkeypatch.setenv("RATIONALE_ALLOW_DRIFT", "true")
    assert Settings().allow_drift
