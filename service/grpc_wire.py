"""gRPC as it stands in HTTP/2: the head of a call, its messages, its end. No connection is needed for it."""

import contextlib
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import grpc

from service.byte_budget import ByteBudget
from service.errors import MalformedError, NotOfferedError, ServiceError, TooLargeError

Headers = Sequence[tuple[bytes, bytes]]

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
PREFIX = 5  # bytes before a message: whether it is compressed, and its length
OK: Headers = ((b"grpc-status", b"0"),)
ANSWER: Headers = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
)
_SHOWN_BYTES = 2000  # of a refusal: clients take 8 KiB of metadata, where each byte may become three
_PLAIN_TEXT = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}~"  # of grpc-message, beside letters, digits and _.-
_CONTENT_TYPE = re.compile(rb"application/grpc(\+proto)?\s*(;.*)?", re.IGNORECASE)
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_GZIP_OR_ZLIB = 47  # zlib's own way to say: tell by the header
_ENCODINGS = {b"identity": False, b"gzip": True, b"deflate": True}


class NotGrpcError(Exception):
    """A request that is HTTP/2, but no call; answered by an HTTP `status`."""

    def __init__(self, status: bytes) -> None:
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """
    Attributes:
        metadata: by lower-case name, the last of each.
        wrong: what is refused as soon as the call's kind is known.
        inflates: whether its messages may be compressed.
    """

    path: str
    metadata: Mapping[str, str]
    timeout_s: float | None
    inflates: bool
    wrong: ServiceError | None


def read_head(headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """Raises NotGrpcError."""
    given = dict(headers)
    if given.get(b":method") != b"POST":
        raise NotGrpcError(b"405")
    if not _CONTENT_TYPE.fullmatch(given.get(b"content-type", b"")):
        raise NotGrpcError(b"415")
    wrong: ServiceError | None = None
    timeout = given.get(b"grpc-timeout")
    found = _TIMEOUT.fullmatch(timeout) if timeout is not None else None
    if timeout is not None and found is None:
        wrong = MalformedError("grpc-timeout must be up to eight digits and a unit, H, M, S, m, u or n")
    encoding = given.get(b"grpc-encoding", b"identity")
    if encoding not in _ENCODINGS:
        wrong = NotOfferedError("messages may be compressed by gzip or deflate (grpc-accept-encoding)")
    return Head(
        path=given.get(b":path", b"").decode("latin-1"),
        metadata={name.decode("latin-1"): value.decode("latin-1") for name, value in given.items()},
        timeout_s=None if found is None else int(found[1]) * _UNIT_S[found[2]],
        inflates=_ENCODINGS.get(encoding, False),
        wrong=wrong,
    )


class Messages:
    """The bytes of a request, from which messages are taken one at a time.

    What a caller sends ahead stays as it came: neither cut into objects nor decompressed, so that it takes no
    more memory than flow control has let in.
    """

    def __init__(self, limit: int, inflates: bool, budget: ByteBudget) -> None:
        """
        Args:
            limit: bytes of a message, decompressed.
            budget: counts what of a message comes in pieces, as those of HTTP bodies.
        """
        self._limit = limit
        self._inflates = inflates
        self._budget = budget
        self._data = bytearray()
        self._growing = contextlib.ExitStack()
        self._grow: Callable[[int], None] | None = None
        self._counted = 0

    @property
    def is_empty(self) -> bool:
        return not self._data

    @property
    def ready(self) -> bool:
        """Whether a whole message can be taken."""
        return len(self._data) >= PREFIX and len(self._data) >= self._needed()

    @property
    def more_than_one(self) -> bool:
        return self.ready and len(self._data) > self._needed()

    def add(self, data: bytes) -> None:
        """Raises TooLargeError by the length that a message announces, and QueueFullError."""
        self._data += data
        self._check()

    def take(self) -> bytes:
        """The next message, which is `ready`. Raises TooLargeError and MalformedError."""
        end = self._needed()
        compressed = self._data[0]
        with memoryview(self._data) as view:
            message = bytes(view[PREFIX:end])
        del self._data[:end]
        self.close()
        self._check()
        if not compressed:
            return message
        if compressed != 1 or not self._inflates:
            raise MalformedError("a message says that it is compressed, but grpc-encoding does not say how")
        return self._inflated(message)

    def close(self) -> None:
        """No longer counts what is here."""
        self._growing.close()
        self._grow = None
        self._counted = 0

    def _check(self) -> None:
        if len(self._data) < PREFIX:
            return
        if self._needed() - PREFIX > self._limit:
            raise self._too_large()
        if not self.ready:
            self._count()

    def _count(self) -> None:
        if self._grow is None:
            self._grow = self._growing.enter_context(self._budget.growing())
        self._grow(len(self._data) - self._counted)
        self._counted = len(self._data)

    def _needed(self) -> int:
        return PREFIX + int.from_bytes(self._data[1:PREFIX])

    def _inflated(self, message: bytes) -> bytes:
        inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
        try:
            whole = inflater.decompress(message, self._limit + 1)
        except zlib.error as error:
            raise MalformedError("a message is not what grpc-encoding says") from error
        if len(whole) > self._limit:
            raise self._too_large()
        if not inflater.eof:
            raise MalformedError("a compressed message ends too early")
        return whole

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"the message is larger than max_body_bytes, {self._limit} bytes: send fewer rows"
        )


def framed(message: bytes) -> bytes:
    """A message with what stands before it."""
    return b"\0" + len(message).to_bytes(4) + message


def trailers_of(error: ServiceError) -> list[tuple[bytes, bytes]]:
    """The status that an error becomes; the metadata tell apart what shares a code."""
    code: int = CODES[error.status].value[0]
    trailers = [
        (b"grpc-status", str(code).encode()),
        (b"grpc-message", quote(text_of(error), safe=_PLAIN_TEXT).encode()),
        (b"problem", error.slug.encode()),
    ]
    if error.retry_after_s is not None:
        trailers.append((b"retry-after", str(error.retry_after_s).encode()))
    return trailers


def text_of(error: ServiceError) -> str:
    """Title and message, as long as clients take."""
    return f"{error.title}: {error}".encode()[:_SHOWN_BYTES].decode(errors="ignore")
