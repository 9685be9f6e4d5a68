"""`ModelStreamInfer`: many requests on one stream, each answered in its own time, under its own id."""

import asyncio

from tritonclient.grpc import service_pb2 as pb

from service.dataplane import DataPlane
from service.errors import NotReadyError, ServiceError
from service.exchange import current
from service.gate import Gate
from service.grpc_call import Call, refusal_of
from service.grpc_methods import model_infer
from service.grpc_rpc import Rpc
from service.grpc_wire import text_of
from service.oip_grpc import parse

IN_FLIGHT = 16  # requests of one stream; the next is read when one of them is answered
_NAME = "ModelStreamInfer"
# Triton's way to ask that the first error ends the stream with a status of its own.
_STRICT = "triton_grpc_error"


async def stream_infer(plane: DataPlane, gate: Gate, rpc: Rpc) -> None:
    """Serves one stream until the caller has said all and has every answer.

    A caller who leaves cancels this, and with it the work. When the server stops, what was read is
    answered and the stream ends, for a silent one would hold the server.
    """
    stream = _Stream(plane, gate, rpc)
    fault: ServiceError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(stream.read(group))
            watcher = group.create_task(_cancel_at_stop(plane, reader))
            reader.add_done_callback(lambda _: watcher.cancel())
    except* ServiceError as faults:
        fault = _first(faults)
    if fault is None and plane.stopping.is_set():
        fault = NotReadyError("the server is stopping")
    if fault is not None:
        raise fault


class _Stream:
    """Answers hold a place until they are taken: a caller who does not read holds `IN_FLIGHT` requests."""

    def __init__(self, plane: DataPlane, gate: Gate, rpc: Rpc) -> None:
        self._plane = plane
        self._gate = gate
        self._exchange = current()
        self._rpc = rpc
        self._strict = rpc.metadata.get(_STRICT) == "true"
        self._places = asyncio.Semaphore(IN_FLIGHT)
        self._writing = asyncio.Lock()

    async def read(self, group: asyncio.TaskGroup) -> None:
        await self._places.acquire()
        async for body in self._rpc.read():
            group.create_task(self._answer(body))
            await self._places.acquire()

    async def _answer(self, body: bytes) -> None:
        """Raises ServiceError, which ends the stream, where the caller asked for that."""
        answer = pb.ModelStreamInferResponse()
        try:
            with self._gate.again(self._exchange):
                await self._infer(body, answer)
        except Exception as error:  # one request's failure is its own
            refusal = refusal_of(error, _NAME)
            if self._strict:
                raise refusal from error
            answer.error_message = text_of(refusal)
            answer.infer_response.parameters["problem"].string_param = refusal.slug
        answer.infer_response.parameters["triton_final_response"].bool_param = True
        async with self._writing:
            await self._rpc.write(answer.SerializeToString())
        self._places.release()

    async def _infer(self, body: bytes, answer: pb.ModelStreamInferResponse) -> None:
        message = parse(pb.ModelInferRequest, body)
        answer.infer_response.id = message.id
        call = Call(self._plane, message, self._rpc.time_remaining())
        answer.infer_response.CopyFrom(await model_infer(call))


async def _cancel_at_stop(plane: DataPlane, reader: asyncio.Task[None]) -> None:
    await plane.stopping.wait()
    reader.cancel()


def _first(faults: ExceptionGroup[ServiceError]) -> ServiceError:
    found = faults.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found
