"""`GRPCInferenceService`: its methods, a thin layer over the data plane.

Names of models replace verbs here: a model's explain entry, `{model}_explain`, is a model of its own, and
`{model}:decide` decides.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from grpc.aio import ServicerContext as Context
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from rationale.distribution import version
from rationale.schema.manifest import TensorSpec
from rationale_service.engine.index import index_of
from rationale_service.engine.request import InferenceRequest
from rationale_service.errors import NotReadyError, UnknownModelError
from rationale_service.handlers import INFER, NOT_OFFERED, InferenceCall, InferenceHandler
from rationale_service.observability.statistics import statistics_of
from rationale_service.protocols.gateway import Gateway
from rationale_service.protocols.grpc.codec import decode_request, encode_answer, typed_bytes
from rationale_service.protocols.grpc.decide import SUFFIX, decide
from rationale_service.protocols.grpc.stream import stream_infer
from rationale_service.repository.entry import PLATFORM, Entry
from rationale_service.security.keys import ANY_KEY, DECIDE, EXPLAIN, NOBODY_NEEDS, needs
from rationale_service.security.keys import INFER as INFER_SCOPE

EXTENSIONS = ["model_configuration", "model_repository", "statistics"]
T = TypeVar("T")
_RUNS = INFER_SCOPE | EXPLAIN | DECIDE  # the data plane decides by the model
_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE: str = _DESCRIPTOR.full_name

_LOADING = (
    "an operator loads and unloads by HTTP: POST /v2/repository/models/{model}/load of the admin API, "
    "and makes explainers with PUT /v2/models/{model}/explainers/{name}"
)
_NOT_OFFERED = {
    "RepositoryModelLoad": _LOADING,
    "RepositoryModelUnload": _LOADING,
    **{
        f"{kind}SharedMemory{verb}": NOT_OFFERED["shared memory"]
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
    "TraceSetting": NOT_OFFERED["trace settings"],
    "LogSettings": NOT_OFFERED["log settings"],
}
# Methods that Triton offers and a gateway must not: {path: reason and replacement}.
REFUSED = {f"/{SERVICE}/{name}": why for name, why in _NOT_OFFERED.items()}
METHODS: list[str] = [each.name for each in _DESCRIPTOR.methods]
OFFERED: list[str] = [name for name in METHODS if name not in _NOT_OFFERED]


class InferenceServicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """The methods. The interceptor converts their errors to the call's status."""

    def __init__(self, gateway: Gateway) -> None:
        plane, most_json_bytes = gateway.plane, gateway.settings.max_json_bytes
        self._handler = gateway.handler
        self._decide = partial(decide, gateway.decider, plane.off_loop, most_json_bytes)
        self._plane = plane
        self._interceptor = gateway.interceptor

    @needs(NOBODY_NEEDS)
    async def ServerLive(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    @needs(NOBODY_NEEDS)
    async def ServerReady(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=await self._plane.ready())

    @needs(ANY_KEY)
    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="rationale", version=version(), extensions=EXTENSIONS)

    @needs(NOBODY_NEEDS)
    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        """Tell whether a model is ready; a missing model is not ready, as in Triton."""
        try:
            entry = self._entry(request.name, request.version)
        except (UnknownModelError, NotReadyError):
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=await self._plane.ready(entry))

    @needs(ANY_KEY)
    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        entry = self._entry(request.name, request.version)
        return pb.ModelMetadataResponse(
            name=entry.name,
            versions=[entry.version],
            platform=PLATFORM,
            inputs=[_tensor(spec) for spec in entry.inputs],
            outputs=[_tensor(spec) for spec in entry.outputs],
        )

    @needs(ANY_KEY)
    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        return pb.ModelConfigResponse(config=self._entry(request.name, request.version).config)

    @needs(ANY_KEY)
    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        """Return the index of the only repository; `ready` selects models that can answer now."""
        answer = pb.RepositoryIndexResponse()
        for listed in await index_of(self._plane, only_ready=request.ready):
            answer.models.add(**listed)
        return answer

    @needs(ANY_KEY)
    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: Context
    ) -> pb.ModelStatisticsResponse:
        """Return the statistics of one model, or of all if the request names none."""
        named = [self._entry(request.name, request.version)] if request.name else None
        statistics = statistics_of(self._plane.metrics, named or self._plane.repository.entries.values())
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(**item) for item in statistics])

    @needs(_RUNS)
    async def ModelInfer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        return await self._answer(self._handler, request, context.time_remaining())

    @needs(_RUNS)
    async def ModelStreamInfer(self, requests: object, context: Context) -> None:
        await stream_infer(self._answer, self._handler, self._interceptor, context)

    async def _answer(
        self, handler: InferenceHandler, request: pb.ModelInferRequest, left_s: float | None
    ) -> pb.ModelInferResponse:
        if request.model_name.endswith(SUFFIX):
            return await self._decide(request, left_s)
        return await infer(handler, request, left_s)

    def _entry(self, name: str, version: str) -> Entry:
        """Return the entry. Raises UnknownModelError."""
        return self._plane.repository.entry(name, version or None)


async def infer(
    handler: InferenceHandler, request: pb.ModelInferRequest, left_s: float | None
) -> pb.ModelInferResponse:
    """Run a request.

    Its limit is the shorter of its `timeout` and `left_s`, the time until the call's own deadline.
    """
    off_loop = handler.plane.off_loop

    async def read(deadline_s: float, then: Callable[[InferenceRequest], T]) -> T:
        return await off_loop.run(typed_bytes(request), lambda: then(decode_request(request)), deadline_s)

    call = InferenceCall(INFER, request.model_name, request.model_version or None, timeout_s=left_s)
    return encode_answer(await handler.answer(call, read))


def _tensor(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype, shape=[-1, *spec.shape]
    )
