"""A gRPC end in this process, over any backend, and a channel to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc.aio
import pytest
from fastapi import FastAPI
from tritonclient.grpc import service_pb2_grpc

from rationale_service.app import create_app, create_backend
from rationale_service.engine.backends.base import Backend
from rationale_service.engine.dataplane import DataPlane
from rationale_service.handlers import InferenceHandler
from rationale_service.process.listening import listen
from rationale_service.protocols.grpc.server import GrpcServer
from rationale_service.settings import Settings

SECONDS = 60


@dataclass(frozen=True)
class End:
    """A gRPC end in this process, and a channel to it."""

    stub: Any
    handler: InferenceHandler
    server: GrpcServer
    channel: grpc.aio.Channel
    address: str

    @property
    def plane(self) -> DataPlane:
        return self.handler.plane


@contextlib.asynccontextmanager
async def grpc_end(settings: Settings, backend: Backend | None = None) -> AsyncIterator[End]:
    """Every model is loaded."""
    app = create_app(settings, backend or create_backend(settings))
    async with app.router.lifespan_context(app):
        await app.state.gateway.loading
        async with end_of(app) as end:
            yield end


@contextlib.asynccontextmanager
async def end_of(app: FastAPI) -> AsyncIterator[End]:
    server = GrpcServer(app.state.gateway, listen("127.0.0.1", 0))
    address = server.address
    await server.start()
    options = (("grpc.max_receive_message_length", -1),)
    try:
        async with grpc.aio.insecure_channel(address, options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            yield End(stub, app.state.gateway.handler, server, channel, address)
    finally:
        await server.stop(0)


PATIENCE_S = (0.2, 2.0, 20.0)  # deadlines to try in turn: the first may be over before a busy machine began


async def refused(call: Any, code: str, message: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, SECONDS)
    assert (caught.value.code().name, message in caught.value.details()) == (code, True), caught.value
    return caught.value
