"""Adapter of tritonclient's gRPC client: its channel, its tensors, and its errors as the gateway's."""

import json
import logging
import re
import struct
from collections.abc import Sequence

from tritonclient.grpc import InferInput, InferResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from rationale.errors import RepositoryError
from rationale.schema.locales import locale_advice
from rationale_service.engine.backends.base import run_failure
from rationale_service.errors import (
    DeadlineError,
    InvalidInputError,
    ModelFailedError,
    NotReadyError,
    QueueFullError,
    ServiceError,
    UnknownModelError,
)
from rationale_service.observability.logs import without_values
from rationale_service.repository.entry import Entry
from rationale_service.security.tls import ClientTls
from rationale_service.tensors import DTYPES, Array, Tensors, datatype_of

log = logging.getLogger(__name__)

# gRPC retries inference alone, which may safely run twice. It cannot tell a broken connection from a Triton
# that refuses with UNAVAILABLE (a full queue), so it stops retrying if many calls fail.
_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "inference.GRPCInferenceService", "method": "ModelInfer"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.8s",
                "backoffMultiplier": 4,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
}
_CHANNEL = [
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
    ("grpc.per_rpc_retry_buffer_size", (1 << 31) - 1),  # gRPC would not retry a larger request
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.primary_user_agent", "rationale"),
    # Data without acknowledgement for 10 s, or a ping without an answer, ends the connection. Triton closes
    # a connection at its fourth ping in a call without data: an interval of 80 s leaves a load its 300 s.
    ("grpc.keepalive_time_ms", 80_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # By default gRPC waits up to two minutes before it reconnects; a Triton restarts in seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_ORT_REFUSED = re.compile(r"onnx runtime error 2\b")  # ONNX Runtime's INVALID_ARGUMENT, through Triton
_UNAVAILABLE = "StatusCode.UNAVAILABLE"
NO_ANSWER = (_UNAVAILABLE, "StatusCode.DEADLINE_EXCEEDED")


def connect(address: str, tls: ClientTls | None) -> InferenceServerClient:
    """Return a client on one channel, which connects and reconnects by itself."""
    if tls is None:
        return InferenceServerClient(address, channel_args=_CHANNEL)
    return InferenceServerClient(
        address,
        ssl=True,
        root_certificates=tls.authority,
        private_key=tls.key,
        certificate_chain=tls.chain,
        channel_args=_CHANNEL,
    )


def infer_inputs(inputs: Tensors) -> list[InferInput]:
    """Convert the inputs → tensors for `infer`."""
    tensors = []
    for name, array in inputs.items():
        tensors.append(InferInput(name, array.shape, datatype_of(array)))
        tensors[-1].set_data_from_numpy(array)
    return tensors


def output_arrays(entry: Entry, result: InferResult, outputs: Sequence[str]) -> Tensors:
    """Return the `outputs` of an answer.

    Raises ModelFailedError if one is missing or malformed.
    """
    if result.get_response() is None:  # grpc.aio gives None for bytes that are no message
        raise ModelFailedError(f"the gateway cannot read Triton's answer for '{entry.name}'")
    return {name: _output(entry, result, name) for name in outputs}


def _output(entry: Entry, result: InferResult, name: str) -> Array:
    output = result.get_output(name)
    if output is None:
        raise ModelFailedError(f"Triton did not return output '{name}' of '{entry.name}'")
    if output.datatype not in DTYPES:
        raise ModelFailedError(f"Triton gives output '{name}' of '{entry.name}' as {output.datatype}")
    try:
        array: Array = result.as_numpy(name)
    except (ValueError, struct.error) as error:
        raise ModelFailedError(
            f"Triton's output '{name}' of '{entry.name}' does not fill its shape"
        ) from error
    return array


def is_never_by_request(error: InferenceServerException) -> bool:
    """Tell whether this Triton loads no models by request."""
    return error.status() == _UNAVAILABLE and "explicit" in _text(error).lower()


def not_loaded(entry: Entry, error: InferenceServerException) -> RepositoryError | NotReadyError:
    """Return the error for a failed load."""
    text = _text(error)
    if is_never_by_request(error):
        return NotReadyError(
            "Triton does not load models by request: start it with --model-control-mode=explicit "
            f"--load-model=* ({text})"
        )
    if error.status() in NO_ANSWER:
        return NotReadyError(f"Triton does not answer: {text}")
    return RepositoryError(f"Triton cannot load '{entry.model}': {locale_advice(text) or text}")


def refusal(entry: Entry, error: InferenceServerException) -> ServiceError:
    """Return the error for a failed inference.

    Texts of Triton's own faults go to the log, not to the caller.
    """
    code, text = str(error.status()).removeprefix("StatusCode."), _text(error)
    log.warning("triton: model %s: %s: %s", entry.name, code, without_values(text))
    if "maximum queue size" in text.lower() or code == "RESOURCE_EXHAUSTED":
        return QueueFullError(f"Triton's queue for '{entry.name}' is full: try again later")
    if "timeout expired" in text.lower() or code == "DEADLINE_EXCEEDED":
        return DeadlineError(f"model '{entry.name}' did not answer before Triton's deadline")
    if _ORT_REFUSED.search(text):
        return run_failure(entry, refused=True)
    match code:
        case "INVALID_ARGUMENT":
            return InvalidInputError(f"Triton refused the input of '{entry.name}': {text}")
        case "NOT_FOUND":
            return UnknownModelError(f"Triton has no model '{entry.name}', version {entry.version}")
        case "UNAVAILABLE":
            return NotReadyError(f"Triton cannot serve '{entry.name}' now: try again later")
    return run_failure(entry, refused=False)


def _text(error: InferenceServerException) -> str:
    return error.message() or ""
