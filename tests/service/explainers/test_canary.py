"""A canary answers its share of a model's explain requests, the same ones each time, and says so."""

import logging
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from rationale_service.observability import context as contexts
from rationale_service.observability.context import RequestContext
from rationale_service.protocols.grpc.servicer import infer
from rationale_service.protocols.rest.canary import CanarySpec
from rationale_service.repository.registry import Canary
from rationale_service.security.keys import Scope, new_key
from tests.service import handmade
from tests.service.explaining import (
    DEEPSHAP,
    GRADIENT,
    OTHER,
    PATH,
    Gate,
    Sets,
    administered,
    assert_answers,
    explain,
    explainers_of,
    made_ready,
    until,
)

CANARY = "/v2/models/score/canary"
HALF = {"explainer": "new", "share": 0.5}
ASK = {"instances": handmade.X.tolist()}


async def prepared(client: httpx.AsyncClient) -> None:
    await made_ready(client, f"{PATH}/old", DEEPSHAP)
    await made_ready(client, f"{PATH}/new", OTHER)


async def name_of(client: httpx.AsyncClient, request_id: str) -> str:
    """Of the explainer that answered, and really did."""
    answer = await client.post("/v1/models/score:explain", json=ASK, headers={"x-request-id": request_id})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    base = np.array([target["base_value"] for target in body["explanations"][0]["targets"]])
    rows = {"old": handmade.X[:3], "new": handmade.X[3:]}[body["explainer"]["name"]]
    np.testing.assert_allclose(base, handmade.predict(rows).mean(0), rtol=1e-4, atol=1e-5)
    return str(body["explainer"]["name"])


def counted(client: httpx.AsyncClient, arm: str, status: int = 200) -> float:
    labels = {"model": "score", "arm": arm, "status": str(status)}
    registry = client.app.state.gateway.metrics.registry  # type: ignore[attr-defined]
    return registry.get_sample_value("rationale_canary_requests_total", labels) or 0.0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_shares_are_kept_and_grow_by_what_they_add(share: float) -> None:
    keys = [f"request-{i}" for i in range(4000)]
    canary_keys = {key for key in keys if Canary("new", share).takes("score", key)}
    assert abs(len(canary_keys) / len(keys) - share) <= 3 * (share * (1 - share) / len(keys)) ** 0.5
    more = Canary("new", min(share + 0.2, 1))
    assert all(more.takes("score", key) for key in canary_keys)
    if 0 < share < 1:
        assert canary_keys != {key for key in keys if Canary("new", share).takes("another", key)}


