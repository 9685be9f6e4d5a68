"""The Triton backend against a gRPC server that fails on purpose, as a real Triton cannot be made to.

The real one is met in tests/triton.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from service.backends.triton import TritonBackend
from service.errors import NotReadyError
from service.repository.registry import read_repository
from service.settings import Settings
from tests.service import handmade as made
from tests.service.conftest import gateway
from tests.service.grpc_end import PATIENCE_S, SECONDS

GOOD = {"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6, 7, 8]}]}


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Computes `score`, or fails with the status and text it is told."""

    def __init__(self) -> None:
        self.fault: tuple[grpc.StatusCode, str] | None = None
        self.server_up = True
        self.missing: set[str] = set()
        self.requests: list[Any] = []
        self.hang = False
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def ServerReady(self, *_: Any) -> Any:  # noqa: N802 (gRPC's name)
        return pb.ServerReadyResponse(ready=self.server_up)

    async def ModelReady(self, request: Any, _: Any) -> Any:  # noqa: N802
        return pb.ModelReadyResponse(ready=request.name not in self.missing)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.append(request)
        if self.fault is not None:
            await context.abort(*self.fault)
        if self.hang:
            self.began.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(-1, 4)
        answer = pb.ModelInferResponse(model_name=request.model_name)
        answer.outputs.add(name="y", datatype="FP32", shape=[len(x), 3])
        answer.raw_output_contents.append(made.predict(x).tobytes())
        return answer


@contextlib.asynccontextmanager
async def fake_triton() -> AsyncIterator[tuple[FakeTriton, str]]:
    fake = FakeTriton()
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield fake, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def gateway_to_fake(
    repository: Path, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, FakeTriton]]:
    async with fake_triton() as (fake, address):
        configured = Settings(repository=repository, triton=address, **settings)
        async with gateway(configured) as client:
            yield client, fake


async def test_requests_reach_triton(repository: Path) -> None:
    async with gateway_to_fake(repository) as (client, fake):
        answer = await client.post("/v2/models/score/infer", json=GOOD)
        assert answer.status_code == 200
        x = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
        np.testing.assert_allclose(answer.json()["outputs"][0]["data"], made.predict(x).ravel(), rtol=1e-6)
        (request,) = fake.requests
        assert (request.model_name, request.model_version) == ("score", "1")
        assert [output.name for output in request.outputs] == ["y"]


@pytest.mark.parametrize(
    ("code", "text", "status", "slug", "said"),
    [
        ("INVALID_ARGUMENT", "batch-size must be <= 4", 422, "invalid-input", "batch-size must be <= 4"),
        ("NOT_FOUND", "unknown model", 404, "unknown-model", "Triton has no model 'score', version 1"),
        ("UNAVAILABLE", "connection reset by 10.0.0.3", 503, "not-ready", "try again later"),
        ("UNAVAILABLE", "Exceeds maximum queue size", 429, "queue-full", "queue for 'score' is full"),
        ("UNAVAILABLE", "Request timeout expired", 504, "deadline-exceeded", "Triton's deadline"),
        ("DEADLINE_EXCEEDED", "", 504, "deadline-exceeded", "Triton's deadline"),
        ("RESOURCE_EXHAUSTED", "", 429, "queue-full", "queue for 'score' is full"),
        (
            "INTERNAL",
            "onnx runtime error 2: node /secret",
            422,
            "invalid-input",
            "cannot compute these values",
        ),
        ("INTERNAL", "onnx runtime error 6: node /secret", 500, "model-failed", "server's log tells why"),
        ("UNKNOWN", "secret", 500, "model-failed", "server's log tells why"),
    ],
)
async def test_faults_are_translated(
    repository: Path, code: str, text: str, status: int, slug: str, said: str
) -> None:
    async with gateway_to_fake(repository) as (client, fake):
        fake.fault = (grpc.StatusCode[code], text)
        answer = await client.post("/v2/models/score/infer", json=GOOD)
        assert answer.status_code == status
        assert answer.json()["type"] == f"urn:rationale:problem:{slug}"
        assert said in answer.json()["detail"]
        assert "secret" not in answer.text
        assert ("retry-after" in answer.headers) == (status in (429, 503))


async def test_an_output_that_triton_leaves_out(repository: Path) -> None:
    async with gateway_to_fake(repository) as (client, _):
        answer = await client.post("/v2/models/score/explain", json=GOOD)
        assert answer.status_code == 500
        assert "Triton did not return output 'x_attributions'" in answer.json()["detail"]


async def test_readiness_asks_triton(repository: Path) -> None:
    async with gateway_to_fake(repository) as (client, fake):
        assert (await client.get("/v2/health/ready")).status_code == 200
        fake.missing = {"pair"}
        assert (await client.get("/v2/models/pair/ready")).status_code == 503
        assert (await client.get("/v2/models/score/ready")).status_code == 200
        fake.server_up = False
        assert (await client.get("/v2/health/ready")).status_code == 503


async def test_a_late_answer_is_cancelled_in_triton_too(repository: Path) -> None:
    async with gateway_to_fake(repository) as (client, fake):
        fake.hang = True
        for patience_s in PATIENCE_S:
            headers = {"x-request-timeout-ms": f"{1000 * patience_s:.0f}"}
            late = await client.post("/v2/models/score/infer", json=GOOD, headers=headers)
            assert late.status_code == 504
            if fake.began.is_set():
                break
        await asyncio.wait_for(fake.cancelled.wait(), SECONDS)


async def test_the_start_waits_for_the_models(repository: Path) -> None:
    entries = read_repository(repository).entries.values()
    async with fake_triton() as (fake, address):
        fake.missing = {"pair"}
        backend = TritonBackend(address, wait_s=SECONDS)
        starting = asyncio.create_task(backend.start(entries))
        await asyncio.sleep(0.3)
        assert not starting.done()
        fake.missing = set()
        await starting
        await backend.stop()


async def test_a_start_that_lacks_a_model_says_which(repository: Path) -> None:
    entries = read_repository(repository).entries.values()
    async with fake_triton() as (fake, address):
        fake.missing = {"pair", "typed"}
        backend = TritonBackend(address, wait_s=0.1)
        with pytest.raises(NotReadyError, match=r"did not load pair, typed within 0\.1 s"):
            await backend.start(entries)
        await backend.stop()


async def test_before_the_start_nothing_is_ready() -> None:
    with pytest.raises(NotReadyError, match="not open"):
        await TritonBackend("127.0.0.1:1", wait_s=1).ready()
