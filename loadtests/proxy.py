"""What a hop costs at the least: grpc.aio in front of a gRPC server, which hands on bytes unread.

    python -m loadtests.proxy HOST:PORT

The yardstick of `loadtests.triton_overhead`, for what a gateway in Python adds by being there at all.
"""

import sys

import grpc.aio
import uvloop

METHOD = "/inference.GRPCInferenceService/ModelInfer"


async def serve(behind: str) -> None:
    async with grpc.aio.insecure_channel(behind) as channel:
        call = channel.unary_unary(METHOD)

        async def answer(body: bytes, _: object) -> bytes:
            handed_on: bytes = await call(body)
            return handed_on

        service, _, name = METHOD.strip("/").partition("/")
        handlers = {name: grpc.unary_unary_rpc_method_handler(answer)}
        server = grpc.aio.server(handlers=[grpc.method_handlers_generic_handler(service, handlers)])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"gRPC on 127.0.0.1:{port}\nready on http://none", flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
