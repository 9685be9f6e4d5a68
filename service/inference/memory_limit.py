"""A bound on the bytes of all requests that are held at one time, whatever their number."""

import contextlib
from collections.abc import Callable, Iterator

from service.errors import QueueFullError
from service.tensors import Tensors, bytes_of


class MemoryLimit:
    """Counts inputs and answers of accepted requests. One alone is let in always: others limit it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    def check(self, size: int) -> None:
        """Raises QueueFullError where `size` more bytes would be too many."""
        if self._held and self._held + size > self._limit:
            raise QueueFullError(
                f"requests of {self._held} bytes are waiting, of {self._limit} at most: try again later"
            )

    @contextlib.contextmanager
    def held(self, inputs: Tensors, answer: int = 0) -> Iterator[None]:
        """Holds the bytes of `inputs` and those that the answer will have, within a `with`.

        Raises:
            QueueFullError: on the way in.
        """
        size = sum(map(bytes_of, inputs.values())) + answer
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
            if self._held > own:  # one alone is let in here too
                self.check(size)
            own += size
            self._held += size

        try:
            yield grow
        finally:
            self._held -= own
