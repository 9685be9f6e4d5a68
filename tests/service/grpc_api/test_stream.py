"""Streaming inference: each request answered in its own time, under its own id; what ends it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from rationale_service.engine.backends.onnxruntime import OnnxRuntimeBackend
from rationale_service.errors import QueueFullError
from rationale_service.protocols.grpc.stream import IN_FLIGHT, _Stream
from rationale_service.repository.entry import Entry
from rationale_service.settings import Settings
from rationale_service.tensors import Tensors
from tests.service import handmade
from tests.service.explaining import until
from tests.service.faulty import FaultyBackend
from tests.service.grpc_end import PATIENCE_S, SECONDS, End, grpc_end
from tests.service.messages import GOOD, ROW, request, tensor

pytestmark = pytest.mark.asyncio(loop_scope="session")

BAD = tensor(shape=(1, 3), fp32_contents=[1, 2, 3])


class GatedBackend(OnnxRuntimeBackend):
    """Predictions of `slow` wait until the gate is open."""

    def __init__(self, slow: str) -> None:
        super().__init__(max_queue_size=256)
        self.gate = asyncio.Event()
        self.waited_for = asyncio.Event()
        self._slow = slow

    async def infer(self, entry: Entry, inputs: Tensors, *remainder: Any) -> Tensors:
        if entry.name == self._slow:
            self.waited_for.set()
            await self.gate.wait()
        return await super().infer(entry, inputs, *remainder)


async def first_answers(call: Any, count: int) -> list[pb.ModelStreamInferResponse]:
    return [await asyncio.wait_for(call.read(), SECONDS) for _ in range(count)]


def values(answer: pb.ModelStreamInferResponse) -> np.ndarray:
    assert not answer.error_message
    return np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)


async def ended(call: Any) -> tuple[str, str]:
    """The status of a stream that is over: code and details."""
    code = await asyncio.wait_for(call.code(), SECONDS)
    return code.name, await call.details()


async def test_a_fast_answer_overtakes_a_slow_one(repository: Path) -> None:
    backend = GatedBackend(slow="score_explain")
    async with grpc_end(Settings(repository=repository), backend) as end:
        call = end.stub.ModelStreamInfer()
        await call.write(request("score_explain", GOOD, id="slow"))
        await call.write(request("score", GOOD, id="fast"))
        (fast,) = await first_answers(call, 1)
        assert fast.infer_response.id == "fast"
        np.testing.assert_allclose(values(fast), handmade.predict(ROW), rtol=1e-6)
        backend.gate.set()
        (slow,) = await first_answers(call, 1)
        assert (slow.infer_response.id, slow.infer_response.model_name) == ("slow", "score_explain")
        assert slow.infer_response.parameters["method"].string_param == "deepshap"
        assert slow.infer_response.parameters["triton_final_response"].bool_param
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert (await ended(call))[0] == "OK"


async def test_answers_come_after_the_caller_has_said_all(repository: Path) -> None:
    async def requests() -> AsyncIterator[pb.ModelInferRequest]:
        for row in range(40):
            yield request("score", tensor(fp32_contents=ROW + row), id=str(row))

    async with grpc_end(Settings(repository=repository)) as end:
        answers = [answer async for answer in end.stub.ModelStreamInfer(requests())]
    assert sorted(int(answer.infer_response.id) for answer in answers) == list(range(40))
    for answer in answers:
        row = ROW + int(answer.infer_response.id)
        np.testing.assert_allclose(values(answer), handmade.predict(row), rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message", "slug"),
    [
        (request("score", BAD, id="7"), "shape [1, 3]", "invalid-input"),
        (request("absent", GOOD, id="7"), "no model 'absent'", "unknown-model"),
    ],
)
async def test_a_refusal_is_told_in_the_stream(
    repository: Path, wrong: pb.ModelInferRequest, message: str, slug: str
) -> None:
    async with grpc_end(Settings(repository=repository)) as end:
        call = end.stub.ModelStreamInfer()
        await call.write(wrong)
        (refusal,) = await first_answers(call, 1)
        assert message in refusal.error_message
        assert refusal.infer_response.id == "7"
        assert refusal.infer_response.parameters["problem"].string_param == slug
        await call.write(request("score", GOOD))
        (answer,) = await first_answers(call, 1)
        np.testing.assert_allclose(values(answer), handmade.predict(ROW), rtol=1e-6)


async def test_a_message_that_is_none_is_told_in_the_stream(repository: Path) -> None:
    async with grpc_end(Settings(repository=repository)) as end:
        call = end.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        many_fields = b"\x2a\0" * (1 << 20)
        for body, detail in (
            (b"\xff\xff", b"the message is not what"),
            (many_fields, b"the message has more than 30000 fields"),
            (b"", b"no model ''"),
        ):
            await call.write(body)
            answer = pb.ModelStreamInferResponse.FromString(await asyncio.wait_for(call.read(), SECONDS))
            assert detail.decode() in answer.error_message


async def test_a_caller_can_ask_that_an_error_ends_the_stream(repository: Path) -> None:
    """As Triton's clients do by the metadata `triton_grpc_error`."""
    async with grpc_end(Settings(repository=repository)) as end:
        call = end.stub.ModelStreamInfer(metadata=(("triton_grpc_error", "true"),))
        await call.write(request("score", GOOD))
        await first_answers(call, 1)
        await call.write(request("absent", GOOD))
        code, details = await ended(call)
        assert (code, "no model 'absent'" in details) == ("NOT_FOUND", True)


