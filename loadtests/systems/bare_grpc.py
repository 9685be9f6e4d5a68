"""The least cost of gRPC: a grpc.aio server that forwards bytes unread, or runs a model and returns them.

    python -m loadtests.systems.bare_grpc HOST:PORT|MODEL.onnx

The yardstick of `checks.overhead`: what a server in Python pays for gRPC.
"""

import contextlib
import sys
from collections.abc import Awaitable, Callable

import grpc.aio
import numpy as np
import uvloop

from benchmarks.runtime import session_of

METHOD = "/inference.GRPCInferenceService/ModelInfer"
Answer = Callable[[bytes, object], Awaitable[bytes]]


async def serve(behind: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if behind.endswith(".onnx"):
            answer = _run(behind)
        else:
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


def _run(path: str) -> Answer:
    """Gives a request back, which reads as an answer too. The model runs on a row of zeros."""
    session = session_of(path, 1, on_cpu=True)
    row = {each.name: np.zeros((1, *each.shape[1:]), np.float32) for each in session.get_inputs()}

    async def answer(body: bytes, _: object) -> bytes:
        session.run(None, row)
        return body

    return answer


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
