"""Errors → a gRPC status: code, text, and metadata that distinguish errors of the same code."""

import logging
from dataclasses import dataclass
from typing import NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from rationale_service.errors import MalformedError, ModelFailedError, ServiceError

log = logging.getLogger(__name__)

# Status codes of gRPC by HTTP status.
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
_SHOWN_BYTES = 2000  # per refusal: clients accept 8 KiB of metadata; a byte may become three


@dataclass(frozen=True)
class Refusal:
    """An error's report to the caller. It holds no traceback, and so nothing of the request.

    Attributes:
        status: HTTP status.
        slug: slug of the problem.
    """

    status: int
    slug: str
    text: str
    retry_after_s: int | None


def refusal_of(error: BaseException, method: str) -> Refusal:
    """Return the refusal for an error in `method`. Texts of internal faults go only to the log."""
    match error:
        case ModelFailedError():
            log.error("%s: %s", method, error)
        case ServiceError():
            pass
        case DecodeError():
            error = MalformedError(f"the message is not what {method} takes")
        case _:
            log.error("%s", method, exc_info=error)
            error = ServiceError("an unexpected fault; the server's log tells more")
    text = f"{error.title}: {error}".encode()[:_SHOWN_BYTES].decode(errors="ignore")
    return Refusal(error.status, error.slug, text, error.retry_after_s)


async def abort(context: grpc.aio.ServicerContext, refusal: Refusal) -> NoReturn:
    metadata = [*context.trailing_metadata(), ("problem", refusal.slug)]
    if refusal.retry_after_s is not None:
        metadata.append(("retry-after", str(refusal.retry_after_s)))
    aborting = context.abort(CODES[refusal.status], refusal.text, tuple(metadata))
    del context
    await aborting
    raise AssertionError("abort raises")
