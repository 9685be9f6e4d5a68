"""One gRPC call, as its handler sees it."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from service.errors import MalformedError, ServiceError, SlowBodyError
from service.exchange import Exchange
from service.grpc_wire import Head, Messages

SLOW = "the message did not arrive in time: send it faster, or fewer rows"


@dataclass(frozen=True, slots=True)
class Handler:
    """`run(rpc, message)` gives the answer's message, or, of a stream, `run(rpc)` reads and writes itself.

    What it raises becomes the call's status.
    """

    run: Callable[..., Awaitable[Any]]
    is_stream: bool = False


class Wire(Protocol):
    """What a call needs of its connection."""

    async def send(self, rpc: "Rpc", message: bytes) -> None:
        """Sends a message, as far as the caller and the network take it."""

    def taken(self, rpc: "Rpc") -> None:
        """The caller may send more."""


class Rpc:
    """
    Attributes:
        began_s: on the event loop's clock.
        metadata: of the caller, by lower-case name.
        exchange: what is noted of it; None for calls of health.
        trailing: metadata for behind the answer.
        messages: what has come of the request.
        untaken: bytes of the request that the caller was not given back to send.
        asked: whether the request is whole.
        answering: whether the answer has begun.
        over: whether it has a status; nothing can be sent any more.
        patience_s: for how long one message of a stream may be on its way.
    """

    __slots__ = (
        "_late_s", "_more", "answering", "asked", "began_s", "deadline_s", "exchange", "handler", "messages",
        "metadata", "over", "path", "patience_s", "stream_id", "task", "timer", "trailing", "untaken", "wire",
    )  # fmt: skip

    def __init__(self, wire: Wire, stream_id: int, head: Head) -> None:
        self.wire = wire
        self.stream_id = stream_id
        self.path = head.path
        self.metadata: Mapping[str, str] = head.metadata
        self.deadline_s: float | None = None
        self.began_s = asyncio.get_running_loop().time()
        if head.timeout_s is not None:
            self.deadline_s = self.began_s + head.timeout_s
        self.exchange: Exchange | None = None
        self.trailing: tuple[tuple[bytes, bytes], ...] = ()
        self.handler: Handler | None = None
        self.messages: Messages | None = None
        self.untaken = 0
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.asked = False
        self.answering = False
        self.over = False
        self.patience_s = math.inf
        self._more: asyncio.Event | None = None
        self._late_s: float | None = None

    @property
    def is_stream(self) -> bool:
        return self.handler is not None and self.handler.is_stream

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None where it has none."""
        return None if self.deadline_s is None else self.deadline_s - asyncio.get_running_loop().time()

    async def write(self, message: bytes) -> None:
        """Sends a message of a stream. One at a time."""
        await self.wire.send(self, message)

    async def read(self) -> AsyncIterator[bytes]:
        """The messages of a stream. Raises TooLargeError, MalformedError and QueueFullError."""
        assert self.messages is not None  # noqa: S101  # a stream has them from the beginning
        self._more = asyncio.Event()
        while True:
            while self.messages.ready:
                message = self.messages.take()
                self._late_s = None
                self.wire.taken(self)
                yield message
            if self.asked:
                break
            await self._wait_for_more(self.messages, self._more)
        if not self.messages.is_empty:
            raise MalformedError("the request ends within a message")

    async def _wait_for_more(self, messages: Messages, more: asyncio.Event) -> None:
        """Raises SlowBodyError for a message that does not go on; between two there is no hurry."""
        if messages.is_empty:
            self._late_s = None
        elif self._late_s is None:
            self._late_s = asyncio.get_running_loop().time() + self.patience_s
        more.clear()
        try:
            async with asyncio.timeout_at(self._late_s):
                await more.wait()
        except TimeoutError as error:
            raise SlowBodyError(SLOW) from error

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def arrived(self) -> None:
        """More of a stream's request, or its end, is here."""
        if self._more is not None:
            self._more.set()


class Host(Protocol):
    """What a connection needs of its server. `connections` holds those that are open."""

    connections: set[Any]
    limit: int  # bytes of a message

    def enter(self, rpc: Rpc) -> Handler:
        """Raises ServiceError for a call that is refused by its head."""

    def messages(self, head: Head) -> Messages:
        """Room for the messages of a call."""

    def is_stream(self, path: str) -> bool:
        """Whether calls of `path` may have several messages."""

    def refused(self, rpc: Rpc, error: ServiceError) -> None:
        """Notes a call that is refused before its handler runs."""

    def patience_s(self) -> float:
        """For how long the message of a call may be on its way."""
