"""`ModelStreamInfer`: many requests on one stream, each answered when it is ready, under its own id."""

import asyncio
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError
from grpc.aio import EOF
from grpc.aio import ServicerContext as Context
from tritonclient.grpc import service_pb2 as pb

from rationale_service.errors import MalformedError, NotReadyError, TooLargeError
from rationale_service.handlers import InferenceHandler
from rationale_service.observability.context import current
from rationale_service.protocols.grpc.status import refusal_of
from rationale_service.protocols.interceptor import RequestInterceptor

IN_FLIGHT = 16  # requests of one stream at a time
_NAME = "ModelStreamInfer"
# Triton's header to let the first error end the stream with its own status.
_STRICT = ("triton_grpc_error", "true")

_NoRequest = DecodeError | TooLargeError
Infer = Callable[[InferenceHandler, pb.ModelInferRequest, float | None], Awaitable[pb.ModelInferResponse]]


async def stream_infer(
    infer: Infer, handler: InferenceHandler, interceptor: RequestInterceptor, context: Context
) -> None:
    """Serve one stream until the caller has sent all requests and has every answer.

    A caller who leaves cancels this and its work. When the server stops, the requests read so far are
    answered and the stream ends with NotReadyError, since a silent stream would keep the server running.
    """
    stream = _Stream(infer, handler, interceptor, context)
    fault: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(stream.read(group))
            watcher = group.create_task(_cancel_at_stop(handler.plane.stopping, reader))
            reader.add_done_callback(lambda _: watcher.cancel())
    except* Exception as faults:
        fault = _first(faults)
    if fault is None and handler.plane.stopping.is_set():
        fault = NotReadyError("the server is stopping")
    if fault is not None:
        raise fault


class _Stream:
    """A stream. Unread answers keep their slots: a caller who does not read holds `IN_FLIGHT` requests."""

    def __init__(
        self, infer: Infer, handler: InferenceHandler, interceptor: RequestInterceptor, context: Context
    ) -> None:
        self._infer = infer
        self._context = context
        self._interceptor = interceptor
        self._handler = handler
        self._request_context = current()
        self._strict = any(tuple(pair) == _STRICT for pair in context.invocation_metadata())
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._writing = asyncio.Lock()

    async def read(self, group: asyncio.TaskGroup) -> None:
        await self._slots.acquire()
        while (request := await self._next()) is not EOF:
            group.create_task(self._answer(request))
            await self._slots.acquire()

    async def _next(self) -> pb.ModelInferRequest | _NoRequest:
        """Return the next request, or the fault of its message; `EOF` after the last."""
        try:
            return await self._context.read()
        except (DecodeError, TooLargeError) as error:
            return error

    async def _answer(self, request: pb.ModelInferRequest | _NoRequest) -> None:
        """Answer a request. Raises its error to end the stream, if the caller requested that."""
        with self._handler.plane.budget.growing() as grow:
            responding = self._response(request, grow)
            del request
            answer = await responding
            async with self._writing:
                await self._context.write(answer)
        self._slots.release()

    async def _response(
        self, request: pb.ModelInferRequest | _NoRequest, grow: Callable[[int], None]
    ) -> pb.ModelStreamInferResponse:
        """Return the answer, whose bytes `grow` counts, or the error."""
        answer = pb.ModelStreamInferResponse()
        try:
            async with self._interceptor.noted_again(self._request_context):
                if isinstance(request, TooLargeError):
                    raise request
                if isinstance(request, DecodeError):
                    raise MalformedError(f"the message is not what {_NAME} takes")
                answer.infer_response.id = request.id
                response = await self._infer(self._handler, request, self._context.time_remaining())
                grow(2 * response.ByteSize())  # gRPC makes a copy
                answer.infer_response.CopyFrom(response)
        except Exception as error:  # a failed request does not affect others
            if self._strict:
                raise
            refusal = refusal_of(error, _NAME)
            answer.error_message = refusal.text
            answer.infer_response.parameters["problem"].string_param = refusal.slug
        answer.infer_response.parameters["triton_final_response"].bool_param = True
        return answer


async def _cancel_at_stop(stopping: asyncio.Event, reader: asyncio.Task[None]) -> None:
    await stopping.wait()
    reader.cancel()


def _first(faults: ExceptionGroup[Exception]) -> Exception:
    fault = faults.exceptions[0]
    return _first(fault) if isinstance(fault, ExceptionGroup) else fault
