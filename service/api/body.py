"""Reads a request body with a bound on memory, whatever its headers claim."""

import asyncio
import zlib
from typing import Any

import orjson
from starlette.requests import Request
from starlette.types import Scope

from service.api.http_headers import header_of
from service.errors import MalformedError, SlowBodyError, TooLargeError, UnsupportedMediaError
from service.inference.memory_limit import MemoryLimit
from service.inference.until import until

TIMEOUT_HEADER = "x-request-timeout-ms"
TIMEOUT = TIMEOUT_HEADER.encode()
_LONGEST_TIMEOUT = 12  # digits
_GZIP_OR_ZLIB = 47  # zlib's own way to say: tell by the header

_FORM = "application/x-www-form-urlencoded"
_AT_ONCE = 256 * 1024  # bytes: inflating them takes the event loop a millisecond; what is more, a thread


class _AsItIs:
    """A body that is not compressed.

    Attributes:
        holds_more: whether `go_on` has more of what `begin` was given.
        is_whole: whether the end was there.
    """

    holds_more = False

    @property
    def is_whole(self) -> bool:
        return True

    def begin(self, piece: bytes) -> bytes:
        """What comes of a piece, or the beginning of that."""
        return piece

    async def go_on(self) -> bytes:
        return b""


class _Inflater(_AsItIs):
    """A compressed one: a small piece may hold a thousand times its size."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)

    @property
    def is_whole(self) -> bool:
        return self._zlib.eof

    def begin(self, piece: bytes) -> bytes:
        inflated = self._zlib.decompress(piece, _AT_ONCE)
        self.holds_more = len(inflated) == _AT_ONCE
        return inflated

    async def go_on(self) -> bytes:
        return await asyncio.to_thread(self.begin, self._zlib.unconsumed_tail)


_AS_IT_IS = _AsItIs()


async def read_body(
    request: Request, limit: int, deadline_s: float | None = None, budget: MemoryLimit | None = None
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
    decoder = _decoder(header_of(request.scope, b"content-encoding"))
    try:
        body = await until(deadline_s, _inflated(request, decoder, limit, budget or MemoryLimit(limit)))
    except TimeoutError as error:
        raise SlowBodyError("the body did not arrive in time: send it faster, or fewer rows") from error
    except zlib.error as error:
        raise MalformedError("the body is not what its Content-Encoding says") from error
    if not decoder.is_whole:
        raise MalformedError("the compressed body ends too early")
    return body


async def _inflated(request: Request, decoder: _AsItIs, limit: int, budget: MemoryLimit) -> bytes | bytearray:
    chunk, more = await _receive(request)
    first = decoder.begin(chunk)
    if len(first) > limit:
        raise _too_large(limit)
    if not more and not decoder.holds_more:
        return first
    body = bytearray(first)  # not a list of pieces: a flood of tiny ones would cost many times their size
    with budget.growing() as grow:
        while more or decoder.holds_more:
            if decoder.holds_more:
                piece = await decoder.go_on()
            else:
                chunk, more = await _receive(request)
                piece = decoder.begin(chunk)
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


def media_type_of(request: Request, *allowed: str) -> str:
    """The type that the body is read as, the first of `allowed` where the caller names none.

    A form counts as none: it is what `curl -d` says of every body. This lets no page in a browser do what it
    could not: a page may leave the type out, too (docs/security.md).

    Raises UnsupportedMediaError.
    """
    given = header_of(request.scope, b"content-type")
    if given is not None and given in allowed:
        return given
    named = "" if given is None else given.partition(";")[0].strip().lower()
    if named in ("", _FORM):
        return allowed[0]
    if named not in allowed:
        raise UnsupportedMediaError(
            f"Content-Type '{named[:80]}' is not read here; send {' or '.join(allowed)}"
        )
    return named


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
        raise MalformedError(
            f"the body is not valid JSON: {error}; if it is something else, say so by Content-Type"
        ) from error


def _decoder(encoding: str | None) -> _AsItIs:
    if encoding is None:
        return _AS_IT_IS
    match encoding.strip().lower():
        case "identity" | "":
            return _AS_IT_IS
        case "gzip" | "deflate":
            return _Inflater()
    raise UnsupportedMediaError(f"Content-Encoding '{encoding[:80]}' is not read here; send gzip or deflate")


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the body has more than {limit} bytes: send fewer rows, or binary tensors")
