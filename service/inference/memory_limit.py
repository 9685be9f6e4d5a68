"""A bound on the bytes of all requests that are held at one time, whatever their number."""

import contextlib
from collections.abc import Callable, Iterator

from service.errors import QueueFullError
from service.tensors import Tensors, bytes_of

SMALL = 1 << 20  # bytes of a request that any model's usual one stays below


class MemoryLimit:
    """Counts inputs and answers of accepted requests. One alone is let in always: others limit it.

    A quarter is kept for small requests: a few callers with large bodies cannot have them refused.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    def check(self, size: int, own: int = 0) -> None:
        """Raises QueueFullError where `size` more bytes of a request that holds `own` would be too many."""
        most = self._limit if own + size <= SMALL else self._limit * 3 // 4
        if self._held > own and self._held + size > most:
            raise QueueFullError(
                f"requests of {self._held} bytes are waiting, of {most} at most: try again later"
            )

    @contextlib.contextmanager
    def held(self, inputs: Tensors, answer: int = 0) -> Iterator[None]:
        """Holds the bytes of `inputs` and those that the answer will have, within a `with`.

        Raises:
            QueueFullError: on the way in.
        """
        with self.holding(sum(map(bytes_of, inputs.values())) + answer):
            yield

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Holds so many bytes within a `with`. Raises QueueFullError on the way in."""
        self.take(size)
        try:
            yield
        finally:
            self.give_back(size)

    def take(self, size: int) -> None:
        """Counts bytes until they are given back. Raises QueueFullError."""
        self.check(size)
        self._held += size

    def give_back(self, size: int) -> None:
        self._held -= size

    @contextlib.contextmanager
    def growing(self) -> Iterator[Callable[[int], None]]:
        """Gives a function that counts more bytes; it raises QueueFullError where they are too many."""
        own = 0

        def grow(size: int) -> None:
            nonlocal own
            self.check(size, own)
            own += size
            self._held += size

        try:
            yield grow
        finally:
            self._held -= own