async def test_faults_of_ours_tell_nothing_of_the_inside(repository: Path) -> None:
    async with grpc_end(Settings(repository=repository), FaultyBackend(RuntimeError("secret"))) as end:
        call = end.stub.ModelStreamInfer()
        await call.write(request("score", GOOD))
        (refusal,) = await first_answers(call, 1)
        assert "server's log" in refusal.error_message
        assert "secret" not in str(refusal)
    async with grpc_end(Settings(repository=repository), FaultyBackend(QueueFullError("full"))) as end:
        call = end.stub.ModelStreamInfer()
        await call.write(request("score", GOOD))
        (refusal,) = await first_answers(call, 1)
        assert refusal.error_message == "Too many requests are waiting: full"


async def hanging(end: End, backend: FaultyBackend, requests: int) -> Any:
    """A stream with requests that are never answered."""
    call = end.stub.ModelStreamInfer()
    for _ in range(requests):
        await call.write(request("score", GOOD))
    await asyncio.wait_for(backend.started.wait(), SECONDS)
    return call


async def test_requests_in_flight_are_bounded(repository: Path) -> None:
    backend = FaultyBackend(None)
    async with grpc_end(Settings(repository=repository), backend) as end:
        await hanging(end, backend, 3 * IN_FLIGHT)
        await until(lambda: backend.calls == IN_FLIGHT)
        await asyncio.sleep(0.1)
        assert backend.calls == IN_FLIGHT


async def test_answers_that_nobody_reads_keep_their_slots() -> None:
    """Else a caller who sends without reading would fill the memory with answers."""
    read, is_written = list[pb.ModelInferRequest](), asyncio.Event()

    async def next_request() -> pb.ModelInferRequest:
        await asyncio.sleep(0)
        read.append(pb.ModelInferRequest(id=str(len(read))))
        return read[-1]

    async def write(_: Any) -> None:
        await is_written.wait()

    async def infer(*_: Any) -> pb.ModelInferResponse:
        return pb.ModelInferResponse()

    @contextlib.asynccontextmanager
    async def noted(_: Any) -> AsyncIterator[None]:
        yield

    budget = SimpleNamespace(growing=lambda: contextlib.nullcontext(lambda _: None))
    context: Any = SimpleNamespace(
        read=next_request, write=write, time_remaining=lambda: None, invocation_metadata=lambda: ()
    )
    handler: Any = SimpleNamespace(plane=SimpleNamespace(budget=budget))
    watch: Any = SimpleNamespace(noted_again=noted)
    stream = _Stream(infer, handler, watch, context)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), asyncio.TaskGroup() as group:
            await stream.read(group)
    assert len(read) == IN_FLIGHT


async def test_a_cancelled_stream_drops_its_work(repository: Path) -> None:
    backend = FaultyBackend(None)
    async with grpc_end(Settings(repository=repository), backend) as end:
        call = await hanging(end, backend, 3)
        call.cancel()
        await asyncio.wait_for(backend.cancelled.wait(), SECONDS)
        await asyncio.wait_for(end.plane.stop(), SECONDS)  # nothing is left running


async def test_the_streams_deadline_is_every_requests(repository: Path) -> None:
    backend = FaultyBackend(None)
    async with grpc_end(Settings(repository=repository), backend) as end:
        for patience_s in PATIENCE_S:
            call = end.stub.ModelStreamInfer(iter([request("score", GOOD)]), timeout=patience_s)
            assert (await ended(call))[0] == "DEADLINE_EXCEEDED"
            if backend.started.is_set():
                break
        await asyncio.wait_for(backend.cancelled.wait(), SECONDS)


async def test_a_silent_stream_does_not_hold_the_server(repository: Path) -> None:
    """What was accepted is answered first."""
    backend = GatedBackend(slow="score")
    async with grpc_end(Settings(repository=repository), backend) as end:
        call = end.stub.ModelStreamInfer()
        await call.write(request("score", GOOD))
        await asyncio.wait_for(backend.waited_for.wait(), SECONDS)
        end.plane.refuse_new_work()
        await asyncio.sleep(0.1)
        backend.gate.set()
        (answer,) = await first_answers(call, 1)
        np.testing.assert_allclose(values(answer), handmade.predict(ROW), rtol=1e-6)
        assert await ended(call) == ("UNAVAILABLE", "The server is not ready: the server is stopping")
