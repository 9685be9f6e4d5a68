"""What Triton refuses and what breaks on the way to it, as errors of ours."""

import logging
import re

from grpc import StatusCode
from grpc.aio import AioRpcError

from compiler.errors import RepositoryError
from service.backends.base import run_failure
from service.errors import (
    DeadlineError,
    InvalidInputError,
    NotReadyError,
    QueueFullError,
    ServiceError,
    UnknownModelError,
)
from service.observability.logs import without_values
from service.repository.entry import Entry

log = logging.getLogger(__name__)

_ORT_REFUSED = re.compile(r"onnx runtime error 2\b")  # ONNX Runtime's INVALID_ARGUMENT, through Triton
# What gRPC itself says of a connection; Triton's own refusals share the status UNAVAILABLE.
_LOST = re.compile(
    r"connect|socket closed|broken pipe|reset by peer|goaway|rst_stream|stream removed|end of file|transport"
)
_REFUSED = re.compile(r"maximum queue size|timeout expired|unknown model|no available versions")


def is_lost(error: AioRpcError) -> bool:
    """Whether it was the connection that failed, rather than Triton that refused."""
    text = _text(error).lower()
    return bool(_LOST.search(text)) and not _REFUSED.search(text)


def is_never_by_request(error: AioRpcError) -> bool:
    """Whether this Triton loads no model by request."""
    return error.code() is StatusCode.UNAVAILABLE and "explicit" in _text(error).lower()


def not_loaded(entry: Entry, error: AioRpcError) -> RepositoryError | NotReadyError:
    text = _text(error)
    if is_never_by_request(error):
        return NotReadyError(
            f"Triton does not load models by request: start it with --model-control-mode=explicit ({text})"
        )
    if error.code() is StatusCode.UNAVAILABLE:
        return NotReadyError(f"Triton does not answer: {text}")
    return RepositoryError(f"Triton cannot load '{entry.model}': {text}")


def translate(entry: Entry, error: AioRpcError) -> ServiceError:
    """Triton's gRPC status → ours. Texts of Triton's own faults go to the log, not to the caller."""
    code, text = error.code(), _text(error)
    log.warning("triton: model %s: %s: %s", entry.name, code.name, without_values(text))
    if "maximum queue size" in text.lower() or code is StatusCode.RESOURCE_EXHAUSTED:
        return QueueFullError(f"Triton's queue for '{entry.name}' is full: try again later")
    if "timeout expired" in text.lower() or code is StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"model '{entry.name}' did not answer before Triton's deadline")
    if _ORT_REFUSED.search(text):
        return run_failure(entry, refused=True)
    match code:
        case StatusCode.INVALID_ARGUMENT:
            return InvalidInputError(f"Triton refused the input of '{entry.name}': {text}")
        case StatusCode.NOT_FOUND:
            return UnknownModelError(f"Triton has no model '{entry.name}', version {entry.version}")
        case StatusCode.UNAVAILABLE:
            return NotReadyError(f"Triton cannot serve '{entry.name}' now: try again later")
    return run_failure(entry, refused=False)


def _text(error: AioRpcError) -> str:
    return error.details() or ""
