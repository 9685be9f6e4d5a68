"""Reads a request body with a bound on memory, whatever its headers claim."""

import zlib
from collections.abc import Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.types import Scope

from service.byte_budget import ByteBudget
from service.errors import MalformedError, SlowBodyError, TooLargeError, UnsupportedMediaError
from service.http_headers import header_of
from service.until import until

TIMEOUT_HEADER = "x-request-timeout-ms"
TIMEOUT = TIMEOUT_HEADER.encode()
_LONGEST_TIMEOUT = 12  # digits
_GZIP_OR_ZLIB = 47  # zlib's own way to say: tell by the header

# What inflates a piece, to so many bytes at most, and whether the end was there.
Decoder = tuple[Callable[[bytes, int], bytes], Callable[[], bool]]
_AS_IT_IS: Decoder = (lambda piece, _: piece, lambda: True)


async def read_body(
    request: Request, limit: int, deadline_s: float | None = None, budget: ByteBudget | None = None
) -> bytes | bytearray:
    """The body, decompressed. Stops reading as soon as more than `limit` bytes are there.

    Args:
        deadline_s: when it must be there, on the event loop's clock; None waits for ever.
        budget: counts bodies that come in several pieces, so that all together are bounded too.

    Raises:
        TooLargeError, SlowBodyError, QueueFullError, UnsupportedMediaError (Content-Encoding),
        MalformedError (broken compression, or the caller left).
    """
    declared = header_of(request.scope, b"content-length") or "0"
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    inflate, finished = _decoder(header_of(request.scope, b"content-encoding"))
    try:
        body = await until(deadline_s, _inflated(request, inflate, limit, budget or ByteBudget(limit)))
    except TimeoutError as error:
        raise SlowBodyError("the body did not arrive in time: send it faster, or fewer rows") from error
    except zlib.error as error:
        raise MalformedError("the body is not what its Content-Encoding says") from error
    if not finished():
        raise MalformedError("the compressed body ends too early")
    return body


async def _inflated(
    request: Request, inflate: Callable[[bytes, int], bytes], limit: int, budget: ByteBudget
) -> bytes | bytearray:
    chunk, more = await _receive(request)
    first = inflate(chunk, limit + 1)
    if len(first) > limit:
        raise _too_large(limit)
    if not more:
        return first
    body = bytearray(first)  # not a list of pieces: a flood of tiny ones would cost many times their size
    with budget.growing() as grow:
        while more:
            chunk, more = await _receive(request)
            piece = inflate(chunk, limit - len(body) + 1)
            if len(body) + len(piece) > limit:
                raise _too_large(limit)
            grow(len(piece))
            body += piece
    return body


async def _receive(request: Request) -> tuple[bytes, bool]:
    """The next piece, and whether more come. Raises MalformedError where the caller left."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise MalformedError("the connection was closed before the body ended")
    return message.get("body", b""), message.get("more_body", False)


def check_media_type(request: Request, *allowed: str) -> None:
    """Raises UnsupportedMediaError; a request without a Content-Type is taken at its word."""
    given = header_of(request.scope, b"content-type")
    if given is None or given in allowed:
        return
    given = given.partition(";")[0].strip().lower()
    if given not in allowed:
        raise UnsupportedMediaError(
            f"Content-Type '{given[:80]}' is not read here; send {' or '.join(allowed)}"
        )


def timeout_header(scope: Scope) -> float | None:
    """Seconds that the caller waits, by its own word; None where it says nothing. Raises MalformedError."""
    given = header_of(scope, TIMEOUT)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < _LONGEST_TIMEOUT and int(given)):
        raise MalformedError(
            f"{TIMEOUT_HEADER} is '{given[:20]}', but must be a number of milliseconds, 1 or more"
        )
    return int(given) / 1e3


def parse_json(body: bytes | bytearray | memoryview) -> Any:
    """Raises MalformedError, which says where the JSON breaks."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"the body is not valid JSON: {error}") from error


def _decoder(encoding: str | None) -> Decoder:
    if encoding is None:
        return _AS_IT_IS
    match encoding.strip().lower():
        case "identity" | "":
            return _AS_IT_IS
        case "gzip" | "deflate":
            inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
            return inflater.decompress, lambda: inflater.eof
    raise UnsupportedMediaError(f"Content-Encoding '{encoding[:80]}' is not read here; send gzip or deflate")


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the body has more than {limit} bytes: send fewer rows, or binary tensors")
