"""Runs the gateway in this process until a signal: listen, load, announce, drain."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc.aio
import uvicorn
from fastapi import FastAPI

from compiler.errors import RationaleError
from service import logs
from service.app import create_app, create_backend
from service.configuration import unknown_variables
from service.grpc_server import create_server
from service.http_protocol import BoundedHttp
from service.metrics import Metrics
from service.settings import Settings

log = logging.getLogger(__name__)

Announce = Callable[[str], None]
_BACKLOG = 2048


class CannotListenError(RationaleError):
    """The address is taken, not this machine's, or not allowed."""


@dataclass(frozen=True)
class _GrpcEnd:
    server: grpc.aio.Server
    address: str


class _Server(uvicorn.Server):
    """uvicorn with the signals left to `_serve`: it would end the process by the signal, not by status 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(settings: Settings, announce: Announce) -> None:
    """Serves until SIGTERM or Ctrl-C; returns when the running requests are answered.

    Raises:
        RationaleError: the repository is broken, a model cannot be loaded, Triton does not answer,
            or an address cannot be listened on.
    """
    logs.configure(settings.log_level, settings.log_format)
    for sentence in unknown_variables():
        log.warning(sentence)
    metrics = Metrics()
    app = create_app(settings, create_backend(settings, metrics), metrics)
    listener = listen(settings.host, settings.port)
    with listener, asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(app, settings, listener, announce))


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one (not on Windows): it takes half the time of asyncio's own per request."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A listening socket, IPv4 or IPv6. Raises CannotListenError, which names the flag to change."""
    with contextlib.ExitStack() as on_failure:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = on_failure.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise CannotListenError(_hint(error, host, port, flag)) from error
        on_failure.pop_all()
    return listener


def _hint(error: OSError, host: str, port: int, flag: str) -> str:
    return {
        errno.EADDRINUSE: f"port {port} is taken: choose another with {flag}, or {flag} 0 for a free one",
        errno.EACCES: f"port {port} needs more rights: choose one above 1023 with {flag}",
    }.get(error.errno or 0, f"cannot listen on {host}: {error.strerror}")


async def _serve(app: FastAPI, settings: Settings, listener: socket.socket, announce: Announce) -> None:
    grpc_end = await _start_grpc(app, settings)
    server = _Server(_uvicorn_config(app, settings))
    stop = _on_signals()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        loading: asyncio.Task[None] = app.state.loading
        await _first_of(loading, stop, serving)
        if loading.done():
            loading.result()
            announce_ready(app, address_of(listener), grpc_end, announce)
            await _first_of(stop, serving)
    finally:
        app.state.plane.refuse_new_work()
        server.should_exit = True
        await _drain(serving, grpc_end, settings.drain_timeout_s)


async def _start_grpc(app: FastAPI, settings: Settings) -> _GrpcEnd | None:
    """Listens like the HTTP end: at once, and is not ready until the models are. Raises CannotListenError."""
    port = settings.grpc_end
    if port is None:
        return None
    with listen(settings.host, port, "--grpc-port") as probe:  # says what is wrong, where gRPC does not
        host = address_of(probe).rpartition(":")[0]
    server = create_server(app.state.plane, app.state.gate, settings.max_body_bytes)
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise CannotListenError(f"cannot listen on {host}:{port} for gRPC: {error}") from error
    await server.start()
    return _GrpcEnd(server, f"{host}:{bound}")


async def _drain(serving: asyncio.Task[None], grpc_end: _GrpcEnd | None, seconds: float) -> None:
    """Both ends at once; the HTTP end, which owns the data plane, waits there for requests of both."""
    closing = asyncio.create_task(grpc_end.server.stop(seconds)) if grpc_end else None
    try:
        await serving
    finally:
        if closing:
            await closing


def _uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        log_config=None,  # its lines go the way of all others
        access_log=False,  # the gate writes one
        timeout_graceful_shutdown=max(round(settings.drain_timeout_s), 1),
        server_header=False,
        proxy_headers=False,
    )


def _on_signals() -> asyncio.Future[None]:
    """Done when SIGTERM or Ctrl-C comes."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _settle, stop)
    return stop


def _settle(stop: asyncio.Future[None]) -> None:
    if not stop.done():  # a second signal changes nothing
        stop.set_result(None)


async def _first_of(*waited: asyncio.Future[None]) -> None:
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)


def announce_ready(app: FastAPI, address: str, grpc_end: _GrpcEnd | None, announce: Announce) -> None:
    """Prints the models and, as the last line, the HTTP address: scripts wait for it."""
    plane = app.state.plane
    for entry in plane.repository.entries.values():
        if entry.manifest is None:
            announce(f"model {entry.name}")
        else:
            announce(f"model {entry.name}: explains {entry.manifest.model} by {entry.manifest.method.name}")
    if grpc_end is not None:
        announce(f"gRPC on {grpc_end.address}")
    announce(f"{plane.backend.name}; API at http://{address}/docs; Ctrl-C stops")
    announce(f"ready on http://{address}")


def address_of(listener: socket.socket) -> str:
    """`host:port`, as it stands in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
