"""A connection to Triton: the calls of its gRPC API that the gateway makes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from service.backends.triton_messages import from_answer, to_request
from service.repository.entry import Entry
from service.security.tls import ClientTls
from service.tensors import Tensors

_LOAD_S, _UNLOAD_S = 300.0, 10.0  # a Triton that hangs is not waited for beyond these
_PROBE_S = 5.0  # a health question that takes longer counts as a no
_INFER = f"/{pb.DESCRIPTOR.services_by_name['GRPCInferenceService'].full_name}/ModelInfer"
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.primary_user_agent", "rationale"),
    # gRPC waits up to two minutes before it connects again; a Triton restarts in seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class TritonConnection:
    """One channel, which connects by itself, and again. Every call raises `grpc.aio.AioRpcError`."""

    def __init__(self, address: str, tls: ClientTls | None) -> None:
        self._channel = _channel(address, tls)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._infer = self._channel.unary_unary(_INFER)

    async def infer(
        self,
        entry: Entry,
        inputs: Tensors,
        outputs: Sequence[str],
        timeout_s: float | None,
        headers: Mapping[str, str],
    ) -> Tensors:
        """The `outputs` of `entry` for its inputs [N, …]; `timeout_s` None: no limit.

        Raises:
            AioRpcError: Triton refused, or the connection broke.
            ModelFailedError: the answer lacks an output, or is none.
        """
        request = to_request(entry, inputs, outputs, timeout_s)
        answer = await self._infer(request, timeout=timeout_s, metadata=tuple(headers.items()))
        return from_answer(entry, outputs, answer)

    async def is_ready(self, entry: Entry | None) -> bool:
        """Whether Triton serves the entry; None asks for Triton itself."""
        if entry is None:
            answer = await self._stub.ServerReady(pb.ServerReadyRequest(), timeout=_PROBE_S)
        else:
            asked = pb.ModelReadyRequest(name=entry.model, version=entry.version)
            answer = await self._stub.ModelReady(asked, timeout=_PROBE_S)
        return bool(answer.ready)

    async def load(self, model: str) -> None:
        await self._stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=model), timeout=_LOAD_S)

    async def unload(self, model: str) -> None:
        await self._stub.RepositoryModelUnload(
            pb.RepositoryModelUnloadRequest(model_name=model), timeout=_UNLOAD_S
        )

    async def close(self) -> None:
        await self._channel.close()


def _channel(address: str, tls: ClientTls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, _OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_content(tls.authority),
        private_key=_content(tls.key),
        certificate_chain=_content(tls.chain),
    )
    return grpc.aio.secure_channel(address, credentials, _OPTIONS)


def _content(file: str | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()
