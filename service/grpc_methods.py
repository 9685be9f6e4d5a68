"""The unary methods of `GRPCInferenceService`: a function from a call to its answer, and the table.

There is no verb to explain here: the explain entry of a model, `{model}_explain`, is a model of its own.
"""

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version as package_version

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from compiler.manifest import TensorSpec
from service.choice import entry_asked_for
from service.entries import PLATFORM
from service.errors import UnknownModelError
from service.grpc_call import Call
from service.index import index_of
from service.oip_grpc import decode_request, encode_answer
from service.statistics import statistics_of

EXTENSIONS = ["model_configuration", "model_repository", "statistics"]
SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name

Method = Callable[[Call], Awaitable[Message]]
Methods = Mapping[str, tuple[type[Message], Method]]


async def server_live(_: Call) -> pb.ServerLiveResponse:
    return pb.ServerLiveResponse(live=True)


async def server_ready(call: Call) -> pb.ServerReadyResponse:
    return pb.ServerReadyResponse(ready=await call.plane.ready())


async def server_metadata(_: Call) -> pb.ServerMetadataResponse:
    return pb.ServerMetadataResponse(
        name="rationale", version=package_version("rationale"), extensions=EXTENSIONS
    )


async def model_ready(call: Call) -> pb.ModelReadyResponse:
    """A model that is not there is not ready, as Triton answers too."""
    try:
        entry = call.plane.repository.entry(call.message.name, call.message.version or None)
    except UnknownModelError:
        return pb.ModelReadyResponse(ready=False)
    return pb.ModelReadyResponse(ready=await call.plane.ready(entry))


async def model_metadata(call: Call) -> pb.ModelMetadataResponse:
    entry = call.plane.repository.entry(call.message.name, call.message.version or None)
    return pb.ModelMetadataResponse(
        name=entry.name,
        versions=[entry.version],
        platform=PLATFORM,
        inputs=[_tensor(spec) for spec in entry.inputs],
        outputs=[_tensor(spec) for spec in entry.outputs],
    )


async def model_config(call: Call) -> pb.ModelConfigResponse:
    entry = call.plane.repository.entry(call.message.name, call.message.version or None)
    return pb.ModelConfigResponse(config=entry.config)


async def repository_index(call: Call) -> pb.RepositoryIndexResponse:
    """`ready` asks for the models that can answer now; there is one repository, whatever its name."""
    answer = pb.RepositoryIndexResponse()
    for listed in await index_of(call.plane, only_ready=call.message.ready):
        answer.models.add(**listed)
    return answer


async def model_statistics(call: Call) -> pb.ModelStatisticsResponse:
    """Of one model, or of all where it names none."""
    name, version = call.message.name, call.message.version
    repository = call.plane.repository
    entries = [repository.entry(name, version or None)] if name else repository.entries.values()
    told = statistics_of(call.plane.metrics, entries)
    return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(**item) for item in told])


async def model_infer(call: Call) -> pb.ModelInferResponse:
    """The shorter of the request's `timeout` and gRPC's own deadline is its limit."""
    plane, message = call.plane, call.message
    named = plane.repository.entry(message.model_name, message.model_version or None)
    deadline_s = plane.deadline(call.left_s)
    plane.admit(named, deadline_s)
    asked = decode_request(message)
    entry = entry_asked_for(plane.repository, named, asked)
    answer = await plane.infer(
        entry, asked.inputs, asked.outputs, asked.timeout_s, deadline_s, asked.reference_set, asked.faults
    )
    return encode_answer(message.model_name, named.version, asked.id, answer)


METHODS: Methods = {
    "ServerLive": (pb.ServerLiveRequest, server_live),
    "ServerReady": (pb.ServerReadyRequest, server_ready),
    "ServerMetadata": (pb.ServerMetadataRequest, server_metadata),
    "ModelReady": (pb.ModelReadyRequest, model_ready),
    "ModelMetadata": (pb.ModelMetadataRequest, model_metadata),
    "ModelConfig": (pb.ModelConfigRequest, model_config),
    "ModelStatistics": (pb.ModelStatisticsRequest, model_statistics),
    "ModelInfer": (pb.ModelInferRequest, model_infer),
    "RepositoryIndex": (pb.RepositoryIndexRequest, repository_index),
}

_LOADING = (
    "loading and unloading is not open to callers: an operator publishes entries in the repository, and "
    "explainers through the admin API (PUT /v2/models/{model}/explainers/{name})"
)
_SHARED_MEMORY = "shared memory is not offered: send tensors in raw_input_contents"
# What Triton offers and a gateway must not: {method: why, and what to do instead}.
REFUSED = {
    "RepositoryModelLoad": _LOADING,
    "RepositoryModelUnload": _LOADING,
    **{
        f"{kind}SharedMemory{verb}": _SHARED_MEMORY
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
    "TraceSetting": "tracing is an operator's setting: docs/settings.md lists it",
    "LogSettings": "logging is an operator's setting: RATIONALE_LOG_LEVEL",
}


def _tensor(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype, shape=[-1, *spec.shape]
    )
