"""Index, configuration and statistics, over HTTP and gRPC, as tritonclient's four clients read them."""

from collections.abc import Awaitable
from inspect import isawaitable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from google.protobuf import json_format

from rationale_service.observability.metrics import PHASES
from rationale_service.settings import Settings
from tests.service.conftest import gateway
from tests.service.faulty import FaultyBackend
from tests.triton import clients

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def ask(end: str, ends: dict[str, str], method: str, *arguments: Any) -> Any:
    """What that client's method gives, as plain values."""
    address = ends[end.partition(" ")[0]]
    if end in clients.SYNC:
        with clients.sync_client(end, address) as client:
            return plain(getattr(client, method)(*arguments))
    async with clients.aio_client(end, address) as client:
        answer: Awaitable[Any] = getattr(client, method)(*arguments)
        return plain(await answer if isawaitable(answer) else answer)


def plain(answer: Any) -> Any:
    if isinstance(answer, dict | list):
        return answer
    return json_format.MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


@pytest.mark.parametrize("end", clients.ENDS)
async def test_the_index(ends: dict[str, str], end: str) -> None:
    answer = await ask(end, ends, "get_model_repository_index")
    items = answer if isinstance(answer, list) else answer["models"]
    assert {"name": "score", "version": "1", "state": "READY", "reason": ""} in items
    assert len(items) == len({item["name"] for item in items}) > 10


@pytest.mark.parametrize("end", clients.ENDS)
async def test_the_configuration(ends: dict[str, str], end: str) -> None:
    answer = await ask(end, ends, "get_model_config", "vector", "1")
    config = answer.get("config", answer)
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("vector", "onnxruntime", 4)
    (input_config,) = config["input"]
    assert (input_config["name"], input_config["data_type"]) == ("x", "TYPE_FP32")
    assert [int(size) for size in input_config["dims"]] == [1]
    assert [int(size) for size in config["output"][1]["reshape"]["shape"]] == [1, 2]


@pytest.mark.parametrize("end", clients.ENDS)
async def test_statistics_list_every_entry(ends: dict[str, str], end: str) -> None:
    everything = (await ask(end, ends, "get_inference_statistics"))["model_stats"]
    assert {"score", "score_explain"} <= {item["name"] for item in everything}
    (item,) = (await ask(end, ends, "get_inference_statistics", "score", "1"))["model_stats"]
    assert (item["name"], item["version"]) == ("score", "1")
    assert {"success", "fail", *PHASES} <= item["inference_stats"].keys()


@pytest.mark.parametrize("end", clients.ENDS)
async def test_statistics_count_what_was_asked(ends: dict[str, str], end: str) -> None:
    async def statistics(model: str) -> dict[str, Any]:
        (item,) = (await ask(end, ends, "get_inference_statistics", model))["model_stats"]
        assert (item["name"], item["version"]) == (model, "1")
        return item

    before, other = await statistics("slope_explain"), await statistics("slope")
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    await clients.infer(end, ends[end.partition(" ")[0]], "slope_explain", {"x": x})
    after = await statistics("slope_explain")
    assert int(after["inference_count"]) - int(before["inference_count"]) == 3
    assert int(after["execution_count"]) - int(before["execution_count"]) == 1
    took = {}
    for name in ("success", *PHASES):
        was, now = before["inference_stats"][name], after["inference_stats"][name]
        assert int(now["count"]) - int(was["count"]) == 1, name
        took[name] = int(now["ns"]) - int(was["ns"])
    assert all(0 < took[name] < 20e9 for name in took if name != "queue"), took
    assert sum(took[name] for name in PHASES) == pytest.approx(took["success"], abs=10)
    assert await statistics("slope") == other
    everything = await ask(end, ends, "get_inference_statistics")
    assert after in everything["model_stats"]
    assert len(everything["model_stats"]) > 10


async def test_statistics_count_what_failed(repository: Path) -> None:
    async with gateway(Settings(repository=repository)) as client:
        x = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
        assert (await client.post("/v2/models/score/infer", json={"inputs": [x]})).status_code == 422
        (item,) = (await client.get("/v2/models/score/stats")).json()["model_stats"]
        assert (item["inference_stats"]["fail"]["count"], item["execution_count"]) == (1, 0)


async def test_an_index_of_what_is_ready(repository: Path) -> None:
    backend = FaultyBackend(None)
    async with gateway(Settings(repository=repository), backend) as client:
        backend.up = False
        everything = (await client.post("/v2/repository/index", json={"ready": False})).json()
        assert {item["state"] for item in everything} == {"UNAVAILABLE"}
        assert (await client.post("/v2/repository/index", json={"ready": True})).json() == []


@pytest.mark.parametrize("body", [b"[", b"[]", b'{"ready": 1}', b"\xff"])
async def test_an_index_of_garbage(client: httpx.AsyncClient, body: bytes) -> None:
    answer = await client.post("/v2/repository/index", content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")


@pytest.mark.parametrize("case", ["config", "stats"])
async def test_models_that_are_not_there(client: httpx.AsyncClient, case: str) -> None:
    assert (await client.get(f"/v2/models/absent/{case}")).status_code == 404
    assert (await client.get(f"/v2/models/score/versions/2/{case}")).status_code == 404
    assert (await client.get(f"/v2/models/score/versions/1/{case}")).status_code == 200


async def test_a_configuration_keeps_numbers_and_maps(client: httpx.AsyncClient) -> None:
    config = (await client.get("/v2/models/score_explain/config")).json()
    assert config["max_batch_size"] == 2
    assert config["output"][1] == {"name": "x_attributions", "data_type": "TYPE_FP32", "dims": [3, 4]}
    assert config["dynamic_batching"] == {}
