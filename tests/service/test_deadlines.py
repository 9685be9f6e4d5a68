"""A deadline is one, whichever way the caller tells it; and nothing is read that would be refused anyway."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from service.errors import QueueFullError
from service.settings import Settings
from tests.service.conftest import gateway
from tests.service.faulty import FaultyBackend

V2 = (
    "/v2/models/score/infer",
    {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1] * 4}]},
)
V1 = ("/v1/models/score:explain", {"instances": [[1, 2, 3, 4]]})


class FullBackend(FaultyBackend):
    """Has no place for anyone."""

    def admit(self, *_: object) -> None:
        raise QueueFullError("256 requests for 'score' are waiting", 7)


@contextlib.asynccontextmanager
async def over(repository: Path, backend: FaultyBackend) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway(Settings(repository=repository), backend) as client:
        yield client


@pytest.mark.parametrize(("path", "body"), [V2, V1])
async def test_the_header_is_a_deadline(repository: Path, path: str, body: dict) -> None:
    backend = FaultyBackend(None)
    async with over(repository, backend) as client:
        answer = await client.post(path, json=body, headers={"x-request-timeout-ms": "30"})
        assert answer.status_code == 504, answer.text
        await asyncio.wait_for(backend.cancelled.wait(), 5)


@pytest.mark.parametrize("given", ["", "0", "-5", "1.5", "soon", "9" * 40, "٣"])
async def test_a_header_that_is_no_number_of_milliseconds(repository: Path, given: str) -> None:
    async with over(repository, FaultyBackend(None)) as client:
        answer = await client.post(V2[0], json=V2[1], headers={"x-request-timeout-ms": given.encode()})
        assert answer.status_code == 400
        assert "number of milliseconds" in answer.json()["detail"]


@pytest.mark.parametrize("path", [V2[0], V1[0]])
async def test_a_full_queue_refuses_before_the_body_is_read(repository: Path, path: str) -> None:
    read = []

    async def body() -> AsyncIterator[bytes]:
        read.append(1)
        yield b"{"

    async with over(repository, FullBackend(None)) as client:
        headers = {"content-type": "application/json"}
        answer = await client.post(path, content=body(), headers=headers)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert not read
