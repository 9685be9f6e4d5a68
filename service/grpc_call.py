"""One gRPC call, of whatever kind: its message, its limits, and how what goes wrong becomes a status."""

import logging
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio

from service.dataplane import DataPlane
from service.errors import ModelFailedError, ServiceError
from service.exchange import REQUEST_ID, Exchange, note_problem

log = logging.getLogger(__name__)

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_SHOWN_BYTES = 2000  # of a refusal: clients take 8 KiB of metadata, where each byte may become three


@dataclass(slots=True)
class Call:
    """A request on its way: the message, and the seconds that the caller still waits (None: no limit)."""

    plane: DataPlane
    message: Any
    left_s: float | None


def refusal_of(error: Exception, what: str) -> ServiceError:
    """What the caller is told of `error`, which came up in `what`. Faults of ours go to the log."""
    if isinstance(error, ServiceError):
        if isinstance(error, ModelFailedError):
            log.error("%s: %s", what, error)
        return error
    log.error("%s", what, exc_info=error)
    return ServiceError("an unexpected fault; the server's log tells more")


def text_of(error: ServiceError) -> str:
    """Title and message, as long as clients take."""
    return f"{error.title}: {error}".encode()[:_SHOWN_BYTES].decode(errors="ignore")


async def refuse(error: ServiceError, context: grpc.aio.ServicerContext) -> NoReturn:
    """The trailing metadata tell apart what shares a status code."""
    note_problem(error.slug, error.status)
    metadata = [*context.trailing_metadata(), ("problem", error.slug)]
    if error.retry_after_s is not None:
        metadata.append(("retry-after", str(error.retry_after_s)))
    await context.abort(CODES[error.status], text_of(error), tuple(metadata))
    raise AssertionError("abort raises")


def echo_request_id(exchange: Exchange, context: grpc.aio.ServicerContext) -> None:
    """Gives the call's `x-request-id`, its caller's or the one it got here, in the trailing metadata."""
    context.set_trailing_metadata(((REQUEST_ID, exchange.request_id),))
