"""`grpc.health.v1.Health`, as load balancers and Kubernetes' gRPC probes ask it."""

from grpc_health.v1 import health_pb2 as pb  # type: ignore[import-untyped]  # it ships no types

from service.grpc_call import Call
from service.grpc_methods import SERVICE, Methods

HEALTH = pb.DESCRIPTOR.services_by_name["Health"].full_name
_STATUS = {True: pb.HealthCheckResponse.SERVING, False: pb.HealthCheckResponse.NOT_SERVING}


async def check(call: Call) -> pb.HealthCheckResponse:
    """Of the server ("" or the inference service's name), or of one model.

    Raises:
        UnknownModelError: the name is neither's.
    """
    name = call.message.service
    entry = None if name in ("", SERVICE) else call.plane.repository.entry(name)
    return pb.HealthCheckResponse(status=_STATUS[await call.plane.ready(entry)])


CHECK: Methods = {"Check": (pb.HealthCheckRequest, check)}
