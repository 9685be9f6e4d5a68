"""One of several processes that serve together (`service.workers`), and how they call each other.

A call is a line of JSON each way, over a socket in a folder of their own.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service import errors
from service.errors import ServiceError

log = logging.getLogger(__name__)

Message = dict[str, Any]
_LONGEST = 1 << 20


@dataclass(frozen=True)
class Worker:
    """Which of them this process is.

    Attributes:
        index: the first one, 0, owns the state and has the admin API.
        folder: what they share, gone with the last.
    """

    index: int
    folder: Path

    @property
    def owns_state(self) -> bool:
        return self.index == 0

    @property
    def owner(self) -> Path:
        """Where the owner makes what others need."""
        return self.folder / "owner"

    @property
    def own(self) -> Path:
        """Where this one is told of changes."""
        return self.folder / f"worker-{self.index}"

    @property
    def unloaded(self) -> Path:
        """Names of the entries that the owner was asked to unload, as a list in JSON."""
        return self.folder / "unloaded.json"

    def others(self) -> list[Path]:
        """Return the sockets of the workers that do not own the state, which are notified of changes."""
        return list(self.folder.glob("worker-*"))

    @property
    def rates(self) -> Path:
        """Where calls are counted against the rates of their keys."""
        return self.folder / "rates"


async def answer_at(path: Path, answer: Callable[[Message], Awaitable[Message]]) -> asyncio.Server:
    """Answer the calls that come to a socket; an error for the caller goes back, to be raised there."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                answered = await answer(json.loads(await reader.readline()))
            except ServiceError as error:
                answered = {"error": type(error).__name__, "text": str(error)}
            writer.write(json.dumps(answered).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError) as error:
            log.warning("a call between workers broke off: %s", error)
        finally:
            writer.close()

    path.unlink(missing_ok=True)  # of a worker before this one
    return await asyncio.start_unix_server(take, path, limit=_LONGEST)


async def call(path: Path, message: Message) -> Message:
    """Return the answer.

    Raises ConnectionError where nobody answers there, ServiceError as it was raised there.
    """
    reader, writer = await asyncio.open_unix_connection(path, limit=_LONGEST)
    try:
        writer.write(json.dumps(message).encode() + b"\n")
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise ConnectionResetError(f"{path.name} ended before it answered")
    answered: Message = json.loads(line)
    if "error" in answered:
        raise getattr(errors, answered["error"])(answered["text"])
    return answered
