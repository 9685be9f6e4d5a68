"""A connection to uvicorn's protocol without a network: bytes in, and what is written, call by call."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from service.api.http_limits import BoundedHttp


class Written(asyncio.Transport):
    """What the protocol writes, a call in each item."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.sent.append(bytes(data))

    def writelines(self, data: Any) -> None:
        self.write(b"".join(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Connections:
    """Connections to one app."""

    def __init__(self, app: Any) -> None:
        self._config = uvicorn.Config(app, lifespan="off", log_config=None, proxy_headers=False)
        self._config.load()
        self.state = ServerState()

    def open(self) -> tuple[BoundedHttp, Written]:
        transport = Written()
        protocol = BoundedHttp(self._config, self.state, {}, asyncio.get_running_loop())
        protocol.connection_made(transport)
        return protocol, transport

    async def settled(self) -> None:
        """Returns when no request is under way."""
        while self.state.tasks:
            await asyncio.sleep(0)


def request(method: str = "GET", **headers: str) -> bytes:
    lines = [f"{method} / HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()
