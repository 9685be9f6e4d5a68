"""`grpc.health.v1.Health`, as load balancers, Kubernetes' probes and clients of gRPC ask it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from grpc.aio import ServicerContext
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthServicer as Base

from rationale_service.engine.dataplane import DataPlane
from rationale_service.errors import NotReadyError, UnknownModelError
from rationale_service.protocols.grpc.servicer import SERVICE
from rationale_service.security.keys import NOBODY_NEEDS, needs

_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["Health"]
HEALTH: str = _DESCRIPTOR.full_name
METHODS: list[str] = [each.name for each in _DESCRIPTOR.methods]
_LOOKS_EVERY_S = 1.0
_STATUS = {True: pb.HealthCheckResponse.SERVING, False: pb.HealthCheckResponse.NOT_SERVING}


class HealthServicer(Base):
    """Of the server ("" or the inference service's name), or of one model.

    The package's own servicer has to be told of every change: here the backend is asked.
    """

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    @needs(NOBODY_NEEDS)
    async def Check(self, request: pb.HealthCheckRequest, context: ServicerContext) -> pb.HealthCheckResponse:
        """Answer whether a model, or the gateway, is ready. Raises UnknownModelError."""
        return pb.HealthCheckResponse(status=await self._status(request.service))

    @needs(NOBODY_NEEDS)
    async def Watch(
        self, request: pb.HealthCheckRequest, context: ServicerContext
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """Report at once, and within a second of each change. Raises NotReadyError when the server stops."""
        reported = None
        while not self._plane.stopping.is_set():
            try:
                status = await self._status(request.service)
            except UnknownModelError:
                status = pb.HealthCheckResponse.SERVICE_UNKNOWN
            if status != reported:
                yield pb.HealthCheckResponse(status=status)
                reported = status
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._plane.stopping.wait(), _LOOKS_EVERY_S)
        raise NotReadyError("the server is stopping")

    async def _status(self, name: str) -> Any:
        try:
            entry = None if name in ("", SERVICE) else self._plane.repository.entry(name)
        except NotReadyError:
            return _STATUS[False]
        return _STATUS[await self._plane.ready(entry)]
