"""Common parts of endpoints: path, headers and a limited body on the way in, the answer on the way out."""

import asyncio
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from rationale.errors import quoted
from rationale_service.engine.checks import Faults, from_validation
from rationale_service.engine.large_requests import SMALL, parse_json
from rationale_service.engine.request import InferenceAnswer, InferenceRequest
from rationale_service.errors import (
    AnswerTooLargeError,
    MalformedError,
    ServiceError,
    SlowBodyError,
    TooLargeError,
    UnsupportedMediaError,
)
from rationale_service.handlers import BodyReader, InferenceCall, Verb
from rationale_service.protocols.gateway import Gateway
from rationale_service.protocols.instances import note_duplicates
from rationale_service.protocols.rest.openapi import IDEMPOTENCY_KEY

JSON = "application/json"
BINARY = "application/octet-stream"
REFUSALS = (400, 404, 408, 413, 415, 422, 429, 500, 503, 504)
LENGTH_HEADER = "Inference-Header-Content-Length"
_TENSORS_TO_JSON = 2  # limit of an answer's tensors, as a multiple of a request's JSON
Decode = Callable[[Request, bytearray], InferenceRequest]
Encode = Callable[[InferenceAnswer], Response]
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
MOST_UNKNOWN = 10

TIMEOUT_HEADER = "x-request-timeout-ms"
_LONGEST_TIMEOUT = 12  # digits
_GZIP_OR_ZLIB = 47  # zlib's code for detection by the header

_FORM = "application/x-www-form-urlencoded"
_AT_ONCE = 256 * 1024  # bytes that inflate in a millisecond on the event loop; a thread inflates the rest
_MOST_INFLATION = 200  # Apache's DeflateInflateRatioLimit; DEFLATE allows 1032


def gateway_of(request: Request) -> Gateway:
    """Return the gateway of a request, whose parts the routes use."""
    gateway: Gateway = request.app.state.gateway
    return gateway


async def respond(
    request: Request, decode: Decode, encode: Encode, *media_types: str, verb: Verb
) -> Response:
    """Answer a request for a prediction or an explanation, with the given codec."""
    handler, call = gateway_of(request).handler, call_of(request, verb)
    plane = handler.plane
    deadline_s = plane.deadline(call.timeout_s)
    answer = await handler.answer(call, reader(request, decode, *media_types))
    size, most = answer.json_bytes, most_json(request) * _TENSORS_TO_JSON
    if size > most:
        raise AnswerTooLargeError(
            f"the answer has {size} bytes of tensors, but JSON may hold at most {most}: send fewer rows, "
            "or request binary tensors"
        )
    with plane.budget.reserve_bytes(size):
        return await plane.off_loop.run(size, partial(encode, answer), deadline_s)


def call_of(request: Request, verb: Verb) -> InferenceCall:
    """Return the call that the path and the headers describe."""
    named = request.path_params
    return InferenceCall(verb, named["model"], named.get("version"), timeout_header(request))


def reader(request: Request, decode: Decode, *media_types: str) -> BodyReader:
    """Return a function that reads and decodes the body."""

    async def read(deadline_s: float, then: Callable[[InferenceRequest], T]) -> T:
        media_type_of(request, *media_types)
        gateway = gateway_of(request)
        plane, settings = gateway.plane, gateway.settings
        has_raw = BINARY in media_types and LENGTH_HEADER in request.headers
        limit = settings.max_body_bytes if has_raw else min(settings.max_body_bytes, settings.max_json_bytes)
        with plane.budget.growing() as grow:
            body = await read_body(request, limit, deadline_s, grow)
            return await plane.off_loop.run(len(body), lambda: then(decode(request, body)), deadline_s)

    return read


