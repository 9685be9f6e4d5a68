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

from rationale.errors import RepositoryError
from rationale_service.engine.backends.triton import TritonBackend
from rationale_service.engine.request import InferenceAnswer, InferenceRequest
from rationale_service.errors import ModelFailedError, NotReadyError
from rationale_service.protocols.grpc.codec import decode_request, encode_answer
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import read_repository
from rationale_service.settings import Settings
from tests.service import handmade
from tests.service.conftest import gateway
from tests.service.grpc_end import PATIENCE_S, SECONDS

TENSORS = {
    "ids_out": np.array([[1, -2], [3, 4], [5, 6]]),
    "text_out": np.array([[b"a"], [b""], ["é".encode()]], dtype=np.object_),
    "half": np.array([[1, 2], [3, 4], [5, 6]], np.float16),
    "positive": np.array([[True, False], [False, False], [True, True]]),
}
GOOD = {"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6, 7, 8]}]}


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Computes `score`, or fails with the status and text it is told, `faults` times."""

    def __init__(self) -> None:
        self.fault: tuple[grpc.StatusCode, str] | None = None
        self.faults = 99
        self.server_up = True
        self.missing: set[str] = set()
        self.requests: list[Any] = []
        self.hang = False
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def ServerLive(self, _: Any, context: Any) -> Any:  # noqa: N802 (gRPC's name)
        if not self.server_up:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return pb.ServerLiveResponse(live=True)

    async def ModelReady(self, request: Any, _: Any) -> Any:  # noqa: N802
        return pb.ModelReadyResponse(ready=request.name not in self.missing)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.append(request)
        if self.fault is not None and len(self.requests) <= self.faults:
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
        answer.raw_output_contents.append(handmade.predict(x).tobytes())
        return answer


@contextlib.asynccontextmanager
async def fake_triton() -> AsyncIterator[tuple[FakeTriton, str]]:
    fake, server = FakeTriton(), grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    async with listening(server) as address:
        yield fake, address


@contextlib.asynccontextmanager
async def listening(server: grpc.aio.Server) -> AsyncIterator[str]:
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def backend_to(answer: bytes) -> AsyncIterator[tuple[TritonBackend, list[Any]]]:
    """A backend whose Triton answers everything with these bytes, and the requests that came."""
    requests = []

    async def infer(request: Any, _: Any) -> bytes:
        requests.append(request)
        return answer

    method = grpc.unary_unary_rpc_method_handler(infer, pb.ModelInferRequest.FromString)
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": method})
    async with listening(grpc.aio.server(handlers=[service])) as address:
        backend = TritonBackend(address, wait_s=SECONDS)
        await backend.start([])
        yield backend, requests
        await backend.stop()


@pytest.fixture
def typed(repository: Path) -> Entry:
    return read_repository(repository).entry("typed")


def raw(**over: object) -> bytes:
    """An answer of one output, well-formed but for what `over` says."""
    tensor = {"name": "half", "datatype": "FP16", "shape": [1, 2], **over}
    data = tensor.pop("data", bytes(4))
    outputs = [pb.ModelInferResponse.InferOutputTensor(**tensor)]
    contents = [] if data is None else [data]
    return pb.ModelInferResponse(outputs=outputs, raw_output_contents=contents).SerializeToString()


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
        np.testing.assert_allclose(
            answer.json()["outputs"][0]["data"], handmade.predict(x).ravel(), rtol=1e-6
        )
        (request,) = fake.requests
        assert (request.model_name, request.model_version) == ("score", "1")
        assert [output.name for output in request.outputs] == ["y"]


async def test_tensors_of_every_kind_go_and_come(typed: Entry) -> None:
    answered = encode_answer(
        InferenceAnswer(InferenceRequest(), "typed", "1", typed, TENSORS)
    ).SerializeToString()
    async with backend_to(answered) as (backend, requests):
        outputs = ["positive", "text_out", "half"]
        tensors = await backend.infer(typed, TENSORS, outputs)
        soon = asyncio.get_running_loop().time() + SECONDS
        await backend.infer(typed, TENSORS, ["half"], soon)
    assert list(tensors) == outputs
    first, second = map(decode_request, requests)
    assert (requests[0].model_name, requests[0].model_version) == ("typed", typed.version)
    assert (first.outputs, first.timeout_s) == (tuple(outputs), None)
    assert second.outputs == ("half",)
    assert 0 < second.timeout_s <= SECONDS
    for actual in (first.inputs, tensors):
        for name, array in actual.items():
            assert array.dtype == TENSORS[name].dtype
            np.testing.assert_array_equal(array, TENSORS[name])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xff\xff", "cannot read Triton's answer"),
        (raw(name="other"), "did not return output 'half'"),
        (raw(datatype="BF16"), "as BF16"),
        (raw(shape=[3, 2]), "does not fill its shape"),
        (raw(datatype="BYTES", data=b"\xff\0\0\0"), "does not fill its shape"),
        (raw(data=None), "does not fill its shape"),
    ],
)
async def test_an_answer_that_is_none_is_a_fault_of_triton(typed: Entry, body: bytes, message: str) -> None:
    async with backend_to(body) as (backend, _):
        with pytest.raises(ModelFailedError, match=message):
            await backend.infer(typed, TENSORS, ["half"])


async def test_what_is_unavailable_is_asked_again(repository: Path) -> None:
    async with gateway_to_fake(repository) as (client, fake):
        fake.fault, fake.faults = (grpc.StatusCode.UNAVAILABLE, "Socket closed"), 3
        assert (await client.post("/v2/models/score/infer", json=GOOD)).status_code == 200
        assert len(fake.requests) == 4
        fake.fault, fake.faults = (grpc.StatusCode.INTERNAL, "once"), 5
        assert (await client.post("/v2/models/score/infer", json=GOOD)).status_code == 500
        assert len(fake.requests) == 5


@pytest.mark.parametrize(
    ("code", "text", "status", "slug", "message"),
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
        ("INTERNAL", "onnx runtime error 6: node /secret", 500, "model-failed", "server's log"),
        ("UNKNOWN", "secret", 500, "model-failed", "server's log"),
    ],
)
async def test_faults_are_translated(
    repository: Path, code: str, text: str, status: int, slug: str, message: str
) -> None:
    async with gateway_to_fake(repository) as (client, fake):
        fake.fault = (grpc.StatusCode[code], text)
        answer = await client.post("/v2/models/score/infer", json=GOOD)
        assert answer.status_code == status
        assert answer.json()["type"] == f"urn:rationale:problem:{slug}"
        assert message in answer.json()["detail"]
        assert "secret" not in answer.text
        assert ("retry-after" in answer.headers) == (status in (429, 503))
        counted = f'rationale_dependency_failures_total{{dependency="triton"}} {float(slug == "not-ready")}'
        assert counted in (await client.get("/metrics")).text.splitlines()


async def test_an_output_that_triton_leaves_out(repository: Path) -> None:
    async with gateway_to_fake(repository) as (client, _):
        answer = await client.post("/v2/models/score/explain", json=GOOD)
        assert answer.status_code == 500
        assert "'x_attributions'" in answer.json()["detail"]


async def test_readiness_asks_triton(repository: Path) -> None:
    async with gateway_to_fake(repository) as (client, fake):
        assert (await client.get("/v2/health/ready")).status_code == 200
        fake.missing = {"pair"}
        assert (await client.get("/v2/models/pair/ready")).status_code == 503
        assert (await client.get("/v2/models/score/ready")).status_code == 200
        counted = 'rationale_dependency_failures_total{dependency="triton"}'
        assert f"{counted} 0.0" in (await client.get("/metrics")).text.splitlines()
        fake.server_up = False
        assert (await client.get("/v2/health/ready")).status_code == 503
        assert f"{counted} 1.0" in (await client.get("/metrics")).text.splitlines()


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
        missing = await backend.start(entries)
        assert {entry.name for entry in missing} == {"pair", "typed"}
        assert all("did not load it within 0.1 s" in reason for reason in missing.values())
        await backend.stop()


class Controlled:
    """A Triton's client by which models are loaded and unloaded."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    async def load_model(self, name: str, **_: Any) -> None:
        self.calls.append(("load", name))

    async def unload_model(self, name: str, **_: Any) -> None:
        self.calls.append(("unload", name))

    async def is_model_ready(self, *_: Any, **__: Any) -> bool:
        return True


def controlled(**options: Any) -> tuple[TritonBackend, Controlled]:
    backend, client = TritonBackend("unused:1", 1, **options), Controlled()
    vars(backend)["_connected"] = client
    return backend, client


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_gateway_unloads_only_what_no_other_one_uses(typed: Entry, is_shared: bool) -> None:
    backend, client = controlled(is_shared=is_shared)
    await backend.load(typed)
    await backend.unload(typed)
    assert client.calls == [("load", typed.model), *([] if is_shared else [("unload", typed.model)])]


async def test_a_model_answers_as_long_as_it_is_what_was_compiled(
    typed: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that fails its proof is refused; once a repaired one proves itself, it answers again."""
    backend, client = controlled()
    fault: RepositoryError | None = None

    async def prove(_: Entry) -> None:
        if fault is not None:
            raise fault

    monkeypatch.setattr(backend, "_prove", prove)
    for is_sound in (True, False, True, False, False, True):
        fault = None if is_sound else RepositoryError("its answers differ")
        with contextlib.nullcontext() if is_sound else pytest.raises(RepositoryError):
            await backend.load(typed)
        assert await backend.ready(typed) is is_sound
        with contextlib.nullcontext() if is_sound else pytest.raises(NotReadyError):
            backend.admit(typed)
    assert client.calls.count(("unload", typed.model)) == 3


async def test_before_the_start_nothing_is_ready() -> None:
    with pytest.raises(NotReadyError, match="not open"):
        await TritonBackend("127.0.0.1:1", wait_s=1).ready()
