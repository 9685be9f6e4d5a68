"""Server reflection, with which grpcurl and the like find methods and messages; v1 has v1alpha's messages."""

from collections.abc import AsyncIterator

from grpc_reflection.v1alpha import reflection_pb2 as pb  # type: ignore[import-untyped]
from grpc_reflection.v1alpha._async import ReflectionServicer  # type: ignore[import-untyped]

from service.grpc_health import HEALTH
from service.grpc_methods import SERVICE
from service.grpc_rpc import Rpc
from service.oip_grpc import parse

ALPHA = pb.DESCRIPTOR.services_by_name["ServerReflection"].full_name
REFLECTIONS = (ALPHA, ALPHA.replace("v1alpha", "v1"))
_SERVICER = ReflectionServicer((SERVICE, HEALTH, *REFLECTIONS))


async def reflect(rpc: Rpc) -> None:
    async def requests() -> AsyncIterator[pb.ServerReflectionRequest]:
        async for body in rpc.read():
            yield parse(pb.ServerReflectionRequest, body)

    async for answer in _SERVICER.ServerReflectionInfo(requests(), None):
        await rpc.write(answer.SerializeToString())
