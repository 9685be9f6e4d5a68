"""Limits of large requests: their total memory, their JSON values, their time on the event loop.

Small work runs at once, because a thread would cost more. Very large work runs one at a time, so that the
memory of one bounds that of all. Python threads share one lock, which a parser in C holds to its end: large
JSON is parsed in pieces (`json_pieces`), and callers must bound all other work for these threads.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import orjson

from rationale_service.engine import json_pieces
from rationale_service.errors import DeadlineError, MalformedError, QueueFullError, TooLargeError
from rationale_service.tensors import Tensors, bytes_of

SMALL = 1 << 20  # bytes; usual requests of any model are smaller
MEDIUM = 64 << 10  # bytes, whose decoding from JSON takes about 10 ms
LARGE = 1 << 20
_THREADS = 4

# Things to count in a large body: name, bytes that mark one, and the allowed bytes per one.
_COUNTED = (
    ("values", (b",",), 8),
    ("members of objects", (b":",), 16),
    ("lists and objects", (b"[", b"{"), 32),
)
_FEWER = "send fewer rows at a time, or binary tensors"
_NO_NAN = (
    "JSON has no NaN and no infinity: send null for a missing value, or binary tensors, which hold both "
    "(tritonclient: set_data_from_numpy(…, binary_data=True))"
)
T = TypeVar("T")


class MemoryLimit:
    """Memory budget for inputs and answers of accepted requests. A request alone always fits.

    A quarter is reserved for small requests, so that a few callers with large bodies cannot crowd them out.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reserved = 0

    def check(self, size: int, held: int = 0) -> None:
        """Raise QueueFullError if a request that holds `held` bytes cannot take `size` more."""
        most = self._limit if held + size <= SMALL else self._limit * 3 // 4
        if self._reserved > held and self._reserved + size > most:
            raise QueueFullError(
                f"requests of {self._reserved} bytes are waiting, and the limit is {most}: try again later"
            )

    @contextlib.contextmanager
    def reserve(self, inputs: Tensors, answer: int = 0) -> Iterator[None]:
        """Reserve the bytes of `inputs` and of the future answer within a `with`.

        Raises:
            QueueFullError: on entry, if they do not fit.
        """
        with self.reserve_bytes(sum(map(bytes_of, inputs.values())) + answer):
            yield

    @contextlib.contextmanager
    def reserve_bytes(self, size: int) -> Iterator[None]:
        """Reserve `size` bytes within a `with`. Raises QueueFullError on entry."""
        self.take(size)
        try:
            yield
        finally:
            self.give_back(size)

    def take(self, size: int) -> None:
        """Reserve bytes until `give_back`. Raises QueueFullError."""
        self.check(size)
        self._reserved += size

    def give_back(self, size: int) -> None:
        self._reserved -= size

    @contextlib.contextmanager
    def growing(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves more bytes; it raises QueueFullError if they do not fit."""
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            self.check(size, held)
            held += size
            self._reserved += size

        try:
            yield grow
        finally:
            self._reserved -= held


class OffLoop:
    """Threads of one gateway for large requests, started on first use."""

    def __init__(self) -> None:
        self._medium = ThreadPoolExecutor(_THREADS, "medium-request")
        self._large = ThreadPoolExecutor(1, "large-request")

    async def run(self, size: int, work: Callable[[], T], deadline_s: float | None = None) -> T:
        """Run `work` here or in a thread, and return its result.

        Args:
            size: number of bytes that it reads or writes; a small one runs here, others in a thread.
            deadline_s: deadline of its caller on the event loop's clock. Work that has begun then ends by
                itself; other work never begins.

        Raises:
            DeadlineError: if the deadline passes. Errors of `work` pass through.
        """
        if size <= MEDIUM:
            return work()
        threads = self._medium if size <= LARGE else self._large
        running = asyncio.get_running_loop().run_in_executor(threads, copy_context().run, work)
        try:
            async with asyncio.timeout_at(deadline_s):
                return await running
        except TimeoutError as error:
            raise DeadlineError(
                f"{size} bytes took too long to read or write: send fewer rows, or binary tensors"
            ) from error
        finally:
            del work, running  # an error's traceback would keep them, and the request

    def stop(self) -> None:
        """Begin no more work."""
        for threads in (self._medium, self._large):
            threads.shutdown(wait=False, cancel_futures=True)


def parse_json(body: bytes | bytearray, most_bytes: int, end: int | None = None) -> Any:
    """Parse `body` as JSON up to byte `end`.

    The number of values is limited before any exists: an empty object takes 2 bytes here and 70 when parsed.
    Up to 1 MiB needs no limit.

    Raises:
        TooLargeError: if it has more than `most_bytes` bytes, or too many values for that size.
        MalformedError: if it is no JSON; the message gives the place.
    """
    end = len(body) if end is None else end
    if end > most_bytes:
        raise TooLargeError(f"the JSON has {end} bytes, more than {most_bytes}: {_FEWER}")
    if end > SMALL:
        for noun, marks, share in _COUNTED:
            count, most = sum(body.count(mark, 0, end) for mark in marks), most_bytes // share
            if count > most:
                raise TooLargeError(f"the JSON holds about {count} {noun}, more than {most}: {_FEWER}")
    try:
        if end <= json_pieces.PIECE:
            return orjson.loads(memoryview(body)[:end])
        return json_pieces.parse(body if end == len(body) else body[:end])
    except json_pieces.LimitError as error:
        raise TooLargeError(f"{error}: {_FEWER}") from error
    except orjson.JSONDecodeError as error:
        raise _malformed_error(error, error.doc[error.pos :][:8].encode()) from error
    except json_pieces.FaultError as error:
        raise _malformed_error(error, body[error.position : error.position + 8]) from error


def _malformed_error(error: ValueError, there: bytes | bytearray) -> MalformedError:
    if there.startswith((b"NaN", b"Infinity")):
        return MalformedError(f"the body is not valid JSON: {error}: {_NO_NAN}")
    return MalformedError(
        f"the body is not valid JSON: {error}; if it is something else, say so by Content-Type"
    )