async def read_body(
    request: Request, limit: int, deadline_s: float | None = None, grow: Callable[[int], None] | None = None
) -> bytearray:
    """Return the decompressed body. Stops reading after more than `limit` bytes.

    Args:
        deadline_s: deadline on the event loop's clock; None waits for ever.
        grow: function that counts the bytes read: see `MemoryLimit.growing`, whose caller reserves them as
            long as the body exists.

    Raises:
        TooLargeError: if it is too large or inflates too much.
        SlowBodyError: if it does not arrive by the deadline.
        QueueFullError: if `grow` raises it.
        UnsupportedMediaError: if the Content-Encoding is not supported.
        MalformedError: if the compression is broken, or the caller left.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    inflater = _inflater(request.headers.get("content-encoding", ""))
    try:
        async with asyncio.timeout_at(deadline_s):
            body = await _read(request, inflater, limit, grow or (lambda _: None))
    except TimeoutError as error:
        raise SlowBodyError("the body did not arrive in time: send it faster, or fewer rows") from error
    except zlib.error as error:
        raise MalformedError("the body does not match its Content-Encoding") from error
    if inflater is not None and not inflater.eof:
        raise MalformedError("the compressed body ends too early")
    return body


async def read_model(request: Request, model: type[Model], kind: type[ServiceError], example: str) -> Model:
    """Read the body, a JSON object of at most 1 MiB, as a `model`.

    Args:
        kind: class of the error for values that do not fit.
        example: example of a body, for the error if it is no object.

    Raises `kind`, MalformedError, InvalidInputError for a member that is given twice, and as `read_body`.
    """
    media_type_of(request, JSON)
    plane = gateway_of(request).plane
    body = await read_body(request, SMALL, plane.deadline())
    return await plane.off_loop.run(len(body), partial(_model, body, model, kind, example))


def _model(body: bytearray, model: type[Model], kind: type[ServiceError], example: str) -> Model:
    message = parse_json(body, SMALL)
    if not isinstance(message, dict):
        raise MalformedError(f"the body must be an object, such as {example}")
    faults = Faults()
    note_duplicates(body, [message], faults, noun="member")
    faults.report()
    fields = model.model_fields
    unknown = [name for name in message if name not in fields]
    if len(unknown) > MOST_UNKNOWN:  # pydantic would write a text for each
        raise kind(f"the body has the unknown members {quoted(unknown)}; it takes {', '.join(fields)}")
    try:
        return model.model_validate(message)
    except ValidationError as error:
        raise from_validation(error, kind, "the body") from error


def _check_end(inflater: Any, piece: bytes) -> None:
    """Raise MalformedError if anything follows the compressed body."""
    if inflater.unused_data or (inflater.eof and piece):
        raise MalformedError("the compressed body has bytes after its end: send one gzip member")


async def _read(request: Request, inflater: Any, limit: int, grow: Callable[[int], None]) -> bytearray:
    """Read and inflate the body; a small piece on the wire may hold a thousand times its size."""
    body = bytearray()
    received, holds_more, more = 0, False, True
    while holds_more or more:
        if holds_more:
            piece = await asyncio.to_thread(inflater.decompress, inflater.unconsumed_tail, _AT_ONCE)
        else:
            piece, more = await _receive(request)
            received += len(piece)
            if inflater is not None:
                _check_end(inflater, piece)
                piece = inflater.decompress(piece, _AT_ONCE)
        if len(body) + len(piece) > limit:
            raise _too_large(limit)
        grow(len(piece))
        body += piece
        if inflater is not None:
            _check_inflation(len(body), received - len(inflater.unconsumed_tail))
        holds_more = inflater is not None and len(piece) == _AT_ONCE
    if inflater is not None:
        _check_end(inflater, b"")
    return body


def _check_inflation(size: int, compressed: int) -> None:
    """Raise TooLargeError if `compressed` bytes have inflated to more than any real request."""
    if size > SMALL + _MOST_INFLATION * compressed:
        raise TooLargeError(
            f"the body inflates to more than {_MOST_INFLATION} times its size: send it uncompressed"
        )


async def _receive(request: Request) -> tuple[bytes, bool]:
    """Return the next piece, and True if more come. Raises MalformedError if the caller left."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise MalformedError("the connection was closed before the body ended")
    return message.get("body", b""), message.get("more_body", False)


def idempotency_key(request: Request) -> str | None:
    keys = request.headers.getlist(IDEMPOTENCY_KEY)
    return ", ".join(keys) if keys else None


def most_json(request: Request) -> int:
    """Return the maximum size of a request's JSON in bytes."""
    return gateway_of(request).settings.max_json_bytes


def media_type_of(request: Request, *allowed: str) -> str:
    """Return the body's media type; the first of `allowed` if the caller names none.

    A form's type counts as none, because `curl -d` sends it with every body. This gives a page in a browser
    no
    new power, since a page may omit the type too (docs/security.md).

    Raises UnsupportedMediaError.
    """
    header = request.headers.get("content-type")
    if header is not None and header in allowed:
        return header
    named = "" if header is None else header.partition(";")[0].strip().lower()
    if named in ("", _FORM):
        return allowed[0]
    if named not in allowed:
        raise UnsupportedMediaError(
            f"Content-Type '{named[:80]}' is not supported here; send {' or '.join(allowed)}"
        )
    return named


def timeout_header(request: Request) -> float | None:
    """Return the seconds that the caller waits, from the header, or None. Raises MalformedError."""
    header = request.headers.get(TIMEOUT_HEADER)
    if header is None:
        return None
    if not (header.isascii() and header.isdecimal() and len(header) < _LONGEST_TIMEOUT and int(header)):
        raise MalformedError(
            f"{TIMEOUT_HEADER} is '{header[:20]}', but must be a number of milliseconds, 1 or more"
        )
    return int(header) / 1e3


def _inflater(encoding: str) -> Any:
    """Return an inflater; None for an uncompressed body. Raises UnsupportedMediaError."""
    match encoding.strip().lower():
        case "identity" | "":
            return None
        case "gzip" | "deflate":
            return zlib.decompressobj(_GZIP_OR_ZLIB)
    raise UnsupportedMediaError(f"Content-Encoding '{encoding[:80]}' is not supported; send gzip or deflate")


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the body has more than {limit} bytes: send fewer rows, or binary tensors")
