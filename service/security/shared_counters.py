"""The counters of rate limits that several workers share: they lie in the process that watches over them."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from limits.aio.storage import MemoryStorage, Storage

from service.process.worker import Message, answer_at, call


class SharedCounters(Storage):
    """A storage of `limits` at the other end of a socket: `unix:///FOLDER/rates`."""

    STORAGE_SCHEME = ["async+unix"]  # noqa: RUF012  # as `limits` declares it

    def __init__(self, uri: str, wrap_exceptions: bool = False, **_: Any) -> None:
        super().__init__(uri, wrap_exceptions)
        self._path = Path(urlsplit(uri).path)

    @property
    def base_exceptions(self) -> type[Exception]:
        return OSError

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return int(await self._call("incr", key, expiry, amount))

    async def get(self, key: str) -> int:
        return int(await self._call("get", key))

    async def get_expiry(self, key: str) -> float:
        return float(await self._call("get_expiry", key))

    async def check(self) -> bool:
        return bool(await self._call("check"))

    async def reset(self) -> int | None:
        return int(await self._call("reset"))

    async def clear(self, key: str) -> None:
        await self._call("clear", key)

    async def _call(self, method: str, *arguments: str | int) -> Any:
        return (await call(self._path, {"method": method, "arguments": arguments}))["value"]


async def serve_counters(path: Path) -> asyncio.Server:
    """Serve the counters at `path`, for as long as the server that is given runs."""
    counters = MemoryStorage()

    async def answer(message: Message) -> Message:
        return {"value": await getattr(counters, message["method"])(*message["arguments"])}

    return await answer_at(path, answer)
