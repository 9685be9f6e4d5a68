"""What gRPC costs at the least: grpc.aio that hands bytes on to another server, unread, or gives them back.

    python -m loadtests.proxy [HOST:PORT]

The yardstick of `loadtests.triton_overhead` and `loadtests.overhead`: what a server in Python pays for gRPC.
"""

import contextlib
import sys
from collections.abc import Awaitable, Callable

import grpc.aio
import uvloop

METHOD = "/inference.GRPCInferenceService/ModelInfer"
Answer = Callable[[bytes, object], Awaitable[bytes]]


async def serve(behind: str | None) -> None:
    answer: Answer = _give_back
    async with contextlib.AsyncExitStack() as stack:
        if behind is not None:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(behind))
            answer = _hand_on(channel.unary_unary(METHOD))
        service, _, name = METHOD.strip("/").partition("/")
        handlers = {name: grpc.unary_unary_rpc_method_handler(answer)}
        server = grpc.aio.server(handlers=[grpc.method_handlers_generic_handler(service, handlers)])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"gRPC on 127.0.0.1:{port}\nready on http://none", flush=True)
        await server.wait_for_termination()


def _hand_on(call: Callable[[bytes], Awaitable[bytes]]) -> Answer:
    async def answer(body: bytes, _: object) -> bytes:
        return await call(body)

    return answer


async def _give_back(body: bytes, _: object) -> bytes:
    return body


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1] if len(sys.argv) > 1 else None))
