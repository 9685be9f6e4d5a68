"""Server reflection, with which grpcurl and the like find methods and messages; v1 has v1alpha's messages."""

from collections.abc import AsyncIterator

import grpc.aio
from grpc_reflection.v1alpha import reflection_pb2 as pb  # type: ignore[import-untyped]
from grpc_reflection.v1alpha._async import ReflectionServicer  # type: ignore[import-untyped]

from service.errors import MalformedError
from service.grpc_call import refuse
from service.grpc_health import HEALTH
from service.grpc_methods import SERVICE
from service.oip_grpc import parse

ALPHA = pb.DESCRIPTOR.services_by_name["ServerReflection"].full_name
REFLECTIONS = (ALPHA, ALPHA.replace("v1alpha", "v1"))
_SERVICER = ReflectionServicer((SERVICE, HEALTH, *REFLECTIONS))


async def reflect(bodies: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
    async def requests() -> AsyncIterator[pb.ServerReflectionRequest]:
        async for body in bodies:
            yield parse(pb.ServerReflectionRequest, body)

    try:
        async for answer in _SERVICER.ServerReflectionInfo(requests(), context):
            await context.write(answer.SerializeToString())
    except MalformedError as error:
        await refuse(error, context)
