"""The ends that callers reach by HTTP: one for all, one for administrators."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from service.api.http_limits import BoundedHttp
from service.listening import address_of, several
from service.security.tls import ServerTls


class _Server(uvicorn.Server):
    """uvicorn with the signals left to whoever runs it: it would end the process by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """An app on a socket. The one whose app has a lifespan runs it."""

    def __init__(
        self, app: FastAPI, listener: socket.socket, tls: ServerTls | None, *, lifespan: bool
    ) -> None:
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://{address_of(listener)}"
        self._server = _Server(uvicorn_config(app, tls, lifespan=lifespan))
        self.serving = asyncio.create_task(self._server.serve(sockets=several(listener)))

    async def started(self) -> None:
        while not self._server.started and not self.serving.done():
            await asyncio.sleep(0.01)

    async def stop(self, seconds: float) -> None:
        """Closes the socket, and what is not answered in `seconds`."""
        self._server.config.timeout_graceful_shutdown = max(math.ceil(seconds), 1)
        self._server.should_exit = True
        await self.serving

    def give_up(self, _: object = None) -> None:
        """Ends a `stop` that waits; its app's lifespan is not ended then."""
        self._server.force_exit = True


def uvicorn_config(app: FastAPI, tls: ServerTls | None = None, *, lifespan: bool = True) -> uvicorn.Config:
    context = None if tls is None else tls.context
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        lifespan="on" if lifespan else "off",
        log_config=None,  # its lines go the way of all others
        access_log=False,  # the gate writes one
        server_header=False,
        proxy_headers=False,
        ssl_context_factory=None if context is None else lambda *_: context,
    )
