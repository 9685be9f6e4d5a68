"""Inference by Triton's HTTP end, against a server that fails on purpose (a real one: test_both_backends)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import orjson
import pytest
from aiohttp import web

from service.backends.triton import TritonBackend
from service.errors import NotReadyError
from service.repository.registry import read_repository
from service.settings import Settings
from tests.service import handmade as made
from tests.service.backends.test_triton import GOOD, fake_triton
from tests.service.conftest import gateway
from tests.service.grpc_end import PATIENCE_S, SECONDS

HEADER_LENGTH = "Inference-Header-Content-Length"
INFER = "/v2/models/score/infer"


class FakeHttp:
    """Computes `score` by the binary extension, or answers with the status and text that it is told.

    Attributes:
        drops: how many connections are cut before they get an answer.
    """

    def __init__(self) -> None:
        self.fault: tuple[int, str] | None = None
        self.body: bytes | None = None
        self.drops = 0
        self.hang = False
        self.began, self.cancelled = asyncio.Event(), asyncio.Event()
        self.requests: list[tuple[str, dict]] = []

    async def ready(self, _: web.Request) -> web.Response:
        return web.Response()

    async def infer(self, request: web.Request) -> web.Response:
        body, end = await request.read(), int(request.headers[HEADER_LENGTH])
        self.requests.append((request.path, orjson.loads(body[:end])))
        if self.drops:
            self.drops -= 1
            assert request.transport is not None
            request.transport.abort()
        if self.hang:
            await self._hang()
        if self.fault is not None:
            status, text = self.fault
            return web.json_response({"error": text}, status=status)
        return self.body_of(np.frombuffer(body[end:], np.float32).reshape(-1, 4))

    async def _hang(self) -> None:
        self.began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def body_of(self, x: np.ndarray) -> web.Response:
        raw = made.predict(x).astype(np.float32).tobytes()
        output = {"name": "y", "datatype": "FP32", "shape": [len(x), 3]}
        head = orjson.dumps({"outputs": [{**output, "parameters": {"binary_data_size": len(raw)}}]})
        if self.body is not None:
            return web.Response(body=self.body)
        return web.Response(body=head + raw, headers={HEADER_LENGTH: str(len(head))})


@contextlib.asynccontextmanager
async def fake_http() -> AsyncIterator[tuple[FakeHttp, str]]:
    fake, app = FakeHttp(), web.Application()
    app.router.add_get("/v2/health/ready", fake.ready)
    app.router.add_post("/v2/models/{model}/versions/{version}/infer", fake.infer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield fake, f"{host}:{port}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def gateway_to(repository: Path) -> AsyncIterator[tuple[httpx.AsyncClient, FakeHttp]]:
    async with fake_triton() as (_, address), fake_http() as (fake, http):
        settings = Settings(repository=repository, triton=address, triton_http=http)
        async with gateway(settings) as client:
            yield client, fake


async def test_requests_go_there_in_binary(repository: Path) -> None:
    async with gateway_to(repository) as (client, fake):
        answer = await client.post(INFER, json=GOOD, headers={"x-request-timeout-ms": "9000"})
        x = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
        np.testing.assert_allclose(answer.json()["outputs"][0]["data"], made.predict(x).ravel(), rtol=1e-6)
    ((path, asked),) = fake.requests
    assert path == "/v2/models/score/versions/1/infer"
    assert asked["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]
    assert asked["inputs"][0] == {
        "name": "x",
        "datatype": "FP32",
        "shape": [2, 4],
        "parameters": {"binary_data_size": 32},
    }
    assert 0 < asked["parameters"]["timeout"] <= 9_000_000


@pytest.mark.parametrize(
    ("code", "text", "status", "slug", "said"),
    [
        (400, "batch-size must be <= 4", 422, "invalid-input", "batch-size must be <= 4"),
        (404, "unknown model", 404, "unknown-model", "Triton has no model 'score', version 1"),
        (503, "not ready", 503, "not-ready", "try again later"),
        (503, "Exceeds maximum queue size", 429, "queue-full", "queue for 'score' is full"),
        (503, "Request timeout expired", 504, "deadline-exceeded", "Triton's deadline"),
        (500, "onnx runtime error 2: node /secret", 422, "invalid-input", "cannot compute these values"),
        (500, "onnx runtime error 6: node /secret", 500, "model-failed", "server's log tells why"),
        (418, "secret", 500, "model-failed", "server's log tells why"),
    ],
)
async def test_faults_are_translated(
    repository: Path, code: int, text: str, status: int, slug: str, said: str
) -> None:
    async with gateway_to(repository) as (client, fake):
        fake.fault = (code, text)
        answer = await client.post(INFER, json=GOOD)
        assert (answer.status_code, answer.json()["type"]) == (status, f"urn:rationale:problem:{slug}")
        assert said in answer.json()["detail"]
        assert "secret" not in answer.text
        assert ("retry-after" in answer.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "cannot be read"),
        (b"\xff\x00 no JSON", "cannot be read"),
        (b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3]}]}', "cannot be read"),
        (b'{"outputs": []}', "did not return output 'y'"),
        (
            b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3],'
            b' "parameters": {"binary_data_size": 24}}]}',
            "does not fill its shape",
        ),
    ],
)
async def test_an_answer_that_is_none(repository: Path, body: bytes, said: str) -> None:
    async with gateway_to(repository) as (client, fake):
        fake.body = body
        answer = await client.post(INFER, json=GOOD)
        assert (answer.status_code, answer.json()["type"]) == (500, "urn:rationale:problem:model-failed")
        assert said in answer.json()["detail"]


async def test_a_connection_that_breaks_is_asked_again(repository: Path) -> None:
    async with gateway_to(repository) as (client, fake):
        fake.drops = 2
        assert (await client.post(INFER, json=GOOD)).status_code == 200
        assert len(fake.requests) == 3
        fake.drops = 99
        broken = await client.post(INFER, json=GOOD)
        assert (broken.status_code, broken.json()["type"]) == (503, "urn:rationale:problem:not-ready")


async def test_a_late_answer_is_given_up(repository: Path) -> None:
    async with gateway_to(repository) as (client, fake):
        fake.hang = True
        for patience_s in PATIENCE_S:
            headers = {"x-request-timeout-ms": f"{1000 * patience_s:.0f}"}
            assert (await client.post(INFER, json=GOOD, headers=headers)).status_code == 504
            if fake.began.is_set():
                break
        await asyncio.wait_for(fake.cancelled.wait(), SECONDS)


async def test_a_start_without_the_http_end_says_so(repository: Path) -> None:
    async with fake_triton() as (_, address):
        backend = TritonBackend(address, wait_s=0.1, http_address="127.0.0.1:1")
        with pytest.raises(
            NotReadyError, match=r"no Triton answered by HTTP at 127\.0\.0\.1:1 within 0\.1 s"
        ):
            await backend.start(read_repository(repository).entries.values())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"triton_http": "localhost:8000"}, "triton_http needs triton"),
        ({"triton": "localhost:8001", "triton_http": "http://localhost:8000"}, "Triton's HTTP end, such as"),
    ],
)
def test_settings_that_do_not_fit(settings: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(repository=Path(), **settings)
