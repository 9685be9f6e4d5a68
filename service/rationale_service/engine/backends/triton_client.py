"""tritonclient's gRPC client as the gateway uses it: its channel, tensors in and out, its errors as ours."""

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

# Inference alone is repeated: to compute twice harms nobody. gRPC cannot tell a broken connection from a
# Triton that refuses as UNAVAILABLE (a full queue), so that it stops repeating where much fails.
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
    ("grpc.per_rpc_retry_buffer_size", (1 << 31) - 1),  # a larger request would not be repeated
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.primary_user_agent", "rationale"),
    # What is sent and not acknowledged for 10 s, or a ping that is not answered, ends the connection. Triton
    # closes one that pings for the fourth time in a call without data: 80 s leave a load its 300.
    ("grpc.keepalive_time_ms", 80_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # gRPC waits up to two minutes before it connects again; a Triton restarts in seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_ORT_REFUSED = re.compile(r"onnx runtime error 2\b")  # ONNX Runtime's INVALID_ARGUMENT, through Triton
_UNAVAILABLE = "StatusCode.UNAVAILABLE"
NO_ANSWER = (_UNAVAILABLE, "StatusCode.DEADLINE_EXCEEDED")


def connect(address: str, tls: ClientTls | None) -> InferenceServerClient:
    """Return a client on one channel, which connects by itself, and again."""
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


def given(inputs: Tensors) -> list[InferInput]:
    """Return the inputs as `infer` takes them."""
    tensors = []
    for name, array in inputs.items():
        tensors.append(InferInput(name, array.shape, datatype_of(array)))
        tensors[-1].set_data_from_numpy(array)
    return tensors


def taken(entry: Entry, result: InferResult, outputs: Sequence[str]) -> Tensors:
    """Return the `outputs` of an answer.

    Raises ModelFailedError where it lacks one, or holds what no tensor is.
    """
    if result.get_response() is None:  # grpc.aio gives None for bytes that are no message
        raise ModelFailedError(f"Triton's answer of '{entry.name}' cannot be read")
    return {name: _taken(entry, result, name) for name in outputs}


def _taken(entry: Entry, result: InferResult, name: str) -> Array:
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
    """Return whether this Triton loads no model by request."""
    return error.status() == _UNAVAILABLE and "explicit" in _text(error).lower()


def not_loaded(entry: Entry, error: InferenceServerException) -> RepositoryError | NotReadyError:
    """Return the error for a load that failed."""
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
    """Return the error for an inference that failed.

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
