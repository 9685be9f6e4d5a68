"""A deadline is one, whichever way the caller tells it; and nothing is read that would be refused anyway."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rationale_service.errors import QueueFullError
from rationale_service.settings import Settings
from tests.service.conftest import gateway
from tests.service.faulty import FaultyBackend
from tests.service.own_time import skipping

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
async def over(repository: Path, backend: FaultyBackend, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway(Settings(repository=repository, **settings), backend) as client:
        with skipping():
            yield client


def gave_the_work_up(
    answer: httpx.Response, backend: FaultyBackend, within: str, model: str = "score"
) -> bool:
    assert (answer.status_code, answer.json()["type"]) == (504, "urn:rationale:problem:deadline-exceeded")
    assert answer.json()["detail"] == f"no answer from '{model}' within {within}"
    return backend.cancelled.is_set()


@pytest.mark.parametrize(("path", "body", "model"), [(*V2, "score"), (*V1, "score_explain")])
async def test_the_header_is_a_deadline(repository: Path, path: str, body: dict, model: str) -> None:
    backend = FaultyBackend(None)
    async with over(repository, backend) as client:
        answer = await client.post(path, json=body, headers={"x-request-timeout-ms": "30"})
        assert gave_the_work_up(answer, backend, "0.03 s", model)


@pytest.mark.parametrize(
    ("setting_s", "timeout_us", "within"),
    [(0.02, None, "0.02 s"), (30, 40_000, "0.04 s"), (0.02, 30_000_000, "0.02 s")],
)
async def test_the_shortest_limit_is_the_deadline(
    repository: Path, setting_s: float, timeout_us: int | None, within: str
) -> None:
    backend = FaultyBackend(None)
    path, body = V2
    parameters = {} if timeout_us is None else {"timeout": timeout_us}
    async with over(repository, backend, request_timeout_s=setting_s) as client:
        answer = await client.post(path, json={**body, "parameters": parameters})
        assert gave_the_work_up(answer, backend, within)


@pytest.mark.parametrize("value", ["", "0", "-5", "1.5", "soon", "9" * 40, "٣"])
async def test_a_header_that_is_no_number_of_milliseconds(repository: Path, value: str) -> None:
    async with over(repository, FaultyBackend(None)) as client:
        answer = await client.post(V2[0], json=V2[1], headers={b"x-request-timeout-ms": value.encode()})
        assert answer.status_code == 400
        assert "milliseconds" in answer.json()["detail"]


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
