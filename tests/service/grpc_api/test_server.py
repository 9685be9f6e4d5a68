"""What the gRPC end offers beside inference: the index, health, reflection, request ids."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from rationale_service.app import create_app, create_backend
from rationale_service.process.listening import listen
from rationale_service.protocols.grpc import health as grpc_health
from rationale_service.protocols.grpc import server as grpc_server
from rationale_service.protocols.grpc.server import GrpcServer
from rationale_service.repository.registry import Unserved
from rationale_service.settings import Settings
from tests.service.explaining import until
from tests.service.faulty import FaultyBackend
from tests.service.grpc_end import SECONDS, grpc_end
from tests.service.messages import GOOD, request

SERVICE = "inference.GRPCInferenceService"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "grpc.reflection.{version}.ServerReflection"


@pytest.mark.asyncio(loop_scope="session")
async def test_the_index_says_why_a_model_is_not_ready(repository: Any) -> None:
    backend = FaultyBackend(None)
    backend.up = False
    async with grpc_end(Settings(repository=repository), backend) as end:
        (model, *_) = (await end.stub.RepositoryIndex(pb.RepositoryIndexRequest())).models
        assert (model.state, model.reason) == ("UNAVAILABLE", "the backend does not serve it now")
        assert not (await end.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))).models
        end.plane.refuse_new_work()
        (model, *_) = (await end.stub.RepositoryIndex(pb.RepositoryIndexRequest())).models
        assert (model.state, model.reason) == ("UNAVAILABLE", "the server is stopping")


@pytest.mark.asyncio(loop_scope="session")
async def test_a_model_is_ready_or_it_is_not(repository: Any) -> None:
    """What is missing, or cannot be served, is not ready, as in Triton: neither is an error."""
    async with grpc_end(Settings(repository=repository)) as end:
        plane, unserved = end.plane, Unserved("score/1/model.onnx: is missing", ())
        plane.repository = replace(plane.repository.without(["score"]), unserved={"score": unserved})
        found = {}
        for name, version in (("score_explain", ""), ("score_explain", "7"), ("absent", ""), ("score", "")):
            asked = pb.ModelReadyRequest(name=name, version=version)
            found[name, version] = (await end.stub.ModelReady(asked)).ready
        assert [name for name, is_ready in found.items() if is_ready] == [("score_explain", "")]


# --- health -------------------------------------------------------------------------------------------


def health(channel: grpc.Channel, service: str) -> str:
    check = channel.unary_unary(HEALTH)
    answer = health_pb2.HealthCheckResponse.FromString(
        check(health_pb2.HealthCheckRequest(service=service).SerializeToString())
    )
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


@pytest.mark.parametrize("service", ["", SERVICE, "score", "score_explain"])
def test_health_of_the_server_and_of_a_model(channel: grpc.Channel, service: str) -> None:
    assert health(channel, service) == "SERVING"


def test_health_of_what_is_not_there(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        health(channel, "absent")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.asyncio(loop_scope="session")
async def test_health_while_stopping(repository: Any) -> None:
    async with grpc_end(Settings(repository=repository)) as end:
        end.plane.refuse_new_work()
        answer = await end.channel.unary_unary(HEALTH)(b"")
        assert health_pb2.HealthCheckResponse.FromString(answer).status == 2  # NOT_SERVING


def watched(channel: grpc.Channel, service: str) -> Any:
    """The names of the statuses that `Watch` tells."""
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
    for body in watch(health_pb2.HealthCheckRequest(service=service).SerializeToString(), timeout=SECONDS):
        status = health_pb2.HealthCheckResponse.FromString(body).status
        yield health_pb2.HealthCheckResponse.ServingStatus.Name(status)


@pytest.mark.parametrize(
    ("service", "status"), [("", "SERVING"), ("score", "SERVING"), ("absent", "SERVICE_UNKNOWN")]
)
def test_watch_tells_at_once_what_is(channel: grpc.Channel, service: str, status: str) -> None:
    assert next(watched(channel, service)) == status


@pytest.mark.asyncio(loop_scope="session")
async def test_watch_tells_changes_and_ends_with_the_server(
    repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_health, "_LOOKS_EVERY_S", 0.01)
    backend = FaultyBackend(None)
    async with grpc_end(Settings(repository=repository), backend) as end:
        with grpc.insecure_channel(end.address) as channel:
            statuses = watched(channel, "score")
            for up, status in ((True, "SERVING"), (False, "NOT_SERVING"), (True, "SERVING")):
                backend.up = up
                assert await asyncio.to_thread(next, statuses) == status
            end.plane.refuse_new_work()
            with pytest.raises(grpc.RpcError) as caught:
                await asyncio.to_thread(list, statuses)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


# --- start and stop -----------------------------------------------------------------------------------


@pytest.mark.asyncio(loop_scope="session")
async def test_callers_wait_for_the_start(repository: Any) -> None:
    settings = Settings(repository=repository)
    app = create_app(settings, create_backend(settings))
    async with app.router.lifespan_context(app):
        server = GrpcServer(app.state.gateway, listen("127.0.0.1", 0))
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            task = asyncio.ensure_future(stub.ModelInfer(request("score", GOOD)))
            await app.state.gateway.loading
            assert not task.done()
            await server.start()
            assert len((await asyncio.wait_for(task, SECONDS)).outputs) == 1
        await server.stop(0)


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_no_call_is_lost_when_another_server_takes_over(
    repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers ask again and again; each call is answered by the old server or by the new one.

    What has been sent arrives, and is begun, within times that a busy machine may not keep: here longer.
    """
    monkeypatch.setattr(grpc_server, "_HELD_S", 0.5)
    monkeypatch.setattr(grpc_server, "_BEGUN_S", 1.0)
    settings = Settings(repository=repository)
    app = create_app(settings, create_backend(settings))
    answered = 0
    over = asyncio.Event()

    async def ask(address: str) -> None:
        nonlocal answered
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50))
        async with grpc.aio.insecure_channel(address, options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while not over.is_set():
                await stub.ModelInfer(request("score", GOOD), wait_for_ready=True, timeout=SECONDS)
                answered += 1

    async def more() -> None:
        before = answered
        await until(lambda: answered > before + 20)

    async with app.router.lifespan_context(app):
        await app.state.gateway.loading
        servers = [GrpcServer(app.state.gateway, listen("127.0.0.1", 0))]
        await servers[0].start()
        port = int(servers[0].address.rpartition(":")[2])
        async with asyncio.TaskGroup() as callers:
            for _ in range(8):
                callers.create_task(ask(servers[0].address))
            for _ in range(3):
                await more()
                await servers[-1].leave(SECONDS)
                await servers[-1].stop(SECONDS)
                listener = listen("127.0.0.1", port)
                servers.append(GrpcServer(app.state.gateway, listener))
                await servers[-1].start()
            await more()
            over.set()
        await servers[-1].stop(0)


# --- reflection ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "lines"), [(cygrpc.ExecuteBatchError("gone"), 0), (ValueError("x"), 1)])
@pytest.mark.asyncio(loop_scope="session")
async def test_what_grpc_logs_of_callers_who_left(
    repository: Any, fault: Exception, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be had from a caller at will: which of two things gRPC hears first is chance."""
    async with grpc_end(Settings(repository=repository)):
        logging.getLogger("grpc._cython.cygrpc").error("in a servicer method", exc_info=fault)
    assert len(caplog.records) == lines


def test_a_client_that_knows_no_message_finds_them(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    service = DescriptorPool(database).FindServiceByName(SERVICE)
    assert {method.name for method in service.methods} >= {"ModelInfer", "ModelStreamInfer"}
    assert "raw_input_contents" in service.methods_by_name["ModelInfer"].input_type.fields_by_name


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_both_versions_of_reflection(channel: grpc.Channel, version: str) -> None:
    ask = channel.stream_stream(f"/{REFLECTION.format(version=version)}/ServerReflectionInfo")
    message = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    (answer,) = ask(iter([message]))
    services = reflection_pb2.ServerReflectionResponse.FromString(answer).list_services_response.service
    assert SERVICE in {service.name for service in services}
    with pytest.raises(grpc.RpcError) as caught:
        list(ask(iter([b"\xff\xff"])))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_reflection_answers_what_is_not_there(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    message = reflection_pb2.ServerReflectionRequest(file_containing_symbol="absent")
    (answer,) = stub.ServerReflectionInfo(iter([message]))
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


# --- metadata -----------------------------------------------------------------------------------------


def test_the_request_id_comes_back(stub: Any) -> None:
    metadata = (("x-request-id", "r-42"),)
    _, call = stub.ModelInfer.with_call(request("score", GOOD), metadata=metadata)
    assert dict(call.trailing_metadata())["x-request-id"] == "r-42"
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request("absent", GOOD), metadata=metadata)
    trailing = dict(caught.value.trailing_metadata())
    assert (trailing["x-request-id"], trailing["problem"]) == ("r-42", "unknown-model")


# --- the choice of an explainer -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "parameter", "code", "message"),
    [
        ("score", {"string_param": "x"}, "INVALID_ARGUMENT", "'score' is a plain model: use its"),
        ("score_explain", {"string_param": "absent"}, "NOT_FOUND", "no explainer 'absent'"),
        ("score_explain", {"int64_param": 1}, "INVALID_ARGUMENT", "explainer must be a name"),
    ],
)
def test_explainers_that_cannot_be(stub: Any, model: str, parameter: Any, code: str, message: str) -> None:
    parameters = {"explainer": pb.InferParameter(**parameter)}
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request(model, GOOD, parameters=parameters))
    assert (caught.value.code().name, message in caught.value.details()) == (code, True), caught.value