@pytest.mark.usefixtures("quick")
async def test_its_share_is_answered_by_it_each_time(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        await prepared(client)
        answer = await client.put(CANARY, json=HALF)
        assert (answer.status_code, answer.json()) == (200, HALF)
        assert (await client.get(CANARY)).json() == HALF
        names = [await name_of(client, f"request-{i}") for i in range(30)]
        assert {"old", "new"} == set(names)
        assert names == [await name_of(client, f"request-{i}") for i in range(30)]
        assert counted(client, "canary") == 2 * names.count("new")
        assert counted(client, "default") == 2 * names.count("old")
        # one that is named answers itself, and nothing is counted
        assert_answers(await explain(client, explainer="old"), "typical")
        assert_answers(await explain(client, explainer="new"), "other")
        assert counted(client, "canary") + counted(client, "default") == 60
        assert (await client.delete(CANARY)).status_code == 204
        assert {await name_of(client, f"request-{i}") for i in range(30)} == {"old"}
        assert (await client.get(CANARY)).status_code == 404
        assert (await client.delete(CANARY)).status_code == 404


@pytest.mark.usefixtures("quick")
async def test_the_body_s_id_decides_by_both_protocols(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        await prepared(client)
        await client.put(CANARY, json=HALF)
        handler = client.app.state.gateway.handler  # type: ignore[attr-defined]
        tensor = {"name": "x", "shape": [5, 4], "datatype": "FP32", "data": handmade.X.ravel().tolist()}
        scores = {}
        for i in range(20):
            message: dict[str, Any] = {"id": f"loan-{i}", "inputs": [tensor]}
            by_http = [
                (await client.post(f"/v2/models/{path}", json=message)).json()
                for path in ("score/explain", "score_explain/infer", "score/versions/1/explain")
            ]
            request = pb.ModelInferRequest(model_name="score_explain", id=f"loan-{i}")
            request.inputs.add(name="x", datatype="FP32", shape=[5, 4])
            request.raw_input_contents.append(handmade.X.tobytes())
            bound = contexts.bind(RequestContext("grpc", "ModelInfer", f"other-{i}"))
            by_grpc = await infer(handler, request, None)
            contexts.unbind(bound)
            names = {output_item["parameters"]["explainer"] for output_item in by_http}
            names.add(by_grpc.parameters["explainer"].string_param)
            (scores[i],) = names
            outputs = {
                output_item["name"]: np.reshape(output_item["data"], output_item["shape"])
                for output_item in by_http[0]["outputs"]
            }
            assert_answers(outputs, {"old": "typical", "new": "other"}[scores[i]])
        assert set(scores.values()) == {"old", "new"}
        (entry,) = [e.name for e in explainers_of(client).store.registry().explainers["score"].values()][:1]
        of_entry = (await client.post(f"/v2/models/{entry}/infer", json={"inputs": [tensor]})).json()
        assert "explainer" not in of_entry["parameters"]  # by its own name it is no default


@pytest.mark.usefixtures("quick")
async def test_it_goes_with_its_explainer_and_stays_over_a_restart(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        await prepared(client)
        assert (await client.put(CANARY, json={**HALF, "share": 1})).status_code == 200
        assert await name_of(client, "a") == "new"
    async with administered(folder, sets) as client:
        assert await name_of(client, "a") == "new"
        await made_ready(client, f"{PATH}/new", {**OTHER, "default": True})  # it is the default now
        assert await name_of(client, "a") == "new"
        assert counted(client, "canary") == 1
        await made_ready(client, f"{PATH}/old", {**DEEPSHAP, "default": True})
        assert await name_of(client, "a") == "new"
        assert counted(client, "canary") == 2
        assert (await client.delete(f"{PATH}/new")).status_code == 204
        assert (await client.get(CANARY)).status_code == 404
        assert await name_of(client, "a") == "old"


@pytest.mark.usefixtures("quick")
async def test_every_replica_follows(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as first, administered(folder, sets) as second:
        await prepared(first)
        await until(lambda: len(explainers_of(second).store.registry().explainers.get("score", {})) == 2)
        await first.put(CANARY, json=HALF)
        await until(lambda: "score" in second.app.state.gateway.plane.repository.canaries)  # type: ignore[attr-defined]
        for i in range(10):
            assert await name_of(first, f"request-{i}") == await name_of(second, f"request-{i}")
        await second.delete(CANARY)
        await until(lambda: not first.app.state.gateway.plane.repository.canaries)  # type: ignore[attr-defined]


GARBAGE: list[tuple[Any, int, str]] = [
    ({"explainer": "new"}, 422, "share"),
    ({"explainer": "new", "share": 1.5}, 422, "share"),
    ({"explainer": "new", "share": -0.1}, 422, "share"),
    ({"explainer": "new", "share": "0.1"}, 422, "share"),
    ({"explainer": "", "share": 0.1}, 422, "explainer"),
    ({**HALF, "seed": 1}, 422, "seed"),
    ([], 400, "must be an object"),
    ({"explainer": "nobody", "share": 0.1}, 404, "it has: 'old', 'new'"),
    ({"explainer": "old", "share": 0.1}, 409, "is the default already"),
]


@pytest.mark.usefixtures("quick")
async def test_garbage_is_refused(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as client:
        await prepared(client)
        for body, status, message in GARBAGE:
            answer = await client.put(CANARY, json=body)
            assert answer.status_code == status, (body, answer.text)
            assert message in answer.text, body
        assert (await client.put("/v2/models/nobody/canary", json=HALF)).status_code == 404
        assert (await client.get("/v2/models/nobody/canary")).status_code == 404


async def test_one_alone_is_no_canary(folder: Path, sets: Sets, quick: Gate) -> None:
    async with administered(folder, sets) as client:
        await made_ready(client, f"{PATH}/new", {**GRADIENT, "default": False})
        answer = await client.put(CANARY, json=HALF)
        assert answer.status_code == 409
        assert "only one" in answer.text
        quick.close()
        assert (await client.put(f"{PATH}/coming", json=DEEPSHAP)).status_code == 202
        answer = await client.put(CANARY, json={"explainer": "coming", "share": 0.5})
        assert answer.status_code == 404  # nothing answers by it yet
        quick.open()


@pytest.mark.usefixtures("quick")
async def test_acts_are_recorded_and_requests_logged(
    folder: Path, sets: Sets, caplog: pytest.LogCaptureFixture
) -> None:
    async with administered(folder, sets, audit=f"sqlite:///{folder}/audit.sqlite3") as client:
        await prepared(client)
        await client.put(CANARY, json=HALF)
        await client.put(CANARY, json={"explainer": "nobody", "share": 0.5})
        await client.delete(CANARY)
        acts = client.app.state.gateway.acts  # type: ignore[attr-defined]
        actual = [act for act in acts._store.acts() if act["target"] == CANARY]
        assert [(act["act"], act["status"]) for act in actual] == [
            ("PUT", 200),
            ("PUT", 404),
            ("DELETE", 204),
        ]
        assert '"share": 0.5' in actual[0]["detail"]
        await client.put(CANARY, json=HALF)
        with caplog.at_level(logging.INFO, "rationale.access"):
            name = await name_of(client, "a")
        (line,) = [record for record in caplog.records if record.name == "rationale.access"]
        assert vars(line)["arm"] == {"old": "default", "new": "canary"}[name]


@pytest.mark.usefixtures("quick")
async def test_it_takes_an_administrator_s_key(folder: Path, sets: Sets) -> None:
    keys = {scope: new_key(scope.value, [scope], None) for scope in (Scope.EXPLAIN, Scope.ADMIN)}
    inline = "".join(table for _, table in keys.values())
    async with administered(folder, sets, keys=inline) as client:
        for scope, statuses in ((Scope.EXPLAIN, {403}), (Scope.ADMIN, {404})):
            header = {"authorization": f"Bearer {keys[scope][0]}"}
            actual = [
                (await client.get(CANARY, headers=header)).status_code,
                (await client.put(CANARY, headers=header, json=HALF)).status_code,
                (await client.delete(CANARY, headers=header)).status_code,
            ]
            assert set(actual) == statuses
        assert (await client.get(CANARY)).status_code == 401


def test_its_schema_is_what_is_answered() -> None:
    assert CanarySpec(explainer="new", share=0.5).model_dump() == HALF
