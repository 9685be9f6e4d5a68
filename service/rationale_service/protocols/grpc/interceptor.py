"""Checks of every gRPC call: caller, scopes and rate; its records; its errors as a status."""

import asyncio
import contextlib
import http
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import grpc
import grpc.aio
from grpc.aio import ServicerContext as Context

from rationale_service.engine.large_requests import MemoryLimit
from rationale_service.errors import NotOfferedError, ServiceError
from rationale_service.observability import context as contexts
from rationale_service.observability.context import RequestContext
from rationale_service.protocols.grpc.servicer import OFFERED, REFUSED, SERVICE
from rationale_service.protocols.grpc.status import Refusal, abort, refusal_of
from rationale_service.protocols.grpc.turns import Turns
from rationale_service.protocols.grpc.wire import check_message
from rationale_service.protocols.interceptor import RequestInterceptor
from rationale_service.security.keys import ANY_KEY, Scopes, token_of

Behaviour = Callable[[Any, Context], Awaitable[Any]]
Find = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]]


class Interceptor(grpc.aio.ServerInterceptor):
    """Interceptor that sets the call's context in its task; calls of health have none.

    It parses and serialises messages, so that faults of these are reported like any other error.
    """

    def __init__(
        self,
        requests: RequestInterceptor,
        scopes: Mapping[str, Scopes],
        budget: MemoryLimit,
        most_json_bytes: int,
    ) -> None:
        """Take the checks and limits of every call.

        Args:
            scopes: declared scopes of the offered methods, by path. No other method is called; any key may
                learn that it is not offered.
            budget: memory budget that counts answers until their callers have read them.
            most_json_bytes: setting of that name; it limits typed contents too.
        """
        self._most_json_bytes = most_json_bytes
        self._requests = requests
        self._scopes = scopes
        self._budget = budget
        self._guarded: dict[str, grpc.RpcMethodHandler] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._turns = Turns()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Accept calls within the `with`, but begin and answer none."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def intercept_service(
        self, continuation: Find, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        method: str = handler_call_details.method
        needed = self._scopes.get(method, ANY_KEY)
        await self._open.wait()
        try:
            if needed:
                metadata = _texts(handler_call_details.invocation_metadata)
                request_context = RequestContext.of("grpc", method, metadata)
                contexts.bind(request_context)
                token = token_of(metadata.get("authorization"), metadata.get("x-api-key"))
                await self._requests.admit(request_context, token, needed)
            if method not in self._guarded:
                self._guarded[method] = self._guard(method, await continuation(handler_call_details))
        except ServiceError as error:
            return self._refusing(refusal_of(error, method))
        await self._turns.turn()
        return self._guarded[method]

    def _guard(self, method: str, handler: grpc.RpcMethodHandler | None) -> grpc.RpcMethodHandler:
        """Wrap the handler of a method. Raises NotOfferedError."""
        if handler is None or method not in self._scopes:
            why = f": {REFUSED[method]}" if method in REFUSED else f". /{SERVICE} offers {', '.join(OFFERED)}"
            raise NotOfferedError(f"{method[:80]} is not supported here{why}.")
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._ending(self._unary(method, handler)))
        answers_one = handler.unary_stream is not None
        kind = grpc.unary_stream_rpc_method_handler if answers_one else grpc.stream_stream_rpc_method_handler
        behaviour = _streaming(method, handler.unary_stream or handler.stream_stream)
        return kind(self._ending(behaviour), self._limited_parser(handler), handler.response_serializer)

    def _limited_parser(self, handler: grpc.RpcMethodHandler) -> Callable[[bytes], Any]:
        """Return a parser of the handler's messages, which raises TooLargeError."""

        def parse(body: bytes) -> Any:
            check_message(body, self._most_json_bytes)
            return handler.request_deserializer(body)

        return parse

    def _unary(self, method: str, handler: grpc.RpcMethodHandler) -> Behaviour:
        parse = self._limited_parser(handler)

        async def respond(body: bytes, context: Context) -> bytes | Refusal:
            request_context = _echo_request_id(context)
            with self._note_request(request_context):
                try:
                    responding = handler.unary_unary(parse(body), context)
                    del body
                    response: bytes = handler.response_serializer(await responding)
                    self._hold(len(response), context)
                except Exception as error:  # gRPC would send an internal fault's text to the caller
                    return _note(request_context, refusal_of(error, method))
                if request_context is not None:
                    request_context.status = http.HTTPStatus.OK
                return response

        return respond

    def _ending(self, behaviour: Behaviour) -> Behaviour:
        """Wrap a behaviour to end a refused call.

        gRPC keeps the error that `abort` raises, whose traceback keeps the locals of every frame. These must
        not
        hold the request or the call: both would stay in memory until the garbage collector runs.
        """

        async def end(request: Any, context: Context) -> Any:
            running = behaviour(request, context)
            del request
            outcome = await running
            await self._open.wait()
            if not isinstance(outcome, Refusal):
                return outcome
            aborting = abort(context, outcome)
            del context
            return await aborting

        return end

    def _hold(self, size: int, context: Context) -> None:
        """Count an answer and gRPC's copy until the caller has read it. Raises QueueFullError."""
        self._budget.take(2 * size)
        context.add_done_callback(lambda _: self._budget.give_back(2 * size))

    def _refusing(self, refusal: Refusal) -> grpc.RpcMethodHandler:
        async def refuse(_: object, context: Context) -> Refusal:
            request_context = _echo_request_id(context)
            with self._note_request(request_context):
                return _note(request_context, refusal)

        # A streaming handler fits every kind of method and need not wait for a message.
        return grpc.stream_stream_rpc_method_handler(self._ending(refuse))

    def _note_request(
        self, request_context: RequestContext | None
    ) -> contextlib.AbstractContextManager[None]:
        return (
            contextlib.nullcontext() if request_context is None else self._requests.observe(request_context)
        )


def _streaming(method: str, behaviour: Callable[[Any, Context], Any]) -> Behaviour:
    """Wrap a streaming behaviour, which notes each request of a stream instead of the whole."""

    async def stream(request: Any, context: Context) -> Refusal | None:
        _echo_request_id(context)
        try:
            if inspect.isasyncgenfunction(behaviour):
                async for response in behaviour(request, context):
                    await context.write(response)
            else:
                await behaviour(request, context)
        except Exception as error:
            return refusal_of(error, method)
        return None

    return stream


def _note(request_context: RequestContext | None, refusal: Refusal) -> Refusal:
    if request_context is not None:
        request_context.problem, request_context.status = refusal.slug, refusal.status
    return refusal


def _texts(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    return {key: value for key, value in metadata if isinstance(value, str)}


def _echo_request_id(context: Context) -> RequestContext | None:
    """Return the request's context, and set its `x-request-id` in the trailing metadata."""
    request_context = contexts.current()
    if request_context is not None:
        context.set_trailing_metadata(((contexts.REQUEST_ID, request_context.request_id),))
    return request_context
