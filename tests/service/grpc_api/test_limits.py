"""Deadlines, cancellation, sizes and faults over gRPC: what is answered, and what becomes of the work."""

import asyncio
import contextlib
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from rationale_service import errors
from rationale_service.app import create_app, create_backend
from rationale_service.errors import DeadlineError, ModelFailedError, QueueFullError, ServiceError
from rationale_service.protocols.grpc import server as grpc_server
from rationale_service.protocols.grpc.servicer import infer
from rationale_service.protocols.grpc.status import CODES
from rationale_service.settings import Settings
from tests.service import handmade
from tests.service.explaining import until
from tests.service.faulty import FaultyBackend
from tests.service.grpc_end import PATIENCE_S, SECONDS, End, end_of, grpc_end, refused
from tests.service.messages import GOOD, request, tensor
from tests.service.own_time import standing_still

pytestmark = pytest.mark.asyncio(loop_scope="session")


def timeout(microseconds: int) -> dict[str, pb.InferParameter]:
    return {"timeout": pb.InferParameter(int64_param=microseconds)}


# --- deadlines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting_s", "timeout_us"), [(0.02, None), (30, 20_000), (0.02, 9_000_000)])
async def test_the_shortest_limit_gives_the_work_up(
    repository: Path, setting_s: float, timeout_us: int | None
) -> None:
    backend = FaultyBackend(None)
    parameters = {} if timeout_us is None else timeout(timeout_us)
    async with grpc_end(Settings(repository=repository, request_timeout_s=setting_s), backend) as end:
        with standing_still() as clock:
            message = request("score", GOOD, parameters=parameters)
            call = asyncio.ensure_future(end.stub.ModelInfer(message, timeout=SECONDS))
            begun = asyncio.create_task(backend.started.wait())
            await asyncio.wait([call, begun], return_when=asyncio.FIRST_COMPLETED)
            clock.pass_by(0.02)
            await refused(call, "DEADLINE_EXCEEDED", "no answer from 'score' within 0.02 s")
        assert backend.cancelled.is_set()


async def test_the_callers_deadline_gives_the_work_up(repository: Path) -> None:
    backend = FaultyBackend(None)
    async with grpc_end(Settings(repository=repository), backend) as end:
        message = request("score", GOOD, parameters=timeout(25_000_000))
        for patience_s in PATIENCE_S:
            await refused(end.stub.ModelInfer(message, timeout=patience_s), "DEADLINE_EXCEEDED", "")
            if backend.started.is_set():
                break
        await asyncio.wait_for(backend.cancelled.wait(), SECONDS)


@pytest.mark.parametrize("left_s", [0.02, 0.0, -1.0])
async def test_the_callers_deadline_reaches_the_data_plane(repository: Path, left_s: float) -> None:
    async with grpc_end(Settings(repository=repository), FaultyBackend(None)) as end:
        message = request("score", GOOD, parameters=timeout(25_000_000))
        with pytest.raises(DeadlineError):
            await asyncio.wait_for(infer(end.handler, message, left_s), SECONDS)


async def test_a_limit_that_is_kept_changes_nothing(repository: Path) -> None:
    async with grpc_end(Settings(repository=repository)) as end:
        answer = await end.stub.ModelInfer(request("score", GOOD, parameters=timeout(50_000_000)), timeout=50)
        y = np.frombuffer(answer.raw_output_contents[0], np.float32)
        np.testing.assert_allclose(y, handmade.predict(np.array([1, 2, 3, 4], np.float32)), rtol=1e-6)


# --- cancellation -------------------------------------------------------------------------------------


async def test_a_cancelled_call_gives_its_work_up(repository: Path) -> None:
    """Ten rows are three batches; the first runs when the caller leaves, the others never do."""
    backend = FaultyBackend(None)
    async with grpc_end(Settings(repository=repository), backend) as end:
        rows = tensor(shape=(10, 4), fp32_contents=np.ones(40))
        call = end.stub.ModelInfer(request("score", rows))
        waiting = asyncio.ensure_future(call)
        await asyncio.wait_for(backend.started.wait(), SECONDS)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(backend.cancelled.wait(), SECONDS)
        assert backend.calls == 1


