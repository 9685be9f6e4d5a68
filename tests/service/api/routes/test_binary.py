"""The binary tensor extension, byte by byte."""

import json

import httpx
import numpy as np
import pytest

from tests.service import handmade

pytestmark = pytest.mark.asyncio(loop_scope="session")


def body_of(message: dict, *raw: bytes) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(message).encode()
    return head + b"".join(raw), {
        "Inference-Header-Content-Length": str(len(head)),
        "Content-Type": "application/octet-stream",
    }


def tensor(size: int | str, name: str = "x", shape: tuple[int, ...] = (2, 4), datatype: str = "FP32") -> dict:
    return {
        "name": name,
        "shape": list(shape),
        "datatype": datatype,
        "parameters": {"binary_data_size": size},
    }


async def test_binary_and_json_outputs_in_one_answer(client: httpx.AsyncClient) -> None:
    outputs = [{"name": "y"}, {"name": "base_value", "parameters": {"binary_data": False}}]
    message = {"inputs": [tensor(32)], "outputs": outputs, "parameters": {"binary_data_output": True}}
    body, headers = body_of(message, handmade.X[:2].tobytes())
    answer = await client.post("/v2/models/score/explain", content=body, headers=headers)
    length = int(answer.headers["Inference-Header-Content-Length"])
    y, base = json.loads(answer.content[:length])["outputs"]
    assert (y["parameters"], "data" in y) == ({"binary_data_size": 24}, False)
    raw = np.frombuffer(answer.content[length:], np.float32).reshape(2, 3)
    np.testing.assert_allclose(raw, handmade.predict(handmade.X[:2]), rtol=1e-6)
    np.testing.assert_allclose(base["data"], np.tile(handmade.predict(handmade.R), 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "raw", "status", "message"),
    [
        ([tensor(32)], b"\0" * 31, 400, "announces 32 bytes, but 31 are left"),
        ([tensor(32)], b"\0" * 33, 400, "1 bytes follow the JSON that belong to no input"),
        ([tensor(28)], b"\0" * 28, 422, "has 28 bytes, but FP32 of shape [2, 4] takes 32"),
        ([tensor(-4)], b"", 400, "must be a number of bytes"),
        ([tensor("32")], b"\0" * 32, 400, "must be a number of bytes"),
        ([tensor(32) | {"data": [1]}], b"\0" * 32, 400, "both data and binary_data_size"),
        ([tensor(32, shape=(2**40, 2**40))], b"\0" * 32, 422, "is too large"),
        ([tensor(32, shape=(-2, -4))], b"\0" * 32, 422, "negative size"),
        ([tensor(4, "text", (1, 1), "BYTES")], b"\xff\xff\xff\xff", 422, "runs past the end"),
        ([tensor(2, "text", (1, 1), "BYTES")], b"\0\0", 422, "runs past the end"),
        ([tensor(8, "text", (1, 1), "BYTES")], b"\0" * 8, 422, "has 2 elements"),
    ],
)
async def test_broken_binary_bodies(
    client: httpx.AsyncClient, inputs: list[dict], raw: bytes, status: int, message: str
) -> None:
    body, headers = body_of({"inputs": inputs}, raw)
    answer = await client.post("/v2/models/score/infer", content=body, headers=headers)
    assert answer.status_code == status
    assert message in answer.json()["detail"]


@pytest.mark.parametrize("length", ["-1", "0", "x", "99999", "1.5", "²", ""])
async def test_a_wrong_json_length(client: httpx.AsyncClient, length: str) -> None:
    headers = {b"Inference-Header-Content-Length": length.encode("latin-1")}
    answer = await client.post("/v2/models/score/infer", content=b'{"inputs": []}', headers=headers)
    assert answer.status_code == 400
    assert "Inference-Header-Content-Length" in answer.json()["detail"]


async def test_bytes_that_are_not_utf8(client: httpx.AsyncClient) -> None:
    message = {"inputs": [tensor(16, "ids", (1, 2), "INT64"), tensor(5, "text", (1, 1), "BYTES")]}
    body, headers = body_of(message, bytes(16), b"\1\0\0\0\xff")
    answer = await client.post("/v2/models/typed/infer", content=body, headers=headers)
    assert answer.status_code == 422
    assert "not UTF-8" in answer.json()["detail"]