async def test_a_caller_that_is_gone_gives_its_work_up(repository: Path) -> None:
    backend = FaultyBackend(None)
    async with grpc_end(Settings(repository=repository), backend) as end:
        waiting = asyncio.ensure_future(end.stub.ModelInfer(request("score", GOOD)))
        await asyncio.wait_for(backend.started.wait(), SECONDS)
        await end.channel.close()
        await asyncio.wait_for(backend.cancelled.wait(), SECONDS)
        with pytest.raises(asyncio.CancelledError):
            await waiting


# --- sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_a_message_that_is_too_large(repository: Path, compression: grpc.Compression) -> None:
    """Also one that is small until it is decompressed; the connection goes on."""
    async with grpc_end(Settings(repository=repository, max_grpc_message_bytes=1_000_000)) as end:
        for size in (1_000_000, 20_000_000):
            large = end.stub.ModelInfer(request("score", GOOD, id=" " * size), compression=compression)
            await refused(large, "RESOURCE_EXHAUSTED", "larger than max")
        fits = request("score", GOOD, id=" " * 999_900)
        assert len((await end.stub.ModelInfer(fits, compression=compression)).outputs) == 1


async def test_the_limit_is_the_requests_alone(repository: Path) -> None:
    async with grpc_end(Settings(repository=repository, max_grpc_message_bytes=300)) as end:
        rows = tensor(shape=(10, 4), fp32_contents=np.ones(40))
        answer = await end.stub.ModelInfer(request("score_explain", rows))
        assert answer.ByteSize() > 300
        attributions = np.frombuffer(answer.raw_output_contents[1], np.float32).reshape(10, 3, 4)
        np.testing.assert_allclose(attributions, handmade.attribute(np.ones((10, 4), np.float32)), rtol=1e-6)


async def test_any_limit_of_the_settings_is_possible(repository: Path) -> None:
    async with grpc_end(Settings(repository=repository, max_grpc_message_bytes=1 << 40)) as end:
        assert (await end.stub.ServerLive(pb.ServerLiveRequest())).live


@pytest.mark.parametrize(("size", "code"), [(64_000, None), (65_536, "RESOURCE_EXHAUSTED")])
async def test_metadata(repository: Path, size: int, code: str | None) -> None:
    async with grpc_end(Settings(repository=repository)) as end:
        call = end.stub.ServerLive(pb.ServerLiveRequest(), metadata=(("x-more", "x" * size),))
        if code is None:
            assert (await call).live
        else:
            await refused(call, code, "metadata")
        assert (await end.stub.ServerLive(pb.ServerLiveRequest())).live


# --- many ---------------------------------------------------------------------------------------------


async def test_more_calls_than_a_connection_has_room_for(repository: Path) -> None:
    """They wait at their sender."""
    async with grpc_end(Settings(repository=repository)) as end:
        calls = [end.stub.ServerReady(pb.ServerReadyRequest()) for _ in range(600)]
        assert all(answer.ready for answer in await asyncio.gather(*calls))


async def test_more_calls_than_a_server_has_room_for(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "MAX_CALLS", 2)
    backend = FaultyBackend(None)
    async with grpc_end(Settings(repository=repository), backend) as end:
        waiting = [asyncio.ensure_future(end.stub.ModelInfer(request("score", GOOD))) for _ in range(2)]
        await until(lambda: backend.calls == 2)
        await refused(end.stub.ServerLive(pb.ServerLiveRequest()), "RESOURCE_EXHAUSTED", "limit exceeded")
        waiting.pop().cancel()
        async with asyncio.timeout(SECONDS):
            while not await is_live(end):
                await asyncio.sleep(0.01)


async def is_live(end: End) -> bool:
    """False where a call is refused."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        return (await end.stub.ServerLive(pb.ServerLiveRequest())).live
    return False


async def test_answers_count_until_they_are_taken(repository: Path) -> None:
    async with grpc_end(Settings(repository=repository)) as end:
        for message in (request("score_explain", GOOD), request("score", tensor(shape=(1, 3)))):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await end.stub.ModelInfer(message)
        await end.stub.ModelStreamInfer(iter([request("score", GOOD)])).read()
        await until(lambda: end.plane.budget._reserved == 0)
        end.plane.budget._reserved = end.plane.budget._limit - 10
        await refused(end.stub.ServerMetadata(pb.ServerMetadataRequest()), "RESOURCE_EXHAUSTED", "waiting")


# --- faults -------------------------------------------------------------------------------------------


def service_errors(kind: type[ServiceError] = ServiceError) -> list[type[ServiceError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in service_errors(sub))]


async def test_every_error_has_a_code() -> None:
    assert len(service_errors()) == len([name for name in dir(errors) if name.endswith("Error")]) - 1
    for kind in service_errors():
        assert kind.status in CODES, kind


async def test_a_full_queue_says_when_to_come_back(repository: Path) -> None:
    async with grpc_end(Settings(repository=repository), FaultyBackend(QueueFullError("full"))) as end:
        error = await refused(end.stub.ModelInfer(request("score", GOOD)), "RESOURCE_EXHAUSTED", "full")
        metadata = dict(error.trailing_metadata())
        assert (metadata["problem"], metadata["retry-after"]) == ("queue-full", "1")


@pytest.mark.parametrize("fault", [RuntimeError("secret path"), ZeroDivisionError("secret number")])
async def test_a_fault_of_ours_tells_nothing_of_the_inside(
    repository: Path, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with grpc_end(Settings(repository=repository), FaultyBackend(fault)) as end:
        error = await refused(
            end.stub.ModelInfer(request("score", GOOD)), "INTERNAL", "the server's log tells more"
        )
        assert "secret" not in error.details()
        assert "secret" in caplog.text


async def test_a_failed_model_is_logged(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    fault = ModelFailedError("model 'score' failed")
    async with grpc_end(Settings(repository=repository), FaultyBackend(fault)) as end:
        await refused(end.stub.ModelInfer(request("score", GOOD)), "INTERNAL", "model 'score' failed")
        assert "model 'score' failed" in caplog.text


async def test_loading_and_stopping(repository: Path) -> None:
    settings = Settings(repository=repository, request_timeout_s=0.1)  # as long as an inference waits
    app = create_app(settings, create_backend(settings))
    async with end_of(app) as end:  # without lifespan nothing is loaded yet
        assert (await end.stub.ServerLive(pb.ServerLiveRequest())).live
        assert not (await end.stub.ServerReady(pb.ServerReadyRequest())).ready
        assert not (await end.stub.ModelReady(pb.ModelReadyRequest(name="score"))).ready
        error = await refused(end.stub.ModelInfer(request("score", GOOD)), "UNAVAILABLE", "being loaded")
        assert dict(error.trailing_metadata())["retry-after"] == "1"
        end.plane.refuse_new_work()
        await refused(end.stub.ModelInfer(request("score", GOOD)), "UNAVAILABLE", "stopping")


async def test_a_backend_that_is_gone(repository: Path) -> None:
    backend = FaultyBackend(None)
    async with grpc_end(Settings(repository=repository), backend) as end:
        assert (await end.stub.ServerReady(pb.ServerReadyRequest())).ready
        backend.up = False
        assert not (await end.stub.ServerReady(pb.ServerReadyRequest())).ready


async def test_the_data_plane_stops_after_what_runs(repository: Path) -> None:
    """The HTTP end stops the plane while the gRPC end still has a call: it waits for it, then no longer."""
    backend = FaultyBackend(None)
    async with grpc_end(Settings(repository=repository), backend) as end:
        waiting = asyncio.ensure_future(end.stub.ModelInfer(request("score", GOOD)))
        await asyncio.wait_for(backend.started.wait(), SECONDS)
        stopping = asyncio.create_task(end.plane.stop())
        await asyncio.sleep(0.1)
        assert not stopping.done()
        await end.server.stop(0.1)  # the drain's time is over: what runs is given up
        await asyncio.wait_for(stopping, SECONDS)
        assert backend.cancelled.is_set()
        await refused(waiting, "UNAVAILABLE", "")
